"""Names of dump files, and the trees that they lie in."""

import json
from pathlib import Path

import numpy as np
import pytest

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes
from ulpscope.dialects.ascend.names import DumpName, TaskType, parse_name, sanitised, without_parts
from ulpscope.dialects.ascend.operations import Operation, read_operations
from ulpscope.dialects.ascend.tree import find_folders, has_dumps, list_dumps, newest, read_mapping, unnamed_dumps
from ulpscope.records.errors import UlpscopeError

DATA = Path(__file__).parents[1] / "data" / "ascend"
MANIFEST = json.loads((DATA / "manifest.json").read_text())
NETWORK = DATA / MANIFEST["dump_dir"]
TIME = 1767225600021123


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        (f"Relu.fc1_Relu.21.{TIME}", DumpName("Relu", "fc1_Relu", 21, None, TIME)),
        (f"Relu.fc1_Relu.21.3.{TIME}", DumpName("Relu", "fc1_Relu", 21, 3, TIME)),
        (
            f"Conv2D.a-b.21.3.{TIME}.4.7.1.2",
            DumpName("Conv2D", "a-b", 21, 3, TIME, TaskType.FFTSPLUS, context=7, thread=1, device=2),
        ),
        (
            f"Conv2D.a_lxslice2.21.{TIME}.0.7.65535.2",
            DumpName("Conv2D", "a_lxslice2", 21, None, TIME, TaskType.AICORE, context=7, thread=65535, device=2),
        ),
        (f"Opdebug.Node_OpDebug.59.2.{TIME}", DumpName("Opdebug", "Node_OpDebug", 59, 2, TIME)),
        (f"MatMul.算子.1.2.{TIME}", DumpName("MatMul", "算子", 1, 2, TIME)),
    ],
)
def test_names_are_taken_apart(name: str, parsed: DumpName) -> None:
    assert parse_name(name) == parsed


@pytest.mark.parametrize(
    "name",
    [
        "",
        "3707385569123341",
        "mapping.csv",
        "fc1_Relu.0.1767225600900010.npy",
        f"Relu.fc1_Relu.{TIME}",
        "Relu.fc1_Relu.21.12345",
        f"Relu.fc1/Relu.21.{TIME}",
        f"Relu.fc1_Relu.21.3.{TIME}.9.7.1.2",
        f"Relu.fc1_Relu.21.3.{TIME}.4.7.1",
        f"Relu.fc1_Relu.x.3.{TIME}",
        f"Relu.fc1_Relu.{'1' * 5000}.{TIME}",
    ],
)
def test_other_names_are_no_dumps(name: str) -> None:
    assert parse_name(name) is None


def test_names_of_parts() -> None:
    name = parse_name(f"Conv2D.x_sgt_graph_3_conv1_lxslice12.21.3.{TIME}.4.7.1.2")
    assert name is not None
    assert (name.operator, name.slice, name.is_overflow_record) == ("conv1", 12, False)
    assert without_parts("conv1/lxslice/Conv2D") == "conv1/lxslice/Conv2D"
    assert sanitised("a/b.c\\d e") == "a_b_c_d_e"
    record = parse_name(f"OpDebug.Node_Opdebug.59.2.{TIME}")
    assert record is not None
    assert record.is_overflow_record


def test_a_folder_lists_its_dumps_in_time_order_with_real_names() -> None:
    entries = list_dumps(NETWORK)
    assert [entry.path.name for entry in entries] == [file["file"] for file in MANIFEST["files"]]
    for entry, file in zip(entries, MANIFEST["files"], strict=True):
        assert (entry.name.op_type, entry.name.op_name) == (file["type"], sanitised(file["op"]))
        assert (entry.name.task, entry.name.stream, entry.name.timestamp) == (file["task"], file["stream"], file["ts"])


def test_names_that_no_mapping_explains(tmp_path: Path) -> None:
    (tmp_path / "123").write_bytes(b"")
    (tmp_path / "456").write_bytes(b"")
    (tmp_path / "mapping.csv").write_text(f"456,Relu.x.1.{TIME}\nonly one\na,b,c\n")
    assert [entry.path.name for entry in list_dumps(tmp_path)] == ["456"]
    assert unnamed_dumps(tmp_path) == ["123"]


def test_a_mapping_never_names_a_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "mapping.csv").write_text(f"../../secret,Relu.x.1.{TIME}\n")
    assert list_dumps(tmp_path) == []
    assert read_mapping(tmp_path / "mapping.csv") == {"../../secret": f"Relu.x.1.{TIME}"}


def place(root: Path, *parts: str) -> Path:
    folder = root.joinpath(*parts)
    folder.mkdir(parents=True)
    (folder / f"Relu.x.1.{TIME}").write_bytes(b"")
    return folder


def test_a_tree_tells_device_model_and_step(tmp_path: Path) -> None:
    folder = place(tmp_path, "20260101000000", "3", "ge_default_11", "1", "42")
    (found,) = find_folders(tmp_path)
    assert found.path == folder
    assert (found.time, found.device, found.model, found.model_id, found.step) == (
        "20260101000000", 3, "ge_default_11", 1, 42
    )  # fmt: skip


def test_single_operators_have_a_time_and_a_device(tmp_path: Path) -> None:
    place(tmp_path, "20260101000000", "5")
    (found,) = find_folders(tmp_path)
    assert (found.time, found.device, found.model, found.step) == ("20260101000000", 5, None, 0)


def test_any_folder_of_a_tree_knows_its_place(tmp_path: Path) -> None:
    folder = place(tmp_path, "20260101000000", "3", "net", "1", "42")
    (found,) = find_folders(folder)
    assert (found.device, found.step) == (3, 42)


def test_a_folder_without_a_tree(tmp_path: Path) -> None:
    (found,) = find_folders(place(tmp_path, "dumps"))
    assert (found.time, found.device, found.step) == (None, 0, 0)


def test_the_newest_run_is_taken(tmp_path: Path) -> None:
    for time in ("20260101000000", "20260102000000"):
        place(tmp_path, time, "0", "net", "1", "0")
    kept, older = newest(list(find_folders(tmp_path)))
    assert [folder.time for folder in kept] == ["20260102000000"]
    assert older == ["20260101000000"]


def test_too_deep_a_tree_is_not_searched(tmp_path: Path) -> None:
    place(tmp_path, *"abcdefghijk")
    assert not has_dumps(tmp_path)
    assert has_dumps(tmp_path / "a" / "b" / "c")


def sliced(folder: Path, name: str, part: np.ndarray, number: int, attribute: dict[str, object], tail: str) -> None:
    content = file_bytes(
        "graph/conv1", outputs=[Tensor(part)], attributes=[("_ffts", json.dumps(attribute))], inputs=[Tensor(part)]
    )
    (folder / f"Conv2D.{name}.21.3.{FIRST_TIME + number}{tail}").write_bytes(content)


def operations_of(folder: Path) -> list[Operation]:
    def fail(path: Path, error: UlpscopeError) -> None:
        raise error

    return read_operations(list_dumps(folder), fail)


def test_slices_by_hand_are_joined_in_their_order(tmp_path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(2, 12)
    attribute = {"threadMode": 0, "slice_instance_num": 3, "outputCutList": [[1, 3]]}
    for number in (2, 0, 1):
        part = whole[:, 4 * number : 4 * number + 4]
        sliced(tmp_path, f"sgt_graph_0_conv1_lxslice{number}", part, 9 - number, attribute, f".4.7.{number}.0")
    (operation,) = operations_of(tmp_path)
    assert (operation.op_name, operation.name.op_type) == ("graph/conv1", "Conv2D")
    np.testing.assert_array_equal(operation.outputs[0].array(), whole)


def test_threads_are_joined_by_what_each_of_them_made(tmp_path: Path) -> None:
    """The head of each file states the whole shape; the attribute states how much of it a thread made."""
    whole = np.arange(30, dtype=np.float16).reshape(5, 6)
    bounds = [(0, 2), (2, 4), (4, 5)]
    ranges = [[[{"lower": low, "higher": high}, {"lower": 0, "higher": 6}]] for low, high in bounds]
    attribute = {"threadMode": 1, "slice_instance_num": 3, "outputCutList": [[3, 1]], "output_tensor_slice": ranges}
    for thread, (low, high) in enumerate(bounds):
        dumped = np.zeros_like(whole)
        dumped.reshape(-1)[: 6 * (high - low)] = whole[low:high].reshape(-1)
        sliced(tmp_path, "conv1", dumped, thread, attribute, f".4.7.{thread}.0")
    (operation,) = operations_of(tmp_path)
    np.testing.assert_array_equal(operation.outputs[0].array(), whole)


def test_a_slice_that_was_dumped_twice_counts_once(tmp_path: Path) -> None:
    attribute = {"slice_instance_num": 2, "outputCutList": [[2]]}
    for number, (part, value) in enumerate([(0, 1.0), (1, 2.0), (0, 3.0)]):
        sliced(tmp_path, f"conv1_lxslice{part}", np.full(2, value), number, attribute, "")
    (operation,) = operations_of(tmp_path)
    assert operation.outputs[0].array().tolist() == [3, 3, 2, 2]


def test_a_slice_that_is_missing_is_told(tmp_path: Path) -> None:
    attribute = {"slice_instance_num": 3, "outputCutList": [[3]]}
    for part in (0, 2):
        sliced(tmp_path, f"conv1_lxslice{part}", np.zeros(2), part, attribute, "")
    (operation,) = operations_of(tmp_path)
    with pytest.raises(UlpscopeError, match="is one of 3 slices, of which 2 are there"):
        _ = operation.outputs


def test_slices_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    attribute = {"outputCutList": [[1, 2]]}
    sliced(tmp_path, "conv1_lxslice0", np.zeros((2, 3)), 0, attribute, ".4.7.0.0")
    sliced(tmp_path, "conv1_lxslice1", np.zeros((3, 3)), 1, attribute, ".4.7.1.0")
    (operation,) = operations_of(tmp_path)
    with pytest.raises(UlpscopeError, match=r"slices of output\.0 do not fit each other"):
        _ = operation.outputs


def test_the_same_operator_twice_is_two_operations(tmp_path: Path) -> None:
    for number in range(2):
        name = f"Relu.x.1.0.{FIRST_TIME + number}"
        (tmp_path / name).write_bytes(file_bytes("x", outputs=[Tensor(np.full(3, number))]))
    values = [operation.outputs[0].array().tolist() for operation in operations_of(tmp_path)]
    assert values == [[0, 0, 0], [1, 1, 1]]
