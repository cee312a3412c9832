"""The error of a dump file that is not what it says it is."""

from pathlib import Path

from ulpscope.records.errors import TraceError


def bad_dump(path: Path, problem: str, *, next_step: str = "") -> TraceError:
    """A file that cannot be read as a dump."""
    return TraceError(
        f"{path}: {problem}",
        expected="a dump file as an Ascend NPU wrote it, whole",
        next_step=next_step or "copy the file again from the machine that wrote it, or dump again",
    )
