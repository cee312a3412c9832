"""Runs a user's command with variables set, and finds what it left: the common part of npu-dump, npu-overflow, tf-dump.

stdout is the script's; what we say of it goes to stderr.
"""

import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ulpscope.records.errors import UlpscopeError
from ulpscope.records.tf_runs import Collected, RunKind, ScriptRun
from ulpscope.workflows.run.command import Child, executable_of
from ulpscope.workflows.tf_runs.device_log import LogWatch, log_folders
from ulpscope.workflows.tf_runs.settings import SWITCHED_VARIABLE, Settings, graph_variables


@dataclass(frozen=True, slots=True)
class Streams:
    """Descriptors that the command gets in the place of ours."""

    stdin: int | None = None
    stdout: int | None = None


OURS = Streams()
Folders = Sequence[tuple[str, str]]
"""What lies in which folder: a word for one of its files, and the key of the settings."""


def run_script(
    kind: RunKind,
    command: Sequence[str],
    settings: Settings,
    *,
    folders: Folders,
    variables: Mapping[str, str],
    streams: Streams,
) -> ScriptRun:
    """Run a command to its end."""
    words = command_words(command)
    executable_of(words, prefix=f"ulpscope {kind.value} --")
    watches = [_FolderWatch(what, settings.folder(key)) for what, key in folders]
    log = LogWatch(log_folders(os.environ, settings.texts["ASCEND_LOG_PATH"]))
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as own:
        switched = Path(own) / "switched"
        # What the user has set stays as it is.
        environment = {**graph_variables(settings), **os.environ, **variables, SWITCHED_VARIABLE: str(switched)}
        child = Child(on_tick=lambda: None, on_stop=lambda: None)
        code = child.run(
            words,
            environment=environment,
            stdin=streams.stdin,
            stdout=streams.stdout,
        )
        told = switched.read_text(encoding="utf-8").split() if switched.is_file() else []
    found = [watch.collected() for watch in watches]
    return ScriptRun(
        kind=kind,
        command=tuple(words),
        script_exit=code,
        interrupted=child.interrupted,
        collected=(found[0], *(each for each in found[1:] if each.files)),
        switched=tuple(sorted(set(told))),
        log=log.errors(),
        data=settings.path("DATA_ROOT_DIR"),
    )


def command_words(command: Sequence[str]) -> list[str]:
    """The words of a command; a whole line in one word, as precision_tool took it, is for a shell."""
    words = list(command)
    if len(words) == 1 and " " in words[0].strip() and shutil.which(words[0]) is None:
        return ["sh", "-c", words[0]]
    return words


def make_folders(settings: Settings, folders: Folders) -> None:
    """Before the script runs: a device does not make them."""
    for _, key in folders:
        folder = settings.folder(key)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UlpscopeError(
                f"{folder} cannot be made: {error.strerror}",
                expected="a folder that may be written, for what the run collects",
                next_step=f"change to another directory, or name one: PRECISION_TOOL_{key}={shlex.quote('/tmp/data')}",
            ) from error


class _FolderWatch:
    """Which files of a folder are new or were written since."""

    def __init__(self, what: str, folder: Path) -> None:
        self._what, self._folder = what, folder
        self._before = _files(folder)

    def collected(self) -> Collected:
        fresh = [state for path, state in _files(self._folder).items() if self._before.get(path) != state]
        return Collected(self._what, str(self._folder), len(fresh), sum(size for _, size in fresh))


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Each with its time and size."""
    found = {}
    for directory, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                state = os.stat(path)
                found[path] = (state.st_mtime_ns, state.st_size)
    return found
