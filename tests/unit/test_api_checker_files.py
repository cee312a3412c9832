"""forward_info, backward_info and stack_info files of the first API accuracy checker, opened as traces."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.msprobe_dumps import forward, tensor, write_dump

from ulpscope.cli.main import main
from ulpscope.dialects.api_checker import is_api_checker
from ulpscope.dialects.opening import open_run
from ulpscope.records.calls import Value
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.records.errors import TraceError
from ulpscope.trace.objects import call_from_row, frame_from_row, use_from_row, value_from_row
from ulpscope.trace.reader import RankTrace

Json = dict[str, Any]
# As published with the tool itself.
SILU = {
    "args": [
        {
            "type": "torch.Tensor",
            "dtype": "torch.float16",
            "shape": [2, 2560, 24, 24],
            "Max": 5.7421875,
            "Min": -5.125,
            "requires_grad": True,
        }
    ],
    "kwargs": {"inplace": {"type": "bool", "value": False}},
}
GRADIENT = {
    "type": "torch.Tensor",
    "dtype": "torch.float16",
    "shape": [2, 2560, 24, 24],
    "Max": 0.25,
    "Min": -0.5,
    "requires_grad": False,
}
FRAMES = ["File /home/user/model.py, line 54, in forward, \n x = silu(x)", "File /home/user/train.py, line 9, in main"]


def small(**changes: Any) -> Json:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": 2.0, "Min": -1.0} | changes


def write(folder: Path, suffix: str = "_4711", *, key: str = "Functional*silu*0", **contents: Any) -> Path:
    files = {"forward": {key: SILU}, "backward": {key: [GRADIENT]}, "stack": {key: FRAMES}} | contents
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / f"{name}_info{suffix}.json").write_text(text, encoding="utf-8")
    return folder


def calls(rank: RankTrace) -> list[Any]:
    return [call_from_row(row) for row in rank.collect(rank.calls()).iter_rows(named=True)]


def values(rank: RankTrace) -> list[Value]:
    return [value_from_row(row) for row in rank.collect(rank.values()).iter_rows(named=True)]


@pytest.mark.parametrize("key", ["Functional*silu*0", "Functional.silu.0", "Functional.silu.0.forward"])
def test_a_call_and_its_backward(tmp_path: Path, key: str) -> None:
    rank = open_run(write(tmp_path, key=key)).ranks[0]
    silu, backward = calls(rank)
    assert (silu.name, silu.op, silu.kind, silu.phase) == (
        "torch.nn.functional.silu.0",
        "torch.nn.functional.silu",
        Kind.API,
        Phase.FORWARD,
    )
    assert silu.arguments == {"args": [{"$tensor": "args.0"}], "kwargs": {"inplace": False}}
    assert (backward.kind, backward.phase, backward.forward) == (Kind.BACKWARD, Phase.BACKWARD, silu.id)
    uses = [use_from_row(row) for row in rank.collect(rank.tensors()).iter_rows(named=True)]
    assert [(use.call, use.role, use.place) for use in uses] == [
        (silu.id, Role.INPUT, "args.0"),
        (backward.id, Role.GRAD_OUTPUT, "output.0"),
    ]


def test_ranges_of_tensors(tmp_path: Path) -> None:
    given, gradient = values(open_run(write(tmp_path)).ranks[0])
    assert (given.dtype, given.shape, given.requires_grad) == ("float16", (2, 2560, 24, 24), True)
    assert given.stats is not None
    assert (given.stats.min, given.stats.max, given.stats.mean, given.stats.norm) == (-5.125, 5.7421875, None, None)
    assert gradient.stats is not None
    assert (gradient.stats.min, gradient.stats.max) == (-0.5, 0.25)


def test_where_a_call_was_made(tmp_path: Path) -> None:
    rank = open_run(write(tmp_path)).ranks[0]
    frames = [frame_from_row(row) for row in rank.collect(rank.stacks()).iter_rows(named=True)]
    assert [(frame.file, frame.line, frame.function) for frame in frames] == [
        ("/home/user/model.py", 54, "forward"),
        ("/home/user/train.py", 9, "main"),
    ]
    assert calls(rank)[0].stack == 0


@pytest.mark.parametrize(
    ("suffixes", "names"),
    [
        (["_0", "_1"], ["rank0", "rank1"]),
        (["_4711", "_4712"], ["proc4711", "proc4712"]),
        (["_rank0"], ["rank0"]),
        ([""], ["rank0"]),
    ],
)
def test_each_number_is_a_process(tmp_path: Path, suffixes: list[str], names: list[str]) -> None:
    for suffix in suffixes:
        write(tmp_path, suffix)
    ranks = open_run(tmp_path).ranks
    assert [rank.name for rank in ranks] == names
    assert [rank.info.rank for rank in ranks] == list(range(len(names)))


def test_one_file_is_one_process(tmp_path: Path) -> None:
    write(tmp_path, "_1", backward=None, stack=None)
    write(tmp_path, "_0")
    (rank,) = open_run(tmp_path / "forward_info_1.json").ranks
    assert [call.kind for call in calls(rank)] == [Kind.API]


def test_a_directory_an_iteration(tmp_path: Path) -> None:
    write(tmp_path / "step1")
    write(tmp_path / "step2")
    (rank,) = open_run(tmp_path).ranks
    assert rank.steps == (1, 2)
    assert [call.step for call in calls(rank)] == [1, 1, 2, 2]


@pytest.mark.parametrize("name", ["forward.json", "my_forward_1.json", "forward_info_0_part1.json"])
def test_a_copy_may_have_any_name_with_forward_in_it(tmp_path: Path, name: str) -> None:
    write(tmp_path, "_0")
    for word in ("forward", "backward", "stack"):
        (tmp_path / f"{word}_info_0.json").rename(tmp_path / name.replace("forward", word))
    (rank,) = open_run(tmp_path / name).ranks
    assert [call.kind for call in calls(rank)] == [Kind.API, Kind.BACKWARD]
    (tmp_path / name).write_text('{"Functional.silu.0": "Module.act"}')
    assert not is_api_checker(tmp_path / name)


@pytest.mark.parametrize("form", ["/somewhere/else/{}", "./{}", "{}"])
def test_data_is_found_beside_its_files(tmp_path: Path, form: str) -> None:
    content = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = tmp_path / "forward_real_data" / "Functional*relu*0.0.npy"
    data.parent.mkdir()
    np.save(data, content)
    stated = form.format("forward_real_data/Functional*relu*0.0.npy")
    write(tmp_path, forward={"Functional*relu*0": {"args": [small(datapath=stated)], "kwargs": {}}}, backward=None)
    rank = open_run(tmp_path).ranks[0]
    (value,) = values(rank)
    assert rank.info.capture["save"] == "tensors"
    np.testing.assert_array_equal(rank.data(value), content)
    assert value.stats is not None
    assert (value.stats.min, value.stats.max, value.stats.mean) == (0.0, 5.0, 2.5)  # the data's, not those stated
    assert value.stats.norm == pytest.approx(55**0.5)


def test_data_that_is_gone_is_told(tmp_path: Path) -> None:
    gone = small(datapath="/elsewhere/forward_real_data/x.pt")
    write(tmp_path, forward={"Functional*relu*0": {"args": [gone], "kwargs": {}}}, backward=None)
    rank = open_run(tmp_path).ranks[0]
    assert values(rank)[0].data is None
    assert rank.missing == ("step 0: 1 tensor file is not there, such as /elsewhere/forward_real_data/x.pt",)


def test_a_relative_path_does_not_lead_out(tmp_path: Path) -> None:
    np.save(tmp_path / "secret.npy", np.zeros((2, 3), dtype=np.float32))
    folder = tmp_path / "files"
    write(folder, forward={"Functional*relu*0": {"args": [small(datapath="../secret.npy")], "kwargs": {}}})
    assert values(open_run(folder).ranks[0])[0].data is None


@pytest.mark.parametrize(
    ("contents", "file", "seen"),
    [
        ({"forward": "{"}, "forward", "is not JSON"),
        ({"forward": "[]"}, "forward", "not a JSON object"),
        ({"backward": "{"}, "backward", "is not JSON"),
        ({"forward": {"Functional*silu*0": 3}}, "forward", "'Functional\\*silu\\*0' holds 3"),
        ({"forward": {"silu": SILU}}, "forward", "holds 'silu', not a name"),
        ({"forward": {"Functional*silu*0": {"args": 3}}}, "forward", "args of 'Functional\\*silu\\*0' holds 3"),
        (
            {"forward": {"Functional*silu*0": {"kwargs": [1]}}},
            "forward",
            "kwargs of 'Functional\\*silu\\*0' holds a list",
        ),
        ({"forward": {"Functional*silu*0": {"args": [small(shape=[-1])]}}}, "forward", "args.0.shape of"),
        ({"forward": {"Functional*silu*0": {"args": [small(Max="x")]}}}, "forward", "args.0.Max of .* holds 'x'"),
        ({"forward": {"Functional*silu*0": {"args": [small(datapath=3)]}}}, "forward", "args.0.datapath of .* holds 3"),
        ({"backward": {"Functional*silu*0": 3}}, "backward", "'Functional\\*silu\\*0' holds 3"),
        ({"backward": {"Functional*silu*0": [small(dtype=3)]}}, "backward", "grad_outputs.0.dtype of .* holds 3"),
        ({"stack": {"Functional*silu*0": [3]}}, "stack", "not a list of frames"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, contents: Json, file: str, seen: str) -> None:
    write(tmp_path, **contents)
    with pytest.raises(TraceError, match=rf"{file}_info_4711\.json .*{seen}") as caught:
        calls(open_run(tmp_path).ranks[0])
    assert "API accuracy checker" in caught.value.expected


def test_commands_take_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    assert main(["show", str(tmp_path), "--op", "*"]) == 0
    assert "torch.nn.functional.silu.0" in capsys.readouterr().out
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 3  # a range alone compares nothing


@pytest.mark.parametrize(("difference", "code"), [(0.0, 0), (0.5, 1)])
def test_real_data_is_compared(tmp_path: Path, difference: float, code: int) -> None:
    for name, added in (("reference", 0.0), ("target", difference)):
        folder = tmp_path / name
        (folder / "forward_real_data").mkdir(parents=True)
        content = np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(added)
        np.save(folder / "forward_real_data" / "x.npy", content)
        given = small(datapath="forward_real_data/x.npy")
        write(folder, forward={"Functional*relu*0": {"args": [given], "kwargs": {}}}, backward=None, stack=None)
    assert main(["compare", str(tmp_path / "reference"), str(tmp_path / "target")]) == code


def test_what_is_not_recorded_is_not_called_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overflow", str(write(tmp_path))]) == 3
    told = capsys.readouterr().out
    assert told.startswith("NOTHING CHECKED: what 2 calls of ")
    assert f"ulpscope check {tmp_path} --overflow" in " ".join(told.split())


def test_a_dump_json_and_a_rank_of_msprobe_open_directly(tmp_path: Path) -> None:
    folder = write_dump(tmp_path, {"Functional.relu.0.forward": forward([tensor()], [tensor()])})
    for path in (folder / "dump.json", folder, tmp_path):
        assert [call.op for call in calls(open_run(path).ranks[0])] == ["torch.nn.functional.relu"]
