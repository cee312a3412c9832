"""Tensors by their names, printed and compared: padding taken off, whatever the layout of the device."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulpscope.dialects.files.stored import StoredTensor
from ulpscope.numerics.pairs.elements import Tolerance, first_outside
from ulpscope.numerics.pairs.pieces import PairPieces
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.report.tables import render
from ulpscope.shell.panels import comparison, tensor_panel
from ulpscope.workflows.diff import pair_elements, view_tensor
from ulpscope.workflows.tensor_lookup import DumpTensors, FoundTensor, TraceTensors

ASCEND = Path(__file__).parents[1] / "data" / "ascend"
DUMPS = ASCEND / "precision_data" / "npu" / "debug_0" / "dump"
REFERENCE = ASCEND / "precision_data" / "tf" / "dump"
CONVERTED = ASCEND / "expected" / "msprobe_26.2.0" / "convert_fmt"
RELU = "Relu.fc1_Relu.21.0.1767225600021123.output.0"
NORM = "BNTrainingUpdate.bn_FusedBatchNormV3_Update.17.0.1767225600017123.output.0"


@pytest.fixture(scope="module")
def lookup() -> DumpTensors:
    return DumpTensors(dumps={"debug_0": DUMPS}, reference=REFERENCE)


def in_memory(array: np.ndarray) -> FoundTensor:
    return FoundTensor("array", Path("array"), StoredTensor(array.dtype.name, array.shape, lambda: array))


def pieces_of(reference: np.ndarray, target: np.ndarray) -> PairPieces:
    return PairPieces.of(reference, target, reference_dtype=reference.dtype.name, target_dtype=target.dtype.name)


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
    lookup = DumpTensors(reference=tmp_path)
    assert lookup.names() == ["first.0.1767225600900001.npy"]
    np.save(tmp_path / "second.0.1767225600900002.npy", np.zeros(2))
    assert lookup.find("second").stored.shape == (2,)


def test_calls_of_a_trace_have_tensors() -> None:
    lookup = TraceTensors(DUMPS)
    assert "Relu.0" in lookup.names()
    found = lookup.find("Relu.0::output.0")
    assert np.array_equal(found.stored.array(), DumpTensors(dumps={"debug_0": DUMPS}).find(RELU).stored.array())
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


@pytest.mark.parametrize(
    ("shape", "axes", "orders"),
    [
        ((2, 6, 4, 5), (0, 2, 3, 1), ("NCHW", "NHWC")),
        ((2, 4, 5, 6), (0, 3, 1, 2), ("NHWC", "NCHW")),
        ((6, 1, 5, 5), (2, 3, 1, 0), ("NCHW", "HWCN")),
        ((2, 3, 4, 5, 6), (0, 2, 3, 4, 1), ("NCDHW", "NDHWC")),
    ],
)
def test_pictures_in_another_order_are_brought_into_that_of_the_reference(
    shape: tuple[int, ...], axes: tuple[int, ...], orders: tuple[str, str]
) -> None:
    target = np.random.default_rng(0).normal(size=shape)
    pair = Pair(in_memory(target.transpose(axes).copy()), in_memory(target))
    found = pair_elements(pair, tolerance=Tolerance(0.0, 0.0), count=3)
    assert (found.reordered, found.reshaped, found.outside) == (orders, False, 0)
    assert f"Left is {orders[0]}" in render(comparison(found), width=200, color=False)


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
    assert list(first_outside(pieces_of(reference, target), tolerance=Tolerance(0.5, 0.25), count=count)) == expected


def test_large_integers_differ_by_one() -> None:
    pieces = pieces_of(np.array([2**53, 7]), np.array([2**53 + 1, 7]))
    assert first_outside(pieces, tolerance=Tolerance(0.0, 0.0), count=5) == (0,)


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


def copied(root: Path, *folders: str) -> list[Path]:
    """The dump of one operator in several directories below a root."""
    source = next(DUMPS.rglob("Relu.*"))
    for folder in folders:
        (root / folder).mkdir(parents=True)
        shutil.copy(source, root / folder)
    return [root / folder / source.name for folder in folders]


def test_a_name_that_two_runs_have_is_that_of_the_first(lookup: DumpTensors) -> None:
    other = ASCEND / "debug_1" / "dump"
    both = DumpTensors(dumps={"debug_0": DUMPS, "debug_1": other}, reference=REFERENCE)
    right, wrong = DumpTensors(dumps={"debug_1": other}).find(RELU).stored, lookup.find(RELU).stored
    assert not np.array_equal(right.array(), wrong.array())
    for name, expected in ((RELU, wrong), (f"debug_0/{RELU}.npy", wrong), (f"debug_1/{RELU}.npy", right)):
        assert np.array_equal(both.find(name).stored.array(), expected.array())
    # A part of a name, too; what only the second has is found without its label.
    assert both.find("Relu.fc1_Relu.21.0.1767225600021123.out").path.is_relative_to(DUMPS)
    assert both.files("fc1/Relu") == [both.find(RELU).path]
    assert both.files("debug_1/fc1/Relu")[0].is_relative_to(other)


def test_a_newer_run_elsewhere_does_not_hide_a_dump_path(tmp_path: Path) -> None:
    older, newer = copied(tmp_path, "a/20260101000000/0/net/1/0", "b/20260102000000/0/net/1/0")
    lookup = DumpTensors(dumps={"debug_0": tmp_path})
    names = [name for name in lookup.names() if name.endswith("output.0")]
    assert [lookup.find(name).path for name in names] == [older, newer]


def test_devices_whose_dumps_have_the_same_names_are_told_apart(tmp_path: Path) -> None:
    first, second = copied(tmp_path, "20260101000000/0/net/1/0", "20260101000000/1/net/1/0")
    # The last bytes are those of the output.
    changed = bytearray(second.read_bytes())
    changed[-2000:-1000] = bytes(1000)
    second.write_bytes(changed)
    lookup = DumpTensors(dumps={"debug_0": tmp_path})
    with pytest.raises(UlpscopeError, match="stands in the names of 2 tensors"):
        lookup.find(RELU)
    arrays = [lookup.find(f"20260101000000/{device}/net/1/0/{RELU}").stored.array() for device in (0, 1)]
    assert not np.array_equal(*arrays)
    assert [path.parent for path in lookup.files("fc1/Relu")] == [first.parent, second.parent]


def test_a_file_is_found_by_its_own_name_whatever_its_head_says(tmp_path: Path) -> None:
    (path,) = copied(tmp_path, "0")
    path.rename(path.with_name("Relu.fc1_Relu_2.21.0.1767225600021124"))
    found = DumpTensors(dumps={"debug_0": tmp_path}).find("Relu.fc1_Relu_2.21.0.1767225600021124.output.0")
    assert found.stored.shape == (2, 40)


def test_a_dump_that_cannot_be_read_is_told_when_it_is_asked_for(tmp_path: Path) -> None:
    (path,) = copied(tmp_path, "0")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UlpscopeError, match=re.escape(str(path))):
        DumpTensors(dumps={"debug_0": tmp_path}).find(f"{path.name}.output.0")
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "fc1_Relu.0.1767225600900010.npy").write_bytes(b"no array")
    np.save(tmp_path / "reference" / "fc2.0.1767225600900011.npy", np.zeros(2))
    with pytest.raises(UlpscopeError, match="fc1_Relu"):
        DumpTensors(reference=tmp_path / "reference").find("fc1_Relu.0.1767225600900010.npy")


def test_stats_are_no_elements(tmp_path: Path) -> None:
    stats = ASCEND / "stats" / "Relu.fc1_Relu.12.0.1767225600012123.csv"
    lookup = DumpTensors(dumps={"debug_0": stats.parent})
    for name in (stats.name, f"{stats.stem}.output.0"):
        with pytest.raises(UlpscopeError, match="holds the stats of tensors"):
            lookup.find(name)


def test_what_is_like_a_name_is_offered(lookup: DumpTensors) -> None:
    with pytest.raises(UlpscopeError) as raised:
        lookup.find("fc1_Relv")
    assert "fc1_Relu.0.1767225600900010.npy" in str(raised.value)
    assert "trans_Cast" not in str(raised.value)


def test_of_complex_numbers_the_elements_that_are_counted_are_those_that_are_listed() -> None:
    """|0.0008 + 0.0008j| is more than 0.001, each part is not: diff counts parts."""
    reference, target = np.zeros(3, np.complex64), np.array([0.0008 + 0.0008j, 0.0, 0.002j], np.complex64)
    found = pair_elements(Pair(in_memory(reference), in_memory(target)), tolerance=Tolerance(0.001, 0.0), count=9)
    assert (found.outside, [row.index for row in found.errors]) == (1, [(2,)])
