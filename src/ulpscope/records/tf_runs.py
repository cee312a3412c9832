"""What a script left that ran with the switches of an NPU or with TensorFlow's debugger."""

from dataclasses import dataclass
from enum import Enum

from ulpscope.records.enums import ExitCode


class RunKind(str, Enum):
    """What was asked of a script's run; the word of the command."""

    NPU_DUMP = "npu-dump"
    NPU_OVERFLOW = "npu-overflow"
    TF_DUMP = "tf-dump"
    TRAIN = "train"


@dataclass(frozen=True, slots=True)
class Collected:
    """Files of one sort that are new since the script began."""

    what: str
    """`dump file`: one of them."""
    folder: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a device's log."""

    file: str
    text: str


@dataclass(frozen=True, slots=True)
class LogErrors:
    """ERROR lines that the device's log got while the script ran."""

    folders: tuple[str, ...]
    lines: tuple[LogLine, ...] = ()
    """The first of them."""
    total: int = 0


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """One run of a user's command."""

    kind: RunKind
    command: tuple[str, ...]
    script_exit: int
    interrupted: bool
    collected: tuple[Collected, ...]
    """First what the run was for; others only if there are some."""
    switched: tuple[str, ...]
    """What our names have switched on in the script."""
    log: LogErrors
    data: str
    """The folder that the shell opens."""

    @property
    def nothing_collected(self) -> bool:
        return not self.collected[0].files

    @property
    def looked_for_overflow(self) -> bool:
        """The device looked; without records, nothing overflowed."""
        return self.kind is RunKind.NPU_OVERFLOW and "overflow" in self.switched and not self.script_exit

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return int(ExitCode.INTERRUPTED)
        if self.script_exit:
            return self.script_exit
        missing = self.nothing_collected and not self.looked_for_overflow
        return int(ExitCode.NOTHING if missing else ExitCode.OK)
