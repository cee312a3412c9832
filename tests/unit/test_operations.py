"""What operations make of errors, against numpy's random arrays."""

import math
from typing import Any

import numpy as np
import pytest

from ulpscope.judge.rounding.families import (
    Operand,
    incoming,
    natural_gradient_norm,
    natural_norm,
    repetition,
    scarcity,
    spread_gain,
    summed_length,
)
from ulpscope.operations.registry import Family, only_writes, operation

Array = np.ndarray[Any, Any]


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


def operand(array: Array, error: float = 0.0) -> Operand:
    return Operand(error, float(np.linalg.norm(array)), array.size, array.shape)


def shaped(norm: float, *shape: int, error: float = 0.0) -> Operand:
    return Operand(error, norm, math.prod(shape), shape)


def test_size_of_an_operand() -> None:
    found = operand(np.array([3.0, 4.0]), error=0.1)
    assert found.rms == pytest.approx(5 / math.sqrt(2))
    assert found.distance == pytest.approx(0.5)
    assert shaped(0.0, 0).rms == 0.0


def test_a_sum_that_cancels_is_measured_by_what_went_in(random: np.random.Generator) -> None:
    x = random.standard_normal(4000)
    left = operand(1e-3 * x)
    norm = natural_norm(Family.SUM, [operand(x), operand(-0.999 * x)], left)
    assert norm == pytest.approx(np.linalg.norm(np.hypot(x, 0.999 * x)))
    assert norm > 1000 * left.norm


def test_a_sum_of_random_signs_is_its_own_measure(random: np.random.Generator) -> None:
    x, y = random.standard_normal((2, 4000))
    assert natural_norm(Family.SUM, [operand(x), operand(y)], operand(x + y)) == pytest.approx(
        np.linalg.norm(x + y), rel=0.05
    )


def test_a_broadcast_operand_of_a_sum_counts_as_often_as_it_is_added(random: np.random.Generator) -> None:
    x, bias = random.standard_normal((200, 30)), np.full(30, 5.0)
    cancelled = operand(np.zeros((200, 30)))
    expected = math.sqrt(np.linalg.norm(x) ** 2 + 200 * 30 * 25)
    assert natural_norm(Family.SUM, [operand(x), operand(bias)], cancelled) == pytest.approx(expected)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(60, 200, 50), (300, 16, 40), (1, 500, 300)])
def test_a_matrix_product_of_random_matrices(rows: int, inner: int, columns: int, random: np.random.Generator) -> None:
    x, w = 3 * random.standard_normal((rows, inner)), 0.1 * random.standard_normal((inner, columns))
    cancelled = operand(np.zeros((rows, columns)))
    assert natural_norm(Family.CONTRACTION, [operand(x), operand(w)], cancelled) == pytest.approx(
        np.linalg.norm(x @ w), rel=0.15
    )


def test_a_matrix_product_that_cancels_is_measured_by_its_terms(random: np.random.Generator) -> None:
    x = np.ones((10, 400)) * np.tile([1.0, -1.0], 200)
    w = np.ones((400, 8)) + 1e-6 * random.standard_normal((400, 8))
    output = operand(x @ w)
    norm = natural_norm(Family.CONTRACTION, [operand(x), operand(w)], output)
    assert norm == pytest.approx(math.sqrt(400 * 10 * 8), rel=1e-3)
    assert norm > 1e4 * output.norm


def test_the_natural_norm_is_never_less_than_the_own() -> None:
    ones = operand(np.ones((10, 10)))
    aligned = operand(np.full((10, 10), 10.0))
    for family in Family:
        assert natural_norm(family, [ones, ones], aligned) >= aligned.norm
        assert natural_norm(family, [], aligned) == aligned.norm


def test_a_convolution_of_random_kernels(random: np.random.Generator) -> None:
    x, kernel = random.standard_normal((3, 2000)), random.standard_normal((4, 3, 5))
    output = np.stack([sum(np.convolve(x[c], kernel[o, c], "same") for c in range(3)) for o in range(4)])
    cancelled = operand(np.zeros_like(output))
    assert natural_norm(Family.CONVOLUTION, [operand(x), operand(kernel)], cancelled) == pytest.approx(
        np.linalg.norm(output), rel=0.25
    )


def test_reductions_of_random_numbers(random: np.random.Generator) -> None:
    x = random.standard_normal((500, 300))
    cancelled = operand(np.zeros(300))
    assert natural_norm(Family.REDUCTION, [operand(x)], cancelled) == pytest.approx(
        np.linalg.norm(x.sum(axis=0)), rel=0.15
    )
    assert natural_norm(Family.AVERAGE, [operand(x)], cancelled) == pytest.approx(
        np.linalg.norm(x.mean(axis=0)), rel=0.15
    )


def test_a_product_of_random_numbers(random: np.random.Generator) -> None:
    x, y = random.standard_normal((2, 20_000))
    assert natural_norm(Family.PRODUCT, [operand(x), operand(y)], operand(np.zeros(20_000))) == pytest.approx(
        np.linalg.norm(x * y), rel=0.05
    )


def test_a_logarithm_near_one_is_measured_by_one(random: np.random.Generator) -> None:
    x = 1 + 1e-6 * random.standard_normal(900)
    assert natural_norm(Family.LOGARITHM, [operand(x)], operand(np.log(x))) == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("op", "operands", "output", "length"),
    [
        ("linear", [shaped(1, 7, 64), shaped(1, 32, 64)], shaped(1, 7, 32), 64),
        ("MatMulV2", [shaped(1, 64, 7), shaped(1, 64, 32)], shaped(1, 7, 32), 64),
        ("BatchMatMul", [shaped(1, 4, 64, 7), shaped(1, 4, 32, 64)], shaped(1, 4, 7, 32), 64),
        ("matmul", [shaped(1, 3, 7, 3), shaped(1, 3)], shaped(1, 3, 7), 3),
        ("conv2d", [shaped(1, 2, 3, 8, 8), shaped(1, 16, 3, 3, 3)], shaped(1, 2, 16, 8, 8), 27),
        ("sum", [shaped(1, 500, 20)], shaped(1, 20), 500),
        ("cross_entropy", [shaped(1, 8, 10)], shaped(1, 1), 80),
        ("layer_norm", [shaped(1, 8, 10), shaped(1, 10)], shaped(1, 8, 10), 10),
        ("batch_norm", [shaped(1, 8, 10)], shaped(1, 8, 10), 80),
        ("add", [shaped(1, 8), shaped(1, 8)], shaped(1, 8), 1),
        ("relu", [shaped(1, 8)], shaped(1, 8), 1),
        ("sum", [], shaped(1, 20), 1),
    ],
)
def test_how_many_terms_an_element_sums(op: str, operands: list[Operand], output: Operand, length: float) -> None:
    assert summed_length(operation(op), operands, output) == length


def test_gradients_of_a_random_matrix_product(random: np.random.Generator) -> None:
    x, w = random.standard_normal((70, 40)), random.standard_normal((50, 40))
    gradient = random.standard_normal((70, 50))
    others = [operand(x), operand(w)]
    for true in (gradient @ w, gradient.T @ x):
        cancelled = operand(np.zeros_like(true))
        found = natural_gradient_norm(Family.CONTRACTION, operand(gradient), others, cancelled)
        assert found == pytest.approx(np.linalg.norm(true), rel=0.15)


def test_the_gradient_of_a_bias_is_a_sum(random: np.random.Generator) -> None:
    gradient = random.standard_normal((400, 50))
    cancelled = operand(np.zeros(50))
    found = natural_gradient_norm(Family.SUM, operand(gradient), [operand(np.ones((400, 50)))], cancelled)
    assert found == pytest.approx(np.linalg.norm(gradient.sum(axis=0)), rel=0.3)


def test_the_gradient_of_a_broadcast_factor_grows_with_what_it_multiplied(random: np.random.Generator) -> None:
    gradient, x = random.standard_normal((400, 50)), 20 * random.standard_normal((400, 50))
    cancelled = operand(np.zeros(50))
    found = natural_gradient_norm(Family.PRODUCT, operand(gradient), [operand(x)], cancelled)
    assert found == pytest.approx(np.linalg.norm((gradient * x).sum(axis=0)), rel=0.3)


def test_what_comes_in_without_operands_is_nothing() -> None:
    assert all(incoming(family, [], shaped(1, 4), 1.0) == 0.0 for family in Family)


@pytest.mark.parametrize("family", sorted(Family))
def test_sound_operands_explain_nothing(family: Family) -> None:
    clean = shaped(2.0, 4, 4)
    assert incoming(family, [clean, clean], shaped(3.0, 4, 4), 3.0) == 0.0


def test_a_small_term_of_a_sum_brings_little_in() -> None:
    large, small = shaped(100.0, 50), shaped(0.1, 50, error=0.5)
    found = incoming(Family.SUM, [large, small], shaped(100.0, 50), 100.0)
    assert found == pytest.approx(0.05 / 100)
    assert incoming(Family.OTHER, [large, small], shaped(100.0, 50), 100.0) == 0.5


def test_a_selection_may_hold_all_of_the_error() -> None:
    whole, part = shaped(100.0, 1000, error=1e-3), shaped(1.0, 10)
    assert incoming(Family.SELECTION, [whole], part, part.norm) == pytest.approx(0.1)


def test_an_exponential_turns_absolute_error_into_relative(random: np.random.Generator) -> None:
    x = 50 * random.standard_normal(3000)
    wrong = x * (1 + 1e-3 * random.standard_normal(3000))
    error = float(np.linalg.norm(wrong - x) / np.linalg.norm(x))
    true = np.sqrt(np.mean(((np.exp(wrong) - np.exp(x)) / np.exp(x)) ** 2))
    found = incoming(Family.EXPONENTIAL, [operand(x, error)], operand(np.exp(x / 50)), 1.0)
    assert found == pytest.approx(true, rel=0.1)


def test_attention_scores_grow_with_queries_and_keys() -> None:
    clean = [shaped(100.0, 100, error=1e-3), shaped(100.0, 100, error=1e-3), shaped(1.0, 100)]
    assert incoming(Family.ATTENTION, clean, shaped(1.0, 100), 1.0) == pytest.approx(10 * 10 * 2e-3)


def test_a_loss_of_differences_is_worse_the_smaller_it_is(random: np.random.Generator) -> None:
    truth = random.standard_normal(2000)
    guess = truth + 1e-2 * random.standard_normal(2000)
    wrong = guess + 1e-4 * random.standard_normal(2000)
    loss, other = np.mean((guess - truth) ** 2), np.mean((wrong - truth) ** 2)
    error = float(np.linalg.norm(wrong - guess) / np.linalg.norm(guess))
    output = Operand(0.0, float(loss), 1, ())
    found = incoming(Family.DIFFERENCE_LOSS, [operand(guess, error), operand(truth)], output, output.norm)
    assert abs(other - loss) / loss <= found < 0.1


def test_every_operation_has_one_family() -> None:
    assert operation("linear").family is Family.CONTRACTION
    assert operation("add").family is Family.SUM
    assert operation("layer_norm").family is Family.NORMALIZATION
    assert operation("softmax").family is Family.EXPONENTIAL
    assert operation("relu").family is Family.OTHER


@pytest.mark.parametrize(
    ("name", "shape", "least", "most"),
    [
        ("batch_norm", (4, 64, 1, 1), 9.0, 10.0),
        ("batch_norm", (8, 64, 4, 4), 1.0, 1.1),
        ("instance_norm", (64, 8, 2, 2), 9.0, 10.0),
        ("layer_norm", (4, 64), 1.0, 1.0),
    ],
)
def test_a_norm_over_few_elements_amplifies_more(name: str, shape: tuple[int, ...], least: float, most: float) -> None:
    """3 / sqrt(1 * 0.1) for four elements; 127 / sqrt(125 * 123) for 128."""
    operand = Operand(error=0.1, norm=1.0, elements=float(math.prod(shape)), shape=shape)
    assert least <= scarcity(operation(f"torch.nn.functional.{name}"), [operand]) <= most


def test_a_mask_in_a_product_leaves_the_least_of_a_gradient(random: np.random.Generator) -> None:
    """Where 1 - targets is 0 lies nearly all of the gradient; what is left is measured by what was sent."""
    mask = (np.arange(1000) % 10 > 0).astype(float)
    sent = random.standard_normal(1000) * np.where(mask == 0, 1.0, 1e-3)
    left = operand(sent * mask)
    norm = natural_gradient_norm(Family.PRODUCT, operand(sent), [operand(mask)], left)
    assert norm == pytest.approx(np.linalg.norm(sent) * math.sqrt(0.9))
    assert norm > 100 * left.norm


def test_a_variance_has_the_error_of_what_it_is_taken_of(random: np.random.Generator) -> None:
    """Numbers near 5 with a deviation of 0.1: an error of 0.1 percent moves the variance by far more."""
    x = 5.0 + 0.1 * random.standard_normal((4, 4000))
    moved = x * (1.0 + 1e-3 * random.standard_normal(x.shape))
    exact, found = x.var(axis=0), moved.var(axis=0)
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    gain = spread_gain(operation("torch.Tensor.var"), [operand(x)], operand(exact))
    assert 1e-3 * gain / 4.0 < error < 1e-3 * gain
    assert spread_gain(operation("torch.Tensor.mean"), [operand(x)], operand(exact)) == 1.0


def test_a_row_that_is_picked_again_and_again_multiplies_its_error() -> None:
    """All of the table's error lies in one row, and that row is all that is picked."""
    table = np.random.default_rng(0).standard_normal((50, 8))
    moved = table + 1e-3 * (np.arange(50) == 0)[:, None]
    picked, apart = table[[0] * 30], (moved - table)[[0] * 30]
    error = float(np.linalg.norm(moved - table) / np.linalg.norm(table))
    output = operand(picked)
    bound = incoming(Family.SELECTION, [operand(table, error)], output, output.norm)
    assert bound < float(np.linalg.norm(apart)) / output.norm <= bound * repetition([operand(table)], output) * 1.01


def test_what_is_only_written_may_hold_anything() -> None:
    assert only_writes("torch.add", "kwargs.out")
    assert only_writes("torch.Tensor.copy_", "args.0")
    assert not only_writes("torch.Tensor.copy_", "args.1")
    assert not only_writes("torch.add", "args.0")
    assert not only_writes("torch.normal", "args.0")  # of these means
