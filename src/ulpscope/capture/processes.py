"""Which process of a run this is: its rank, or one that only serves the run; starts a capture inside of it.

Nothing here may end or change the user's run: whatever goes wrong becomes a message that `ulpscope run` prints.
"""

import atexit
import importlib
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Protocol, cast

from ulpscope.capture.events import EVENTS_VARIABLE, EventLog, event_file
from ulpscope.capture.exceptions import hide_our_frames
from ulpscope.capture.settings import SETTINGS_VARIABLE, settings_from_json
from ulpscope.records.errors import UlpscopeError

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)

_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")

LAUNCHER = "a launcher of ranks"
_COMPILER = "a compile worker"

_SERVANTS = {
    "torchrun": LAUNCHER,
    "torch.distributed.run": LAUNCHER,
    "torch.distributed.launch": LAUNCHER,
    "torch.distributed.elastic": LAUNCHER,
    "accelerate": LAUNCHER,
    "accelerate-launch": LAUNCHER,
    "accelerate.commands": LAUNCHER,
    "deepspeed": LAUNCHER,
    "deepspeed.launcher": LAUNCHER,
    "torch._inductor.compile_worker": _COMPILER,
    "triton.runtime": _COMPILER,
    "pip": "pip",
}

_SERVANT_SCRIPTS = {
    "torch/distributed/run.py": LAUNCHER,
    "torch/distributed/launch.py": LAUNCHER,
    "deepspeed/launcher/runner.py": LAUNCHER,
    "deepspeed/launcher/launch.py": LAUNCHER,
    "torch/_inductor/compile_worker/__main__.py": _COMPILER,
    "pip/__main__.py": "pip",
}


def rank_and_world_size(environ: Mapping[str, str]) -> tuple[int, int]:
    """As the launcher's environment states it; rank 0 of 1 without a launcher."""
    for rank, size in _RANK_VARIABLES:
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            return int(environ[rank]), int(environ[size])
    return 0, 1


def why_left_alone(command_line: Sequence[str]) -> str | None:
    """What this process is, if it is not one that computes; `command_line` is sys.orig_argv."""
    option, program = _program(command_line)
    if option == "-c":
        return "multiprocessing's fork server" if "multiprocessing.forkserver" in program else None
    if option == "-m":
        found = (reason for name, reason in _SERVANTS.items() if f"{program}.".startswith(f"{name}."))
        return next(found, None)
    script = PurePath(program)
    for ending, reason in _SERVANT_SCRIPTS.items():
        if script.as_posix().endswith(ending):
            return reason
    return _SERVANTS.get(script.name)


def starts_ranks(command: Sequence[str]) -> bool:
    """Whether a command is a launcher's: it may start some of a job's ranks while another one starts the rest."""
    return LAUNCHER in (why_left_alone(command), why_left_alone(["python", *command]))


def _program(command_line: Sequence[str]) -> tuple[str, str]:
    """(`-c`, code), (`-m`, module) or (``, script) of a Python command line."""
    words = iter(command_line[1:])
    for word in words:
        if word in _OPTIONS_WITH_VALUE:
            next(words, None)
        elif word.startswith("--") or word == "-":
            continue
        elif word.startswith("-"):
            for position, letter in enumerate(word[1:], start=2):
                if letter in "cm":
                    return f"-{letter}", word[position:] or next(words, "")
                if letter in "WX":
                    break
        else:
            return "", word
    return "", ""


OLDEST = {"torch": (2, 6), "tensorflow": (2, 16)}
"""The first torch whose function mode, accumulation hooks and autograd nodes tell what a capture needs; the first
TensorFlow that comes with Keras 3."""


_INSTEAD = {
    "torch": "dump this run with the tool you have: dumps of msprobe and ptdbg_ascend, and forward_info files of the "
    "API accuracy checker, are read as they are, on any machine: ulpscope compare DUMP DUMP, ulpscope check DUMP",
    "tensorflow": "have its sessions dumped: ulpscope tf-dump -- CMD; dumps of tfdbg are read as they are, on any "
    "machine: ulpscope compare DUMP DUMP",
}
"""What serves those who cannot upgrade."""


def refuse_old_version(framework: str) -> None:
    """Say in one message what can be done with a framework that is imported and too old to be captured.

    To be asked before our own modules are imported that need a newer one. A version of another form may pass.
    """
    version = str(getattr(sys.modules.get(framework), "__version__", ""))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    oldest = OLDEST.get(framework, (0, 0))
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= oldest:
        return
    wanted = ".".join(map(str, oldest))
    raise UlpscopeError(
        f"{framework} {version} is too old to be captured",
        expected=f"{framework} {wanted} or later",
        next_step=f"upgrade {framework} to {wanted}, or {_INSTEAD[framework]}",
    )


ENDED = "ended"
"""How a process ended that no uncaught exception ended; its exit code is not known to itself."""


class Session(Protocol):
    """A running capture of one process."""

    def close(self, exit: str) -> None:
        """Write what is left; `exit` says how the script ended."""

    def abandon(self) -> None:
        """Stop observing without touching the trace: it belongs to the parent of this fork."""

    @property
    def has_seen_calls(self) -> bool:
        """Whether the framework has computed anything."""


_STARTED: list[tuple[str, Session]] = []
"""The capture of this process, and of which framework it is."""


def start_capture(framework: str) -> None:
    """Capture this process from now on, unless it only serves the run.

    A script that imports two frameworks is captured where it computes: the first is let go if it has not.
    """
    events = _own_log()
    try:
        if _STARTED and not _give_way(framework, events):
            return
        _start(framework, events)
    except Exception as error:
        events.emit("failed", text=f"capture did not start: {_describe(error)}")


def _give_way(framework: str, events: EventLog) -> bool:
    """Whether the capture that runs has ended because of another framework."""
    earlier, session = _STARTED[0]
    if session.has_seen_calls:
        events.emit("message", text=f"{framework} was imported, too: {earlier} is captured, which had computed before")
        return False
    session.abandon()
    atexit.unregister(_close)
    _STARTED.clear()
    return True


def _start(framework: str, events: EventLog) -> None:
    reason = why_left_alone(sys.orig_argv)
    if reason is not None:
        events.emit("left_alone", reason=reason)
        if reason != LAUNCHER:
            # Its children serve the run as well, and their command lines do not show it.
            del os.environ[SETTINGS_VARIABLE]
        return
    settings = settings_from_json(os.environ[SETTINGS_VARIABLE])
    rank, world_size = rank_and_world_size(os.environ)
    events.emit("started", interpreter=sys.executable, rank=rank, world_size=world_size)
    refuse_old_version(framework)
    room = importlib.import_module(f"ulpscope.capture.{framework}.session")
    session = cast(Session, room.start_session(settings, events=events))
    _STARTED.append((framework, session))
    hide_our_frames()
    atexit.register(_close, session, events, owner=os.getpid())
    os.register_at_fork(after_in_child=lambda: _abandon(session))


def _close(session: Session, events: EventLog, *, owner: int) -> None:
    # A forked child that ends by sys.exit runs the handlers it inherited.
    if os.getpid() != owner:
        return
    # The script has ended: a second Ctrl-C must not cost the trace its last step.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # The interpreter sets last_value before it runs exit handlers, so no hook of the user's has to be replaced.
        error = getattr(sys, "last_value", None)
        session.close(ENDED if error is None else _describe(error))
    except Exception as error:
        events.emit("message", text=f"the trace could not be closed: {_describe(error)}")


def _abandon(session: Session) -> None:
    events = _own_log()
    try:
        session.abandon()
        events.emit("left_alone", reason="a forked process")
    except Exception as error:
        events.emit("message", text=f"a forked process could not be left alone: {_describe(error)}")


def _describe(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _own_log() -> EventLog:
    return EventLog(event_file(Path(os.environ.get(EVENTS_VARIABLE, os.devnull)), os.getpid()))
