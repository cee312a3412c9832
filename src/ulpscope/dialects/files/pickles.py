"""Reads a pickle as plain structures: nothing is imported, called or built of what it names.

A pickle is a program. Its instructions are followed on a stack of plain values; where it would call something, what is
left is a `Made`: the name of what it would call, with its arguments. Whoever asked decides which names he knows.

read_pickle(b"...")          {"model": Made("collections.OrderedDict", ...), "args": Made("argparse.Namespace", ...)}
"""

import pickletools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

DEEPEST = 200
"""Containers inside of each other; a state dict has ten."""
MOST_LEAVES = 5_000_000
"""A pickle can name one part of itself so often that its leaves fill the memory; what holds nothing takes time, too."""
MOST_LETTERS = 2**29
"""Of the places of all leaves together, and of all names: a part that stands for itself often has its letters once."""
LONGEST_KEY = 10_000
"""Parts and letters of a key; tuples of tuples would be hashed part by part, as often as they stand for each other."""


class PickleError(ValueError):
    """What is wrong with a pickle."""


@dataclass(frozen=True, slots=True)
class Named:
    """A class or function, by `module.name`; it is not looked up."""

    name: str


@dataclass(eq=False, slots=True)
class Made:
    """What a call of `name` would have made, and what was put into it afterwards. Nothing was called."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None
    items: list[Any] = field(default_factory=list)
    entries: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outside:
    """What the file keeps beside the pickle, by what it is asked for with."""

    identity: Any


_MARK = object()
_PUSHED = frozenset(
    """INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES
    SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8""".split()
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set, "EMPTY_TUPLE": tuple}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset(("PROTO", "FRAME"))
_RECONSTRUCTORS = frozenset(("copy_reg._reconstructor", "copyreg._reconstructor"))
"""By which old protocols make an object of the class that is their first argument."""


def read_pickle(content: bytes) -> Any:
    """What a pickle describes; PickleError if it is none, or asks for what no file of tensors needs."""
    machine = _Machine()
    try:
        for instruction, argument, _ in pickletools.genops(content):
            if instruction.name == "STOP":
                return machine.pop()
            machine.follow(instruction.name, argument)
    except PickleError:
        raise
    # genops and the stack raise what they happen to raise of a damaged one.
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, UnicodeError, OverflowError) as error:
        raise PickleError(f"it is no pickle ({error})") from error
    raise PickleError("it ends in the middle")


class _Machine:
    """The stack of a pickle, its marks and its memory."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}
        self._copied = 0

    def pop(self) -> Any:
        return self._stack.pop()

    def follow(self, name: str, argument: Any) -> None:
        """One instruction."""
        if name in _PUSHED:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _SHORT_TUPLES:
            self._gather(_SHORT_TUPLES[name])
        elif name not in _IGNORED:
            step = getattr(self, f"_{name.lower()}", None)
            if step is None:
                raise PickleError(f"it has the instruction {name}, which no file of tensors needs")
            step(argument)

    def _gather(self, count: int) -> None:
        found = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        self._stack.append(found)

    def _to_mark(self) -> list[Any]:
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise PickleError("it closes what it has not opened")
        found = self._stack[place + 1 :]
        del self._stack[place:]
        return found

    def _mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def _pop(self, _: Any) -> None:
        self._stack.pop()

    def _pop_mark(self, _: Any) -> None:
        self._to_mark()

    def _dup(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def _put(self, place: int) -> None:
        self._memory[place] = self._stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _: Any) -> None:
        self._memory[len(self._memory)] = self._stack[-1]

    def _get(self, place: int) -> None:
        self._stack.append(self._memory[place])

    _binget = _long_binget = _get

    def _list(self, _: Any) -> None:
        self._stack.append(self._to_mark())

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._to_mark()))

    def _frozenset(self, _: Any) -> None:
        self._stack.append(frozenset(_keys(self._to_mark())))

    def _dict(self, _: Any) -> None:
        self._stack.append(_paired(self._to_mark()))

    def _append(self, _: Any) -> None:
        self._add([self._stack.pop()])

    def _appends(self, _: Any) -> None:
        self._add(self._to_mark())

    def _additems(self, _: Any) -> None:
        items, holder = self._to_mark(), self._stack[-1]
        holder.items.extend(items) if isinstance(holder, Made) else holder.update(_keys(items))

    def _add(self, items: list[Any]) -> None:
        holder = self._stack[-1]
        (holder.items if isinstance(holder, Made) else holder).extend(items)

    def _setitem(self, _: Any) -> None:
        entry = self._stack.pop()
        self._set([self._stack.pop(), entry])

    def _setitems(self, _: Any) -> None:
        self._set(self._to_mark())

    def _set(self, flat: list[Any]) -> None:
        holder = self._stack[-1]
        (holder.entries if isinstance(holder, Made) else holder).update(_paired(flat))

    def _global(self, name: str) -> None:
        self._stack.append(Named(name.replace(" ", ".")))

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleError("it names a class by what is no text")
        self._copy(len(name) + len(module))
        self._stack.append(Named(f"{module}.{name}"))

    def _reduce(self, _: Any) -> None:
        arguments = self._stack.pop()
        self._make(self._stack.pop(), arguments)

    _newobj = _reduce

    def _newobj_ex(self, _: Any) -> None:
        named, arguments = self._stack.pop(), self._stack.pop()
        self._copy(8 * len(arguments))
        self._make(self._stack.pop(), (*arguments, named))

    def _inst(self, name: str) -> None:
        self._make(Named(name.replace(" ", ".")), tuple(self._to_mark()))

    def _obj(self, _: Any) -> None:
        called, *arguments = self._to_mark()
        self._make(called, tuple(arguments))

    def _make(self, called: Any, arguments: Any) -> None:
        # What calls the result of another call has no name; it is refused with that call.
        name, given = called.name if isinstance(called, Named | Made) else type(called).__name__, arguments
        if type(given) is not tuple:
            raise PickleError("it calls something with what are no arguments")
        if name in _RECONSTRUCTORS and given and isinstance(given[0], Named):
            name, given = given[0].name, ()
        self._stack.append(Made(name, given))

    def _copy(self, length: int) -> None:
        """Bytes that an instruction, which has few, makes anew of what may be long."""
        self._copied += length
        if self._copied > MOST_LETTERS:
            raise PickleError("it copies parts of itself without end")

    def _build(self, _: Any) -> None:
        state, holder = self._stack.pop(), self._stack[-1]
        if isinstance(holder, Made):
            holder.state = state

    def _persid(self, identity: str) -> None:
        self._stack.append(Outside(identity))

    def _binpersid(self, _: Any) -> None:
        self._stack.append(Outside(self._stack.pop()))


def _paired(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(_keys(flat[::2]), flat[1::2], strict=True))


_PLAIN_KEYS = (int, float, complex, type(None), Named, Made)
"""Hashed and told without a look inside."""


def _keys(keys: Sequence[Any]) -> Sequence[Any]:
    """The same, where each can be hashed and told in a moment."""
    for key in keys:
        waiting, size = [key], 0
        while waiting:
            part = waiting.pop()
            if not isinstance(part, (tuple, frozenset, str, bytes, *_PLAIN_KEYS)):
                raise PickleError(f"it has a {type(part).__name__} as a key")
            size += 1 if isinstance(part, _PLAIN_KEYS) else 1 + len(part)
            if size > LONGEST_KEY:
                raise PickleError(f"it has a key of more than {LONGEST_KEY:,} parts")
            waiting += part if isinstance(part, tuple | frozenset) else ()
    return keys


def _key_text(key: Any, number: int) -> str:
    """A key as a part of a place; objects that are keys are told apart by their number."""
    if isinstance(key, Named | Made):
        return f"{key.name}[{number}]"
    if isinstance(key, tuple):
        parts = (repr(part) if isinstance(part, str | bytes) else _key_text(part, number) for part in key)
        return f"({', '.join(parts)}{',' * (len(key) == 1)})"
    return f"frozenset[{number}]" if isinstance(key, frozenset) else str(key)


_MAPPINGS = frozenset(("collections.OrderedDict", "collections.defaultdict", "builtins.dict", "__builtin__.dict"))
_SPACES = frozenset(("argparse.Namespace", "types.SimpleNamespace"))
_SEQUENCES = frozenset(("torch.Size", "builtins.list", "builtins.tuple", "builtins.set", "__builtin__.set"))


def opened(content: Any) -> Any:
    """A dictionary or list for each of the plain types that pickles make by a call; all else as it is."""
    if not isinstance(content, Made):
        return content
    if content.name in _MAPPINGS:
        given = content.arguments[0] if content.arguments and isinstance(content.arguments[0], list | tuple) else ()
        return _paired([part for pair in given for part in _pair(pair)]) | content.entries
    if content.name in _SPACES and isinstance(content.state, dict):
        return content.state
    if content.name in _SEQUENCES:
        return [*(content.arguments[0] if content.arguments else ()), *content.items]
    return content


def _pair(content: Any) -> Sequence[Any]:
    if not isinstance(content, list | tuple) or len(content) != 2:
        raise PickleError("it makes a dict of what are no pairs")
    return content


def leaves(content: Any) -> Iterator[tuple[str, Any]]:
    """What is in no container, by its place: `model.layers.0.weight`."""
    return _Walk().leaves(content, "", 0)


class _Walk:
    """Goes through containers, for as long as those of a checkpoint may take."""

    def __init__(self) -> None:
        self._met = self._letters = 0

    def leaves(self, content: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
        """Those of one container."""
        self._count(place, depth)
        inner = opened(content)
        if isinstance(inner, dict):
            for number, (key, item) in enumerate(inner.items()):
                name = _key_text(key, number)
                yield from self.leaves(item, f"{place}.{name}" if place else name, depth + 1)
        elif isinstance(inner, list | tuple):
            for number, item in enumerate(inner):
                yield from self.leaves(item, f"{place}.{number}" if place else str(number), depth + 1)
        else:
            yield place, inner

    def _count(self, place: str, depth: int) -> None:
        self._met += 1
        self._letters += len(place)
        if depth > DEEPEST:
            raise PickleError("its dicts and lists hold themselves")
        if self._met > MOST_LEAVES:
            raise PickleError(f"it names more than {MOST_LEAVES:,} things")
        if self._letters > MOST_LETTERS:
            raise PickleError("the names of what it holds are too long")
