"""Lists of mixed precision, which atc and the TensorFlow adapter take as modify_mixlist.

{"black-list": {"to-add": ["MatMulV2"], "to-remove": []}, "white-list": {"to-remove": ["Conv2D"]}}

Black: a type stays in float32. White: it may become float16. Gray: as the operator before it. A type that is added is
taken from the other lists; one that is removed becomes gray, and has to be on that list.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ulpscope.dialects.ascend.settings_file import read_settings
from ulpscope.records.errors import UlpscopeError

MixLists = Mapping[str, Mapping[str, tuple[str, ...]]]
BLACK, WHITE, GRAY = "black-list", "white-list", "gray-list"
ADD, REMOVE = "to-add", "to-remove"
PARTS = {BLACK: (ADD, REMOVE), WHITE: (ADD, REMOVE), GRAY: (ADD,)}
_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def is_op_type(name: str) -> bool:
    """Whether this can be a type of GE's operators (MatMulV2), and not the name of a function."""
    return _TYPE.fullmatch(name) is not None


def read_mix_lists(path: Path) -> MixLists:
    """The lists of a file, each key and type checked; UlpscopeError if the compiler would refuse or ignore it."""
    content = read_settings(path, _bad)
    if not isinstance(content, dict) or not content:
        raise _bad(path, "has no lists")
    lists = {name: _parts(path, name, parts) for name, parts in content.items()}
    _check_contradictions(path, lists)
    return lists


def is_mix_lists(content: Any) -> bool:
    """Whether JSON looks as if it were such a file."""
    return isinstance(content, dict) and any(name in content for name in PARTS)


def merged(lists: MixLists, added: Mapping[str, Iterable[str]]) -> MixLists:
    """The same with more types added: each is taken from where it stood before."""
    fresh = {op_type for types in added.values() for op_type in types}
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for name, known in PARTS.items():
        kept = {part: tuple(each for each in lists.get(name, {}).get(part, ()) if each not in fresh) for part in known}
        kept[ADD] = tuple(dict.fromkeys((*kept[ADD], *added.get(name, ()))))
        found[name] = {part: types for part, types in kept.items() if types}
    return {name: parts for name, parts in found.items() if parts}


def mix_text(lists: MixLists) -> str:
    """The file."""
    return json.dumps(lists, indent=2) + "\n"


def _parts(path: Path, name: str, parts: Any) -> dict[str, tuple[str, ...]]:
    if name not in PARTS:
        raise _bad(path, f"has the unknown list {str(name)[:40]!r}", expected=f"lists: {', '.join(PARTS)}")
    if not isinstance(parts, dict):
        raise _bad(path, f"has {name} that is no object", expected=f"{name}: {' and '.join(PARTS[name])}")
    for part, types in parts.items():
        if part not in PARTS[name]:
            raise _bad(path, f"has {str(part)[:40]!r} in {name}", expected=f"{name}: {' and '.join(PARTS[name])}")
        wrong = [each for each in types if not _is_type(each)] if isinstance(types, list) else [types]
        if wrong:
            shown = json.dumps(wrong[0])[:60]
            raise _bad(
                path, f"has {shown} in {name}, {part}", expected="a list of types of operators: MatMulV2, Conv2D"
            )
    return {part: tuple(types) for part, types in parts.items()}


def _is_type(each: Any) -> bool:
    return isinstance(each, str) and is_op_type(each)


def _check_contradictions(path: Path, lists: MixLists) -> None:
    places: dict[str, str] = {}
    for name, parts in lists.items():
        for op_type in parts.get(ADD, ()):
            if (other := places.setdefault(op_type, name)) != name:
                raise _bad(path, f"adds {op_type} to {other} and to {name}", expected="each type on one list")


def _bad(path: Path, problem: str, *, expected: str = '{"black-list": {"to-add": [...]}, ...}') -> UlpscopeError:
    return UlpscopeError(
        f"{path} {problem}",
        expected=expected,
        next_step="correct it, or write a new one: ulpscope mixlist RESULT --out ops_info.json",
    )
