"""All words of the shell, and how a line of them is carried out; a line of none of them is for the user's own shell."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping

from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.shell.check_commands import ac_command, overflow_command
from ulpscope.shell.compare_commands import cad_command, vc_command, vcs_command
from ulpscope.shell.data import Context
from ulpscope.shell.graph_commands import ls_command, ni_command, pk_command
from ulpscope.shell.panels import framed_table
from ulpscope.shell.telling import say, show, warn
from ulpscope.shell.tensor_commands import cn_command, cp_command, dc_command, pt_command
from ulpscope.shell.words import Command

RUN, HELP, EXIT = "run", "help", "exit"
OWN_WORDS = {
    RUN: "run CMD: in your own shell; so does every line that begins with none of these words",
    HELP: "help [COMMAND]: this, or all about a command",
    EXIT: "leave; so do Ctrl-D, and Ctrl-C at an empty prompt",
}


def all_commands() -> dict[str, Command]:
    """Commands by name, in the order in which they are told."""
    made = (
        ac_command(),
        ls_command(),
        ni_command(),
        pt_command(),
        cp_command(),
        dc_command(),
        vc_command(),
        vcs_command(),
        overflow_command(),
        cad_command(),
        cn_command(),
        pk_command(),
    )
    return {command.name: command for command in made}


def carry_out(line: str, context: Context, commands: Mapping[str, Command]) -> ExitCode | None:
    """Do what a line says; none if it says to leave. UlpscopeError if that cannot be done."""
    first, rest = [*line.split(maxsplit=1), "", ""][:2]
    if first == EXIT:
        return None
    if not first:
        return ExitCode.OK
    if first == HELP:
        return _help(rest.strip(), commands)
    if first == RUN:
        return run_foreign(rest) if rest else _help(RUN, commands)
    command = commands.get(first)
    if command is None:
        return run_foreign(line)
    values = command.parse(_split(rest))
    if values is None:
        return _help(first, commands)
    context.refresh()
    return command.run(context, values)


def _split(text: str) -> list[str]:
    try:
        return [os.path.expanduser(word) for word in shlex.split(text)]
    except ValueError as error:
        raise UlpscopeError(
            f"{text!r} cannot be split into words ({error})",
            expected="quotation marks in pairs",
            next_step="close the quotation, or put a backslash before the mark",
        ) from error


def _help(name: str, commands: Mapping[str, Command]) -> ExitCode:
    if name in commands:
        say(commands[name].words.format_help())
        return ExitCode.OK
    if name in OWN_WORDS:
        say(OWN_WORDS[name])
        return ExitCode.OK
    if name:
        raise UlpscopeError(
            f"{name!r} is no command",
            expected=f"one of {', '.join((*commands, *OWN_WORDS))}",
            next_step="help tells them all",
        )
    rows = [(each, " ".join((command.words.description or "").split())) for each, command in commands.items()]
    show(framed_table("", ("Command", "What it does"), [*rows, *OWN_WORDS.items()]))
    say("help COMMAND tells its options; the Tab key completes commands, options, names and files.")
    return ExitCode.OK


SIGNALLED = 128
NOT_FOUND = 127


def run_foreign(line: str) -> ExitCode:
    """Run a line in the user's shell, in the foreground: Ctrl-C goes to it, not to us.

    The lines of a pipe are ours, not the command's.
    """
    shell = os.environ.get("SHELL") or "/bin/sh"
    sys.stdout.flush()
    # A handler is not inherited, as SIG_IGN would be: the command itself is stopped by Ctrl-C.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = subprocess.call([shell, "-c", line], stdin=None if sys.stdin.isatty() else subprocess.DEVNULL)
    except (OSError, ValueError) as error:
        warn(f"{shell} cannot run this: {error}")
        return ExitCode.USAGE
    finally:
        signal.signal(signal.SIGINT, before)
    if code in (-signal.SIGINT, SIGNALLED + signal.SIGINT):
        print(file=sys.stderr)
        return ExitCode.INTERRUPTED
    if code:
        warn(f"exit status {code}" + ("; help tells the words of this shell" if code == NOT_FOUND else ""))
    return ExitCode.DIFFERENCE if code else ExitCode.OK
