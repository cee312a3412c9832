"""Names of dump files, and the trees that they lie in."""

import json
from pathlib import Path

import numpy as np
import pytest

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes
from ulpscope.dialects.ascend.operations import Operation, read_operations
from ulpscope.dialects.ascend.tree import (
    DumpName,
    TaskType,
    find_folders,
    has_dumps,
    list_dumps,
    one_run,
    parse_name,
    read_mapping,
    unnamed_dumps,
    without_parts,
)
from ulpscope.graph.names import sanitised
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
    assert without_parts("rank1_sub_graph1_sgt_graph_0/vars/conv1/Conv2D_lxslice3") == "vars/conv1/Conv2D"
    assert without_parts("a_sgt_graph_0_b_sgt_graph_12_conv1") == "conv1"
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
    run = one_run(tmp_path)
    assert [folder.time for folder in run.folders] == ["20260102000000"]
    assert run.older == ("20260101000000",)


@pytest.mark.parametrize(
    ("below", "model", "model_id", "step"),
    [(("7",), None, None, 7), (("2", "7"), None, 2, 7), (("net", "2"), "net", 2, 0), (("9", "2", "7"), "9", 2, 7)],
)
def test_a_device_leaves_out_what_there_is_not(
    tmp_path: Path, below: tuple[str, ...], model: str | None, model_id: int | None, step: int
) -> None:
    place(tmp_path, "20260101000000", "3", *below)
    (found,) = find_folders(tmp_path)
    assert (found.time, found.device) == ("20260101000000", 3)
    assert (found.model, found.model_id, found.step) == (model, model_id, step)


@pytest.mark.parametrize("below", [("0", "x"), ("0", "a", "b"), ("0", "1", "x"), ("0", "1", "2", "x", "3")])
def test_other_directories_below_a_time_tell_nothing(tmp_path: Path, below: tuple[str, ...]) -> None:
    folder = place(tmp_path, "20260101000000", *below)
    (found,) = find_folders(tmp_path)
    assert (found.root, found.device, found.step) == (folder, 0, 0)


def test_a_deep_tree_is_searched(tmp_path: Path) -> None:
    folder = place(tmp_path, *"abcdefghijk")
    assert has_dumps(tmp_path)
    assert [found.path for found in find_folders(tmp_path)] == [folder]


def test_links_are_followed_and_no_directory_is_found_twice(tmp_path: Path) -> None:
    """The older tool links a run into its own tree, under the time of the run."""
    place(tmp_path, "elsewhere", "run", "3", "net", "1", "42")
    tree = tmp_path / "npu" / "dump"
    tree.mkdir(parents=True)
    (tree / "20260101000000").symlink_to(tmp_path / "elsewhere" / "run")
    (tree / "latest").symlink_to(tree / "20260101000000")
    (tree / "again").symlink_to(tmp_path)
    found = list(find_folders(tree))
    assert [(one.device, one.model, one.step) for one in found] == [(3, "net", 42)]
    assert found[0].time == "20260101000000"


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


def test_slices_by_hand_have_the_shapes_of_their_heads(tmp_path: Path) -> None:
    """Ranges are those of threads; what is cut by hand has files that say it themselves."""
    ranges = [[[{"lower": 0, "higher": 1}]], [[{"lower": 1, "higher": 2}]]]
    attribute = {"threadMode": 0, "slice_instance_num": 2, "outputCutList": [[2]], "output_tensor_slice": ranges}
    for part in range(2):
        sliced(tmp_path, f"conv1_lxslice{part}", np.full(2, part + 1.0), part, attribute, f".4.7.{part}.0")
    (operation,) = operations_of(tmp_path)
    assert operation.outputs[0].array().tolist() == [1, 1, 2, 2]


def test_what_is_not_cut_the_last_slice_has(tmp_path: Path) -> None:
    """Each slice adds to a sum; slices need not run in the order of their numbers."""
    attribute = {"slice_instance_num": 2, "outputCutList": [[1]]}
    for part, number, value in ((0, 9, 5.0), (1, 3, 2.0)):
        sliced(tmp_path, f"conv1_lxslice{part}", np.array([value]), number, attribute, "")
    (operation,) = operations_of(tmp_path)
    assert operation.outputs[0].array().tolist() == [5]


def test_an_input_that_slices_read_a_part_of_is_not_told_as_the_whole(tmp_path: Path) -> None:
    attribute = {"slice_instance_num": 2, "outputCutList": [[2]]}
    weight = np.arange(3.0)
    for part in range(2):
        content = file_bytes(
            "conv1",
            inputs=[Tensor(np.full(2, part)), Tensor(weight)],
            outputs=[Tensor(np.full(2, part))],
            attributes=[("_ffts", json.dumps(attribute))],
        )
        (tmp_path / f"Conv2D.conv1_lxslice{part}.21.3.{FIRST_TIME + part}").write_bytes(content)
    (operation,) = operations_of(tmp_path)
    assert [tensor.content.size for tensor in operation.inputs] == [0, weight.nbytes]
    assert operation.inputs[1].array().tolist() == weight.tolist()


@pytest.mark.parametrize(
    "attribute",
    [
        {"outputCutList": [[2], 5]},
        {"outputCutList": 7},
        {"outputCutList": [5, [2]]},
        {
            "threadMode": 1,
            "outputCutList": [[2]],
            "output_tensor_slice": [[[{"lower": 0, "higher": float("inf")}]]] * 2,
        },
        {"threadMode": 1, "outputCutList": [[2]], "output_tensor_slice": [[[{"lower": 2**80, "higher": 0}]]] * 2},
    ],
)
def test_attributes_that_are_no_cuts(tmp_path: Path, attribute: dict[str, object]) -> None:
    for part in range(2):
        content = file_bytes("conv1", outputs=[Tensor(np.zeros(2))] * 2, attributes=[("_ffts", json.dumps(attribute))])
        (tmp_path / f"Conv2D.conv1_lxslice{part}.21.3.{FIRST_TIME + part}").write_bytes(content)
    (operation,) = operations_of(tmp_path)
    assert all(tensor.array().tolist() in ([0, 0], [0, 0, 0, 0]) for tensor in operation.outputs)


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
