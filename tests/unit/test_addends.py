"""What is only added to a result counts with what it does to it."""

import numpy as np
import pytest

from ulpscope.judge.rounding.families import Operand, felt_error
from ulpscope.operations.registry import operation


@pytest.mark.parametrize(
    ("op", "place", "only_added"),
    [
        ("linear", "args.2", True),
        ("linear", "args.1", False),
        ("layer_norm", "kwargs.bias", True),
        ("layer_norm", "kwargs.weight", False),
        ("batch_norm", "args.3", False),
        ("softmax", "args.2", False),
    ],
)
def test_places_that_are_only_added(op: str, place: str, only_added: bool) -> None:
    assert (place in operation(op).added) is only_added


def test_a_bias_is_felt_as_it_moves_the_result() -> None:
    random = np.random.default_rng(1)
    product, bias = random.standard_normal((20, 8)), 0.01 * random.standard_normal(8)
    wrong = bias + 0.005 * random.standard_normal(8)
    output = product + bias
    error = float(np.linalg.norm(wrong - bias) / np.linalg.norm(bias))
    addend = Operand(error, float(np.linalg.norm(bias)), 8.0, (8,))
    moved = float(np.linalg.norm(product + wrong - output) / np.linalg.norm(output))
    assert error > 0.2
    assert felt_error([addend], Operand(0.0, float(np.linalg.norm(output)), 160.0, (20, 8))) == pytest.approx(moved)


def test_of_nothing_nothing_is_felt() -> None:
    assert felt_error([Operand(1.0, 1.0, 4.0, (4,))], Operand(0.0, 0.0, 4.0, (4,))) == 0.0
