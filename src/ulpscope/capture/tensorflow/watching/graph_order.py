"""In which order the nodes of a graph are told: that of the script, which is the same in every run.

TensorFlow executes what does not depend on each other in any order. The order in which the ops were made is that of the
script, and what grappler has put in follows what it reads.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from ulpscope.capture.tensorflow.graphs.nodes import ObservedGraph
from ulpscope.capture.tensorflow.graphs.results import ObservedResult

BACK_EDGES = frozenset(("NextIteration", "RefNextIteration"))
"""Ops that hand a loop's values to its next turn."""
MERGES = frozenset(("Merge", "RefMerge"))
"""Ops with which a turn of a loop begins."""

Execution = tuple[int, int, int, int, int]
"""Of a node, once: the run, the graph, the node, the loop and its turn."""


def ranks(graph: ObservedGraph, numbers: Mapping[int, int]) -> list[int]:
    """Places of nodes in the order of their numbers, each after all that it depends on."""
    nodes = graph.nodes
    needs = [
        {before for before in (*(source.node for source in node.inputs), *node.controls)
         if nodes[before].op not in BACK_EDGES}
        for node in nodes
    ]  # fmt: skip
    for leaving, beginning in _loops_of(graph):
        needs[leaving] |= beginning
    followers: dict[int, list[int]] = defaultdict(list)
    for number, before in enumerate(needs):
        for one in before:
            followers[one].append(number)
    waiting = [len(before) for before in needs]
    keys: list[tuple[int, int, str]] = [(-1, 0, "")] * len(nodes)

    def key(place: int) -> tuple[int, int, str]:
        known = numbers.get(place)
        if known is not None:
            return known, 0, nodes[place].name
        return max((keys[before][0] for before in needs[place]), default=-1), 1, nodes[place].name

    ready = []
    for place, count in enumerate(waiting):
        if not count:
            keys[place] = key(place)
            ready.append((keys[place], place))
    heapq.heapify(ready)
    found = [len(nodes)] * len(nodes)
    told = 0
    while ready:
        _, place = heapq.heappop(ready)
        found[place], told = told, told + 1
        for follower in followers[place]:
            waiting[follower] -= 1
            if not waiting[follower]:
                keys[follower] = key(follower)
                heapq.heappush(ready, (keys[follower], follower))
    return found


def in_order(
    results: Iterable[ObservedResult], graphs: Mapping[int, ObservedGraph], places: Mapping[int, list[int]]
) -> tuple[list[tuple[Execution, list[ObservedResult]]], set[int]]:
    """Results of one execution of one node together; the turns of a loop one after the other.

    `places` are the ranks of nodes by their graphs. And the numbers of graphs in which a loop runs inside of another:
    their nodes keep the order in which they ran.
    """
    groups: dict[Execution, list[ObservedResult]] = {}
    for result in results:
        key = (result.run, result.graph, result.node, result.frame, result.iteration)
        groups.setdefault(key, []).append(result)
    runs = {run: place for place, run in enumerate(dict.fromkeys(key[0] for key in groups))}
    entries, nested = _loops(groups, graphs, places)
    ordered = sorted(
        enumerate(groups),
        key=lambda item: (runs[item[1][0]], item[1][1], *_place(item[0], item[1], places, entries, nested)),
    )
    return [(key, groups[key]) for _, key in ordered], {number for _, number in nested}


def _loops_of(graph: ObservedGraph) -> Iterator[tuple[int, set[int]]]:
    """Nodes by which values leave a loop, each with all that begin its turns: a loop runs as a whole."""
    nodes = graph.nodes
    entered = {
        place: node.definition.attr["frame_name"].s
        for place, node in enumerate(nodes)
        if node.op in ("Enter", "RefEnter")
    }
    beginning: dict[bytes, set[int]] = defaultdict(set)
    loop_of: dict[int, bytes] = {}
    for place, node in enumerate(nodes):
        if node.op in MERGES:
            for source in node.inputs:
                if source.node in entered:
                    loop_of[place] = entered[source.node]
                    beginning[loop_of[place]].add(place)
    for place, node in enumerate(nodes):
        if node.op in ("Exit", "RefExit"):
            turned = nodes[node.inputs[0].node].inputs[:1]
            name = loop_of.get(turned[0].node) if turned else None
            if name is not None:
                yield place, beginning[name]


def _loops(
    groups: Mapping[Execution, object], graphs: Mapping[int, ObservedGraph], places: Mapping[int, list[int]]
) -> tuple[dict[tuple[int, int, int], int], set[tuple[int, int]]]:
    """Where each loop of a run of a graph begins, and in which runs one runs inside of another."""
    entries: dict[tuple[int, int, int], int] = {}
    loop_of: dict[tuple[int, int, int], int] = {}
    nested: set[tuple[int, int]] = set()
    for run, graph, node, frame, _ in groups:
        if not frame:
            continue
        if graphs[graph].nodes[node].op in MERGES:
            entries[run, graph, frame] = max(entries.get((run, graph, frame), 0), places[graph][node])
        if loop_of.setdefault((run, graph, node), frame) != frame:
            nested.add((run, graph))
    return entries, nested


def _place(
    executed: int,
    key: Execution,
    places: Mapping[int, list[int]],
    entries: Mapping[tuple[int, int, int], int],
    nested: set[tuple[int, int]],
) -> tuple[int, int, int]:
    """A graph in which loops run inside of loops keeps the order in which it ran."""
    run, graph, node, frame, turn = key
    if (run, graph) in nested:
        return executed, 0, 0
    rank = places[graph][node]
    return (rank, 0, rank) if not frame else (entries.get((run, graph, frame), rank), turn + 1, rank)
