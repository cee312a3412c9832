"""Arguments of a recorded call as Python text: tensors by their places, everything else as literals of closed kinds."""

import keyword
import math
from collections.abc import Callable, Mapping
from typing import Any

from ulpscope.records.errors import UlpscopeError

Firsts = Mapping[str, str]

# Exact runs compute in these what has the dtypes before them.
_HIGHER = {
    **dict.fromkeys(("float16", "bfloat16", "float32"), "float64"),
    **dict.fromkeys(("complex32", "complex64"), "complex128"),
}


def tensor_text(place: str) -> str:
    return f"x[{quoted(place)}]"


def arguments_text(encoded: Mapping[str, Any], firsts: Firsts) -> str:
    """What stands between the parentheses of the call."""
    positional = [_text(item, firsts) for item in encoded.get("args", [])]
    named = {name: _text(item, firsts) for name, item in encoded.get("kwargs", {}).items()}
    return ", ".join([*positional, *(_named(name, text) for name, text in named.items())])


def _named(name: str, text: str) -> str:
    is_name = name.isidentifier() and not keyword.iskeyword(name)
    return f"{name}={text}" if is_name else f"**{{{quoted(name)}: {text}}}"


def _text(encoded: Any, firsts: Firsts) -> str:
    if isinstance(encoded, str):
        return quoted(encoded)
    if encoded is None or isinstance(encoded, bool | int | float):
        return repr(encoded)
    if isinstance(encoded, list):
        return f"[{', '.join(_text(item, firsts) for item in encoded)}]"
    ((word, content), *_) = encoded.items()
    write = _WRITERS.get(word)
    if write is None:
        raise _no_literal(word)
    return write(content, firsts)


def quoted(text: str) -> str:
    """A text as a literal; whatever it holds stays inside."""
    plain = repr(text)
    return plain if '"' in text or plain.startswith('"') else f'"{plain[1:-1]}"'


def _tuple(content: list[Any], firsts: Firsts) -> str:
    inner = [_text(item, firsts) for item in content]
    return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"


def _dict(content: list[list[Any]], firsts: Firsts) -> str:
    return f"{{{', '.join(f'{_text(key, firsts)}: {_text(item, firsts)}' for key, item in content)}}}"


def _slice(content: list[Any], firsts: Firsts) -> str:
    return f"slice({', '.join(_text(item, firsts) for item in content)})"


def _complex(content: list[Any], firsts: Firsts) -> str:
    return f"complex({', '.join(_text(item, firsts) for item in content)})"


def _float(content: str, _firsts: Firsts) -> str:
    number = float(content)
    return f'float("{number}")' if not math.isfinite(number) else repr(number)


def _dtype(content: str, firsts: Firsts) -> str:
    own = _word(content, firsts)
    return f"(torch.{_HIGHER[content]} if high else {own})" if content in _HIGHER else own


def _word(content: str, _firsts: Firsts) -> str:
    """A dtype, a layout, a memory format: each is a name in torch."""
    if not (content.isidentifier() and content.isascii()):
        raise _no_literal(content)
    return f"torch.{content}"


def _no_literal(word: str) -> UlpscopeError:
    return UlpscopeError(
        f"an argument of the call is {word.removeprefix('$')!r}, which a script cannot write",
        expected="tensors, numbers, texts, slices, dtypes and lists of them",
        next_step="choose another call",
    )


_WRITERS: dict[str, Callable[[Any, Firsts], str]] = {
    "$tensor": lambda content, firsts: tensor_text(firsts.get(content, content)),
    "$tuple": _tuple,
    "$size": _tuple,
    "$dict": _dict,
    "$slice": _slice,
    "$complex": _complex,
    "$float": _float,
    "$ellipsis": lambda _content, _firsts: "...",
    "$device": lambda _content, _firsts: "device",
    "$dtype": _dtype,
    "$layout": _word,
    "$memory_format": _word,
}
