"""Pairs tensors of two files by what they hold, where their names differ: first those of the same bits, then those
that are far nearer to each other than to any other of their shape.
"""

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.dialects.files.stored import TensorFile
from ulpscope.dialects.tables import summary_row
from ulpscope.numerics.dtypes import AnyArray, Floats, Shape
from ulpscope.numerics.summaries.rows import rows_to_columns
from ulpscope.numerics.summaries.summary import estimate_distance
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair

NEAR = 0.5
"""Distance over norm. Weights that know nothing of each other lie sqrt(2) apart if their norms are equal, and at least
1 if not; a sketch tells a distance to a tenth (numerics/summaries/estimates.py)."""
APART = 2.0
"""How many times as far the second nearest lies: a sketch that is a tenth off does not change which is nearer."""
MOST_OF_A_SHAPE = 4096
"""Distances of that many to each other fill 128 MiB; of more, only the same bits are paired."""


@dataclass(frozen=True, slots=True)
class Content:
    """What is known of a tensor's elements."""

    shape: Shape
    digest: int
    norm: float
    sketch: Floats | None
    """None where there is none: of integers."""
    is_constant: bool
    """All elements are one number: that says nothing about whose they are."""


Contents = Mapping[str, Content]


def renamed_tensors(sides: Pair[TensorFile]) -> dict[str, str]:
    """Of tensors that have no namesake, those of the target by those of the reference that hold the same."""
    alone = Pair(sides.reference.keys() - sides.target.keys(), sides.target.keys() - sides.reference.keys())
    if not (alone.reference and alone.target):
        return {}
    return _pair_by_content(
        Pair(
            _contents({name: each for name, each in sides.reference.items() if name in alone.reference}),
            _contents({name: each for name, each in sides.target.items() if name in alone.target}),
        )
    )


def _contents(tensors: TensorFile) -> Contents:
    """Of those that can be read. A single number is like many others."""
    found = {}
    for name, tensor in tensors.items():
        with contextlib.suppress(UlpscopeError):
            if math.prod(tensor.shape) > 1:
                found[name] = _content_of(tensor.array(), tensor.dtype)
    return found


def _content_of(array: AnyArray, dtype: str) -> Content:
    columns = rows_to_columns(summary_row(array, dtype)[None], dtype_names=[dtype], shapes=[array.shape])
    told = {name: columns[name].values[0] for name in ("digest", "norm", "sketch", "min", "max")}
    return Content(
        shape=array.shape,
        digest=int(told["digest"]),
        norm=float(told["norm"]),
        sketch=told["sketch"].astype(np.float64) if columns["sketch"].valid[0] else None,
        is_constant=bool(told["min"] == told["max"]),
    )


def _pair_by_content(sides: Pair[Contents]) -> dict[str, str]:
    """Names of the target by names of the reference."""
    found = dict(_same_bits(sides))
    found |= _nearest(_left(sides, found))
    return found | dict(_named_alike(_left(sides, found), found))


def _left(sides: Pair[Contents], found: Mapping[str, str]) -> Pair[Contents]:
    taken = set(found.values())
    return Pair(
        {name: content for name, content in sides.reference.items() if name not in found},
        {name: content for name, content in sides.target.items() if name not in taken},
    )


def _named_alike(sides: Pair[Contents], found: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Those that are renamed as all others are: if layers.0.w is blocks.0.weight, then layers.0.b is blocks.0.b."""
    split = [(name.split("."), other.split(".")) for name, other in found.items()]
    pairs = [(words, others) for words, others in split if len(words) == len(others)]
    said = Counter(each for words, others in pairs for each in set(zip(words, others, strict=True)))
    heard = Counter(word for words, _ in pairs for word in set(words))
    rule = {word: other for (word, other), times in said.items() if times == heard[word]}
    for name, content in sides.reference.items():
        other = ".".join(rule.get(word, word) for word in name.split("."))
        if other in sides.target and sides.target[other].shape == content.shape:
            yield name, other


def _same_bits(sides: Pair[Contents]) -> Iterable[tuple[str, str]]:
    """Of several with the same bits, in the order of each file."""
    by_digest: defaultdict[int, list[str]] = defaultdict(list)
    for name, content in sides.target.items():
        by_digest[content.digest].append(name)
    for name, content in sides.reference.items():
        if by_digest[content.digest] and not content.is_constant:
            yield name, by_digest[content.digest].pop(0)


def _nearest(sides: Pair[Contents]) -> Iterable[tuple[str, str]]:
    groups = sides.map(_by_shape)
    for shape, reference in groups.reference.items():
        target = groups.target.get(shape, {})
        if target and max(len(reference), len(target)) <= MOST_OF_A_SHAPE:
            yield from _nearest_of_a_shape(reference, target)


def _by_shape(contents: Contents) -> dict[Shape, Contents]:
    groups: defaultdict[Shape, dict[str, Content]] = defaultdict(dict)
    for name, content in contents.items():
        if content.sketch is not None and content.norm > 0 and not content.is_constant:
            groups[content.shape][name] = content
    return dict(groups)


def _nearest_of_a_shape(reference: Contents, target: Contents) -> Iterable[tuple[str, str]]:
    apart = _distances(list(reference.values()), list(target.values()))
    names = list(target)
    for row, name in enumerate(reference):
        column = int(np.argmin(apart[row]))
        near = apart[row, column]
        others = min(_second(apart[row]), _second(apart[:, column]))
        if near < NEAR and near == apart[:, column].min() and near * APART < others:
            yield name, names[column]


def _second(distances: Floats) -> float:
    return float(np.partition(distances, 1)[1]) if distances.size > 1 else np.inf


def _distances(reference: list[Content], target: list[Content]) -> NDArray[np.float64]:
    """Of each to each, over the larger norm."""
    sketches = np.stack([content.sketch for content in target if content.sketch is not None])
    norms = np.array([content.norm for content in target])
    rows = [
        estimate_distance(np.broadcast_to(content.sketch, sketches.shape), sketches) / np.maximum(norms, content.norm)
        for content in reference
        if content.sketch is not None
    ]
    return np.stack(rows)
