"""Aligns two sequences of tokens: the most equal ones in order, as a line diff does."""

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

Matches: TypeAlias = list[tuple[int, int]]

# Differences up to which the exact search is run; it keeps a table of their square.
EXACT_DIFFERENCES = 1_500


def align(reference: Sequence[Hashable], target: Sequence[Hashable]) -> Matches:
    """Index pairs of equal tokens, rising on both sides, as many as there can be."""
    head = _common_head(reference, target)
    tail = _common_tail(reference, target, head)
    inner_reference = reference[head : len(reference) - tail]
    inner_target = target[head : len(target) - tail]
    matches = [(place, place) for place in range(head)]
    if inner_reference and inner_target:
        matches += [(head + r, head + t) for r, t in _shortest_edit(inner_reference, inner_target)]
    return matches + [(len(reference) - back, len(target) - back) for back in range(tail, 0, -1)]


def gaps(matches: Matches, *, reference: int, target: int) -> list[tuple[range, range]]:
    """What lies between matches: on each side the indices without a partner, where there are any."""
    found = []
    last = (-1, -1)
    for match in (*matches, (reference, target)):
        gap = range(last[0] + 1, match[0]), range(last[1] + 1, match[1])
        if gap[0] or gap[1]:
            found.append(gap)
        last = match
    return found


def _common_head(reference: Sequence[Hashable], target: Sequence[Hashable]) -> int:
    shorter = min(len(reference), len(target))
    return next((place for place in range(shorter) if reference[place] != target[place]), shorter)


def _common_tail(reference: Sequence[Hashable], target: Sequence[Hashable], head: int) -> int:
    shorter = min(len(reference), len(target)) - head
    return next((back for back in range(shorter) if reference[-1 - back] != target[-1 - back]), shorter)


def _shortest_edit(reference: Sequence[Hashable], target: Sequence[Hashable]) -> Matches:
    """Myers' greedy search; a heuristic one where the sequences have too little in common for it."""
    furthest = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(len(reference) + len(target), EXACT_DIFFERENCES) + 1):
        history.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
            )
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < len(reference) and y < len(target) and reference[x] == target[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(reference) and y >= len(target):
                return _trace_back(history, len(reference), len(target))
    blocks = SequenceMatcher(None, reference, target, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]


def _trace_back(history: list[dict[int, int]], x: int, y: int) -> Matches:
    matches: Matches = []
    for edits in range(len(history) - 1, -1, -1):
        furthest = history[edits]
        diagonal = x - y
        down = diagonal == -edits or (
            diagonal != edits and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
        )
        before = diagonal + 1 if down else diagonal - 1
        start_x = furthest.get(before, 0) if edits else 0
        start_y = start_x - before if edits else 0
        while x > start_x and y > start_y:
            x, y = x - 1, y - 1
            matches.append((x, y))
        x, y = start_x, start_y
    matches.reverse()
    return matches
