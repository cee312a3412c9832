"""What the name of a dump file tells.

Relu.fc1_Relu.21.1767225600021123                       type, operator, task, time in microseconds
Relu.fc1_Relu.21.0.1767225600021123                     with a stream after the task
Relu.fc1_Relu.21.0.1767225600021123.4.7.1.0             and, of an FFTS+ task, its type, context, thread and device

A name of 255 and more characters is replaced by digits; mapping.csv beside the file has the real one (tree.py).
"""

import re
from dataclasses import dataclass
from enum import Enum


class TaskType(int, Enum):
    """Which unit a task ran on."""

    AICORE = 0
    AICPU = 1
    DEBUG = 2
    HCCL = 3
    FFTSPLUS = 4


@dataclass(frozen=True, slots=True)
class DumpName:
    """A dump file's name, taken apart."""

    op_type: str
    op_name: str
    """As in the name: '/', '.', '\\' and blanks are '_'."""
    task: int
    stream: int | None
    timestamp: int
    """Microseconds."""
    task_type: TaskType | None = None
    context: int | None = None
    thread: int | None = None
    device: int | None = None

    @property
    def is_overflow_record(self) -> bool:
        """Whether the file is an overflow record, not the dump of an operator."""
        return self.op_type.lower() == "opdebug"

    @property
    def operator(self) -> str:
        """The name without what stands for a part of the operator or of the graph."""
        return without_parts(self.op_name)

    @property
    def slice(self) -> int | None:
        """Which part of the operator this is, if it was cut by hand; threads cut it otherwise."""
        found = _SLICE.search(self.op_name)
        return None if found is None else int(found[1])


# A part of a name may be long, but no number of these files has more than 20 digits (64 bits). The vendor's documents
# put the stream of an FFTS+ name before the task; what writes the files (OpDumpTask::DumpPath of CANN) puts it after.
_NAME = re.compile(
    r"(?P<op_type>[^./\\\s]+)\.(?P<op_name>[^./\\\s]+)\.(?P<task>\d{1,20})(?:\.(?P<stream>\d{1,20}))?"
    r"\.(?P<timestamp>\d{13,20})"
    r"(?:\.(?P<task_type>[0-4])\.(?P<context>\d{1,20})\.(?P<thread>\d{1,20})\.(?P<device>\d{1,20}))?",
    re.ASCII,
)
_SLICE = re.compile(r"_lxslice(\d{1,9})\Z", re.ASCII)
_SUBGRAPH = re.compile(r"\A.*sgt_graph_\d+[_/]", re.ASCII)


def parse_name(name: str) -> DumpName | None:
    """A file's name, taken apart; none if it is not the name of a dump file."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    numbers = {key: _number(found[key]) for key in ("stream", "context", "thread", "device")}
    return DumpName(
        op_type=found["op_type"],
        op_name=found["op_name"],
        task=int(found["task"]),
        timestamp=int(found["timestamp"]),
        task_type=None if found["task_type"] is None else TaskType(int(found["task_type"])),
        **numbers,
    )


def without_parts(name: str) -> str:
    """An operator's name without what ends in `sgt_graph_N_` before it, and without `_lxsliceN` after it."""
    return _SLICE.sub("", _SUBGRAPH.sub("", name))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
