"""What calls of the runs' own make of single elements, tried: are the two formulas one function?

Where the runs reach a value through other calls, each on single elements, both are computed from the same numbers, such
as were recorded of what went in. Noise has no part in that: what then differs is other mathematics, however small.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from ulpscope.align.tensors import GRADIENT_ROLES
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.reads import RunReads
from ulpscope.diagnose.flow.trying.elements import arguments_of, drawn, drawn_like
from ulpscope.diagnose.flow.unpaired import Gap, GapFinder
from ulpscope.diagnose.limits import NUMBERS_DRAWN, SPAN_CALLS
from ulpscope.judge.rounding.elementwise import formula_of
from ulpscope.numerics.dtypes import DTYPES, Floats
from ulpscope.operations.registry import operation, own_word
from ulpscope.records.calls import Value
from ulpscope.records.enums import INPUT_ROLE, OUTPUT_ROLE


class _UnknownError(Exception):
    """Something in a formula is not known, or not of single elements."""


@dataclass(frozen=True)
class Formulas:
    """Of one rank."""

    evidence: RankEvidence
    gaps: GapFinder

    def apart(self, slot: Slot, gap: Gap) -> float | None:
        """By how much the two runs' formulas of a value are apart, relative; none if one of them is not known."""
        if not gap.calls or not gap.sources or gap.adds or gap.written or slot.role in GRADIENT_ROLES:
            return None
        tried: dict[int, Floats] = {}
        formulas = [_Formula(self, number, tried) for number in (0, 1)]
        sides = self.evidence.sides
        try:
            one, other = (
                formula.value(int(side.id[slot.values])) for formula, side in zip(formulas, sides, strict=True)
            )
        except (_UnknownError, ValueError, ArithmeticError):
            return None
        if formulas[0].leaves != formulas[1].leaves:
            return None
        known = np.isfinite(one) & np.isfinite(other)
        size = float(np.linalg.norm(one[known]))
        return float(np.linalg.norm(one[known] - other[known])) / size if size > 0 else None

    def numbers(self, row: int) -> Floats:
        """Numbers like those of a value that both runs have."""
        value = self.read.get(int(self.evidence.sides.reference.id[row]))
        known = None if value is None else drawn_like(value, self.evidence, row, NUMBERS_DRAWN)
        found = known if value is not None else drawn(self.evidence, row, NUMBERS_DRAWN)
        if found is None:
            raise _UnknownError
        return np.clip(found.numbers, *found.bounds)

    @cached_property
    def read(self) -> dict[int, Value]:
        """Values of the reference that such calls of either run were given: each by itself would take its own read."""
        sides = zip(self.gaps.runs, self.given, strict=True)
        rows = {
            run.rows.get(value, -1) for run, given in sides for places in given.values() for value in places.values()
        }
        ids = self.evidence.sides.reference.id[sorted(rows - {-1})]
        return self.evidence.plan.traces.reference.find_values(ids.tolist())

    @cached_property
    def given(self) -> tuple[Mapping[int, dict[str, int]], Mapping[int, dict[str, int]]]:
        """Of either run: what each call without a partner that may be of single elements was given, by place."""
        first, second = (
            self._given(run, unmatched)
            for run, unmatched in zip(self.gaps.runs, self.evidence.plan.unmatched, strict=True)
        )
        return first, second

    def _given(self, run: RunReads, unmatched: pl.DataFrame) -> dict[int, dict[str, int]]:
        used = run.trace.tensors(run.steps).filter(pl.col("role") == INPUT_ROLE).select("call", "place", "value")
        ops = [op for op in unmatched["op"].unique() if formula_of(operation(op).name, {}) is not None]
        calls = unmatched.filter(pl.col("op").is_in(ops)).lazy().select(call="id")
        rows = run.trace.collect(used.join(calls, on="call", how="semi"))
        found: dict[int, dict[str, int]] = {}
        for call, place, value in rows.iter_rows():
            found.setdefault(call, {})[place] = value
        return found

    @cached_property
    def makes_integers(self) -> tuple[frozenset[int], frozenset[int]]:
        """Of either run: calls without a partner whose results are no real numbers."""
        first, second = (
            self._makes_integers(run, unmatched)
            for run, unmatched in zip(self.gaps.runs, self.evidence.plan.unmatched, strict=True)
        )
        return first, second

    def _makes_integers(self, run: RunReads, unmatched: pl.DataFrame) -> frozenset[int]:
        reals = [name for name, dtype in DTYPES.items() if dtype.has_sketch]
        made = run.trace.tensors(run.steps).filter(pl.col("role") == OUTPUT_ROLE).select("call", "value")
        types = run.trace.values().select("dtype", value="id")
        others = types.filter(~pl.col("dtype").is_in(reals) | pl.col("dtype").is_null())
        alone = made.join(unmatched.lazy().select(call="id"), on="call", how="semi")
        return frozenset(run.trace.collect(alone.join(others, on="value", how="semi"))["call"])

    @cached_property
    def calls(self) -> tuple[Mapping[int, tuple[str, str | None]], Mapping[int, tuple[str, str | None]]]:
        """Of either run: operation and arguments of each call without a partner."""
        first, second = (
            {call: (op, text) for call, op, text in frame.select("id", "op", "arguments").iter_rows()}
            for frame in self.evidence.plan.unmatched
        )
        return first, second


class _Formula:
    """How one run computes a value from values that both have."""

    def __init__(self, formulas: Formulas, side: int, tried: dict[int, Floats]) -> None:
        self.formulas, self.side, self.run = formulas, side, tuple(formulas.gaps.runs)[side]
        self.given, self.calls = formulas.given[side], formulas.calls[side]
        self.tried = tried
        """Numbers for the values of both runs, by row."""
        self.known: dict[int, Floats] = {}
        self.calls_met = 0
        self.leaves: set[int] = set()
        """Rows of the values that it is computed from."""

    def value(self, value: int) -> Floats:
        if value not in self.known:
            producer = self.run.producers.get(value, -1)
            alone = producer >= 0 and producer not in self.run.partners
            self.known[value] = self._computed(producer) if alone else self._leaf(value)
        return self.known[value]

    def _leaf(self, value: int) -> Floats:
        row = self.run.rows.get(value)
        if row is None:
            raise _UnknownError
        self.leaves.add(row)
        if row not in self.tried:
            self.tried[row] = self.formulas.numbers(row)
        return self.tried[row]

    def _computed(self, call: int) -> Floats:
        self.calls_met += 1
        if self.calls_met > SPAN_CALLS:  # another program, and more than may be followed
            raise _UnknownError
        op, text = self.calls.get(call, ("", None))
        name, stated = operation(op).name, arguments_of(text)
        formula = formula_of(name, stated)
        # A cast to whole numbers is none.
        if formula is None or call in self.formulas.makes_integers[self.side]:
            raise _UnknownError
        arity, function = formula
        given = stated.get("args", [])[:arity]
        if len(given) < arity:  # a trace that does not say what a call was given
            raise _UnknownError
        entries = [self._entry(call, f"args.{index}", entry) for index, entry in enumerate(given)]
        if own_word(op) == f"__r{name}__":
            entries.reverse()
        with np.errstate(all="ignore"):
            return _numbers(function(*entries))

    def _entry(self, call: int, place: str, entry: Any) -> Any:
        if place in self.given.get(call, {}):
            return self.value(self.given[call][place])
        if isinstance(entry, bool) or not isinstance(entry, int | float):
            raise _UnknownError
        return float(entry)


def _numbers(entry: Any) -> Floats:
    if not isinstance(entry, np.ndarray) or entry.shape != (NUMBERS_DRAWN,):
        raise _UnknownError
    return entry
