"""Executes a case twice, the second time with a small change, and gives the evidence of both.

perturber = Perturber("cuda:0", mode=Perturbation.BIT_NOISE)
perturbed = perturber.execute(case, recorded, rank)
perturbed.evidence                one entry an output or gradient
perturbed.refine()                adds sensitivities: a few more runs in float64
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.records.checks import CaseId, OutputEvidence, Perturbation, PerturbedEvidence
from ulpscope.replay.recorded import CannotReplayError, RecordedCall
from ulpscope.replay.torch.engine import Engine, Executed
from ulpscope.replay.torch.running import Feed, Recipe, make_recipe
from ulpscope.trace.reader import RankTrace

# What add_noise adds to elements larger than its square root: far below what a forward in that dtype resolves at 1.
NOISE = {torch.bfloat16: 1e-4, torch.float16: 1e-6, torch.float32: 1e-8, torch.float64: 1e-16}
WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}
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
        else:
            self._after = _ChangingEngine(device, seed=seed, mode=mode, first_only=first_only)

    def execute(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> Perturbed:
        """Run the case on the device and in float64, before and after the change."""
        before = self._before.execute(case, recorded, rank)
        return Perturbed(self._mode, before, self._after.execute(case, recorded, rank))


class _ChangingEngine(Engine):
    """Executes cases with inputs that are a little different."""

    def __init__(self, device: str, *, seed: int, mode: Perturbation, first_only: bool) -> None:
        super().__init__(device, seed=seed)
        self._mode = mode
        self._first_only = first_only

    def _recipe(self, recorded: RecordedCall, feed: Feed) -> Recipe:
        if self._mode is Perturbation.IMPROVE_PRECISION:
            return replace(make_recipe(recorded), autocast=None)
        return super()._recipe(recorded, feed)

    def feed(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> Feed:
        feed = super().feed(case, recorded, rank)
        if self._mode is Perturbation.IMPROVE_PRECISION:
            return _widened(feed)
        places = [place for place, tensor in feed.tensors.items() if tensor.is_floating_point()]
        return _moved(feed, places[:1] if self._first_only else places, _MOVES[self._mode])


def _moved(feed: Feed, places: Sequence[str], move: Callable[[Tensor], Tensor]) -> Feed:
    """These inputs and all gradients that are sent back, changed."""
    inputs = {place: _laid_out_as(feed.tensors[place], move(feed.tensors[place])) for place in places}
    if all(torch.equal(moved, feed.tensors[place]) for place, moved in inputs.items()):
        raise CannotReplayError("it has no float input that this perturbation changes")
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
