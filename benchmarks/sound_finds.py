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


def loss_gradient(dtype: str) -> float:
    """The gradient of cross entropy is softmax / rows, away from the labels."""
    logits = (torch.randn(8, 50) * 2).to(getattr(torch, dtype)).requires_grad_()
    labels = torch.zeros(8, dtype=torch.int64)
    functional.cross_entropy(logits, labels).backward()
    assert logits.grad is not None
    return ulps(numbers(logits.grad[:, 1:]), [each for row in numbers_of(logits) for each in softmax(row)[1:]], dtype)


def numbers_of(rows: Tensor) -> list[list[float]]:
    return rows.detach().double().tolist()  # type: ignore[no-any-return]


def softmax(row: list[float]) -> list[float]:
    """Over 8 rows."""
    powers = [mpmath.exp(each) for each in row]
    return [float(power / mpmath.fsum(powers) / 8) for power in powers]


def picked_mean(dtype: str) -> float:
    """nll_loss picks one number a row and takes their mean: fsum rounds it once."""
    picked = [-(torch.rand(64, 1) * 4 + 1).to(getattr(torch, dtype)) for _ in range(20)]
    got = [float(functional.nll_loss(rows, torch.zeros(64, dtype=torch.int64))) for rows in picked]
    return ulps(got, [-math.fsum(numbers(rows)) / 64 for rows in picked], dtype)


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


def two_row_norm(dtype: str) -> float:
    """A batch norm over two rows gives +-1 (eps is nothing beside their distance): the gradient of x is nearly 0."""
    kind = getattr(torch, dtype)
    x, sent = torch.tensor([[3.1], [7.3]], dtype=kind), torch.tensor([[1.3], [-0.4]], dtype=kind)
    x.requires_grad_()
    functional.batch_norm(x, None, None, torch.ones(1, dtype=kind), torch.zeros(1, dtype=kind), True).backward(sent)
    assert x.grad is not None
    low, high = (mpmath.mpf(each) for each in numbers(x))
    half, eps = (high - low) / 2, mpmath.mpf("1e-5")
    # d/dx of sent . (x - mean) / sqrt(half^2 + eps), by hand: the part along the difference shrinks with eps.
    part = (mpmath.mpf(float(sent[0])) - float(sent[1])) / 2 * eps / (half**2 + eps) ** mpmath.mpf(1.5)
    return ulps(numbers(x.grad), [float(part), float(-part)], dtype)


def convolution_bias(dtype: str) -> float:
    """The gradient of a convolution's bias is a sum over all pixels, here of runs of equal numbers."""
    kind = getattr(torch, dtype)
    bias = torch.zeros(32, dtype=kind, requires_grad=True)
    sent = torch.randn(8, 32, 1, 1).to(kind).expand(8, 32, 8, 8).contiguous()
    weight = torch.ones(32, 1, 3, 3, dtype=kind)
    functional.conv2d(torch.ones_like(sent), weight, bias, padding=1, groups=32).backward(sent)
    assert bias.grad is not None
    return ulps(numbers(bias.grad), [math.fsum(numbers(sent[:, channel])) for channel in range(32)], dtype)


def convolution_input(dtype: str) -> float:
    """The gradient of a convolution's input, by correctly rounded sums of its products (exact in float64)."""
    kind = getattr(torch, dtype)
    x, weight = torch.zeros(1, 1, 8, 8, dtype=kind, requires_grad=True), torch.rand(32, 1, 3, 3).to(kind)
    sent = torch.rand(1, 32, 6, 6).to(kind)
    functional.conv2d(x, weight).backward(sent)
    assert x.grad is not None
    kernels, grads = weight.double().tolist(), sent.double().tolist()[0]
    true = [
        math.fsum(
            kernels[out][0][row - i][column - j] * grads[out][i][j]
            for out in range(32)
            for i in range(max(row - 2, 0), min(row + 1, 6))
            for j in range(max(column - 2, 0), min(column + 1, 6))
        )
        for row in range(8)
        for column in range(8)
    ]
    return ulps(numbers(x.grad), true, dtype)


def one_element_norm(dtype: str) -> float:
    """A layer norm over one element subtracts it from itself: the gradient of the weight is 0."""
    kind = getattr(torch, dtype)
    weight = torch.ones(1, dtype=kind, requires_grad=True)
    x = torch.randn(64, 1).to(kind)
    functional.layer_norm(x, (1,), weight).backward(torch.ones_like(x))
    assert weight.grad is not None
    return ulps(numbers(weight.grad), [0.0], dtype)


def gelu(dtype: str) -> float:
    """x/2 erfc(-x/sqrt(2)); written with 1 + erf it cancels below 0."""
    x = torch.linspace(-5, -3, 200).to(getattr(torch, dtype))
    true = [float(mpmath.mpf(each) / 2 * mpmath.erfc(-each / mpmath.sqrt(2))) for each in numbers(x)]
    return ulps(numbers(functional.gelu(x)), true, dtype)


FINDS: tuple[Find, ...] = (
    Find(
        "layer_norm adds up the gradients of weight and bias in the half type",
        ("layer_norm", "native_layer_norm"),
        HALVES,
        ("grad.kwargs.weight", "grad.kwargs.bias", "grad.args.2", "grad.args.3"),
        bias_gradient,
    ),
    Find(
        "log_softmax rounds its logarithm of sums to the half type before it subtracts it: every row of the gradient"
        " is off by a factor of its own",
        ("cross_entropy", "log_softmax", "linear_cross_entropy"),
        HALVES,
        ("grad.", "output."),
        loss_gradient,
    ),
    Find("nll_loss adds up in the half type", ("cross_entropy", "nll_loss"), HALVES, ("output.",), picked_mean),
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
        "layer_norm over one element leaves a rounding error times 1/sqrt(eps)",
        ("layer_norm", "native_layer_norm"),
        ("float32",),
        ("grad.",),
        one_element_norm,
    ),
    Find(
        "batch_norm rounds its statistics to the half type between forward and backward: what should cancel does not",
        ("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
        HALVES,
        ("grad.",),
        two_row_norm,
    ),
    Find(
        "smoothing interpolation takes its weights from coordinates in float32",
        ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        ("float32",),
        ("output.", "grad."),
        shrinking,
    ),
    Find(
        "convolutions add up the gradient of the bias one number after the other in float32",
        ("conv1d", "conv2d", "conv3d"),
        ("float32",),
        ("grad.args.2", "grad.kwargs.bias"),
        convolution_bias,
    ),
    Find(
        "convolutions add up overlapping patches of the input's gradient in the half type",
        ("conv1d", "conv2d", "conv3d"),
        ("float16",),
        ("grad.args.0",),
        convolution_input,
    ),
    Find("gelu cancels below 0: 1 + erf(x)", ("gelu",), ("float32",), ("output.", "grad."), gelu),
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
