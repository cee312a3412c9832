"""The precision of two runs: how coarse the types are that their numbers are held and computed in.

Of each pair of values, of a call, and of the runs as a whole. All of it is the coarser of the two runs'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.align.plan import RankPlan
from ulpscope.diagnose.limits import COARSEST_ROUNDOFF, OTHER_PRECISION, SAME_PRECISION
from ulpscope.judge.rounding.limits import TF32_ROUNDOFF, subnormal_spacing, unit_roundoff
from ulpscope.judge.rounding.measuring import ValuePairs
from ulpscope.judge.rounding.values import Values
from ulpscope.numerics.dtypes import AUTOCAST_DTYPES
from ulpscope.operations.registry import Family
from ulpscope.records.enums import MAKING_ROLES
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace


@dataclass(frozen=True)
class Precision:
    """Of one rank."""

    plan: RankPlan
    values: ValuePairs
    calls: dict[str, list[Any]]
    """Columns of the plan's pairs."""
    forwards: Sequence[int]
    """For each backward the pair of its forward; -1 for the rest."""
    owned: Sequence[int]
    """Rows of the values of parameters and buffers."""
    complete: bool
    """Whether both traces hold every call."""
    coarser: Mapping[int, float] = field(default_factory=dict)
    """Roundoffs of rows of values that are coarser than their types."""

    @property
    def _sides(self) -> Pair[Values]:
        return self.values.sides

    @cached_property
    def roundoffs(self) -> list[float]:
        """The coarser unit roundoff of each pair of values, below a type's normal numbers relative to their size."""
        norms = [np.nan_to_num(side.summaries.norm) for side in self._sides]
        size = np.where(norms[0] > 0, *norms) / np.sqrt(np.maximum(self._sides.reference.summaries.elements, 1.0))
        found = np.maximum(*(_roundoffs(side, size) for side in self._sides)).tolist()
        return [max(each, self.coarser.get(row, 0.0)) for row, each in enumerate(found)]

    @cached_property
    def spacings(self) -> list[float]:
        """The larger distance of the smallest numbers of the two types of each pair of values."""
        known = {name: subnormal_spacing(name) for side in self._sides for name in set(side.dtype)}
        return [max(known[name] for name in names) for names in zip(*(side.dtype for side in self._sides), strict=True)]

    @cached_property
    def resolutions(self) -> list[float]:
        """The relative distance below which the sketches of each pair of values tell nothing."""
        return list(np.maximum(*(side.resolution for side in self._sides)).tolist())

    @cached_property
    def coarsest(self) -> float:
        """The coarsest unit roundoff of the types that numbers are computed in."""
        stored = {name for side in self._sides for name in side.dtype}
        cast = {name for field in ("autocast", "reference_autocast") for name in self.calls[field] if name}
        return min(max(unit_roundoff(name) for name in {"", *stored, *cast}), COARSEST_ROUNDOFF)

    @cached_property
    def common_roundoff(self) -> float | None:
        """The coarsest unit roundoff of the parameters' types, if both runs are in the same precision: the types of
        nearly all of their parameters, of most of their values, and what autocast was told."""
        reference, target = (side.dtype[self.owned] for side in self._sides)
        same = reference == target
        cast_alike = self.calls["autocast"] == self.calls["reference_autocast"]
        if not self.complete or not cast_alike or np.count_nonzero(same) <= SAME_PRECISION * len(self.owned):
            return None
        reals = ~self.values.discrete
        other = np.count_nonzero((self._sides.reference.dtype != self._sides.target.dtype) & reals)
        if other > OTHER_PRECISION * np.count_nonzero(reals):
            return None
        return max(unit_roundoff(name) for name in set(target[same]))

    @cached_property
    def coarse_types(self) -> Pair[frozenset[str]]:
        """Types of 16 bits that either run holds anything in: what autocast may have cast to."""
        return self._sides.map(lambda side: frozenset(side.dtype) & AUTOCAST_DTYPES)

    @cached_property
    def coarse_families(self) -> dict[Family, float]:
        """Families of operations that may round float32 operands further on a device of either run: TF32."""
        found: dict[Family, float] = {}
        for trace in self.plan.traces:
            switches = trace.info.environment.get("switches", {})
            if all(device.startswith("cpu") for device in trace.info.devices):
                continue
            if switches.get("float32_matmul_precision", "highest") != "highest":
                found |= dict.fromkeys((Family.CONTRACTION, Family.ATTENTION), TF32_ROUNDOFF)
            if switches.get("cudnn_allow_tf32"):
                found |= dict.fromkeys((Family.CONVOLUTION, Family.RECURRENT), TF32_ROUNDOFF)
        return found

    def inner_roundoff(self, pair: int) -> float:
        """Of autocast's type in either run: what a call, or the forward of a backward, may round to inside."""
        calls = {pair, self.forwards[pair]} - {-1}
        types = [self.calls[field][call] for field in ("autocast", "reference_autocast") for call in calls]
        return max((unit_roundoff(name) for name in types if name), default=0.0)

    @cached_property
    def made_roundoffs(self) -> Pair[dict[int, float]]:
        """By id of the call, of either run: the coarser unit roundoff of the types that its results are stored in.

        Of types that pairs of calls use, too: a lone cast to another one is no precision that a run has.
        """
        used = {name for side in self._sides for name in side.dtype}

        def coarsest(trace: RankTrace) -> dict[int, float]:
            made = trace.tensors(self.plan.steps).filter(pl.col("role").is_in(MAKING_ROLES)).select("call", "value")
            types = trace.collect(made.join(trace.values().select("dtype", value="id"), on="value")).select(
                "call", "dtype"
            )
            units = {name: unit_roundoff(name) if name in used else 0.0 for name in types["dtype"].unique()}
            known = types.unique().with_columns(unit=pl.col("dtype").replace_strict(units, return_dtype=pl.Float64))
            return dict(known.group_by("call").agg(pl.col("unit").max()).iter_rows())

        return self.plan.traces.map(coarsest)


def _roundoffs(values: Values, size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of elements that are so large on average."""
    names = sorted(set(values.dtype))
    numbers = np.searchsorted(names, values.dtype.astype(str))
    unit = np.array([unit_roundoff(name) for name in names])[numbers]
    spacing = np.array([subnormal_spacing(name) for name in names])[numbers]
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = np.where(size > 0, spacing / 2.0 / size, 0.0)
    coarser: NDArray[np.float64] = np.minimum(np.maximum(unit, lost), 1.0)
    return coarser
