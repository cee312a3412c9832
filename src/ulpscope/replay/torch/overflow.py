"""Executes a call that made inf or nan of finite numbers again: on the CPU in the same dtype, and in high precision.

A call whose results are not recorded is executed as well: what comes out here is all that can be known of it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.records.checks import GRADIENT, CaseId, Direction
from ulpscope.records.overflows import NotFinite, OverflowEvidence
from ulpscope.replay.planning import born_here, counted, untold_here
from ulpscope.replay.recorded import CannotReplayError, RecordedCall, find_repeated
from ulpscope.replay.torch.engine import Engine, check_size
from ulpscope.replay.torch.evidence import dtype_name, measure_reductions
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
        lengths = measure_reductions(recipe, feed)
        evidence = _Evidence(case, recorded, precise, cpu, device, lengths)
        return Overflowed(feed, list(evidence.all()))

    def _on(self, recipe: Recipe, feed: Feed, device: str) -> Ran | None:
        """None where there is no kernel for these dtypes."""
        torch.manual_seed(self._seed)
        try:
            return run(recipe, feed, device=device)
        except (NotImplementedError, RuntimeError) as error:
            if "not implemented" not in str(error):
                raise
            return None


class _Evidence:
    """Puts what the run recorded beside what came out here."""

    def __init__(
        self,
        case: CaseId,
        recorded: RecordedCall,
        precise: Ran,
        cpu: Ran | None,
        device: Ran | None,
        lengths: dict[str, float],
    ) -> None:
        self._case = case
        self._recorded = recorded
        self._precise = results(precise)
        self._cpu = None if cpu is None else results(cpu)
        self._device = None if device is None else results(device)
        self._lengths = lengths
        self._asked = list(_not_finite_numbers(recorded.call.arguments))

    def all(self) -> Iterator[OverflowEvidence]:
        firsts = dict(find_repeated(self._recorded.call.arguments))
        for direction, places in born_here(self._recorded).items():
            backward = direction is Direction.BACKWARD
            # A tensor that is given twice has one gradient.
            named = {f"{GRADIENT}{firsts.get(place, place)}" if backward else place: places[place] for place in places}
            for name, value in named.items():
                if name not in self._precise:
                    raise CannotReplayError(f"it gives no {name} here")
                yield self._one(name, direction, dtype=value.dtype, recorded=counted(value))
        for direction in untold_here(self._recorded):
            for name, tensor in self._computed(direction).items():
                yield self._one(name, direction, dtype=dtype_name(tensor.dtype), recorded=None)

    def _computed(self, direction: Direction) -> dict[str, Tensor]:
        """What came out here, in the dtype that the run had."""
        found = self._cpu or self._device
        if found is None:
            raise CannotReplayError("what it gives is not recorded, and there is no kernel for these dtypes here")
        floats = {name: tensor for name, tensor in found.items() if tensor.is_floating_point() or tensor.is_complex()}
        gradients = {name: tensor for name, tensor in floats.items() if name.startswith(GRADIENT)}
        return gradients if direction is Direction.BACKWARD else {k: v for k, v in floats.items() if k not in gradients}

    def _one(self, name: str, direction: Direction, *, dtype: str, recorded: NotFinite | None) -> OverflowEvidence:
        exact = self._precise[name]
        cpu, device = _count(self._cpu, name), _count(self._device, name)
        return OverflowEvidence(
            place=name,
            direction=direction,
            dtype=dtype,
            shape=tuple(exact.shape),
            recorded=recorded,
            cpu=cpu,
            exact=_not_finite(exact),
            exact_largest=_largest(exact),
            asked_for=_ask_for(self._asked, recorded or cpu or device or NotFinite()),
            source=self._case.source,
            terms=self._lengths.get(name, 1.0),
            device=device,
        )


def _count(found: dict[str, Tensor] | None, place: str) -> NotFinite | None:
    return None if found is None or place not in found else _not_finite(found[place])


def _not_finite(tensor: Tensor) -> NotFinite:
    plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return NotFinite(
        nan=int(plain.isnan().sum()), pos_inf=int(plain.isposinf().sum()), neg_inf=int(plain.isneginf().sum())
    )


def _largest(tensor: Tensor) -> float | None:
    finite = tensor.detach()[tensor.detach().isfinite()]
    return float(finite.abs().max()) if finite.numel() else None


def _ask_for(numbers: Sequence[float], recorded: NotFinite) -> bool:
    """Whether these arguments say what was recorded: inf does not ask for nan, nor nan for inf."""
    has_nan, has_inf = any(map(math.isnan, numbers)), any(map(math.isinf, numbers))
    return (has_nan or not recorded.nan) and (has_inf or recorded.total == recorded.nan)


def _not_finite_numbers(encoded: Any) -> Iterator[float]:
    """The plain numbers among the arguments that are inf or nan."""
    if isinstance(encoded, dict) and "$float" in encoded:
        number = float(encoded["$float"])
        yield from () if math.isfinite(number) else (number,)
    elif isinstance(encoded, dict | list):
        for item in encoded.values() if isinstance(encoded, dict) else encoded:
            yield from _not_finite_numbers(item)
