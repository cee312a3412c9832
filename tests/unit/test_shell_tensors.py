"""Tensors by their names, printed and compared: padding taken off, whatever the layout of the device."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulpscope.dialects.stored import StoredTensor
from ulpscope.numerics.element_differences import Tolerance
from ulpscope.numerics.first_differences import first_outside
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.report.tables import render
from ulpscope.shell.panels_tensors import comparison, tensor_panel
from ulpscope.workflows.pair_elements import pair_elements
from ulpscope.workflows.tensor_lookup import DumpTensors, FoundTensor, TraceTensors
from ulpscope.workflows.tensor_view import view_tensor

ASCEND = Path(__file__).parents[1] / "data" / "ascend"
DUMPS = ASCEND / "precision_data" / "npu" / "debug_0" / "dump"
REFERENCE = ASCEND / "precision_data" / "tf" / "dump"
CONVERTED = ASCEND / "expected" / "msprobe_26.2.0" / "convert_fmt"
RELU = "Relu.fc1_Relu.21.0.1767225600021123.output.0"
NORM = "BNTrainingUpdate.bn_FusedBatchNormV3_Update.17.0.1767225600017123.output.0"


@pytest.fixture(scope="module")
def lookup() -> DumpTensors:
    return DumpTensors(dumps=[DUMPS], references=[REFERENCE])


def in_memory(array: np.ndarray) -> FoundTensor:
    return FoundTensor("array", Path("array"), StoredTensor(array.dtype.name, array.shape, lambda: array))


@pytest.mark.parametrize("name", [RELU, f"{RELU}.npy"])
def test_a_dump_is_named_with_or_without_its_ending(lookup: DumpTensors, name: str) -> None:
    assert lookup.find(name).stored.shape == (2, 40)


def test_tiles_become_the_networks_layout(lookup: DumpTensors) -> None:
    """What the vendor's converter gave for it, read by numpy."""
    dump = "Conv2D.conv1_Conv2Dconv1_BiasAddconv1_Relu.14.0.1767225600014123.output.0"
    expected = np.load(CONVERTED / f"{dump}.2x12x12x6.npy")
    assert np.array_equal(lookup.find(dump).stored.array(), expected)


def test_a_shape_that_fits_two_layouts_is_read_as_the_other_tensors_say(lookup: DumpTensors) -> None:
    """(2, 6, 6, 6) may be NCHW as well; only as NHWC does it agree with the reference."""
    pair = Pair(lookup.find("bn_FusedBatchNormV3.0.1767225600900000.npy"), lookup.find(NORM))
    found = pair_elements(pair, tolerance=Tolerance(0.005, 0.005), count=5)
    assert found.outside == 0
    assert found.metrics.cosine == pytest.approx(1.0, abs=1e-5)


def test_a_reference_is_found_by_its_name_and_by_the_one_that_stands_for_it(lookup: DumpTensors) -> None:
    expected = np.load(REFERENCE / "fc1_Relu.0.1767225600900010.npy")
    assert np.array_equal(lookup.find("fc1_Relu.0.1767225600900010.npy").stored.array(), expected)
    hashed = lookup.find("2581421007.npy")
    assert np.array_equal(hashed.stored.array(), np.load(REFERENCE / "2581421007.npy"))
    assert any(name.startswith("tower_0_very_deep_scope") for name in lookup.names())


def test_paths_and_keys_are_found(lookup: DumpTensors, tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", x=np.arange(3.0), y=np.zeros(2))
    assert lookup.find(str(REFERENCE / "x.0.1767225600900024.npy")).stored.shape == (2, 12, 12, 1)
    assert lookup.find(f"{tmp_path / 'two.npz'}::x").stored.array().tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(UlpscopeError, match="holds 2 tensors"):
        lookup.find(str(tmp_path / "two.npz"))


def test_a_part_of_a_name_must_mean_one_tensor(lookup: DumpTensors) -> None:
    assert lookup.find("scale_Mul.27.1.1767225600027123.out").name.startswith("Muls.scale_Mul")
    with pytest.raises(UlpscopeError, match=r"stands in the names of 3 tensors(.|\n)*fc1_Relu\.0\."):
        lookup.find("fc1_Relu")
    with pytest.raises(UlpscopeError, match="no file and no tensor 'nonsense'"):
        lookup.find("nonsense")


def test_dump_files_are_found_by_operator(lookup: DumpTensors) -> None:
    assert [path.name for path in lookup.files("fc1/MatMul")] == ["MatMulV2.fc1_MatMul.20.0.1767225600020123"]
    assert [path.name for path in lookup.files("3707385569123341")] == ["3707385569123341"]
    assert lookup.files("nothing") == []


def test_files_that_come_later_are_found(tmp_path: Path) -> None:
    np.save(tmp_path / "first.0.1767225600900001.npy", np.zeros(2))
    lookup = DumpTensors(references=[tmp_path])
    assert lookup.names() == ["first.0.1767225600900001.npy"]
    np.save(tmp_path / "second.0.1767225600900002.npy", np.zeros(2))
    assert lookup.find("second").stored.shape == (2,)


def test_calls_of_a_trace_have_tensors() -> None:
    lookup = TraceTensors(DUMPS)
    assert "Relu.0" in lookup.names()
    found = lookup.find("Relu.0::output.0")
    assert np.array_equal(found.stored.array(), DumpTensors(dumps=[DUMPS]).find(RELU).stored.array())
    assert lookup.find("Relu.0").name == "Relu.0::output.0"
    with pytest.raises(UlpscopeError, match=r"no tensor 'output\.7'"):
        lookup.find("Relu.0::output.7")


def test_the_wrong_operator_is_compared_without_its_padding(lookup: DumpTensors) -> None:
    """The numbers by plain numpy, of the vendor's conversion and the reference."""
    mine = np.load(CONVERTED.parent / "detail" / "fc1_Relu_output_0.npy").astype(np.float64).reshape(2, 40)
    right = np.load(REFERENCE / "fc1_Relu.0.1767225600900010.npy").astype(np.float64)
    pair = Pair(lookup.find("fc1_Relu.0.1767225600900010.npy"), lookup.find(RELU))
    found = pair_elements(pair, tolerance=Tolerance(atol=0.002, rtol=0.005), count=4)
    outside = np.abs(mine - right) > 0.002 + 0.005 * np.abs(right)
    assert (found.elements, found.outside, found.reshaped) == (80, int(outside.sum()), False)
    cosine = (mine * right).sum() / np.sqrt((mine**2).sum() * (right**2).sum())
    assert found.metrics.cosine == pytest.approx(cosine, rel=1e-9)
    assert [row.index for row in found.errors] == [tuple(map(int, place)) for place in np.argwhere(outside)[:4]]
    assert [row.index for row in found.first] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert found.errors[0].difference == pytest.approx(abs(mine - right)[found.errors[0].index])


def test_other_shapes_of_one_size_are_compared_in_order_and_said_to_be() -> None:
    pair = Pair(in_memory(np.arange(6.0).reshape(2, 3)), in_memory(np.arange(6.0).reshape(3, 2)))
    found = pair_elements(pair, tolerance=Tolerance(0.0, 0.0), count=10)
    assert (found.reshaped, found.outside) == (True, 0)


def test_other_sizes_are_not_padded() -> None:
    with pytest.raises(UlpscopeError, match="not of one size"):
        pair_elements(
            Pair(in_memory(np.zeros(80)), in_memory(np.zeros((3, 1, 16, 16)))), tolerance=Tolerance(0.0, 0.0), count=1
        )


NUMBERS = st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), float("-inf")]))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=40), st.integers(0, 10))
def test_the_first_elements_outside_of_a_tolerance(pairs: list[tuple[float, float]], count: int) -> None:
    reference, target = (np.array([pair[side] for pair in pairs], np.float32) for side in (0, 1))
    within = [
        r == t or (r != r and t != t) or (np.isfinite(r) and np.isfinite(t) and abs(t - r) <= 0.5 + 0.25 * abs(r))
        for r, t in zip(reference.astype(float), target.astype(float), strict=True)
    ]
    expected = [place for place, inside in enumerate(within) if not inside][:count]
    found = first_outside(Pair(reference, target), tolerance=Tolerance(0.5, 0.25), count=count)
    assert list(found) == expected


def test_large_integers_differ_by_one() -> None:
    arrays = Pair(np.array([2**53, 7]), np.array([2**53 + 1, 7]))
    assert first_outside(arrays, tolerance=Tolerance(0.0, 0.0), count=5) == (0,)


def test_a_tensor_is_written_as_text(lookup: DumpTensors, tmp_path: Path) -> None:
    view = view_tensor(lookup.find(RELU), count=16, text=tmp_path / "below" / "relu.txt")
    assert view.text is not None
    assert np.array_equal(np.loadtxt(view.text).astype(np.float16), lookup.find(RELU).stored.array())
    assert view.first.tolist() == lookup.find(RELU).stored.array().reshape(-1)[:16].tolist()
    assert view.stats.max == float(lookup.find(RELU).stored.array().max())


def test_a_text_that_cannot_be_written_is_no_reason_to_show_nothing(lookup: DumpTensors, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    view = view_tensor(lookup.find(RELU), count=1, text=tmp_path / "file" / "relu.txt")
    assert view.text is None
    assert view.problem is not None


def test_a_dump_with_a_long_name_is_found_by_its_whole_one(lookup: DumpTensors) -> None:
    found = lookup.find("add_long_named_operator.29.0.1767225600029123.output.0")
    assert found.path.name == "3707385569123341"
    assert lookup.find("3707385569123341.output.0").path == found.path


@pytest.mark.parametrize(
    "array", [np.zeros(0), np.array(3.0), np.array([True, False]), np.arange(3), np.array([1 + 2j])]
)
def test_tensors_of_any_kind_are_compared_and_shown(array: np.ndarray) -> None:
    found = pair_elements(Pair(in_memory(array), in_memory(array.copy())), tolerance=Tolerance(0.0, 0.0), count=2)
    assert found.outside == 0
    assert [row.difference for row in found.first] == [0.0] * min(2, array.size)
    render(comparison(found), width=80, color=False)
    render(tensor_panel(view_tensor(in_memory(array), count=8)), width=80, color=False)


def test_not_a_number_is_within_of_itself_only() -> None:
    reference, target = np.array([np.nan, np.inf, 1.0, np.inf]), np.array([np.nan, np.inf, np.nan, -np.inf])
    found = pair_elements(Pair(in_memory(reference), in_memory(target)), tolerance=Tolerance(1.0, 1.0), count=9)
    assert (found.outside, [row.index for row in found.errors]) == (2, [(2,), (3,)])
