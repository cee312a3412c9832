"""The shell's loop: a prompt with history and completion on a terminal, or the lines of a pipe."""

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from ulpscope._version import __version__
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.words.language import count_text
from ulpscope.shell.commands import ShellCompleter, all_commands, carry_out
from ulpscope.shell.data import Context, ShellData
from ulpscope.shell.words import Command, complain, say, warn
from ulpscope.workflows.worker_pool import interruptible

PROMPT = "ulpscope> "


def run_shell(data: ShellData, *, debug: bool = False) -> ExitCode:
    """Carry out lines until there are no more; of a pipe, the code of the last one is given back."""
    # Names may be in any script; a terminal that cannot write them must still get the rest.
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with suppress(AttributeError):
        sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    context, commands = Context(data), all_commands()
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    lines = _typed(context, commands) if terminal else (line.rstrip("\n") for line in sys.stdin)
    last = ExitCode.OK
    for line in lines:
        code = _safely(line, context, commands, debug=debug)
        if code is None:
            break
        last = code
    return ExitCode.OK if terminal else last


def _safely(line: str, context: Context, commands: Mapping[str, Command], *, debug: bool) -> ExitCode | None:
    """Whatever goes wrong with a line, the next one can be typed."""
    try:
        with interruptible():
            code = carry_out(line, context, commands)
        sys.stdout.flush()
        return code
    except UlpscopeError as error:
        complain(error)
        return error.code
    except KeyboardInterrupt:
        # Who interrupts the lines of a pipe wants none of the rest.
        if not sys.stdin.isatty():
            raise
        warn("interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        warn(f"internal error: {type(error).__name__}: {error}; ulpscope shell --debug tells more")
        return ExitCode.OWN_FAULT


def _typed(context: Context, commands: Mapping[str, Command]) -> Iterator[str]:
    """What the user types: Ctrl-C drops a line that was begun, and leaves if none was; so does the end of input."""
    say(_greeting(context.data))
    session: PromptSession[str] = PromptSession(
        PROMPT,
        history=_history(),
        completer=ShellCompleter(context, commands),
        complete_while_typing=False,
        complete_in_thread=True,
        enable_suspend=True,
    )
    while True:
        try:
            yield session.prompt()
        except KeyboardInterrupt:
            if not session.default_buffer.text:
                return
        except EOFError:
            return


def history_file() -> Path:
    """Where lines are kept from one session to the next."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "ulpscope" / "shell_history"


def _history() -> History:
    path = history_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab"):
            return FileHistory(path)
    except OSError:
        return InMemoryHistory()


def _greeting(data: ShellData) -> str:
    return f"ulpscope {__version__}: {_told(data)}\nhelp tells the commands, exit leaves."


def _told(data: ShellData) -> str:
    if data.trace is not None:
        return f"the run {data.trace}"
    graphs = [f"{count_text(len(debug.graphs), 'graph')} of {debug.name}" for debug in data.debugs if debug.graphs]
    dumps = [f"dumps of {debug.name}" for debug in data.debugs if debug.dumps is not None]
    others = {"reference": data.reference, "overflow records": data.overflow, "fusion result": data.fusion or None}
    found = [*graphs, *dumps, *(name for name, place in others.items() if place is not None)]
    if not found:
        return f"no data in {data.root}; pt, cp, dc, vc and vcs take paths"
    return f"{data.root}: {', '.join(found)}"
