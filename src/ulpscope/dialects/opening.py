"""Opens a run, whichever tool wrote it down: the door for every command that takes a trace."""

import difflib
import shlex
from pathlib import Path

from ulpscope.records.errors import TraceError
from ulpscope.trace.reader import Trace, has_rank_file, open_trace

OTHER_TOOLS = "msprobe, the API accuracy checker, tfdbg or an Ascend NPU"


def open_run(path: str | Path) -> Trace:
    """Open a trace, or what another tool left: a dump of msprobe, tfdbg or an NPU, forward_info files, .npy files."""
    root = Path(path)
    foreign = None if _is_trace(root) else _open_foreign(root)
    if foreign is not None:
        return foreign
    try:
        return open_trace(root)
    except TraceError as error:
        if _is_trace(root):
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


def _open_foreign(root: Path) -> Trace | None:
    # Other tools' readers take 40 ms to import, which a look into a trace need not wait for.
    from ulpscope.dialects.api_checker.files import TRACE_FOLDER, is_api_checker, open_api_checker
    from ulpscope.dialects.ascend import opening as ascend
    from ulpscope.dialects.files.npy_folder import looks_like as is_npy_folder
    from ulpscope.dialects.files.npy_folder import open_npy_folder
    from ulpscope.dialects.msprobe.layout import is_dump, open_dump
    from ulpscope.dialects.tfdbg import opening as tfdbg

    if is_api_checker(root):
        # A capture that wrote these files left a trace beside them, which says more.
        return open_trace(beside) if _is_trace(beside := root / TRACE_FOLDER) else open_api_checker(root)
    if is_dump(root):
        return open_dump(root)
    if ascend.looks_like(root):
        return ascend.open_npu_dump(root)
    if tfdbg.looks_like(root):
        return tfdbg.open_tfdbg(root)
    return open_npy_folder(root) if is_npy_folder(root) else None


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


def _is_trace(root: Path) -> bool:
    if not root.is_dir():
        return False
    try:
        return has_rank_file(root) or any(map(has_rank_file, root.iterdir()))
    except OSError:
        return False
