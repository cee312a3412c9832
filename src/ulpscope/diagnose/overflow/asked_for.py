"""What the arguments of a call ask for: numbers that are not finite, or beyond float16."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Trait
from ulpscope.records.overflows import FLOAT16_LARGEST

NOT_FINITE = ("nan", "inf", "-inf")
"""Floats that arguments have as text."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where numbers leave their type: nan, upwards, downwards."""

    nan: bool
    high: bool
    low: bool

    def cover(self, shown: "Ends") -> bool:
        """Whether all that shows is among these."""
        return not ((shown.nan and not self.nan) or (shown.high and not self.high) or (shown.low and not self.low))


def asked(op: str | None, arguments: str | None) -> Ends:
    """What the numbers among a call's arguments say."""
    numbers = [] if arguments is None else list(_numbers(arguments))
    # Masks are made by arithmetic with -65504 or -1e9; a large positive factor is an overflow like any other.
    places = operation(op or "").has(Trait.PLACING)
    return Ends(
        nan=any(map(math.isnan, numbers)),
        high=any(each >= FLOAT16_LARGEST and (places or math.isinf(each)) for each in numbers),
        low=any(each <= -FLOAT16_LARGEST for each in numbers),
    )


def _numbers(arguments: str) -> Iterator[float]:
    """The floats among a call's arguments; integers are sizes and indices."""
    try:
        pending: list[Any] = [json.loads(arguments)]
    except (ValueError, RecursionError):
        return
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if item.get("$float") in NOT_FINITE:
                yield float(item["$float"])
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, float):
            yield item
