"""The order in which operators ran."""

import heapq
from collections.abc import Sequence

from ulpscope.dialects.reference_frames import ReferenceCall


def in_order(calls: Sequence[ReferenceCall]) -> list[ReferenceCall]:
    """By time, but never before what an operator reads: the debugger dumps an output a little after it was made."""
    waiting = _waiting(calls)
    times = [min(tensor.timestamp for tensor in call.outputs) for call in calls]
    readers: dict[int, list[int]] = {}
    for reader, sources in waiting.items():
        for source in sources:
            readers.setdefault(source, []).append(reader)
    ready = [(times[number], number) for number, sources in waiting.items() if not sources]
    heapq.heapify(ready)
    # A loop's operators wait for each other: then the earliest goes first.
    rest = sorted(((times[number], number) for number in waiting), reverse=True)
    ordered: dict[int, ReferenceCall] = {}
    while len(ordered) < len(calls):
        _, number = heapq.heappop(ready) if ready else rest.pop()
        if number in ordered:
            continue
        ordered[number] = calls[number]
        for reader in readers.get(number, ()):
            waiting[reader].discard(number)
            if not waiting[reader]:
                heapq.heappush(ready, (times[reader], reader))
    return list(ordered.values())


def _waiting(calls: Sequence[ReferenceCall]) -> dict[int, set[int]]:
    """What each call waits for; an operator that ran several times is in a loop, where only time tells."""
    numbers: dict[str, list[int]] = {}
    for number, call in enumerate(calls):
        numbers.setdefault(call.name, []).append(number)
    single = {name: found[0] for name, found in numbers.items() if len(found) == 1}
    return {
        number: {single[name] for name, _ in call.inputs if name in single and single[name] != number}
        for number, call in enumerate(calls)
    }
