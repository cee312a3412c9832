"""Opens a run, whichever tool wrote it down: the door for every command that takes a trace."""

import difflib
import shlex
from pathlib import Path

from ulpscope.dialects.registry import dialect_of, is_trace
from ulpscope.records.errors import TraceError
from ulpscope.trace.reader import Trace, open_trace

OTHER_TOOLS = "msprobe, the API accuracy checker, tfdbg or an Ascend NPU"


def open_run(path: str | Path) -> Trace:
    """Open a trace, or what another tool left: a dump of msprobe, tfdbg or an NPU, forward_info files, .npy files."""
    root = Path(path)
    own = is_trace(root)
    foreign = None if own else dialect_of(root)
    if foreign is not None:
        return foreign.open(root)
    try:
        return open_trace(root)
    except TraceError as error:
        if own:
            raise
        from ulpscope.dialects.recognising import wrong_kind

        known = wrong_kind(root, "a run: a trace, or a dump of another tool")
        if known is not None:
            raise TraceError(known.seen, expected=known.expected, next_step=known.next_step) from error
        raise TraceError(
            _unknown_file(root) if root.is_file() else error.seen,
            expected=f"{error.expected}, or a dump of {OTHER_TOOLS}" if root.exists() else "a path that is there",
            next_step=error.next_step if root.exists() else _near(root) or error.next_step,
        ) from error


def _near(path: Path) -> str | None:
    """What stands beside a path that is not there, if its name is nearly the same."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {shlex.quote(str(path.parent / near[0]))}?" if near else None


def _unknown_file(path: Path) -> str:
    return f"{path} is {'a file of no kind that is known here' if path.stat().st_size else 'an empty file'}"
