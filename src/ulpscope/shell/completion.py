"""What the Tab key offers: commands, options, names of operators and tensors, files."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from ulpscope.graph.query import all_operators
from ulpscope.records.errors import UlpscopeError
from ulpscope.shell.commands import HELP, OWN_WORDS
from ulpscope.shell.data import Context
from ulpscope.shell.words import Command
from ulpscope.workflows.tensor_lookup import SEPARATOR

OFFERED = 500
"""More names are no help."""

Names = Callable[[Context], Iterable[str]]


def _operators(context: Context) -> Iterable[str]:
    if context.data.trace is not None:
        return context.called.names()
    return (operator.name for model in context.models() for operator in all_operators(model))


def _types(context: Context) -> Iterable[str]:
    return sorted({operator.type for model in context.models() for operator in all_operators(model)})


def _passes(context: Context) -> Iterable[str]:
    found = (each for model in context.models() for operator in all_operators(model) for each in operator.passes)
    return sorted(set(found))


def _kernels(context: Context) -> Iterable[str]:
    return (operator.kernel for model in context.models() for operator in all_operators(model) if operator.kernel)


def _graphs(context: Context) -> Iterable[str]:
    return (graph.name for model in context.models() for graph in model.graphs)


def _tensors(context: Context) -> Iterable[str]:
    data = context.data
    dumped = context.dumped.names() if data.holds_arrays else []
    return dumped if data.trace is None else [*dumped, *context.called.names()]


def _dumps(context: Context) -> Iterable[str]:
    return [*_operators(context), *context.dumped.file_names()]


_VALUES: Mapping[tuple[str, str], Names] = {
    ("ls", "-n"): _operators,
    ("ls", "-t"): _types,
    ("ls", "-f"): _passes,
    ("ls", "-k"): _kernels,
    ("ni", "-g"): _graphs,
}
"""What an option's value may be."""

_PLAIN: Mapping[str, Names] = {"ni": _operators, "pt": _tensors, "cp": _tensors, "dc": _dumps}
"""What stands beside options."""

_PATHS = frozenset(
    {"run", "pt", "cp", "dc", ("vcs", "-f"), ("pk", "-f"), ("dc", "-o"), ("dc", "-out"), ("cn", "-m"), ("cn", "-g")}
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
        options = {} if command is None else command.words.options
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
