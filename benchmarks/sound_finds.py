"""What PyTorch's own CPU kernels compute wrongly, each proven by a computation that shares nothing with ulpscope.

    python benchmarks/sound_finds.py       every find with the error that proves it

A proof gives the largest error of a small example, in units of the last place of the truth: a result that is rounded
once has a half. Truths come from exact fractions, correctly rounded sums (math.fsum) and mpmath.
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import mpmath
import torch
from torch import Tensor
from torch.nn import functional

mpmath.mp.dps = 40
HALVES = ("bfloat16", "float16")
SOUND_ULP = 1.0
"""A kernel that rounds its result once, and computes it in a wider type, stays below 0.51 in the examples."""


@dataclass(frozen=True, slots=True)
class Find:
    """One thing that a kernel does wrongly."""

    sentence: str
    ops: tuple[str, ...]
    """Last parts of their names."""
    dtypes: tuple[str, ...]
    places: tuple[str, ...]
    """Beginnings of the outputs that are wrong."""
    proof: Callable[[str], float]
    """Largest error of an example in one dtype."""

    def holds(self, dtype: str) -> bool:
        return _proven(self.proof, dtype) > SOUND_ULP


@cache
def _proven(proof: Callable[[str], float], dtype: str) -> float:
    torch.manual_seed(0)
    return proof(dtype)


def ulps(computed: Iterable[float], true: Iterable[float], dtype: str) -> float:
    """The largest error in units of the last place of the truth."""
    kind = torch.finfo(getattr(torch, dtype))

    def one(got: float, truth: float) -> float:
        if not math.isfinite(got):
            return math.inf
        exponent = math.frexp(max(abs(truth), kind.smallest_normal))[1] - 1
        return abs(got - truth) / (kind.eps * 2.0**exponent)

    return max(one(got, truth) for got, truth in zip(computed, true, strict=True))


def numbers(tensor: Tensor) -> list[float]:
    return tensor.detach().double().flatten().tolist()


def bias_gradient(dtype: str) -> float:
    """The gradient of a layer norm's bias is a sum over rows: fsum rounds it once."""
    kind = getattr(torch, dtype)
    x, sent = (torch.randn(256, 64).to(kind) for _ in range(2))
    bias = torch.zeros(64, dtype=kind, requires_grad=True)
    functional.layer_norm(x, (64,), torch.ones(64, dtype=kind), bias).backward(sent)
    assert bias.grad is not None
    true = [math.fsum(column) for column in sent.double().T.tolist()]
    return ulps(numbers(bias.grad), true, dtype)


def matrix_exponential(dtype: str) -> float:
    matrix = (torch.randn(4, 4) * 3).to(getattr(torch, dtype))
    true = mpmath.expm(mpmath.matrix(matrix.double().tolist()))
    return ulps(numbers(torch.matrix_exp(matrix)), [float(each) for each in true], dtype)


def soft_margin(dtype: str) -> float:
    """log(1 + exp(20)) is 20; exp(20) is no float16."""
    x = torch.tensor([-20.0], dtype=getattr(torch, dtype))
    got = functional.soft_margin_loss(x, torch.ones_like(x))
    return ulps(numbers(got), [float(mpmath.log(1 + mpmath.exp(20)))], dtype)


def sampling(dtype: str) -> float:
    """Between two pixels, by exact fractions: a row of 12 pixels at places that the dtype has."""
    kind = getattr(torch, dtype)
    pixels, places = torch.randn(12).to(kind), (torch.rand(200) * 1.6 - 0.8).to(kind)
    grid = torch.stack([places, torch.zeros_like(places)], -1).reshape(1, 1, -1, 2)
    got = functional.grid_sample(pixels.reshape(1, 1, 1, 12), grid, align_corners=True)
    return ulps(numbers(got), [between(numbers(pixels), Fraction(place)) for place in numbers(places)], dtype)


def between(pixels: list[float], place: Fraction) -> float:
    at = (place + 1) / 2 * (len(pixels) - 1)
    left = math.floor(at)
    share = at - left
    return float(Fraction(pixels[left]) * (1 - share) + Fraction(pixels[min(left + 1, len(pixels) - 1)]) * share)


def shrinking(dtype: str) -> float:
    """A row of 40 pixels at 0.9 of its size, smoothed, by exact fractions."""
    pixels = torch.randn(40).to(getattr(torch, dtype))
    got = torch.ops.aten._upsample_bilinear2d_aa(pixels.reshape(1, 1, 1, 40), None, False, [1.0, 0.9])
    return ulps(numbers(got), [smoothed(numbers(pixels), at) for at in range(36)], dtype)


def smoothed(pixels: list[float], at: int) -> float:
    """The mean of pixels about a place, with weights that fall linearly to 0."""
    step = 1 / Fraction(0.9)
    center = step * (at + Fraction(1, 2))
    first, end = (math.floor(center + side * step + Fraction(1, 2)) for side in (-1, 1))
    near = range(max(first, 0), min(end, len(pixels)))
    weights = [max(1 - abs((Fraction(place) - center + Fraction(1, 2)) / step), Fraction(0)) for place in near]
    total = sum(weight * Fraction(pixels[place]) for weight, place in zip(weights, near, strict=True))
    return float(total / sum(weights))


FINDS: tuple[Find, ...] = (
    Find(
        "layer_norm adds up the gradients of weight and bias in the half type",
        ("layer_norm", "native_layer_norm"),
        HALVES,
        ("grad.kwargs.weight", "grad.kwargs.bias", "grad.args.2", "grad.args.3"),
        bias_gradient,
    ),
    Find("matrix_exp gives nan", ("matrix_exp",), HALVES, ("output.", "grad."), matrix_exponential),
    Find(
        "soft_margin_loss overflows in exp where the loss itself is small",
        ("soft_margin_loss",),
        ("float16",),
        ("output.", "grad."),
        soft_margin,
    ),
    Find(
        "grid_sample computes coordinates in the half type",
        ("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d"),
        HALVES,
        ("output.", "grad."),
        sampling,
    ),
    Find(
        "smoothing interpolation takes its weights from coordinates in float32",
        ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        ("float32",),
        ("output.", "grad."),
        shrinking,
    ),
)


def find_of(op: str, dtype: str, place: str) -> Find | None:
    """The find that explains a wrong output, if its proof holds here."""
    name = op.split(".")[-1] if not op.startswith("aten.") else op.split(".")[1]
    fitting = (find for find in FINDS if name in find.ops and dtype in find.dtypes and place.startswith(find.places))
    return next((find for find in fitting if find.holds(dtype)), None)


def main() -> None:
    for find in FINDS:
        for dtype in find.dtypes:
            told = "proven" if find.holds(dtype) else "NOT PROVEN"
            print(f"{told:10} {dtype:9} {_proven(find.proof, dtype):10.3g} ulp  {find.sentence}")


if __name__ == "__main__":
    main()
