"""`ulpscope convert` of dumps: files, names and numbers as the older tool gives them, and better where it is wrong."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes
from ulpscope.cli.main import main
from ulpscope.dialects.ascend.converting import FileKind, Wanted
from ulpscope.workflows import convert as workflow

DATA = Path(__file__).parents[1] / "data" / "ascend"
NETWORK = DATA / json.loads((DATA / "manifest.json").read_text())["dump_dir"]
EXPECTED = DATA / "expected/msprobe_26.2.0"
NAME = f"Relu.x.1.0.{FIRST_TIME}"


def network(name: str) -> Path:
    return next(path for path in NETWORK.iterdir() if path.name.startswith(name))


def convert(*words: object) -> int:
    return main(["convert", *map(str, words)])


def dump(folder: Path, *outputs: Tensor, name: str = NAME, **more: Any) -> Path:
    (folder / name).write_bytes(file_bytes("x", outputs=outputs, **more))
    return folder / name


def only(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_tensor_is_the_file_that_the_older_tool_writes(tmp_path: Path) -> None:
    assert convert(NETWORK, "--to", "npy", "-o", tmp_path / "out") == 0
    assert files(tmp_path / "out") == files(EXPECTED / "convert")
    for name in files(EXPECTED / "convert"):
        assert (tmp_path / "out" / name).read_bytes() == (EXPECTED / "convert" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("name", "layout"), [("Conv2D", "NHWC"), ("MatMulV2.fc1", "ND"), ("TransData.trans_TransData_2", "HWCN")]
)
def test_layouts_are_those_of_the_older_tool(tmp_path: Path, name: str, layout: str) -> None:
    assert convert(network(name), "--output", 0, "--layout", layout, "--to", "npy", "-o", tmp_path / "out") == 0
    file = only(tmp_path / "out")
    np.testing.assert_array_equal(np.load(file), np.load(EXPECTED / "convert_fmt" / file.name))


def test_bin_files_have_the_older_tools_names(tmp_path: Path) -> None:
    assert convert(network("Relu"), "--to", "bin", "-o", tmp_path / "out") == 0
    names = (EXPECTED / "convert_bin_msnpy_names.txt").read_text().split("convert_msnpy:")[0].split()[1:]
    assert files(tmp_path / "out") == set(names)
    raw = np.load(EXPECTED / "convert" / f"{network('Relu').name}.output.0.npy")
    assert (tmp_path / "out" / names[1]).read_bytes() == raw.tobytes()


def test_a_tree_stays_a_tree(tmp_path: Path) -> None:
    assert convert(DATA / "precision_data/npu/debug_0", "--to", "npy", "-o", tmp_path / "out") == 0
    inside = NETWORK.relative_to(DATA / "precision_data/npu/debug_0")
    assert files(tmp_path / "out" / inside) == files(EXPECTED / "convert")


def test_overflow_records_become_json(tmp_path: Path) -> None:
    assert convert(DATA / "overflow_v2", "--to", "npy", "-o", tmp_path / "out") == 0
    name = "Opdebug.Node_OpDebug.59.2.1767225600027623.output.0.json"
    expected = json.loads((EXPECTED / "ov_v2" / name).read_text())
    assert json.loads((tmp_path / "out" / name).read_text()) == expected


def test_small_floats_become_float32(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, np.inf, 3.140625])
    eight = values.astype(ml_dtypes.float8_e5m2)
    path = dump(tmp_path, Tensor(values.astype(ml_dtypes.bfloat16)), Tensor(eight), Tensor(values))
    assert convert(path, "--to", "npy", "-o", tmp_path / "out") == 0
    arrays = [np.load(tmp_path / "out" / f"{NAME}.output.{index}.npy") for index in range(3)]
    assert [array.dtype.name for array in arrays] == ["float32", "float32", "float64"]
    np.testing.assert_array_equal(arrays[0], values)
    np.testing.assert_array_equal(arrays[1], eight.astype(np.float64))
    np.testing.assert_array_equal(arrays[2], values)


@pytest.mark.parametrize("kind", [ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16])
def test_small_floats_keep_their_type_in_torchs_files(tmp_path: Path, kind: type) -> None:
    torch = pytest.importorskip("torch")
    values = np.array([1.0, -2.5, 3.0]).astype(kind)
    assert convert(dump(tmp_path, Tensor(values)), "--to", "pt", "-o", tmp_path / "out") == 0
    tensor = torch.load(tmp_path / "out" / f"{NAME}.output.0.pt", weights_only=True)
    assert tensor.dtype == getattr(torch, kind.__name__)
    assert tensor.float().tolist() == values.astype(np.float32).tolist()


TEXTS = (((3, 4, 5), np.float32), ((2, 3), np.float16), ((7,), np.float64))


def test_text_is_read_as_the_same_numbers_again(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    floats = [random.standard_normal(shape).astype(dtype) for shape, dtype in TEXTS]
    path = dump(tmp_path, *map(Tensor, floats), Tensor(np.array([[2**62, -1]])), Tensor(np.array([True, False])))
    assert convert(path, "--to", "txt", "-o", tmp_path / "out") == 0
    for index, array in enumerate(floats):
        text = np.loadtxt(tmp_path / "out" / f"{NAME}.output.{index}.txt", dtype=np.float64, ndmin=2)
        assert text.shape[1] == array.shape[-1]
        np.testing.assert_array_equal(text.astype(array.dtype).reshape(array.shape), array)
    assert (tmp_path / "out" / f"{NAME}.output.3.txt").read_text() == f"{2**62} -1\n"
    assert (tmp_path / "out" / f"{NAME}.output.4.txt").read_text() == "1 0\n"


def test_pt_files_have_torch_types(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values = np.array([1.0, -2.5, 3.140625])
    path = dump(tmp_path, Tensor(values.astype(ml_dtypes.bfloat16)), Tensor(np.array([0x08], np.uint8), code=33))
    assert convert(path, "--to", "pt", "-o", tmp_path / "out") == 0
    first, second = (torch.load(tmp_path / "out" / f"{NAME}.output.{index}.pt") for index in range(2))
    assert (first.dtype, first.tolist()) == (torch.bfloat16, values.tolist())
    assert (second.dtype, second.tolist()) == (torch.float32, [1.0])


def test_strings_can_be_had_as_bytes(tmp_path: Path) -> None:
    path = dump(tmp_path, Tensor(np.frombuffer(b"hello", np.uint8), code=13, shape=(1,)))
    assert convert(path, "--to", "npy", "-o", tmp_path / "npy") == 1
    assert convert(path, "--to", "bin", "-o", tmp_path / "bin") == 0
    assert only(tmp_path / "bin").read_bytes() == b"hello"


def test_what_cannot_be_written_does_not_keep_the_others_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Tensor(np.frombuffer(b"hello", np.uint8), code=13, shape=(1,))
    path = dump(tmp_path, Tensor(np.ones(2)), text, Tensor(np.zeros(4)))
    assert convert(path, "--to", "npy", "-o", tmp_path / "out", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["files"], [one["source"] for one in answer["failures"]]) == (2, [str(path)])
    assert "output.1" in answer["failures"][0]["error"]
    assert np.load(tmp_path / "out" / f"{NAME}.output.2.npy").tolist() == [0, 0, 0, 0]


def test_two_files_of_one_name_do_not_replace_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        dump(tmp_path / name, Tensor(np.ones(2)))
    words = ("--to", "npy", "-o", tmp_path / "out")
    assert convert(tmp_path / "one", tmp_path / "other", *words) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path / 'one' / NAME} and {tmp_path / 'other' / NAME} would be written to the same files" in told
    assert not (tmp_path / "out").exists()
    assert convert(tmp_path / "one", tmp_path / "one" / NAME, *words) == 0, "the same file twice is one file"
    assert files(tmp_path / "out") == {f"{NAME}.output.0.npy"}


def test_an_overflow_record_whose_name_is_too_long(tmp_path: Path) -> None:
    record = next((DATA / "overflow_v2").rglob("Opdebug*"))
    (tmp_path / "77").write_bytes(record.read_bytes())
    (tmp_path / "mapping.csv").write_text(f"77,{record.name}\n")
    assert convert(tmp_path / "77", "--to", "npy", "-o", tmp_path / "out") == 0
    assert files(tmp_path / "out") == {"77.output.0.json"}


def test_stats_are_no_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / f"{NAME}.csv").write_text("Input/Output,Index,Data Type,Shape\n")
    assert convert(tmp_path / f"{NAME}.csv", "--to", "npy", "-o", tmp_path / "out") == 3
    assert "holds stats, and no tensor" in capsys.readouterr().err


@pytest.mark.parametrize(("to", "name"), [("npy", "output.0.npy"), ("bin", "output.0.1.float32.ND.bin")])
def test_a_scalar_has_no_lengths_in_its_name(tmp_path: Path, to: str, name: str) -> None:
    path = dump(tmp_path, Tensor(np.array(3.5, np.float32), shape=()))
    assert convert(path, "--output", 0, "--layout", "ND", "--to", to, "-o", tmp_path / "out") == 0
    assert only(tmp_path / "out").name == f"{NAME}.{name}"


def test_a_bias_that_is_said_to_have_four_axes(tmp_path: Path) -> None:
    path = dump(tmp_path, Tensor(np.arange(3.0), "NHWC"))
    assert convert(path, "--output", 0, "--layout", "ND", "--to", "npy", "-o", tmp_path / "out") == 0
    assert np.load(only(tmp_path / "out")).tolist() == [0, 1, 2]


def test_the_shape_of_tiles_in_no_order_that_is_named(tmp_path: Path) -> None:
    picture = np.arange(1, 109, dtype=np.float16).reshape(2, 3, 3, 6)
    tiles = np.zeros((2, 1, 3, 3, 16), np.float16)
    tiles[:, 0, :, :, :6] = picture
    words = ("--output", 0, "--layout", "ND", "--to", "npy")
    path = dump(tmp_path, Tensor(tiles, "NC1HWC0"))
    assert convert(path, *words, "--shape", "2,3,3,6", "-o", tmp_path / "out") == 0
    np.testing.assert_array_equal(np.load(only(tmp_path / "out")), picture)
    assert convert(path, *words, "--shape", "2,3,3,17", "-o", tmp_path / "not") == 1
    plain = dump(tmp_path, Tensor(np.arange(6.0)), name=f"Relu.y.1.0.{FIRST_TIME}")
    assert convert(plain, *words, "--shape", "2,3", "-o", tmp_path / "plain") == 0
    assert np.load(only(tmp_path / "plain")).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert convert(plain, *words, "--shape", "2,2", "-o", tmp_path / "few") == 1


def test_the_order_of_a_cube_is_that_of_the_tensors_beside_it(tmp_path: Path) -> None:
    """(2, 4, 4, 4) fills its tiles as NCHW and as NHWC; the other tensor of the operator fills its own as NHWC only."""
    cube, flat = np.arange(128.0).reshape(2, 4, 4, 4), np.arange(60.0).reshape(1, 3, 4, 5)
    tiles = [np.zeros((2, 1, 4, 4, 16)), np.zeros((1, 1, 3, 4, 16))]
    tiles[0][:, 0, :, :, :4], tiles[1][:, 0, :, :, :5] = cube, flat
    outputs = [Tensor(tiles[0], "NC1HWC0", cube.shape), Tensor(tiles[1], "NC1HWC0", flat.shape)]
    path = dump(tmp_path, *outputs)
    assert convert(path, "--layout", "ND", "--to", "npy", "-o", tmp_path / "out") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{NAME}.output.0.2x4x4x4.npy"), cube)


def test_a_shape_does_not_cut_data_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dump(tmp_path, Tensor(np.ones((2, 1, 3, 3, 16), np.float16), "NC1HWC0"))
    words = (path, "--output", 0, "--layout", "NHWC", "--to", "npy", "-o", tmp_path / "out")
    assert convert(*words, "--shape", "2,2,2,6") == 1
    assert "NC1HWC0 [2, 1, 3, 3, 16] as NHWC [2, 2, 2, 6]" in capsys.readouterr().out
    assert files(tmp_path / "out") == {"convert_failed_file_list.txt"}


def test_a_converter_that_changes_the_elements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    converter = tmp_path / "convert_ND_to_WIDE.py"
    converter.write_text("def convert(shape_from, shape_to, array):\n    return array.astype('float64')\n")
    path = dump(tmp_path, Tensor(np.ones(4, np.float16)))
    words = (path, "--output", 0, "--to", "npy", "--layout", "WIDE", "--converter", converter, "-o", tmp_path / "out")
    assert convert(*words) == 1
    assert "was given float16 and gave float64" in capsys.readouterr().out
    everything = (path, "--to", "npy", "--layout", "WIDE", "--converter", converter, "-o", tmp_path / "all")
    assert convert(*everything) == 1, "what a converter of the user's does wrong is no reason to do without it"


def test_chinese(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dump(tmp_path, Tensor(np.arange(3.0)))
    assert convert(path, "--to", "npy", "-o", tmp_path / "out", "--language", "zh") == 0
    assert capsys.readouterr().out == f"1 个 dump 文件（60 B）：已写出 1 个文件，位于 {tmp_path / 'out'}\n"


def test_a_shape_of_the_users_own(tmp_path: Path) -> None:
    data = np.arange(256, dtype=np.float16).reshape(1, 1, 16, 16)
    path = dump(tmp_path, Tensor(data, "FRACTAL_NZ"))
    options = ("--output", 0, "--layout", "ND", "--to", "npy")
    assert convert(path, *options, "--shape", "3,5", "-o", tmp_path / "out") == 0
    assert only(tmp_path / "out").name == f"{NAME}.output.0.3x5.npy"
    np.testing.assert_array_equal(np.load(only(tmp_path / "out")), data[0, 0, :3, :5])
    assert convert(path, *options, "-o", tmp_path / "without") == 1


def test_tensors_without_such_a_layout_stay_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = Tensor(np.arange(3.0), "NHWC")
    picture = Tensor(np.arange(24.0).reshape(1, 2, 3, 4), "NHWC")
    path = dump(tmp_path, vector, picture)
    assert convert(path, "--layout", "NCHW", "--to", "npy", "-o", tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out)["as_they_were"] == [f"{NAME}.output.0"]
    assert files(tmp_path / "out") == {f"{NAME}.output.0.npy", f"{NAME}.output.1.1x4x2x3.npy"}
    assert convert(path, "--output", 0, "--layout", "NCHW", "--to", "npy", "-o", tmp_path / "asked") == 1


CONVERTER = """
def convert(shape_from, shape_to, array, group):
    assert array.ndim == 1
    return array.reshape(shape_from)[::-1] + group
"""


def test_a_converter_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "convert_FRACTAL_NZ_to_BACKWARDS.py").write_text(CONVERTER)
    data = np.arange(512, dtype=np.float32).reshape(2, 1, 16, 16)
    path = dump(tmp_path, Tensor(data, "FRACTAL_NZ", groups=3))
    words = (path, "--output", 0, "--to", "npy", "--layout", "BACKWARDS")
    assert convert(*words, "-o", tmp_path / "without") == 2
    converter = tmp_path / "convert_FRACTAL_NZ_to_BACKWARDS.py"
    assert convert(*words, "-o", tmp_path / "out", "--converter", converter) == 0
    np.testing.assert_array_equal(np.load(only(tmp_path / "out")), data[::-1] + 3)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("mine.py", CONVERTER, "its name does not say from which layout to which"),
        ("convert_A_to_B.py", "x = 1", "has no function convert"),
        ("convert_A_to_B.py", "raise ValueError('no')", "cannot be executed (ValueError: no)"),
    ],
)
def test_converters_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, told: str
) -> None:
    (tmp_path / name).write_text(content)
    path = dump(tmp_path, Tensor(np.arange(3.0)))
    assert convert(path, "--to", "npy", "-o", tmp_path / "out", "--converter", tmp_path / name) == 2
    assert told in capsys.readouterr().err


def test_what_failed_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dumps").mkdir()
    dump(tmp_path / "dumps", Tensor(np.arange(3.0)))
    broken = dump(tmp_path / "dumps", Tensor(np.arange(3.0)), name=f"Mul.y.2.0.{FIRST_TIME}")
    broken.write_bytes(broken.read_bytes()[:-2])
    assert convert(tmp_path / "dumps", "--to", "npy", "-o", tmp_path / "out") == 1
    assert (tmp_path / "out" / "convert_failed_file_list.txt").read_text() == f"{broken}\n"
    assert (tmp_path / "out" / f"{NAME}.output.0.npy").is_file()
    told = capsys.readouterr().out
    assert "its head announces 24 bytes of data, 22 follow" in told
    assert "convert_failed_file_list.txt" in told


def test_names_that_are_too_long_are_replaced(tmp_path: Path) -> None:
    name = f"Add.{'a' * 200}.1.0.{FIRST_TIME}"
    path = dump(tmp_path, Tensor(np.zeros((1, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7))), name=name)
    assert convert(path, "--layout", "ND", "--to", "npy", "-o", tmp_path / "out") == 0
    long = f"{name}.output.0.1x1x1x1x1x1x2x3x4x5x6x7.npy"
    assert len(long) >= 255
    wide = dump(tmp_path, Tensor(np.zeros(2)), name=f"Add.{'é' * 112}.1.0.{FIRST_TIME}")
    assert convert(wide, "--to", "npy", "-o", tmp_path / "bytes") == 0, "a file system counts bytes"
    assert len(files(tmp_path / "bytes")) == 2
    short = f"{uuid.uuid3(uuid.NAMESPACE_DNS, long).hex}.npy"
    assert files(tmp_path / "out") == {short, "mapping.csv"}
    assert (tmp_path / "out" / "mapping.csv").read_text() == f"{short},{long}\n"


def test_processes_side_by_side_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "_WORTH_PROCESSES", 0)
    done: list[tuple[int, int]] = []
    result = workflow.convert_dumps(
        [NETWORK], Wanted(FileKind.NPY), out=tmp_path / "out", jobs=2, told=lambda *state: done.append(state)
    )
    assert result.code == 0
    assert files(tmp_path / "out") == files(EXPECTED / "convert")
    assert len(done) == 19
    assert done[-1][0] == done[-1][1] == sum(path.stat().st_size for path in NETWORK.iterdir() if path.suffix != ".csv")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("missing",), 2, "missing does not exist"),
        (("empty",), 3, "empty holds no dump file"),
        (("dumps", "--shape", "1,2"), 2, "--shape without --layout"),
        (("dumps", "--layout", "NHCW"), 2, "--layout NHCW is not known"),
        (("dumps", "--layout", "ND", "--shape", "1,x"), 2, "not a shape such as 1,3,224,224"),
        (("dumps", "--input", "0", "--output", "0"), 2, "not allowed with"),
        (("dumps", "--output", "5"), 1, ""),
    ],
)
def test_bad_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("empty")
    os.mkdir("dumps")
    dump(Path("dumps"), Tensor(np.arange(3.0)))
    assert convert(*words, "--to", "npy", "-o", "out") == code
    assert told in capsys.readouterr().err


def test_options_of_dumps_do_not_go_with_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(tmp_path, "--to", "msprobe", "--layout", "ND", "-o", tmp_path / "out") == 2
    assert "--layout with --to msprobe" in capsys.readouterr().err


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    assert convert(network("Relu"), "--to", "npy", "-o", tmp_path / "out") == 2
    assert files(tmp_path / "out") == {"mine"}
    assert "is not empty" in capsys.readouterr().err


def test_files_of_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = np.array([[1.5, -2.25], [0.1, 3e-7]], np.float32)
    np.save(tmp_path / "weight.npy", array)
    np.savez(tmp_path / "several.npz", a=array, b=np.arange(3))
    sources = tmp_path / "weight.npy", tmp_path / "several.npz"
    assert convert(*sources, "--to", "txt", "-o", tmp_path / "out") == 0
    assert files(tmp_path / "out") == {"weight.txt", "several.a.txt", "several.b.txt"}
    assert np.array_equal(np.loadtxt(tmp_path / "out/weight.txt", dtype=np.float32), array)
    assert "2 sources" in capsys.readouterr().out
    assert convert(sources[0], "--layout", "ND", "--to", "txt", "-o", tmp_path / "other") == 2
    assert "--layout with" in capsys.readouterr().err


def test_a_dump_of_tfdbg_becomes_reference_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real, out = DATA / "tf_debug_real", tmp_path / "npy"
    assert convert(real, "--to", "npy", "-o", out) == 0
    expected = np.load(real / "expected_tensors.npz")
    written = {path.name.rsplit(".", 2)[0]: path for path in out.glob("*.npy")}
    for name in expected.files:
        key = name.replace("|", "_").replace(":", ".")
        assert np.array_equal(np.load(written[key]), expected[name]), name
    capsys.readouterr()
    # As reference data it opens like the dump it was made of.
    assert main(["diff", str(real), str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"Agree: of {len(written)} tensors {len(written)} identical")


def test_a_folder_of_reference_data_with_a_name_that_is_too_long(tmp_path: Path) -> None:
    reference, out = DATA / "precision_data" / "tf" / "dump", tmp_path / "npy"
    assert convert(reference, "--to", "npy", "-o", out) == 0
    assert main(["diff", str(reference), str(out)]) == 0


def test_other_files_are_named_as_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = DATA / "precision_data/npu/debug_0/graph/ge_proto_00000_Build.txt"
    assert convert(graph, "--to", "npy", "-o", tmp_path / "out") == 2
    assert "is a graph, not a dump file" in capsys.readouterr().err
