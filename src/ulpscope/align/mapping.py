"""Which names of the target are which of the reference: as the mapping file says, or as modules are found.

modules:                                 # reference: target; * stands for the same text on both sides
  model.encoder.layer.*: model.blocks.*
ops:
  torch.nn.functional.gelu: mylib.ops.gelu
tensors:                                 # one tensor of one call
  torch.nn.functional.linear.3 output.0: torch.Tensor.matmul.7 output.0

Modules that it does not name are matched from the root down: children by name, then by class in order of appearance. A
wrapper that only one run has (of a data-parallel, compiled or checkpointed module) is stepped through: its child of the
right class takes its place.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ulpscope.align.calls import align
from ulpscope.records.errors import UlpscopeError

SECTIONS = ("modules", "ops", "tensors")


@dataclass(frozen=True, slots=True)
class NamePatterns:
    """Rules from names of the target to names of the reference."""

    rules: tuple[tuple[re.Pattern[str], str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules)

    def to_reference(self, name: str) -> str | None:
        """The reference's name, or none if no rule speaks of this one."""
        for pattern, template in self.rules:
            found = pattern.fullmatch(name)
            if found:
                *heads, tail = template.split("*")
                return "".join(part + text for part, text in zip(heads, found.groups(), strict=True)) + tail
        return None

    def without_match(self, names: Iterable[str]) -> list[str]:
        """The patterns, as the user wrote them, that fit none of these names."""
        known = list(names)
        unused = [pattern for pattern, _ in self.rules if not any(pattern.fullmatch(name) for name in known)]
        return [pattern.pattern.replace("(.+)", "*").replace("\\", "") for pattern in unused]


@dataclass(frozen=True, slots=True)
class TensorName:
    """One tensor of one call, as a mapping file writes it: `op.N place`."""

    call: str
    place: str


@dataclass(frozen=True, slots=True)
class Mapped:
    """The contents of a mapping file."""

    modules: NamePatterns = NamePatterns()
    ops: NamePatterns = NamePatterns()
    tensors: dict[TensorName, TensorName] = field(default_factory=dict)
    """From the target's to the reference's."""


def read_mapping(path: Path) -> Mapped:
    """Read a mapping file; every mistake in it is named."""
    content = _load(path)
    unknown = [str(key) for key in content if key not in SECTIONS]
    if unknown:
        raise _bad(path, f"it has a section {unknown[0]!r}")
    sections = {name: _section(path, name, content.get(name) or {}) for name in SECTIONS}
    return Mapped(
        modules=_patterns(path, sections["modules"]),
        ops=_patterns(path, sections["ops"]),
        tensors={_tensor(path, target): _tensor(path, reference) for reference, target in sections["tensors"].items()},
    )


def _load(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise _bad(path, str(error).splitlines()[0]) from error
    if not isinstance(content, dict):
        raise _bad(path, f"it holds {type(content).__name__}, not a mapping")
    return content


def _section(path: Path, name: str, content: Any) -> dict[str, str]:
    if not isinstance(content, dict):
        raise _bad(path, f"its section {name} is no mapping of reference to target")
    for reference, target in content.items():
        if not (isinstance(reference, str) and isinstance(target, str)):
            raise _bad(path, f"its section {name} maps {reference!r} to {target!r}, which are not both names")
    return content


def _patterns(path: Path, section: Mapping[str, str]) -> NamePatterns:
    for reference, target in section.items():
        if reference.count("*") != target.count("*"):
            raise _bad(path, f"{reference!r} and {target!r} have not the same number of *")
    rules = [(re.compile("(.+)".join(map(re.escape, target.split("*")))), ref) for ref, target in section.items()]
    return NamePatterns(tuple(rules))


def _tensor(path: Path, text: str) -> TensorName:
    call, _, place = text.rpartition(" ")
    if not call:
        raise _bad(path, f"{text!r} in its section tensors is not `CALL PLACE`")
    return TensorName(call.strip(), place)


def _bad(path: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"mapping file {path}: {problem}",
        expected=f"YAML with the sections {', '.join(SECTIONS)}, each `reference: target`",
        next_step="see docs/compare.md, section The mapping file",
    )


Classes = Mapping[str, str | None]
"""Class of each module path, in order of first appearance."""


@dataclass(slots=True)
class _Node:
    path: str
    class_name: str | None
    children: dict[str, "_Node"] = field(default_factory=dict)


def map_modules(reference: Classes, target: Classes) -> dict[str, str]:
    """For each module path of the target the one of the reference that takes its place; what has none is left out."""
    mapped: dict[str, str] = {}
    _match_children(_tree(reference), _tree(target), mapped)
    return mapped


def _tree(classes: Classes) -> _Node:
    root = _Node("", None)
    for path, class_name in classes.items():
        node = root
        for name in path.split("."):
            here = f"{node.path}.{name}" if node.path else name
            node = node.children.setdefault(name, _Node(here, None))
        node.class_name = None if class_name is None else class_name.rpartition(".")[2]
    return root


def _match(reference: _Node, target: _Node, mapped: dict[str, str]) -> None:
    reference, target = _inside_wrapper(reference, target), _inside_wrapper(target, reference)
    mapped[target.path] = reference.path
    _match_children(reference, target, mapped)


def _inside_wrapper(node: _Node, other: _Node) -> _Node:
    """The node itself, or the one child of the other's class where the node only wraps it."""
    inner = node
    while inner.class_name != other.class_name and other.class_name is not None and len(inner.children) == 1:
        inner = next(iter(inner.children.values()))
    return inner if inner.class_name == other.class_name else node


def _match_children(reference: _Node, target: _Node, mapped: dict[str, str]) -> None:
    shared = dict.fromkeys(name for name in target.children if name in reference.children)
    for name in shared:
        _match(reference.children[name], target.children[name], mapped)
    left = [[each for name, each in node.children.items() if name not in shared] for node in (reference, target)]
    classes = [[node.class_name for node in nodes] for nodes in left]
    alone = len(left[0]) == len(left[1]) == 1
    for r, t in [(0, 0)] if alone else align(*classes):
        _match(left[0][r], left[1][t], mapped)
