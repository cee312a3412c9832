"""Which calls of a trace made nan, inf or a saturated float16 out of inputs that hold none of it: by their stats.

What no call has made was there before the trace begins (a weight, a mask), or was made where nobody looked.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ulpscope.diagnose.overflow_signs import signs_of
from ulpscope.records.overflow_findings import FLOAT16_LARGEST
from ulpscope.trace.reader import RankTrace

PLACING = frozenset(
    "full full_like new_full fill masked_fill index_fill where clamp clip clamp_max nan_to_num pad scatter".split()
)
"""Operations that put a number of their arguments into their result as it is."""
NOT_FINITE = ("nan", "inf", "-inf")
"""Floats that arguments have as text."""


@dataclass(frozen=True, slots=True)
class Births:
    """The calls of one step in which something shows."""

    step: int
    calls: int
    born: tuple[int, ...] = ()
    """Ids in the order of execution, innermost calls only."""
    stated: tuple[int, ...] = ()
    """Those of them that an argument asks to: masked_fill(mask, -inf)."""
    given: int | None = None
    """The first call that was given nan or +inf that no call has made, if nothing was born before. Masks hold -inf."""
    inherited: int = 0
    unknown: int = 0
    """Calls whose inputs are not recorded, after the first in which something shows."""


class BirthSearch:
    """Looks at the steps of a rank in order, and remembers what calls have made."""

    def __init__(self, rank: RankTrace) -> None:
        self._rank = rank
        self._values: set[int] = set()
        self._digests: set[int] = set()
        """Dumps do not tell which output an input is, but it has the same bits."""
        self._found = False

    def look(self, step: int) -> Births:
        """Where overflows of a step begin."""
        rank = self._rank
        calls = rank.collect(rank.calls(step).select("id", "op", "parent", "forward", "arguments").sort("id"))
        uses = signs_of(rank, step)
        if not uses["sign"].any():
            return Births(step, calls.height)
        table = _with_forward(calls, _shown(uses)).filter("made")
        born = table.filter(pl.col("inputs") & ~pl.col("given"))["id"].to_list()
        blind = table.filter(~pl.col("inputs") & ~pl.col("given"))["id"].to_list()
        first = [blind[0]] if blind and blind[0] == table["id"][0] else []
        parents = dict(zip(calls["id"], calls["parent"], strict=True))
        inner = tuple(sorted(_innermost({*born, *first}, parents)))
        stated = tuple(_stated(calls.filter(pl.col("id").is_in(inner)), uses.filter("sign", "made")))
        return Births(
            step=step,
            calls=calls.height,
            born=inner,
            stated=stated,
            given=self._given(uses, parents, [call for call in inner if call not in stated]),
            inherited=int(table["given"].sum()),
            unknown=len(blind) - len(first),
        )

    def _given(self, uses: pl.DataFrame, parents: Mapping[int, int | None], born: Sequence[int]) -> int | None:
        shown = uses.filter("sign")
        made = shown.filter("made")
        self._values |= set(made["value"])
        self._digests |= set(made["digest"].drop_nulls())
        digests = pl.Series(list(self._digests), dtype=pl.UInt64).implode()
        known = pl.col("value").is_in(list(self._values)) | pl.col("digest").is_in(digests).fill_null(False)
        outside = shown.filter(pl.col("wrong") & ~pl.col("made") & ~known).sort("call")
        found, self._found = self._found, self._found or bool(born) or not outside.is_empty()
        if found or outside.is_empty() or (born and born[0] < outside["call"][0]):
            return None
        readers = outside.filter(pl.col("value") == outside["value"][0])["call"]
        return min(_innermost(set(readers), parents))


def _shown(uses: pl.DataFrame) -> pl.DataFrame:
    """A row a call: whether something shows in what it read (`given`) and in what it made (`made`)."""
    sign, made = pl.col("sign"), pl.col("made")
    return uses.group_by("call").agg(made=(sign & made).any(), given=(sign & ~made).any(), inputs=(~made).any())


def _with_forward(calls: pl.DataFrame, shown: pl.DataFrame) -> pl.DataFrame:
    """A backward is also given what its forward read and made."""
    own = calls.join(shown, left_on="id", right_on="call", how="inner", maintain_order="left")
    forward = shown.select(pl.col("call").alias("forward"), forward_shows=pl.col("made") | pl.col("given"))
    joined = own.join(forward, on="forward", how="left", maintain_order="left")
    return joined.with_columns(given=pl.col("given") | pl.col("forward_shows").fill_null(False))


def _innermost(born: set[int], parents: Mapping[int, int | None]) -> set[int]:
    """Without the calls around them, in which the same shows."""
    around: set[int] = set()
    for call in born:
        parent = parents.get(call)
        while parent is not None and parent not in around:
            around.add(parent)
            parent = parents.get(parent)
    return born - around


def _stated(calls: pl.DataFrame, shown: pl.DataFrame) -> Iterator[int]:
    """Calls of which everything that shows is what an argument says."""
    ends = shown.group_by("call").agg(pl.col("nan", "high", "low").any())
    joined = calls.join(ends, left_on="id", right_on="call", how="inner", maintain_order="left")
    for number, op, arguments, *seen in joined.select("id", "op", "arguments", "nan", "high", "low").iter_rows():
        numbers = [] if arguments is None else list(_numbers(arguments))
        # Masks are made by arithmetic with -65504 or -1e9; a large positive factor is an overflow like any other.
        places = (op or "").rpartition(".")[2].strip("_") in PLACING
        asked = (
            any(map(math.isnan, numbers)),
            any(each >= FLOAT16_LARGEST and (places or math.isinf(each)) for each in numbers),
            any(each <= -FLOAT16_LARGEST for each in numbers),
        )
        if all(said or not shows for said, shows in zip(asked, seen, strict=True)):
            yield number


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
