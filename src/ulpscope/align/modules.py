"""Maps the modules of the target to those of the reference.

Children are matched by name, then by class in order of appearance. A wrapper that only one run has (of a data-parallel,
compiled or checkpointed module) is stepped through: its child of the right class takes its place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ulpscope.align.sequences import align

Path = str
Classes = Mapping[Path, str | None]
"""Class of each module path, in order of first appearance."""


@dataclass(slots=True)
class _Node:
    path: Path
    class_name: str | None
    children: dict[str, "_Node"] = field(default_factory=dict)


def map_modules(reference: Classes, target: Classes) -> dict[Path, Path]:
    """For each module path of the target the one of the reference that takes its place; what has none is left out."""
    mapped: dict[Path, Path] = {}
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


def _match(reference: _Node, target: _Node, mapped: dict[Path, Path]) -> None:
    reference, target = _inside_wrapper(reference, target), _inside_wrapper(target, reference)
    mapped[target.path] = reference.path
    _match_children(reference, target, mapped)


def _inside_wrapper(node: _Node, other: _Node) -> _Node:
    """The node itself, or the one child of the other's class where the node only wraps it."""
    inner = node
    while inner.class_name != other.class_name and other.class_name is not None and len(inner.children) == 1:
        inner = next(iter(inner.children.values()))
    return inner if inner.class_name == other.class_name else node


def _match_children(reference: _Node, target: _Node, mapped: dict[Path, Path]) -> None:
    shared = [name for name in target.children if name in reference.children]
    for name in shared:
        _match(reference.children[name], target.children[name], mapped)
    left_reference = _left(reference.children, shared)
    left_target = _left(target.children, shared)
    if len(left_reference) == len(left_target) == 1:
        _match(left_reference[0], left_target[0], mapped)
        return
    for r, t in align([node.class_name for node in left_reference], [node.class_name for node in left_target]):
        _match(left_reference[r], left_target[t], mapped)


def _left(children: Mapping[str, _Node], shared: Iterable[str]) -> list[_Node]:
    taken = set(shared)
    return [node for name, node in children.items() if name not in taken]
