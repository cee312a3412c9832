"""Starts a capture inside a process that `ulpscope run` injected; see capture/inject/sitecustomize.py.

Nothing here may end or change the user's run: whatever goes wrong becomes a message that `ulpscope run` prints.
"""

import atexit
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Protocol, cast

from ulpscope.capture.events import EVENTS_VARIABLE, EventLog, event_file
from ulpscope.capture.exceptions import hide_our_frames
from ulpscope.capture.processes import LAUNCHER, rank_and_world_size, refuse_old_version, why_left_alone
from ulpscope.capture.settings import SETTINGS_VARIABLE, settings_from_json

ENDED = "ended"
"""How a process ended that no uncaught exception ended; its exit code is not known to itself."""


class Session(Protocol):
    """A running capture of one process."""

    def close(self, exit: str) -> None:
        """Write what is left; `exit` says how the script ended."""

    def abandon(self) -> None:
        """Stop observing without touching the trace: it belongs to the parent of this fork."""


def start_capture(framework: str) -> None:
    """Capture this process from now on, unless it only serves the run."""
    events = _own_log()
    try:
        _start(framework, events)
    except Exception as error:
        events.emit("failed", text=f"capture did not start: {_describe(error)}")


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
        session.close(_how_ended())
    except Exception as error:
        events.emit("message", text=f"the trace could not be closed: {_describe(error)}")


def _abandon(session: Session) -> None:
    events = _own_log()
    try:
        session.abandon()
        events.emit("left_alone", reason="a forked process")
    except Exception as error:
        events.emit("message", text=f"a forked process could not be left alone: {_describe(error)}")


def _how_ended() -> str:
    # The interpreter sets last_value before it runs exit handlers, so no hook of the user's has to be replaced.
    error = getattr(sys, "last_value", None)
    return ENDED if error is None else _describe(error)


def _describe(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _own_log() -> EventLog:
    return EventLog(event_file(Path(os.environ.get(EVENTS_VARIABLE, os.devnull)), os.getpid()))
