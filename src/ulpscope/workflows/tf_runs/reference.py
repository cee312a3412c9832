"""`ulpscope tf-dump`: what TensorFlow's debugger dumps on a CPU or GPU becomes the reference, a .npy file a tensor.

A script whose session is wrapped in the debugger's interactive command line runs without its prompt: another session
takes its place in the child, as its module is imported (src/ulpscope/compat/tfdbg_dumping.py).
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from ulpscope.dialects.ascend.converting import FileKind, Wanted
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.tf_runs import RunKind, ScriptRun
from ulpscope.workflows.convert import ConvertResult, convert_dumps
from ulpscope.workflows.run.command import injecting_path
from ulpscope.workflows.tf_runs.running import OURS, Folders, Streams, run_script
from ulpscope.workflows.tf_runs.settings import Settings

AFTER_IMPORT_VARIABLE = "ULPSCOPE_AFTER_IMPORT"
_WRAPPERS = "tensorflow.python.debug.wrappers"
_OURS = "ulpscope.compat.tfdbg_dumping"
_REPLACED = (
    f"{_WRAPPERS}.local_cli_wrapper={_OURS}:replace_session",
    f"{_WRAPPERS}.hooks={_OURS}:replace_hook",
)
DEBUGGED: Folders = (("file", "TF_DEBUG_DUMP_DIR"),)


def dump_reference(command: Sequence[str], settings: Settings, *, streams: Streams = OURS) -> ScriptRun:
    """Run a command whose sessions dump; refused where an earlier dump would be mixed with it."""
    refuse_mixed(settings)
    variables = {"PYTHONPATH": injecting_path(os.environ), AFTER_IMPORT_VARIABLE: " ".join(_REPLACED)}
    return run_script(RunKind.TF_DUMP, command, settings, folders=DEBUGGED, variables=variables, streams=streams)


def refuse_mixed(settings: Settings) -> None:
    """Say so where what an earlier run dumped, or arrays of it, would be mixed with a new dump."""
    debugged = settings.folder("TF_DEBUG_DUMP_DIR")
    if _holds_something(debugged):
        raise UlpscopeError(
            f"{debugged} already holds a dump of an earlier run",
            expected="an empty folder, so that two runs are not mixed",
            next_step=f"ulpscope tf-dump converts what is there; for a new dump, move it: "
            f"mv {shlex.quote(str(debugged))} {shlex.quote(f'{debugged}-earlier')}",
        )
    refuse_occupied(settings)


def convert_reference(settings: Settings) -> ConvertResult:
    """Write what was dumped as .npy files, named as reference data is."""
    debugged, out = settings.folder("TF_DEBUG_DUMP_DIR"), settings.folder("TF_DUMP_DIR")
    if not _holds_something(debugged):
        raise UlpscopeError(
            f"{debugged} {'is empty' if debugged.is_dir() else 'does not exist'}",
            expected="what a session wrote that is wrapped in sess_dump, estimator_dump or tfdbg's command line",
            next_step="ulpscope tf-dump -- CMD runs a script and converts what it dumps (docs/tf-dump.md)",
            code=ExitCode.NOTHING,
        )
    refuse_occupied(settings)
    return convert_dumps([debugged], Wanted(FileKind.NPY), out=out)


def refuse_occupied(settings: Settings) -> None:
    """Say so if arrays of an earlier dump are there."""
    out = settings.folder("TF_DUMP_DIR")
    if _holds_something(out):
        raise UlpscopeError(
            f"{out} is not empty",
            expected="a folder for the arrays of one dump",
            next_step=f"move it: mv {shlex.quote(str(out))} {shlex.quote(f'{out}-earlier')}; or name another: "
            "PRECISION_TOOL_TF_DUMP_DIR=DIR",
        )


def _holds_something(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
