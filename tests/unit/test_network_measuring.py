"""Measuring the pairs of a network: msaccucmp's figures from what was measured already, and copies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_making import Network, half, random

from make_ascend_dumps import Tensor
from ulpscope.numerics.pairs.msaccucmp.metrics import ALGORITHMS, Generation, msaccucmp_metrics
from ulpscope.workflows.network import measuring as compare_network_measuring
from ulpscope.workflows.network.command import NetworkOptions, NetworkResult
from ulpscope.workflows.network.measuring import _PIECE


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def figures(result: NetworkResult, row: int = 0) -> dict[str, str]:
    (measured,) = [outcome.measurement for outcome in result.outcomes.values() if outcome.row == row]
    assert measured is not None
    assert measured.figures is not None
    return {name: figure.text for name, figure in measured.figures.items()}


def texts(my: Any, golden: Any, generation: Generation) -> dict[str, str]:
    return {name: figure.text for name, figure in msaccucmp_metrics(my, golden, generation=generation).items()}


def far_from_zero() -> Any:
    return random(70, 1000) * 3.0 + 2000.0


def with_infinity() -> Any:
    numbers = random(70, 1000)
    numbers[3, 5] = np.inf
    return numbers


def with_nan() -> Any:
    numbers = random(70, 1000)
    numbers[69, 999] = np.nan
    return numbers


@pytest.mark.parametrize("generation", Generation)
@pytest.mark.parametrize(
    "golden",
    [
        random(70, 1000),
        far_from_zero(),
        np.full((70, 1000), 0.25, np.float32),
        np.zeros((70, 1000), np.float32),
        with_infinity(),
        with_nan(),
        random(2, 3).astype(np.float64) * 1e6,
        (random(70, 1000) * 1e8).astype(np.int32),
    ],
    ids=["usual", "far", "constant", "zero", "inf", "nan", "float64", "int32"],
)
def test_figures_are_those_of_the_arrays_alone(network: Network, golden: Any, generation: Generation) -> None:
    my = half(golden) if golden.dtype == np.float32 else golden.astype(np.float32)
    network.add("x", "Relu", my, reference=golden)
    found = figures(network.compare(NetworkOptions(csv=generation)))

    assert list(found) == list(ALGORITHMS)
    assert found == texts(my, golden, generation)


@pytest.mark.parametrize("place", [0, _PIECE, -1])
def test_an_input_that_differs_anywhere_is_no_copy(network: Network, place: int) -> None:
    exact = random(_PIECE + 100)
    made = half(exact)
    read = made.copy()
    read[place] += np.float16(0.25)
    network.add("x", "Relu", made, reference=exact)
    network.add("y", "Relu", made, reads=("x",), inputs=[Tensor(read)], reference=exact)
    network.add("z", "Relu", made, reads=("x",), reference=exact)
    twins = [outcome.twin for _, outcome in sorted(network.compare().outcomes.items())]

    assert twins == [None, None, None, 0, None]


def test_a_tensor_without_memory_for_it_is_told_and_the_others_are_compared(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(order: Any, *rest: Any) -> Any:
        if order.operator == "b":
            raise MemoryError("not that much")
        return usual(order, *rest)

    usual = compare_network_measuring._measured
    monkeypatch.setattr(compare_network_measuring, "_measured", measured)
    network.add("a", "Mul", random(4, 64), reference=random(4, 64))
    network.add("b", "Relu", random(4, 64), reference=random(4, 64))
    outcomes = network.compare().outcomes.values()
    assert [outcome.measurement is None for outcome in outcomes] == [False, True]
    assert "not that much" in next(outcome.reason for outcome in outcomes if outcome.measurement is None)
