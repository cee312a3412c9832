"""What the calls of one run read and made, partners or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from ulpscope.align.tensors import KEPT_ROLES
from ulpscope.judge.rounding.values import Values
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.enums import GRAD_OUTPUT_ROLE, GRADIENT_ROLE, INPUT_ROLE, OUTPUT_ROLE
from ulpscope.trace.reader import RankTrace

READING = [INPUT_ROLE, *KEPT_ROLES, GRAD_OUTPUT_ROLE, GRADIENT_ROLE]


@dataclass(frozen=True)
class RunReads:
    """Of the calls of some steps, each looked up once."""

    steps: Sequence[int]
    trace: RankTrace
    calls: pl.DataFrame
    partners: dict[int, int]
    """Pairs of calls, by id of the call."""
    values: Values

    @cached_property
    def forwards(self) -> dict[int, int]:
        return dict(self.calls.select("id", "forward").drop_nulls().iter_rows())

    @cached_property
    def inputs(self) -> dict[int, list[int]]:
        return self._uses(READING)

    @cached_property
    def outputs(self) -> dict[int, list[int]]:
        return self._uses([OUTPUT_ROLE])

    def _uses(self, roles: Sequence[str]) -> dict[int, list[int]]:
        """Values that each call uses in these roles."""
        used = self.trace.tensors(self.steps).filter(pl.col("role").is_in(roles)).select("call", "value")
        together = used.group_by("call", maintain_order=True).agg("value")
        return dict(self.trace.collect(together).iter_rows())

    @cached_property
    def read_by_strangers(self) -> set[int]:
        """Values that calls without partners read, compute something of, and send a gradient back to."""
        ops = dict(self.calls.select("id", "op").iter_rows())
        sending = {forward for forward in self.forwards.values() if forward not in self.partners and forward in ops}
        computing = [call for call in sending if not operation(ops[call]).has(Trait.MOVING, Trait.VIEW)]
        return {value for call in computing for value in self.inputs.get(call, ())}

    @cached_property
    def storages_of_strangers(self) -> set[int]:
        """Where these values lie."""
        known = self.trace.values().filter(pl.col("id").is_in(list(self.read_by_strangers))).select("storage")
        return set(self.trace.collect(known)["storage"].drop_nulls())

    @cached_property
    def rows(self) -> dict[int, int]:
        """Rows of pairs of values, by id of the value."""
        return {value: row for row, value in enumerate(self.values.id.tolist())}

    def row_of(self, value: int) -> int | None:
        """The row of a value, or of the same content in the same memory: a parameter's data are known as it is."""
        if value in self.rows:
            return self.rows[value]
        known = self.trace.value_rows([value], columns=["id", "storage", "digest"])
        return None if known.is_empty() else self._rows_by_content.get(known.select("storage", "digest").row(0))

    @cached_property
    def _rows_by_content(self) -> dict[tuple[int, int], int]:
        """Rows of pairs of values, by storage and digest."""
        values = self.values
        known = np.flatnonzero(values.has_digest & (values.storage >= 0)).tolist()
        contents = zip(values.storage[known].tolist(), values.digest[known].tolist(), strict=True)
        return dict(zip(contents, known, strict=True))

    @cached_property
    def producers(self) -> dict[int, int]:
        """The call that made each value, where it is one of these; what other steps made came from outside."""
        made = self.trace.values().select("id", "producer").drop_nulls()
        by_these = made.join(self.calls.lazy().select(producer="id"), on="producer", how="semi")
        return dict(self.trace.collect(by_these).iter_rows())
