"""What operations on single elements make of errors, measured on numbers like theirs: against what they really make."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.judge.rounding.elementwise import FUNCTIONS, Drawn, gradient_error, result_error
from ulpscope.numerics.dtypes import Floats
from ulpscope.records.findings import Outcome
from ulpscope.workflows.compare.command import compare

RANDOM = np.random.default_rng(3)
SMALL_AND_LARGE = np.exp(RANDOM.uniform(np.log(1e-4), np.log(10.0), 4000))
ERROR = 1e-3


def drawn(numbers: Floats, error: float = ERROR) -> Drawn:
    return Drawn(numbers, error, (float(numbers.min()), float(numbers.max())))


def moved(numbers: Floats) -> Floats:
    size = float(np.sqrt(np.mean(numbers**2)))
    return np.clip(numbers + ERROR * size * RANDOM.standard_normal(numbers.shape), numbers.min(), numbers.max())


def relative(apart: Floats, whole: Floats) -> float:
    return float(np.linalg.norm(apart) / np.linalg.norm(whole))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("reciprocal", SMALL_AND_LARGE),
        ("rsqrt", SMALL_AND_LARGE),
        ("log", SMALL_AND_LARGE),
        ("softplus", RANDOM.uniform(-9.0, -5.0, 4000)),
        ("round", RANDOM.uniform(-8.0, 8.0, 4000)),
        ("sin", RANDOM.uniform(-300.0, 300.0, 4000)),
    ],
)
def test_what_is_measured_is_what_happens(name: str, numbers: Floats) -> None:
    _, function = FUNCTIONS[name]
    happens = relative(function(moved(numbers)) - function(numbers), function(numbers))
    assert happens > 2.0 * ERROR
    assert happens / 2.0 < result_error(function, [drawn(numbers)]) < 3.0 * happens


@pytest.mark.parametrize(
    ("name", "derivative"), [("log", lambda x: 1.0 / x), ("rsqrt", lambda x: -0.5 * x**-1.5), ("tanh", lambda x: 1.0)]
)
def test_a_gradient_moves_as_its_derivative_does(name: str, derivative: Callable[[Floats], Floats]) -> None:
    if name == "tanh":
        derivative = lambda x: 1.0 - np.tanh(x) ** 2  # noqa: E731
    numbers, sent = SMALL_AND_LARGE, RANDOM.standard_normal(len(SMALL_AND_LARGE))
    still = sent * derivative(numbers)
    happens = relative(sent * derivative(moved(numbers)) - still, still)
    _, function = FUNCTIONS[name]
    measured = gradient_error(function, [drawn(numbers)], drawn(sent, 0.0), 0)
    assert happens / 2.0 < measured < 3.0 * happens


def test_the_divisor_counts_where_it_is_small() -> None:
    _, divide = FUNCTIONS["div"]
    ones = np.ones_like(SMALL_AND_LARGE)
    assert result_error(divide, [drawn(ones, 0.0), drawn(SMALL_AND_LARGE)]) > 0.1
    assert result_error(divide, [drawn(SMALL_AND_LARGE), drawn(ones, 0.0)]) < 3.0 * ERROR


def divided(divisor: Floats, factor: float = 1.0) -> HandmadeRun:
    """A root, and one divided by it, as clipping of gradients does."""
    run = HandmadeRun()
    first = run.call(
        "torch.sqrt",
        reads={"args.0": run.value(np.ones(4000))},
        makes={"output.0": np.float32(divisor)},
        module="model",
    )
    run.call(
        "torch.Tensor.__rtruediv__",
        reads={"args.0": run.output(first)},
        makes={"output.0": np.float32(factor / divisor)},
        arguments={"args": [{"$tensor": "args.0"}, 1.0]},
        module="model",
    )
    return run


@pytest.mark.parametrize(("errors", "factor", "outcome"), [(1e-7, 1.0, Outcome.AGREE), (0.0, 1.001, Outcome.DIVERGED)])
def test_a_quotient_by_small_numbers_is_not_blamed_and_a_wrong_one_is(
    tmp_path: Path, errors: float, factor: float, outcome: Outcome
) -> None:
    other = np.maximum(SMALL_AND_LARGE + errors * RANDOM.standard_normal(4000), 1e-4)
    runs = divided(SMALL_AND_LARGE).write(tmp_path / "r"), divided(other, factor).write(tmp_path / "t")
    assert compare(*runs).comparison.outcome is outcome
