"""The figures of msaccucmp: what its versions gave for the same arrays, digit by digit."""

import csv
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from ulpscope.numerics.pairs.msaccucmp.metrics import (
    ALGORITHMS,
    Figure,
    Generation,
    SizesDifferError,
    msaccucmp_metrics,
    overflow_flag,
)
from ulpscope.numerics.pairs.msaccucmp.sums import PIECE

AnyArray = NDArray[Any]

DATA = Path(__file__).parents[1] / "data" / "ascend"
EXPECTED = DATA / "expected"
EDGE_CASES = json.loads((EXPECTED / "metric_edge_cases_26.2.0.json").read_text())
CASES = sorted(set(EDGE_CASES) - {"algorithms", "mismatch"})
GENERATIONS = {
    "msprobe_26.2.0": Generation.OF_2025,
    "msaccucmp_2025-09_native": Generation.OF_2025,
    "msaccucmp_2022-05": Generation.OF_2022,
}


def f32(*numbers: float) -> AnyArray:
    return np.array(numbers, np.float32)


def f16(*numbers: float) -> AnyArray:
    return np.array(numbers, np.float16)


def npu(pattern: str) -> AnyArray:
    (file,) = (EXPECTED / "msprobe_26.2.0" / "convert").glob(pattern)
    return np.load(file)  # type: ignore[no-any-return]


def golden(name: str) -> AnyArray:
    (file,) = (DATA / "precision_data" / "tf" / "dump").glob(f"{name}.0.*.npy")
    return np.load(file)  # type: ignore[no-any-return]


def from_nz(tiles: AnyArray, rows: int, columns: int) -> AnyArray:
    return tiles.transpose(1, 2, 0, 3).reshape(tiles.shape[1] * 16, -1)[:rows, :columns]


def from_5hd(tiles: AnyArray, channels: int) -> AnyArray:
    n, _, h, w, _ = tiles.shape
    return tiles.transpose(0, 2, 3, 1, 4).reshape(n, h, w, -1)[..., :channels]


def pairs() -> dict[str, tuple[AnyArray, AnyArray]]:
    """What the older tools compared, in the shape of the reference."""
    return {
        "trans_Cast_0:output:0": (npu("Cast.trans_Cast_0.*.output.0.npy"), golden("x")),
        "pool1/MaxPool:input:0": (from_5hd(npu("MaxPool.*.input.0.npy"), 6), golden("conv1_Relu")),
        "pool1/MaxPool:output:0": (from_5hd(npu("MaxPool.*.output.0.npy"), 6), golden("pool1_MaxPool")),
        "fc1/MatMul:input:1": (from_nz(npu("MatMulV2.fc1*.input.1.npy"), 216, 40), golden("fc1_weights")),
        "fc1/MatMul:output:0": (from_nz(npu("MatMulV2.fc1*.output.0.npy"), 2, 40), golden("fc1_BiasAdd")),
        "fc1/Relu:output:0": (from_nz(npu("Relu.fc1*.output.0.npy"), 2, 40), golden("fc1_Relu")),
        "fc2/MatMul:input:1": (from_nz(npu("MatMulV2.fc2*.input.1.npy"), 40, 10), golden("fc2_weights")),
        "fc2/MatMul:output:0": (from_nz(npu("MatMulV2.fc2*.output.0.npy"), 2, 10), golden("fc2_BiasAdd")),
        "pred/ArgMax:output:0": (npu("ArgMaxD.*.output.0.npy"), golden("pred_ArgMax")),
        "mask/Greater:output:0": (npu("Greater.*.output.0.npy"), golden("mask_Greater")),
        "scale/Mul:output:0": (npu("Muls.*.output.0.npy"), golden("scale_Mul")),
        "global_step/Add:output:0": (npu("Add.global*.output.0.npy"), golden("global_step_Add")),
    }


def table(version: str) -> dict[str, dict[str, str]]:
    with open(EXPECTED / version / "cmp_npu_tf_plain.csv", newline="") as file:
        return {row["TensorIndex"]: row for row in csv.DictReader(file)}


def edge_arrays(name: str) -> tuple[AnyArray, AnyArray]:
    dtype = {"bool": np.bool_, "int64_big": np.int64}.get(name, np.float32)
    case = EDGE_CASES[name]
    return np.array(case["my"], dtype), np.array(case["golden"], dtype)


def texts(figures: dict[str, Figure]) -> list[str]:
    return [figure.text for figure in figures.values()]


@pytest.mark.parametrize("name", CASES)
def test_edge_cases_are_those_of_26_2_0(name: str) -> None:
    figures = msaccucmp_metrics(*edge_arrays(name), names=("MY", "GOLD"))
    assert list(figures) == EDGE_CASES["algorithms"]
    assert texts(figures) == EDGE_CASES[name]["result"]
    assert [figure.message for figure in figures.values() if figure.message] == EDGE_CASES[name]["errors"]


def test_arrays_of_other_sizes_are_refused_in_its_words() -> None:
    with pytest.raises(SizesDifferError) as raised:
        msaccucmp_metrics(*edge_arrays("mismatch"), names=("MY", "GOLD"))
    assert f"CompareError 11 {raised.value}" == EDGE_CASES["mismatch"]["exception"]


@pytest.mark.parametrize("version", GENERATIONS)
def test_real_tables_come_out_digit_by_digit(version: str) -> None:
    rows = table(version)
    for name, (my, reference) in pairs().items():
        figures = msaccucmp_metrics(my, reference, generation=GENERATIONS[version])
        assert {key: figure.text for key, figure in figures.items()} == {key: rows[name][key] for key in ALGORITHMS}, (
            name
        )


def test_the_generations_differ_where_golden_is_zero() -> None:
    my, reference = f32(1.0, 2.0, 3.0), f32(0.0, 2.0, 4.0)
    old = msaccucmp_metrics(my, reference, names=("a", "b"), generation=Generation.OF_2022)
    assert old["MaxRelativeError"] == Figure("inf")
    both = msaccucmp_metrics(reference, reference, names=("a", "b"), generation=Generation.OF_2022)
    why = "Cannot compare by MaxRelativeError, The data contains 0 or nan in a or b."
    assert both["MaxRelativeError"] == Figure("NaN", why)


def test_the_old_divergence_names_the_golden_data_that_holds_zeros() -> None:
    my, reference = f32(0.0, 1.0, 2.0, 4.0), f32(0.0, 0.0, 2.0, 4.0)
    figure = msaccucmp_metrics(my, reference, names=("a", "b"), generation=Generation.OF_2022)[
        "KullbackLeiblerDivergence"
    ]
    assert figure == Figure("inf", "Cannot compare by KL Divergence. The data contains 0 in b.")


def test_messages_of_the_real_table_of_2022() -> None:
    reason = table("msaccucmp_2022-05")["fc1/Relu:output:0"]["CompareFailReason"]
    my, reference = pairs()["fc1/Relu:output:0"]
    file = reason.split(" in ", 1)[1].removesuffix(".")
    figures = msaccucmp_metrics(my, reference, names=("my", file), generation=Generation.OF_2022)
    assert [figure.message for figure in figures.values() if figure.message] == [reason]


def test_long_arrays_agree_with_formulas_over_the_whole() -> None:
    draw = np.random.default_rng(5)
    y = draw.standard_normal((11, 3 * PIECE + 11)).astype(np.float32)
    x = y + np.float32(1e-3) * draw.standard_normal(y.shape).astype(np.float32)
    apart = np.abs(x - y).reshape(-1)
    wide_x, wide_y = x.astype(np.float64).reshape(-1), y.astype(np.float64).reshape(-1)
    figures = msaccucmp_metrics(x, y)
    assert figures["MaxAbsoluteError"].text == f"{apart.max():.6f}"
    assert figures["MeanAbsoluteError"].text == f"{apart.mean():.6f}"
    assert figures["RootMeanSquareError"].text == f"{np.sqrt(np.square(apart).mean()):.6f}"
    assert figures["AccumulatedRelativeError"].text == f"{np.abs(x / y - 1).sum():.6f}"
    spread = ",".join(
        f"({side.mean() if abs(side.mean()) >= 1e-3 else 0:.3f};{side.std():.3f})" for side in (wide_x, wide_y)
    )
    assert figures["StandardDeviation"].text == spread
    cosine = wide_x @ wide_y / np.linalg.norm(wide_x) / np.linalg.norm(wide_y)
    assert float(figures["CosineSimilarity"].text) == pytest.approx(cosine, abs=1.5e-6)


def test_small_floats_and_views_are_read_as_they_are() -> None:
    y = np.arange(24, dtype=np.float32).reshape(4, 6)
    bfloat16 = y.astype(ml_dtypes.bfloat16)
    assert msaccucmp_metrics(bfloat16.T, y.T)["MaxAbsoluteError"].text == "0.000000"
    assert msaccucmp_metrics(y[::2, ::3] + 1, y[::2, ::3])["MeanAbsoluteError"].text == "1.000000"


def test_only_what_is_asked_for_is_given() -> None:
    y = np.ones(4, np.float32)
    assert list(msaccucmp_metrics(y, y, algorithms=["RootMeanSquareError"])) == ["RootMeanSquareError"]


@pytest.mark.parametrize(
    ("array", "flag"),
    [
        (f16(1.0, 65504.0), "YES"),
        (f16(1.0, -65504.0), "YES"),
        (f16(1.0, np.inf), "YES"),
        (f16(1.0, 65472.0), "NO"),
        (f16(np.nan, 65504.0), "NO"),
        (f16(), "NO"),
        (f32(1e30), "NaN"),
    ],
)
def test_the_overflow_column(array: AnyArray, flag: str) -> None:
    assert overflow_flag(array) == flag
