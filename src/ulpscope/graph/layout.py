"""Lays a graph out in layers, from top to bottom: what reads lies below what it reads.

Arcs that close a circle are turned while layers are made. Arcs over several layers get a bend in each of them, so that
they run between the boxes. Bends and boxes alike are ordered by where their neighbours lie, then moved towards them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

Arc: TypeAlias = tuple[str, str]
Point: TypeAlias = tuple[float, float]

GAP, LAYER_GAP, BEND_WIDTH = 24.0, 48.0, 12.0
_ORDERINGS, _MOVES = 8, 12

MOST_BENDS = 100_000
"""A constant that thousands of operators read one after the other would make millions, which nobody could look at."""


@dataclass(frozen=True, slots=True)
class Box:
    """Where a node lies: its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """A drawing in numbers; each arc has its route, from the lower edge of a box to the upper edge of another one."""

    width: float
    height: float
    boxes: Mapping[str, Box]
    routes: tuple[tuple[Point, ...], ...]


@dataclass(frozen=True, slots=True)
class _Bend:
    """Where an arc passes a layer."""

    arc: int
    layer: int


_Item: TypeAlias = str | _Bend
_Near: TypeAlias = dict[_Item, list[_Item]]


def lay_out(sizes: Mapping[str, tuple[float, float]], arcs: Sequence[Arc]) -> Layout:
    """Places for nodes of these sizes (width, height), and routes for arcs between them."""
    layers = _layers(list(sizes), arcs)
    chains = _chains(arcs, layers)
    rows = _rows(layers, chains)
    above, below = _neighbours(chains)
    _order(rows, above, below)
    centres = _centres(rows, above, below, {name: size[0] for name, size in sizes.items()})
    heights = [max((sizes[item][1] for item in row if isinstance(item, str)), default=0.0) for row in rows]
    tops = list(accumulate((height + LAYER_GAP for height in heights), initial=GAP))
    boxes = {
        name: Box(centres[name] - width / 2, tops[layers[name]], width, height)
        for name, (width, height) in sizes.items()
    }
    routes = []
    for arc, chain in zip(arcs, chains, strict=True):
        upper, lower = boxes[str(chain[0])], boxes[str(chain[-1])]
        bends = [
            (centres[item], tops[item.layer] + down)
            for item in chain
            if isinstance(item, _Bend)
            for down in (0.0, heights[item.layer])
        ]
        ends = (upper.x + upper.width / 2, upper.y + upper.height), (lower.x + lower.width / 2, lower.y)
        route = (ends[0], *bends, ends[1])
        routes.append(route if chain[0] == arc[0] else route[::-1])
    right = max([box.x + box.width for box in boxes.values()] + [x for route in routes for x, _ in route], default=0.0)
    bottom = tops[-2] + heights[-1] if heights else 0.0
    return Layout(right + GAP, bottom + GAP, boxes, tuple(routes))


def _layers(names: Sequence[str], arcs: Sequence[Arc]) -> dict[str, int]:
    """The longest way down to each node; weights, and what only prepares them, are moved down to their reader."""
    order, forward = _without_circles(names, arcs)
    layers = dict.fromkeys(names, 0)
    inputs: dict[str, list[str]] = {name: [] for name in names}
    for name in order:
        for reader in forward[name]:
            layers[reader] = max(layers[reader], layers[name] + 1)
            inputs[reader].append(name)
    floating: set[str] = set()
    for name in order:
        makers = inputs[name]
        if not makers or (len(makers) == 1 and makers[0] in floating and len(forward[makers[0]]) == 1):
            floating.add(name)
    for name in reversed(order):
        if name in floating and forward[name]:
            layers[name] = min(layers[reader] for reader in forward[name]) - 1
    return layers


def _without_circles(names: Sequence[str], arcs: Sequence[Arc]) -> tuple[list[str], dict[str, list[str]]]:
    """Nodes in an order in which all arcs lead forward, those that would close a circle being turned."""
    successors: dict[str, list[str]] = {name: [] for name in names}
    for producer, consumer in arcs:
        if producer != consumer:
            successors[producer].append(consumer)
    finished: list[str] = []
    seen: set[str] = set()
    for start in names:
        if start in seen:
            continue
        seen.add(start)
        open_nodes = [(start, iter(successors[start]))]
        while open_nodes:
            name, rest = open_nodes[-1]
            following = next((node for node in rest if node not in seen), None)
            if following is None:
                open_nodes.pop()
                finished.append(name)
            else:
                seen.add(following)
                open_nodes.append((following, iter(successors[following])))
    order = finished[::-1]
    rank = {name: position for position, name in enumerate(order)}
    forward: dict[str, list[str]] = {name: [] for name in names}
    for producer, consumer in arcs:
        if producer != consumer:
            first, last = sorted((producer, consumer), key=rank.__getitem__)
            forward[first].append(last)
    return order, forward


def _chains(arcs: Sequence[Arc], layers: Mapping[str, int]) -> list[list[_Item]]:
    """Each arc from top to bottom, with its bends; without them where there would be too many."""
    ends = [sorted(arc, key=layers.__getitem__) for arc in arcs]
    bent = sum(layers[lower] - layers[upper] for upper, lower in ends) <= MOST_BENDS
    return [
        [upper, *(_Bend(number, layer) for layer in range(layers[upper] + 1, layers[lower]) if bent), lower]
        for number, (upper, lower) in enumerate(ends)
    ]


def _rows(layers: Mapping[str, int], chains: Iterable[list[_Item]]) -> list[list[_Item]]:
    rows: list[list[_Item]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for name, layer in layers.items():
        rows[layer].append(name)
    for chain in chains:
        for item in chain[1:-1]:
            if isinstance(item, _Bend):
                rows[item.layer].append(item)
    return rows


def _neighbours(chains: Iterable[list[_Item]]) -> tuple[_Near, _Near]:
    above: _Near = defaultdict(list)
    below: _Near = defaultdict(list)
    for chain in chains:
        for upper, lower in pairwise(chain):
            if upper != lower:
                above[lower].append(upper)
                below[upper].append(lower)
    return above, below


def _order(rows: list[list[_Item]], above: _Near, below: _Near) -> None:
    """Sort each row by the mean place of its neighbours, downwards and upwards in turn."""
    places: dict[_Item, float] = {item: float(place) for row in rows for place, item in enumerate(row)}
    for turn in range(_ORDERINGS):
        known = above if turn % 2 == 0 else below
        for row in rows if turn % 2 == 0 else reversed(rows):
            wanted = {item: _mean([places[near] for near in known.get(item, ())], places[item]) for item in row}
            row.sort(key=wanted.__getitem__)
            places.update({item: float(place) for place, item in enumerate(row)})


def _centres(rows: list[list[_Item]], above: _Near, below: _Near, widths: Mapping[_Item, float]) -> dict[_Item, float]:
    """How far to the right each item's middle lies."""
    centres: dict[_Item, float] = {}
    for row in rows:
        centres.update(_apart(row, dict.fromkeys(row, 0.0), widths))
    for turn in range(_MOVES):
        for row in rows if turn % 2 == 0 else reversed(rows):
            near = {item: [*above.get(item, ()), *below.get(item, ())] for item in row}
            wanted = {item: _mean([centres[other] for other in near[item]], centres[item]) for item in row}
            centres.update(_apart(row, wanted, widths))
    left = min((centre - widths.get(item, BEND_WIDTH) / 2 for item, centre in centres.items()), default=0.0)
    return {item: centre - left + GAP for item, centre in centres.items()}


def _apart(row: Sequence[_Item], wanted: Mapping[_Item, float], widths: Mapping[_Item, float]) -> dict[_Item, float]:
    """As near to the wanted places as the order of a row and its gaps allow.

    Pushed to the right and pushed to the left, a row keeps its gaps; so does the mean of both.
    """
    halves = [widths.get(item, BEND_WIDTH) / 2 + GAP / 2 for item in row]
    rightwards = [wanted[item] for item in row]
    leftwards = list(rightwards)
    for place in range(1, len(row)):
        rightwards[place] = max(rightwards[place], rightwards[place - 1] + halves[place - 1] + halves[place])
    for place in range(len(row) - 2, -1, -1):
        leftwards[place] = min(leftwards[place], leftwards[place + 1] - halves[place + 1] - halves[place])
    return {item: (right + left) / 2 for item, right, left in zip(row, rightwards, leftwards, strict=True)}


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise
