"""Two runs of one command, bit by bit: the first call that gives other bits though it was given the same.

Calls are paired by their order: what repeats itself makes the same calls. Where the runs make other calls, all before
that is looked at, and if it agrees that is where they part.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl

from ulpscope.records.enums import COLLECTIVE_KIND, COMPILED_KIND, MAKING_ROLES, Kind, Phase
from ulpscope.records.findings import Place
from ulpscope.records.pairs import Pair
from ulpscope.records.repeats import Part, Parting
from ulpscope.trace.reader import RankTrace, Trace

_IDENTITY = ("name", "kind", "step", "phase")
_CALLS = ("id", "op", "module", "parent", "forward", "stack", "random", "generator", "arguments", *_IDENTITY)
_RETURNED = "returned"
_WHOLE = (Kind.API.value, COMPILED_KIND)
_FROM_SCRIPT = (Part.ARGUMENT, Part.OUTSIDE, Part.GIVEN)
"""What comes from Python's side of a call; inside of an operation of the user's own, that operation made it."""
Rows: TypeAlias = Mapping[int, dict[str, Any]]
"""Calls by their id."""
_FOLLOWING = (Part.COLLECTIVE, Part.GIVEN, Part.STRUCTURE)
"""What another rank may have caused."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What of two runs was set beside each other."""

    partings: tuple[Parting, ...]
    calls: int
    tensors: int


def compare_bits(sides: Pair[Trace]) -> Compared:
    """All ranks of two runs; where they part, the rank that the others follow from comes first."""
    ranks = sides.map(lambda side: {rank.info.rank: rank for rank in side.ranks})
    shared = [number for number in ranks.reference if number in ranks.target]
    found = [_Rank.of(Pair(ranks.reference[number], ranks.target[number])) for number in shared]
    partings = [parting for rank in found if (parting := rank.parting()) is not None]
    return Compared(
        tuple(sorted(partings, key=_order)),
        sum(rank.calls.height for rank in found),
        sum(rank.uses.height for rank in found),
    )


def _order(parting: Parting) -> tuple[int, bool, int]:
    return parting.place.step, parting.part in _FOLLOWING, parting.place.rank


@dataclass(frozen=True, slots=True)
class _Rank:
    traces: Pair[RankTrace]
    calls: pl.DataFrame
    """Those that both runs make, up to where they make others."""
    uses: pl.DataFrame
    """Their tensors: call, makes, place, produced, differs (null where it is not known)."""
    other: dict[str, Any] | None
    """The first call that only one run makes."""

    @classmethod
    def of(cls, traces: Pair[RankTrace]) -> "_Rank":
        calls = traces.map(_calls)
        shared = min(calls.reference.height, calls.target.height)
        names = calls.map(lambda side: side.head(shared).select(_IDENTITY).rows())
        alike = next((row for row in range(shared) if names.reference[row] != names.target[row]), shared)
        whole = alike == calls.reference.height == calls.target.height
        longer = calls.target if calls.target.height > alike else calls.reference
        return cls(
            traces,
            _beside(calls, alike),
            _uses(traces, calls, alike),
            None if whole else longer.row(alike, named=True),
        )

    def parting(self) -> Parting | None:
        rows = {row["id"]: row for row in self.calls.iter_rows(named=True)}
        made = self.uses.filter(pl.col("makes"), pl.col("differs"))["call"].unique()
        fed = self.uses.filter(~pl.col("makes"), pl.col("differs").fill_null(True))["call"].unique()
        differing, given = set(made.to_list()), set(fed.to_list())
        found, outside = self._born(rows, given, differing), self._outside()
        first = min((call for call in (found, outside and outside[0]) if call is not None), default=None)
        if first is None:
            return None if self.other is None else self._told(self.other, Part.STRUCTURE, differing)
        part = self._part(rows[first]) if first == found else Part.GIVEN
        custom = self._custom(first, rows, given, differing) if part in _FROM_SCRIPT else None
        if custom is not None:
            return self._told(rows[custom], Part.COMPUTATION, differing)
        tensor = outside[1] if outside is not None and part is Part.GIVEN else None
        return self._told(rows[first], part, differing, tensor=tensor)

    def _born(self, rows: Rows, given: set[int], differing: set[int]) -> int | None:
        """The first call that gives other bits though it was given the same, the innermost of those that do."""
        outer = {rows[call]["parent"] for call in differing}
        born = (call for call in sorted(differing - outer) if not self._is_given(rows[call], given, differing))
        return next(born, None)

    def _custom(self, call: int | None, rows: Rows, given: set[int], differing: set[int]) -> int | None:
        """The user's own operation inside of which this is, that was given the same bits and gives others."""
        while call is not None and (call := rows[call]["parent"]) is not None:
            if rows[call]["kind"] in _WHOLE and call in differing and not self._is_given(rows[call], given, differing):
                return call
        return None

    def _is_given(self, row: dict[str, Any], given: set[int], differing: set[int]) -> bool:
        """Whether other bits went in; into a backward also what its forward kept."""
        forward = row["forward"]
        return row["id"] in given or (forward is not None and (forward in given or forward in differing))

    def _outside(self) -> tuple[int, str] | None:
        """The first call that reads other bits that no call has made, and where it reads them."""
        foreign = self.uses.filter(~pl.col("makes"), pl.col("differs"), ~pl.col("produced"))
        return min(foreign.select("call", "place").rows(), default=None)

    def _part(self, row: dict[str, Any]) -> Part:
        if row["kind"] == COLLECTIVE_KIND:
            return Part.COLLECTIVE
        if row["random"]:
            return Part.GENERATOR if row["generator"] != row["generator_target"] else Part.RANDOM
        if _given_arguments(row["arguments"]) != _given_arguments(row["arguments_target"]):
            return Part.ARGUMENT
        read = self.uses.filter(pl.col("call") == row["id"], ~pl.col("makes"))
        return Part.OUTSIDE if read.is_empty() else Part.COMPUTATION

    def _told(self, row: dict[str, Any], part: Part, differing: set[int], *, tensor: str | None = None) -> Parting:
        trace = self.traces.reference
        stack = trace.stack(row["stack"]) if row["stack"] is not None else ()
        place = Place(
            rank=trace.info.rank,
            step=row["step"],
            phase=Phase(row["phase"]),
            call=row["name"],
            call_id=row["id"],
            op=row["op"],
            module=row["module"],
            tensor=tensor,
            source=f"{stack[0].file}:{stack[0].line}" if stack else None,
        )
        return Parting(part, place, len(differing), self.calls.height)


def _calls(rank: RankTrace) -> pl.DataFrame:
    return rank.collect(rank.calls().select(_CALLS)).sort("id")


def _beside(calls: Pair[pl.DataFrame], count: int) -> pl.DataFrame:
    """The reference's calls, with the generator and the arguments that the target's have."""
    target = calls.target.head(count).select(
        pl.col("generator").alias("generator_target"), pl.col("arguments").alias("arguments_target")
    )
    return pl.concat([calls.reference.head(count), target], how="horizontal")


def _uses(traces: Pair[RankTrace], calls: Pair[pl.DataFrame], count: int) -> pl.DataFrame:
    """The tensors of paired calls, by role and place."""
    sides = [_used(trace, side.head(count)) for trace, side in zip(traces, calls, strict=True)]
    keys = ["number", "role", "place"]
    joined = sides[0].join(sides[1], on=keys, suffix="_target").sort("number")
    # Memory that nobody has written has no content; of what is not known nothing is said.
    empty = ~(pl.col("initialized") & pl.col("initialized_target"))
    differs = pl.when(empty).then(False).otherwise(pl.col("digest") != pl.col("digest_target"))
    makes = pl.col("role").is_in(list(MAKING_ROLES))
    return joined.select("call", "place", "produced", makes=makes, differs=differs)


def _used(rank: RankTrace, calls: pl.DataFrame) -> pl.DataFrame:
    numbered = calls.select(pl.col("id").alias("call")).with_row_index("number")
    produced = pl.col("producer").is_not_null()
    values = rank.values().select(pl.col("id").alias("value"), "digest", "initialized", produced=produced)
    uses = rank.tensors().select("call", "role", "place", "value").join(values, on="value", how="left")
    found = rank.collect(uses).join(numbered, on="call")
    return found.unique(["number", "role", "place"], keep="first", maintain_order=True)


def _given_arguments(text: str | None) -> Any:
    """Without what the call returned."""
    told = json.loads(text) if text else {}
    return {name: item for name, item in told.items() if name != _RETURNED} if isinstance(told, dict) else told
