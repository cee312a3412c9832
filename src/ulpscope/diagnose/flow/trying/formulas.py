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
from ulpscope.diagnose.flow.trying.elements import arguments_of, drawn
from ulpscope.diagnose.flow.unpaired import Gap, GapFinder
from ulpscope.diagnose.limits import NUMBERS_DRAWN
from ulpscope.judge.rounding.elementwise import formula_of
from ulpscope.numerics.dtypes import DTYPES, Floats
from ulpscope.operations.registry import operation, own_word
from ulpscope.records.enums import INPUT_ROLE


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
        formulas = [_Formula(self, number) for number in (0, 1)]
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
        found = drawn(self.evidence, row, NUMBERS_DRAWN)
        if found is None:
            raise _UnknownError
        return np.clip(found.numbers, *found.bounds)

    @cached_property
    def given(self) -> tuple[Mapping[int, dict[str, int]], Mapping[int, dict[str, int]]]:
        """Of either run: what each call without a partner was given, by place."""
        first, second = (
            self._given(run, unmatched)
            for run, unmatched in zip(self.gaps.runs, self.evidence.plan.unmatched, strict=True)
        )
        return first, second

    def _given(self, run: RunReads, unmatched: pl.DataFrame) -> dict[int, dict[str, int]]:
        used = run.trace.tensors(run.steps).filter(pl.col("role") == INPUT_ROLE).select("call", "place", "value")
        rows = run.trace.collect(used.join(unmatched.lazy().select(call="id"), on="call", how="semi"))
        found: dict[int, dict[str, int]] = {}
        for call, place, value in rows.iter_rows():
            found.setdefault(call, {})[place] = value
        return found

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

    def __init__(self, formulas: Formulas, side: int) -> None:
        self.formulas, self.run = formulas, tuple(formulas.gaps.runs)[side]
        self.given, self.calls = formulas.given[side], formulas.calls[side]
        self.known: dict[int, Floats] = {}
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
        return self.formulas.numbers(row)

    def _computed(self, call: int) -> Floats:
        op, text = self.calls.get(call, ("", None))
        name, stated = operation(op).name, arguments_of(text)
        formula = formula_of(name, stated)
        # A cast to whole numbers is none.
        if formula is None or self.makes_integers(call):
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

    def makes_integers(self, call: int) -> bool:
        """Whether a call's results are no real numbers."""
        return any(not dtype or dtype not in DTYPES or not DTYPES[dtype].has_sketch for dtype in self._made(call))

    def _made(self, call: int) -> list[str]:
        values = self.run.outputs.get(call, [])
        return [str(value) for value in self.run.trace.value_rows(values, columns=["id", "dtype"])["dtype"]]

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
