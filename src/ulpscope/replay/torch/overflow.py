"""Executes a call that made inf or nan of finite numbers again: on the CPU in the same dtype, and in high precision.

A call whose results are not recorded is executed as well: what comes out here is all that can be known of it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.records.checks import GRADIENT, CaseId, Direction
from ulpscope.records.overflows import NotFinite, OverflowEvidence
from ulpscope.replay.planning import born_here, counted, untold_here
from ulpscope.replay.recorded import CannotReplayError, RecordedCall
from ulpscope.replay.torch.engine import Engine, check_size
from ulpscope.replay.torch.evidence import measure_reductions
from ulpscope.replay.torch.running import (
    Feed,
    Ran,
    Recipe,
    cast_inputs,
    make_recipe,
    results,
    run,
    run_precise,
    under_autocast,
)
from ulpscope.replay.torch.tensors import dtype_name
from ulpscope.trace.reader import RankTrace


@dataclass(frozen=True, slots=True)
class Overflowed:
    """A call that was executed again."""

    feed: Feed
    evidence: list[OverflowEvidence]

    def refine(self) -> None:
        """Nothing more can be told."""

    def tensors(self) -> dict[str, NDArray[Any]]:
        return self.feed.arrays()


class Overflower:
    """Executes overflowing calls; on the device under test too, if that is not the CPU."""

    def __init__(self, device: str, *, seed: int = 0, references: Sequence[Path] = ()) -> None:
        self._engine = Engine(device, seed=seed, references=references)
        self._device = device
        self._seed = seed

    def execute(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> Overflowed:
        """Evidence of each result that was not finite in the run though what it was made of was, or is not recorded."""
        check_size(recorded)
        feed = self._engine.feed(case, recorded, rank)
        recipe = under_autocast(make_recipe(recorded), feed, recorded, device="cpu")
        cpu = self._on(recipe, feed, "cpu")
        device = None if self._device == "cpu" else self._on(recipe, feed, self._device)
        first = cpu or device
        precise = run_precise(recipe, feed if first is None else cast_inputs(recipe, feed, first.outputs))
        told = _Told(case, measure_reductions(recipe, feed), results(precise), *map(_results, (cpu, device)))
        return Overflowed(feed, list(told.evidence(recorded)))

    def _on(self, recipe: Recipe, feed: Feed, device: str) -> Ran | None:
        """None where there is no kernel for these dtypes."""
        torch.manual_seed(self._seed)
        try:
            return run(recipe, feed, device=device)
        except (NotImplementedError, RuntimeError) as error:
            if "not implemented" not in str(error):
                raise
            return None


def _results(ran: Ran | None) -> dict[str, Tensor] | None:
    return None if ran is None else results(ran)


@dataclass(frozen=True, slots=True)
class _Told:
    """What came out here, to be put beside what the run recorded."""

    case: CaseId
    lengths: Mapping[str, float]
    precise: Mapping[str, Tensor]
    cpu: Mapping[str, Tensor] | None
    device: Mapping[str, Tensor] | None

    def evidence(self, recorded: RecordedCall) -> Iterator[OverflowEvidence]:
        firsts, asked = recorded.repeated, list(_not_finite_numbers(recorded.call.arguments))
        for direction, places in born_here(recorded).items():
            backward = direction is Direction.BACKWARD
            # A tensor that is given twice has one gradient.
            named = {f"{GRADIENT}{firsts.get(place, place)}" if backward else place: places[place] for place in places}
            for name, value in named.items():
                if name not in self.precise:
                    raise CannotReplayError(f"it gives no {name} here")
                yield self._one(name, direction, value.dtype, counted(value), asked)
        for direction in untold_here(recorded):
            found = self.cpu or self.device
            if found is None:
                raise CannotReplayError("what it gives is not recorded, and there is no kernel for these dtypes here")
            for name, tensor in found.items():
                backward = name.startswith(GRADIENT)
                if backward == (direction is Direction.BACKWARD) and (
                    tensor.is_floating_point() or tensor.is_complex()
                ):
                    yield self._one(name, direction, dtype_name(tensor.dtype), None, asked)

    def _one(
        self, name: str, direction: Direction, dtype: str, recorded: NotFinite | None, asked: Sequence[float]
    ) -> OverflowEvidence:
        exact = self.precise[name]
        cpu, device = (
            None if found is None or name not in found else _not_finite(found[name])
            for found in (self.cpu, self.device)
        )
        finite = exact.detach()[exact.detach().isfinite()]
        seen = recorded or cpu or device or NotFinite()
        # Whether its arguments say what was recorded: inf does not ask for nan, nor nan for inf.
        has_nan, has_inf = any(map(math.isnan, asked)), any(map(math.isinf, asked))
        return OverflowEvidence(
            place=name,
            direction=direction,
            dtype=dtype,
            shape=tuple(exact.shape),
            recorded=recorded,
            cpu=cpu,
            exact=_not_finite(exact),
            exact_largest=float(finite.abs().max()) if finite.numel() else None,
            asked_for=(has_nan or not seen.nan) and (has_inf or seen.total == seen.nan),
            source=self.case.source,
            terms=self.lengths.get(name, 1.0),
            device=device,
        )


def _not_finite(tensor: Tensor) -> NotFinite:
    plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return NotFinite(
        nan=int(plain.isnan().sum()), pos_inf=int(plain.isposinf().sum()), neg_inf=int(plain.isneginf().sum())
    )


def _not_finite_numbers(encoded: Any) -> Iterator[float]:
    """The plain numbers among the arguments that are inf or nan."""
    if isinstance(encoded, dict) and "$float" in encoded:
        number = float(encoded["$float"])
        yield from () if math.isfinite(number) else (number,)
    elif isinstance(encoded, dict | list):
        for item in encoded.values() if isinstance(encoded, dict) else encoded:
            yield from _not_finite_numbers(item)
