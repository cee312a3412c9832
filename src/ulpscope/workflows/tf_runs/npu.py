"""`ulpscope npu-dump` and `ulpscope npu-overflow`: a training script on an NPU, with dump or overflow detection on."""

from collections.abc import Sequence
from typing import Any

from ulpscope.records.enums import ExitCode
from ulpscope.records.tf_runs import RunKind, ScriptRun
from ulpscope.workflows.overflow import OverflowAnswer, overflow
from ulpscope.workflows.tf_runs.running import OURS, Folders, Streams, make_folders, run_script
from ulpscope.workflows.tf_runs.settings import DUMP_FLAG, OVERFLOW_FLAG, Settings

_GRAPHS = (("graph file", "DEFAULT_NPU_GRAPH_DIR"), ("profiling file", "PROFILING_DIR"))
DUMPED: Folders = (("dump file", "DEFAULT_NPU_DUMP_DIR"), *_GRAPHS)
OVERFLOWED: Folders = (("overflow file", "NPU_OVERFLOW_DUMP_DIR"), *_GRAPHS)


def run_on_npu(kind: RunKind, command: Sequence[str], settings: Settings, *, streams: Streams = OURS) -> ScriptRun:
    """Run a command whose script asks the environment what to switch on."""
    is_dump = kind is RunKind.NPU_DUMP
    folders = DUMPED if is_dump else OVERFLOWED
    make_folders(settings, folders[:2])
    # Of both flags the script would follow the one for overflow.
    flags = {DUMP_FLAG: str(is_dump), OVERFLOW_FLAG: str(not is_dump)}
    return run_script(kind, command, settings, folders=folders, variables=flags, streams=streams)


def find_overflows(run: ScriptRun) -> OverflowAnswer | None:
    """What the records of a run say; nothing if it left none."""
    return None if run.nothing_collected else overflow([run.collected[0].folder])


def code_of(run: ScriptRun, found: Any = None) -> int:
    """The script's own code if it failed; else what was found."""
    return run.exit_code or int(ExitCode.OK if found is None else found.code)
