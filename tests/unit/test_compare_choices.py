"""Choices that flipped: a note where the operands differ by enough to flip them, a finding where they do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from network_making import Network, half, modules
from tests.unit.saved_runs import SavedRun

from ulpscope.judge.rounding.choices import (
    Choosing,
    comparison_explained,
    numbers_alike,
    places_explained,
    whole_explained,
)
from ulpscope.records.evidence import Replay
from ulpscope.records.findings import FindingKind, Outcome
from ulpscope.records.pairs import Pair
from ulpscope.report.words.language import Language
from ulpscope.workflows.compare.command import CompareOptions, CompareResult, compare

Array = np.ndarray[Any, Any]
TENSOR = {"$tensor": 0}
ROUNDING = 2.0**-23


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def near(array: Array, *, seed: int = 7) -> Array:
    """As another device would have computed it."""
    moved: Array = array.astype(np.float64) * (1 + ROUNDING * numbers(*array.shape, seed=seed).astype(np.float64))
    return moved.astype(np.float32)


SCORES = numbers(40, 16)
TIED = SCORES.copy()
TIED[:, 3] = TIED[:, 11] = 5.0


def outputs(op: str, scores: Array) -> dict[str, Array]:
    order = np.argsort(-scores, axis=1, kind="stable")
    made: dict[str, dict[str, Array]] = {
        "torch.argmax": {"output.0": scores.argmax(axis=1)},
        "torch.max": {"output.0": scores.max(axis=1), "output.1": scores.argmax(axis=1)},
        "torch.topk": {"output.0": -np.sort(-scores, axis=1)[:, :4], "output.1": order[:, :4]},
        "torch.argsort": {"output.0": order},
        "torch.gt": {"output.0": scores > 5.0},
        "torch.Tensor.long": {"output.0": (1000 * scores).astype(np.int64)},
    }
    return made[op]


def chooser_run(op: str, scores: Array, made: dict[str, Array], *, saved: bool = True) -> SavedRun:
    """Scores that a call computed, a choice among them, and what is looked up by it."""
    run = SavedRun(unsaved=not saved)
    inside = {"module": "model", "module_class": "Router"}
    given = run.value(numbers(40, 16, seed=1))
    computed = run.call("torch.mul", reads={"args.0": given}, makes={"output.0": scores}, **inside)
    read = scores * np.float32(1000) if op == "torch.Tensor.long" else scores
    scaled = run.call("torch.mul", reads={"args.0": run.output(computed)}, makes={"output.0": read}, **inside)
    chosen = run.call(op, reads={"args.0": run.output(scaled)}, makes=made, arguments={"args": [TENSOR, 5.0]}, **inside)
    last = list(made)[-1]
    looked_up = numbers(40, 8, seed=3) + made[last].reshape(40, -1).sum(axis=1)[:, None].astype(np.float32)
    reads = {"args.0": run.output(chosen, last)}
    run.call("torch.nn.functional.embedding", reads=reads, makes={"output.0": looked_up}, **inside)
    return run


def compared(folder: Path, reference: SavedRun, target: SavedRun) -> CompareResult:
    capture = {"level": "api", "save": "stats" if reference.unsaved else "tensors"}
    paths = reference.write(folder / "reference", capture=capture), target.write(folder / "target", capture=capture)
    return compare(*paths, CompareOptions(replay=Replay.OFF))


def rolled(made: dict[str, Array]) -> dict[str, Array]:
    """The last output wrong everywhere: other places, or the opposite."""
    last = list(made)[-1]
    array = made[last]
    return {**made, last: ~array if array.dtype == np.bool_ else (array + 5) % 16 if array.max() < 16 else array + 40}


CHOOSERS = ("torch.argmax", "torch.max", "torch.topk", "torch.argsort", "torch.gt", "torch.Tensor.long")


@pytest.mark.parametrize("op", CHOOSERS)
def test_a_choice_that_its_operands_do_not_explain_is_named(tmp_path: Path, op: str) -> None:
    target = near(SCORES)
    wrong = rolled(outputs(op, target))
    result = compared(tmp_path, chooser_run(op, SCORES, outputs(op, SCORES)), chooser_run(op, target, wrong))

    first = result.comparison.findings[0]
    assert (first.kind, first.place.op) == (FindingKind.COMPUTATION, op)
    assert first.evidence.numbers.error_in == pytest.approx(ROUNDING, rel=0.5)
    assert FindingKind.CHOICE not in {note.kind for note in result.comparison.notes}
    assert result.comparison.counts.after_choice == 0
    assert "differs." in result.text().splitlines()[3]
    assert "不同。" in result.text(language=Language.ZH)


@pytest.mark.parametrize("op", CHOOSERS)
def test_a_choice_between_what_lies_within_rounding_is_a_note(tmp_path: Path, op: str) -> None:
    scores, target = TIED, near(TIED)
    made = outputs(op, scores), outputs(op, target)
    assert any((made[0][place] != made[1][place]).any() for place in made[0])
    result = compared(tmp_path, chooser_run(op, scores, made[0]), chooser_run(op, target, made[1]))

    assert result.comparison.outcome is Outcome.AGREE
    assert [note.kind for note in result.comparison.notes] == [FindingKind.CHOICE]


def test_one_wrong_row_among_many_is_named(tmp_path: Path) -> None:
    target = near(TIED, seed=5)
    made = {"output.0": target.argmax(axis=1)}
    made["output.0"][17] = target[17].argmin()
    reference = chooser_run("torch.argmax", TIED, {"output.0": TIED.argmax(axis=1)})
    result = compared(tmp_path, reference, chooser_run("torch.argmax", target, made))

    assert [finding.place.op for finding in result.comparison.findings] == ["torch.argmax"]


def flag_runs(scores: Pair[Array], flags: Pair[Array]) -> tuple[SavedRun, SavedRun]:
    """Bools of a comparison, of which stats are all that is known."""
    sides = (scores.reference, flags.reference), (scores.target, flags.target)
    one, other = (chooser_run("torch.gt", each, {"output.0": made}, saved=False) for each, made in sides)
    return one, other


ALL = Pair(np.ones(SCORES.shape, np.bool_), np.zeros(SCORES.shape, np.bool_))


def test_without_data_only_what_flips_nearly_everywhere_is_named(tmp_path: Path) -> None:
    scores, some = Pair(SCORES, near(SCORES)), SCORES > 0.5
    everywhere = compared(tmp_path / "all", *flag_runs(scores, ALL))
    here_and_there = compared(tmp_path / "some", *flag_runs(scores, Pair(some, some ^ (np.arange(16) == 3))))

    assert [finding.place.op for finding in everywhere.comparison.findings] == ["torch.gt"]
    assert here_and_there.comparison.outcome is Outcome.AGREE


def test_without_data_what_lies_in_one_point_may_flip_everywhere(tmp_path: Path) -> None:
    ones = np.ones(SCORES.shape, np.float32)
    ones[0, :3] = 0.5

    assert compared(tmp_path, *flag_runs(Pair(ones, near(ones)), ALL)).comparison.outcome is Outcome.AGREE


def picking_network(network: Network, pick: Callable[[Array], Array], factor: float = 1.0) -> None:
    """A matmul, the place of its largest in each row, a row of a table for that, and a matmul of these."""
    x, weight, table, last = numbers(6, 16), numbers(16, 10, seed=1), numbers(10, 32, seed=2), numbers(32, 8, seed=3)
    for name, array in (("x", x), ("w", weight), ("table", table), ("w2", last)):
        network.add(name, "Variable", half(array), reference=array, dumped=False)
    exact = x @ weight
    mine = half(half(x).astype(np.float32) @ half(weight).astype(np.float32))
    network.add("mm", "MatMulV2", mine, reads=("x", "w"), reference=exact)
    chosen, right = pick(mine).astype(np.int32), exact.argmax(axis=-1)
    network.add("pick", "ArgMaxD", chosen, reads=("mm",), reference=right)
    network.add("rows", "GatherV2D", half(table)[chosen], reads=("table", "pick"), reference=table[right])
    out = half(factor * (half(table)[chosen].astype(np.float32) @ half(last).astype(np.float32)))
    network.add("out", "MatMulV2", out, reads=("rows", "w2"), reference=table[right] @ last)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_an_operator_that_picks_wrongly_is_named(tmp_path: Path, factor: float) -> None:
    network = Network(tmp_path)
    picking_network(network, lambda scores: (scores.argmax(axis=-1) + 3) % 10, factor)

    assert modules(network.compare())[0] == "pick"


def test_an_operator_that_picks_rightly_is_not(tmp_path: Path) -> None:
    network = Network(tmp_path)
    picking_network(network, lambda scores: scores.argmax(axis=-1))

    assert network.compare().comparison.outcome is Outcome.AGREE


def test_what_only_stands_for_an_operand_explains_anything(tmp_path: Path) -> None:
    """Of the operator between them nothing is known: it may turn the order round."""
    network = Network(tmp_path)
    exact = np.float32([[1.0, 2.0, 3.0, 3.0005]])
    network.add("x", "Mul", half(exact), reference=exact)
    network.add("minus", "Power", half(-exact), reads=("x",), dumped=False)
    network.add("pick", "ArgMaxD", np.int32([1]), reads=("minus",), reference=np.array([0]), inputs=())

    assert "pick" not in modules(network.compare())


def places(index: Any, other: Any, scores: Any, others: Any, choosing: Choosing, values: Any = None) -> bool:
    return places_explained(
        Pair(np.asarray(index), np.asarray(other)),
        Pair(np.float32(scores), np.float32(others)),
        None if values is None else Pair(np.float32(values[0]), np.float32(values[1])),
        choosing,
    )


def test_places_along_any_axis_and_of_the_whole() -> None:
    scores = np.float32([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])
    moved = scores + np.float32(1e-3)
    extreme = Choosing.EXTREME
    assert places(scores.argmax(), scores.argmax(), scores, moved, extreme)
    assert not places(scores.argmax(), 4, scores, moved, extreme)
    assert not places([1, 0, 0], [0, 0, 0], scores, moved, extreme)
    assert not places([[2], [0]], [[2], [1]], scores, moved, extreme)
    assert not places([2, 0], [7, 0], scores, moved, extreme)
    assert places([2, 9], [2, 0], scores, moved, extreme)
    assert places([1, 2, 3, 4, 5], [0, 0, 0, 0, 0], scores, moved, extreme)


def test_an_extreme_is_explained_by_the_errors_of_what_was_chosen_alone() -> None:
    scores, moved = [[1.0, 2.0, -1e4]], [[1.0, 2.0, -10008.0]]
    assert not places([1], [0], scores, moved, Choosing.EXTREME)
    assert places([[1, 0]], [[0, 1]], scores, moved, Choosing.ORDER)


def test_nan_and_equal_infinities_explain_nothing_and_anything() -> None:
    masked = [[1.0, 2.0, -np.inf]]
    assert not places([1], [2], masked, masked, Choosing.EXTREME)
    assert places([1], [2], [[1.0, 2.0, np.nan]], [[1.0, 2.0, np.nan]], Choosing.EXTREME)
    assert places([[1, 2]], [[1, 3]], [[1.0, 2.0, -np.inf, -np.inf]], [[1.0, 2.0, -np.inf, -np.inf]], Choosing.ORDER)


def test_the_largest_may_come_in_any_order_if_their_values_do() -> None:
    scores = [[4.0, 3.0, 2.0, 1.0]]
    largest = Choosing.LARGEST
    assert places([[0, 1]], [[1, 0]], scores, scores, largest)
    assert places([[0, 1]], [[1, 0]], scores, scores, largest, ([[4.0, 3.0]], [[3.0, 4.0]]))
    assert not places([[0, 1]], [[1, 0]], scores, scores, largest, ([[4.0, 3.0]], [[4.0, 3.0]]))
    assert not places([[0, 1]], [[0, 2]], scores, scores, largest)


def test_a_comparison_of_two_operands_is_judged_element_by_element() -> None:
    one, other = np.float32([1.0, 2.0, 3.0]), np.float32([1.0, 2.1, 9.0])
    moved = one + np.float32([1e-3, 0.2, 1e-3])
    operands = Pair(one, moved), Pair(other, other)
    assert comparison_explained(Pair(one > other, moved > other), operands, 0.0)
    assert not comparison_explained(Pair(one > other, np.array([True, True, True])), operands, 0.0)
    assert comparison_explained(Pair(np.array([True]), np.array([False])), operands, 0.0)


def test_one_number_is_compared_with_wherever_bools_flipped() -> None:
    one = np.float32([0.999, 0.5, 1.001, np.nan])
    moved = np.float32([1.002, 0.5, 0.998, 1.0])
    sides = (Pair(one, moved),)
    assert comparison_explained(Pair(one > 1, moved > 1), sides, 0.0)
    assert not comparison_explained(Pair(one > 1, np.array([True, True, False, False])), sides, 0.0)


def test_whole_numbers_may_differ_by_one_where_their_type_holds_them() -> None:
    given = Pair(np.float32([0.9999, 5.0, 1e12]), np.float32([1.0001, 5.0, 1e12]))
    assert whole_explained(Pair(np.int32([0, 5, 2**31 - 1]), np.int32([1, 5, -(2**31)])), given, 0.0)
    assert not whole_explained(Pair(np.int32([0, 5, 7]), np.int32([1, 7, 7])), given, 0.0)


def test_bits_of_small_types_are_read_as_numbers() -> None:
    halves = np.float32([[1.0, -2.5]]).astype(ml_dtypes.bfloat16)
    found = numbers_alike(Pair(halves.view(np.uint16), np.float32([1.0, -2.5])), Pair("bfloat16", "float32"))
    assert found is not None
    assert found.reference.astype(np.float32).tolist() == [1.0, -2.5]
    assert numbers_alike(Pair(None, halves), Pair("bfloat16", "bfloat16")) is None
    assert numbers_alike(Pair(np.zeros(3), np.zeros(2)), Pair("float64", "float64")) is None
