"""Executes a case to ask something else of it than whether it is right.

perturber = Perturber("cuda:0", mode=Perturbation.ROUNDING)       the case twice, the second time with a small change
perturber.execute(case, recorded, rank).evidence                  both, one entry an output or gradient

An Overflower executes a call that made inf or nan of finite numbers: on the CPU in the same dtype, and in high
precision. A call whose results are not recorded is executed as well: what comes out here is all that is known.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.capture.torch.moving import MOVED, move
from ulpscope.records.checks import GRADIENT, CaseId, Direction, OutputEvidence, Perturbation, PerturbedEvidence
from ulpscope.records.overflows import NotFinite, OverflowEvidence
from ulpscope.replay.memory import check_size
from ulpscope.replay.planning import born_here, counted, untold_here
from ulpscope.replay.recorded import CannotReplayError, RecordedCall
from ulpscope.replay.torch.engine import Engine, Executed
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
)
from ulpscope.replay.torch.tensors import dtype_name
from ulpscope.trace.reader import RankTrace

# What add_noise adds to elements larger than its square root: far below what a forward in that dtype resolves at 1.
NOISE = {torch.bfloat16: 1e-4, torch.float16: 1e-6, torch.float32: 1e-8, torch.float64: 1e-16}
WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}
# Noise leaves three elements of four in place: one element stays through so many draws once in a hundred million.
MOST_DRAWS = 64
# Seeds of neighbouring draws lie so far apart, in the 32 bits that count, that they have nothing in common.
APART = 0x9E3779B1
_BITS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


@dataclass(slots=True)
class Perturbed:
    """A case that was executed before and after a change."""

    mode: Perturbation
    before: Executed
    after: Executed

    @property
    def evidence(self) -> list[PerturbedEvidence]:
        after = {each.place: each for each in self.after.evidence if isinstance(each, OutputEvidence)}
        return [
            PerturbedEvidence(self.mode, each, after[each.place])
            for each in self.before.evidence
            if isinstance(each, OutputEvidence) and each.place in after
        ]

    def refine(self) -> None:
        self.before.refine()
        self.after.refine()

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Inputs, what was computed and what is true, before and after."""
        before, after = self.before.tensors(), self.after.tensors()
        return {f"before.{name}": array for name, array in before.items()} | {
            f"after.{name}": array for name, array in after.items()
        }


class Perturber:
    """Executes cases twice on one device."""

    def __init__(
        self,
        device: str,
        *,
        mode: Perturbation,
        first_only: bool = False,
        seed: int = 0,
        references: Sequence[Path] = (),
    ) -> None:
        """`first_only`: of the inputs, only the first float one is changed."""
        self._mode = mode
        self._before = Engine(device, seed=seed, references=references)
        if mode is Perturbation.NO_CHANGE:
            self._after = self._before
        elif mode is Perturbation.TO_CPU:
            self._after = Engine("cpu", seed=seed)
        elif mode is Perturbation.IMPROVE_PRECISION:
            self._after = Engine(device, seed=seed, change=_widened, autocast=False)
        elif mode is Perturbation.ROUNDING:
            self._after = Engine(device, seed=seed, change=partial(move_by_noise, first_only, seed))
        else:
            self._after = Engine(device, seed=seed, change=partial(_moved, _MOVES[mode], first_only))

    def execute(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> Perturbed:
        """Run the case on the device and in float64, before and after the change."""
        before = self._before.execute(case, recorded, rank)
        return Perturbed(self._mode, before, self._after.execute(case, recorded, rank))


def move_by_noise(first_only: bool, seed: int, feed: Feed) -> Feed:
    """Moved by noise; of few elements a draw may move none, and says nothing: then by the next one."""
    for draw in range(MOST_DRAWS):
        with contextlib.suppress(_NothingMovedError):
            return _moved(partial(_round_once_more, itertools.count(seed + draw)), first_only, feed)
    raise _NothingMovedError


def _round_once_more(seeds: Iterator[int], tensor: Tensor) -> Tensor:
    if tensor.dtype not in MOVED:
        return tensor
    moved = tensor.clone()
    move(moved, MOVED[tensor.dtype], next(seeds) * APART % 2**32)
    return moved


class _NothingMovedError(CannotReplayError):
    def __init__(self) -> None:
        super().__init__("it has no float input that this perturbation changes")


def _moved(move: Callable[[Tensor], Tensor], first_only: bool, feed: Feed) -> Feed:
    """Inputs and all gradients that are sent back, changed."""
    places = [place for place, tensor in feed.tensors.items() if tensor.is_floating_point()]
    inputs = {
        place: _laid_out_as(feed.tensors[place], move(feed.tensors[place]))
        for place in (places[:1] if first_only else places)
    }
    if all(torch.equal(moved, feed.tensors[place]) for place, moved in inputs.items()):
        raise _NothingMovedError
    grads = {
        place: _laid_out_as(grad, move(grad)) if grad.is_floating_point() else grad
        for place, grad in feed.grad_outputs.items()
    }
    return Feed({**feed.tensors, **inputs}, grads)


def _laid_out_as(tensor: Tensor, moved: Tensor) -> Tensor:
    """The same strides: another layout may lead to another kernel."""
    return tensor.clone().copy_(moved)


def _flip_last_bit(tensor: Tensor) -> Tensor:
    if tensor.dtype not in _BITS:
        return tensor
    flipped = (tensor.view(_BITS[tensor.dtype]) ^ 1).view(tensor.dtype)
    ordinary = tensor.isfinite() & (tensor.abs() > torch.finfo(tensor.dtype).tiny)
    return torch.where(ordinary, flipped, tensor)


def _add_noise(tensor: Tensor) -> Tensor:
    noise = NOISE.get(tensor.dtype)
    return tensor if noise is None else torch.where(tensor.abs() > noise**0.5, tensor + noise, tensor)


def _swap_ends(tensor: Tensor) -> Tensor:
    moved = tensor.flatten().clone()
    if moved.numel() > 1:
        moved[0], moved[-1] = tensor.flatten()[-1], tensor.flatten()[0]
    return moved.reshape(tensor.shape)


_MOVES: dict[Perturbation, Callable[[Tensor], Tensor]] = {
    Perturbation.BIT_NOISE: _flip_last_bit,
    Perturbation.ADD_NOISE: _add_noise,
    Perturbation.CHANGE_VALUE: _swap_ends,
}


def _widened(feed: Feed) -> Feed:
    if not any(tensor.dtype in WIDER for tensor in feed.tensors.values()):
        raise CannotReplayError("its inputs have no wider dtype")
    return feed.changed(lambda tensor: tensor.to(WIDER.get(tensor.dtype, tensor.dtype)))


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
        recipe = make_recipe(recorded, feed, device="cpu")
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
