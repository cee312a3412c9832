"""All words of the shell, and how a line of them is carried out; a line of none of them is for the user's own shell.

What the Tab key offers: commands, options, names of operators and tensors, files.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from ulpscope.graph.query import all_operators
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import Operator
from ulpscope.shell import compare_commands, operator_commands, run_commands
from ulpscope.shell.data import Context
from ulpscope.shell.panels import framed_table
from ulpscope.shell.words import COMMANDS, Command, say, show, warn
from ulpscope.workflows.tensor_lookup import SEPARATOR

RUN, HELP, EXIT = "run", "help", "exit"
OWN_WORDS = {
    RUN: "run CMD: in your own shell; so does every line that begins with none of these words",
    HELP: "help [COMMAND]: this, or all about a command",
    EXIT: "leave; so do Ctrl-D, and Ctrl-C at an empty prompt",
}


DECLARED_IN = (compare_commands, operator_commands, run_commands)
"""Modules that declare commands as they are loaded."""
TOLD = (
    *("ac", "ls", "ni", "pt", "cp", "dc", "vc", "vcs", "overflow", "cad", "cn", "pk"),
    *("npu_dump", "npu_overflow", "tf_dump", "train"),
)


def all_commands() -> dict[str, Command]:
    """Commands by name, in the order in which they are told."""
    return {name: COMMANDS[name] for name in sorted(COMMANDS, key=TOLD.index)}


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
        say(commands[name].format_help())
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
    rows = [(each, " ".join((command.description or "").split())) for each, command in commands.items()]
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


OFFERED = 500
"""More names are no help."""

Names = Callable[[Context], Iterable[str]]


def _operators(context: Context) -> Iterable[str]:
    if context.data.trace is not None:
        return context.called.names()
    return (operator.name for operator in _graph_operators(context))


def _graph_operators(context: Context) -> Iterator[Operator]:
    return (operator for model in context.models() for operator in all_operators(model))


def _tensors(context: Context) -> Iterable[str]:
    data = context.data
    dumped = context.dumped.names() if data.holds_arrays else []
    return dumped if data.trace is None else [*dumped, *context.called.names()]


_VALUES: Mapping[tuple[str, str], Names] = {
    ("ls", "-n"): _operators,
    ("ls", "-t"): lambda context: sorted({each.type for each in _graph_operators(context)}),
    ("ls", "-f"): lambda context: sorted({name for each in _graph_operators(context) for name in each.passes}),
    ("ls", "-k"): lambda context: (each.kernel for each in _graph_operators(context) if each.kernel),
    ("ni", "-g"): lambda context: (graph.name for model in context.models() for graph in model.graphs),
}
"""What an option's value may be."""

_PLAIN: Mapping[str, Names] = {
    "ni": _operators,
    "pt": _tensors,
    "cp": _tensors,
    "dc": lambda context: [*_operators(context), *context.dumped.file_names()],
}
"""What stands beside options."""

_RUNNING = ("run", "npu_dump", "npu_overflow", "tf_dump")
_PATHS = frozenset(
    {*_RUNNING, "pt", "cp", "dc", ("vcs", "-f"), ("pk", "-f"), ("dc", "-o"), ("dc", "-out"), ("cn", "-m"), ("cn", "-g")}
    | {("vc", option) for option in ("-lt", "-rt", "-g", "-m", "-out")}
    | {("cad", option) for option in ("-m", "-g", "-out")}
)
"""Where a file may be named."""


class ShellCompleter(Completer):
    """Completes the word before the cursor."""

    def __init__(self, context: Context, commands: Mapping[str, Command]) -> None:
        self._context = context
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        words, begun = _words(document.text_before_cursor)
        word = _unquoted(begun)
        for name in islice(self._offered(words, word, complete_event), OFFERED):
            yield Completion(_quoted(name), start_position=-len(begun), display=name)

    def _offered(self, words: list[str], word: str, event: CompleteEvent) -> Iterator[str]:
        if not words:
            yield from _fitting([*self._commands, *OWN_WORDS], word, anywhere=False)
        elif words == [HELP]:
            yield from _fitting([*self._commands], word, anywhere=False)
        else:
            yield from self._arguments(words, word, event)

    def _arguments(self, words: list[str], word: str, event: CompleteEvent) -> Iterator[str]:
        command = self._commands.get(words[0])
        options = {} if command is None else command.options
        if word.startswith("-"):
            yield from _fitting(options, word, anywhere=False)
            return
        # Before the cursor may stand an option that takes a value.
        place: Any = (words[0], words[-1]) if options.get(words[-1]) else words[0]
        names = _VALUES.get(place) if isinstance(place, tuple) else _PLAIN.get(place)
        if names is not None:
            yield from _fitting(self._known(names, word), word, anywhere=True)
        if place in _PATHS or command is None:
            yield from (word + each.text for each in self._paths.get_completions(Document(word), event))

    def _known(self, names: Names, word: str) -> list[str]:
        call, separator, _ = word.partition(SEPARATOR)
        try:
            if names is _tensors and separator and self._context.data.trace is not None:
                return [f"{call}{SEPARATOR}{place}" for place in self._context.called.places(call)]
            return list(dict.fromkeys(names(self._context)))
        except (UlpscopeError, OSError):
            # What is wrong with the data is told by the command that needs it.
            return []


def _fitting(names: Iterable[str], word: str, *, anywhere: bool) -> Iterator[str]:
    """Names that begin with the word; then, if it may stand anywhere, those that hold it."""
    several = list(names)
    yield from (name for name in several if name.startswith(word))
    if anywhere:
        yield from (name for name in several if word.lower() in name.lower() and not name.startswith(word))


_WORD = re.compile(r"""(?:[^\s'"\\]|\\.|\\\Z|'[^']*(?:'|\Z)|"(?:\\.|[^"\\])*(?:"|\\?\Z))+""", re.DOTALL)
"""With its quotation marks, of which the last may still be open."""


def _words(line: str) -> tuple[list[str], str]:
    """The words of a line that has been begun, and the last one as it was typed: empty after a blank."""
    found = list(_WORD.finditer(line))
    begun = found.pop()[0] if found and found[-1].end() == len(line) else ""
    return [_unquoted(each[0]) for each in found], begun


def _unquoted(word: str) -> str:
    for end in ("", "\\", "'", '"', '\\"'):
        try:
            return "".join(shlex.split(word + end))
        except ValueError:
            continue
    return word


def _quoted(name: str) -> str:
    """As a shell reads it as one word; the home directory stays the shell's to know."""
    if name.startswith("~/"):
        return f"~/{shlex.quote(name[2:])}" if name[2:] else name
    return shlex.quote(name)
