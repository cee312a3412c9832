"""Folders of reference arrays: their names, long names in mapping.csv, and what is told of the rest."""

from pathlib import Path

import numpy as np
import pytest

from make_ascend_dumps import Tensor, file_bytes
from ulpscope.cli.main import main
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.reference import is_npy_folder, open_npy_folder, reference_index
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.words.language import Language, remark_text
from ulpscope.trace.reader import Trace

DATA = Path(__file__).parents[1] / "data" / "ascend"
REFERENCE = DATA / "precision_data" / "tf" / "dump"


def save(folder: Path, name: str, *numbers: float) -> None:
    np.save(folder / name, np.array(numbers, np.float32))


def call_names(trace: Trace) -> list[str]:
    return trace.collect(trace.calls().sort("id"))["name"].to_list()


def test_a_real_folder_is_a_trace_with_stats_and_data() -> None:
    trace = open_run(REFERENCE)
    calls = trace.collect(trace.calls())
    assert calls.height == len(list(REFERENCE.glob("*.npy"))) == 25
    assert trace.missing == ()
    rank = trace.ranks[0]
    (number,) = calls.filter(module="fc1_Relu")["id"]
    (use,) = rank.uses(number)
    value = rank.value(use.value)
    expected = np.load(REFERENCE / "fc1_Relu.0.1767225600900010.npy")
    assert value.stats is not None
    assert (use.place, value.dtype, value.shape) == ("output.0", "float32", (2, 40))
    assert value.stats.max == expected.max()
    assert np.array_equal(rank.data(value), expected)  # type: ignore[arg-type]


def test_the_index_knows_the_long_name_behind_a_number() -> None:
    index = reference_index(REFERENCE)
    (name, output), (tensor,) = next(item for item in index.items() if len(item[0][0]) > 200)
    assert name.startswith("tower_0_very_deep_scope_level_00_")
    assert name.endswith("_add_long_named_operator")
    assert (output, tensor.path.name) == (0, "2581421007.npy")
    # The operator adds 1 to fc2/BiasAdd.
    (before,) = index["fc2_BiasAdd", 0]
    assert np.array_equal(tensor.stored().array(), before.stored().array() + np.float32(1))


def test_old_dump_files_are_told_in_their_own_order_and_type(tmp_path: Path) -> None:
    whole = np.arange(1, 81, dtype=np.float16).reshape(2, 40)
    tiles = np.zeros((3, 1, 16, 16), np.float16)
    for row, column in np.ndindex(whole.shape):
        tiles[column // 16, 0, row, column % 16] = whole[row, column]
    codes = np.array([0x00, 0x08, 0x6F], np.uint8)
    for name, tensor in (("fc1", Tensor(tiles, "FRACTAL_NZ", (2, 40))), ("fc2", Tensor(codes, code=33))):
        (tmp_path / f"{name}.0.7.quant").write_bytes(file_bytes(name, outputs=[tensor], version="1.0"))
    index = reference_index(tmp_path)
    (matrix,), (small,) = index["fc1", 0], index["fc2", 0]
    np.testing.assert_array_equal(matrix.stored().array(), whole)
    assert (small.stored().dtype, small.stored().array().tolist()) == ("float32", [0.0, 1.0, np.inf])


def test_arrays_of_one_output_come_in_time_order(tmp_path: Path) -> None:
    save(tmp_path, "conv1.0.200.npy", 2.0)
    save(tmp_path, "conv1.0.1000.npy", 3.0)
    save(tmp_path, "conv1.0.30.npy", 1.0)
    tensors = reference_index(tmp_path)["conv1", 0]
    assert [tensor.stored().array().tolist() for tensor in tensors] == [[1.0], [2.0], [3.0]]


def test_outputs_of_one_execution_are_one_call(tmp_path: Path) -> None:
    for output, time in ((0, 10), (1, 11), (0, 20), (1, 21)):
        save(tmp_path, f"split.{output}.{time}.npy", float(time))
    trace = open_npy_folder(tmp_path)
    assert call_names(trace) == ["split.0", "split.1"]
    rank = trace.ranks[0]
    told = [[(use.place, rank.data(rank.value(use.value)).tolist()) for use in rank.uses(call)] for call in (0, 1)]  # type: ignore[union-attr]
    assert told == [[("output.0", [10.0]), ("output.1", [11.0])], [("output.0", [20.0]), ("output.1", [21.0])]]


def test_an_order_that_names_do_not_tell_is_remarked(tmp_path: Path) -> None:
    for name in ("layer10", "layer2", "layer1"):
        save(tmp_path, f"{name}.0.7.npy", 1.0)
        save(tmp_path, f"{name}.1.7.npy", 1.0)
    save(tmp_path, "last.0.8.npy", 1.0)
    trace = open_npy_folder(tmp_path)
    assert call_names(trace) == ["layer1.0", "layer2.0", "layer10.0", "last.0"]
    (told,) = trace.missing
    assert told == (
        "rank0: the order of 3 operators is not known, because their files have the same time, such as layer1 and "
        "layer2: they stand in the order of their names"
    )
    assert remark_text(told, Language.ZH) == (
        "rank0：3 个算子的先后顺序未知，因为它们的文件时间戳相同，例如 layer1 和 layer2：暂按名称排序"
    )


def test_an_order_that_nothing_tells_is_said_by_show_and_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, last in (("reference", 3.0), ("target", 4.0)):
        (tmp_path / side).mkdir()
        save(tmp_path / side, "a.0.7.npy", 1.0, last)
        save(tmp_path / side, "b.0.7.npy", 1.0, last)
    assert main(["show", str(tmp_path / "target")]) == 0
    assert "the order of 2 operators is not known" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", str(tmp_path / "reference"), str(tmp_path / "target")]) == 1
    assert "the order of 2 operators is not known" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", str(tmp_path / "reference"), str(tmp_path / "target"), "--language", "zh"]) == 1
    chinese = "".join(capsys.readouterr().out.split())
    assert "2个算子的先后顺序未知" in chinese
    assert "theorderof" not in chinese


def test_outputs_that_were_not_dumped_equally_often_are_remarked(tmp_path: Path) -> None:
    for output, time in ((0, 10), (0, 20), (1, 21)):
        save(tmp_path, f"split.{output}.{time}.npy", float(time))
    (told,) = open_npy_folder(tmp_path).missing
    assert told.startswith("rank0: which outputs of split were made together is not known: there are 2, 1 files")


def test_names_of_onnx_and_caffe(tmp_path: Path) -> None:
    save(tmp_path, "input_data.0.1767225600900010.npy", 1.0)
    save(tmp_path, "Conv_0.0.1767225600900011.npy", 1.0)
    save(tmp_path, "inception_4a_1x1-relu.0.1767225600900012.npy", 1.0)
    save(tmp_path, "block.v1.conv.2.7.npy", 1.0)
    keys = list(reference_index(tmp_path))
    assert keys == [("block_v1_conv", 2), ("input_data", 0), ("Conv_0", 0), ("inception_4a_1x1-relu", 0)]


def old_form(*numbers: float) -> bytes:
    """One message with the data inside: version 1 of a dump file, as .pb and .quant files are."""
    data = np.array(numbers, np.float32).tobytes()
    shape = b"\x0a\x01" + bytes([len(numbers)])
    output = b"\x08\x01\x10\x02\x1a" + bytes([len(shape)]) + shape + b"\x2a" + bytes([len(data)]) + data
    return b"\x0a\x031.0\x1a" + bytes([len(output)]) + output


def test_old_forms_of_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "conv1.0.10.quant").write_bytes(old_form(1.0, 2.5))
    (tmp_path / "conv1.1.10.pb").write_bytes(old_form(3.0))
    (tmp_path / "conv2.0.11.pb").write_bytes(b"no message")
    index = reference_index(tmp_path)
    assert index["conv1", 0][0].stored().array().tolist() == [1.0, 2.5]
    assert index["conv1", 1][0].stored().array().tolist() == [3.0]
    (told,) = open_npy_folder(tmp_path).missing
    assert "conv2.0.11.pb" in told


def test_other_names_are_left_out_with_a_word(tmp_path: Path) -> None:
    save(tmp_path, "conv1.0.10.npy", 1.0)
    save(tmp_path, "weights.npy", 1.0)
    save(tmp_path, "77.npy", 1.0)
    trace = open_npy_folder(tmp_path)
    assert call_names(trace) == ["conv1.0"]
    (told,) = trace.missing
    assert "2 files not read, such as 77.npy" in told


def test_a_broken_file_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    save(tmp_path, "a.0.1.npy", *range(100))
    save(tmp_path, "b.0.2.npy", 2.0)
    cut = tmp_path / "a.0.1.npy"
    cut.write_bytes(cut.read_bytes()[:-40])
    (tmp_path / "c.0.3.npy").write_bytes(b"no array")
    np.save(tmp_path / "d.0.4.npy", np.array(["a"], object))
    trace = open_npy_folder(tmp_path)
    assert trace.collect(trace.values()).height == 1
    assert len(trace.missing) == 3
    assert "a.0.1.npy" in trace.missing[0]
    assert "c.0.3.npy" in trace.missing[1]
    assert "object" in trace.missing[2]


def test_what_is_no_such_folder(tmp_path: Path) -> None:
    assert not is_npy_folder(tmp_path)
    save(tmp_path, "weights.npy", 1.0)
    save(tmp_path, "Relu.fc1_Relu.21.0.1767225600021123.output.0.npy", 1.0)
    assert not is_npy_folder(tmp_path)
    with pytest.raises(UlpscopeError, match="is no reference dump"):
        reference_index(tmp_path)


def test_a_mapping_that_is_no_table_of_names_is_told(tmp_path: Path) -> None:
    save(tmp_path, "77.npy", 1.0)
    (tmp_path / "mapping.csv").write_bytes(b'77.npy,"' + b"x" * 200_000)
    with pytest.raises(UlpscopeError, match=r"mapping\.csv"):
        open_npy_folder(tmp_path)
