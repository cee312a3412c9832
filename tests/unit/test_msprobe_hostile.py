"""Dumps that were cut off, tampered with or written by somebody with bad intentions: one clear error, or no harm."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.msprobe_dumps import forward, scalar, tensor, write_dump

from ulpscope.dialects.msprobe.json_files import is_compare_config, read_compare_config
from ulpscope.dialects.opening import open_run
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import Trace
from ulpscope.workflows.show.command import show

RELU = "Functional.relu.0.forward"


def read_all(trace: Trace) -> None:
    for frame in (trace.calls(), trace.values(), trace.tensors(), trace.stacks()):
        trace.collect(frame)


def refused(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_all(open_run(path))
    assert caught.value.expected
    assert caught.value.next_step
    return caught.value.seen


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ([], "field 'Functional.relu.0.forward' holds a list, not an object"),
        (None, "field 'Functional.relu.0.forward' holds None, not an object"),
        ({"input_args": {}}, "field input_args of 'Functional.relu.0.forward' holds a dict, not a list"),
        ({"input_args": 7}, "field input_args of 'Functional.relu.0.forward' holds 7, not a list"),
        ({"input_kwargs": [1]}, "field input_kwargs of 'Functional.relu.0.forward' holds a list, not a dict"),
        ({"output": "x"}, "field output of 'Functional.relu.0.forward' holds 'x', not a list"),
        (forward([tensor(dtype=7)], []), "field input_args.0.dtype of 'Functional.relu.0.forward' holds 7"),
        (forward([tensor(dtype=[])], []), "field input_args.0.dtype of 'Functional.relu.0.forward' holds a list"),
        (forward([tensor() | {"shape": 4}], []), "field input_args.0.shape of 'Functional.relu.0.forward' holds 4"),
        (forward([], [tensor() | {"shape": [-1]}]), "field output.0.shape of 'Functional.relu.0.forward' holds a list"),
        (forward([], [tensor() | {"shape": [2**70]}]), "field output.0.shape of"),
        (forward([], [tensor() | {"shape": [1.5]}]), "field output.0.shape of"),
        (forward([], [tensor() | {"shape": [[1]]}]), "field output.0.shape of"),
        (forward([], [tensor(Max="=1+1")]), "field Max in 'Functional.relu.0.forward' holds '=1+1', not a number"),
        (forward([], [tensor(Norm={})]), "field output.0.Norm of 'Functional.relu.0.forward' holds a dict"),
        (forward([], [tensor(md5=[1])]), "field output.0.md5 of 'Functional.relu.0.forward' holds a list"),
        (forward([], [tensor(data_name=3)]), "data_name"),
    ],
)
def test_wrong_types_are_named(tmp_path: Path, entry: Any, told: str) -> None:
    folder = write_dump(tmp_path, {RELU: entry})
    seen = refused(tmp_path)
    assert told in seen
    assert str(folder / "dump.json") in seen


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"task": "statistics", "data": {"Torch.a.0.forward": {"input_args": [', "was not written to its end"),
        ('{"task": "statistics", "data": [1]}', "field data holds a list"),
        ('{"task": "statistics"}', "has no field data"),
        ('{"task": "statistics", "data": ' + "[" * 100_000, "is nested too deeply"),
        ('{"task": "statistics", "data": {"\\ud800": {}}}', "not Unicode"),
        ("", "has neither"),
        ("[]", "holds a list"),
        ('{"data": {}}', "neither a field task nor a field level"),
    ],
)
def test_files_that_are_no_dump_are_named(tmp_path: Path, text: str, told: str) -> None:
    folder = write_dump(tmp_path, {})
    (folder / "dump.json").write_text(text)
    seen = refused(tmp_path) if text else "has neither"
    assert told in seen


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    folder = write_dump(tmp_path, {})
    (folder / "dump.json").write_bytes(b'{"task": "statistics", "data": {"\xff\xfe": {}}}')
    assert "dump.json is not JSON" in refused(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("stack.json", {"0": 7}, "stack.json field 0 holds 7"),
        ("stack.json", {"0": [["a"], [7]]}, "stack.json field 0 holds a list"),
        ("construct.json", {"a": 7}, "construct.json field a holds 7"),
        ("construct.json", [], "construct.json holds a list"),
    ],
)
def test_files_beside_the_dump_are_checked_too(tmp_path: Path, file: str, content: Any, told: str) -> None:
    folder = write_dump(tmp_path, {RELU: forward([], [])})
    (folder / file).write_text(json.dumps(content))
    assert told in refused(tmp_path)


def test_calls_inside_of_each_other_end(tmp_path: Path) -> None:
    names = [f"Module.m{number}.M.forward.0" for number in range(3)]
    construct = {names[0]: names[1], names[1]: names[2], names[2]: names[0], RELU: RELU}
    write_dump(tmp_path, {name: forward([], []) for name in [*names, RELU]}, construct=construct)
    trace = open_run(tmp_path)
    calls = trace.collect(trace.calls())
    assert calls.height == 4
    assert all(parent is None or parent < number for number, parent in calls.select("id", "parent").iter_rows())


def test_deep_arguments_are_cut(tmp_path: Path) -> None:
    deep: Any = tensor()
    for _ in range(300):
        deep = [deep]
    write_dump(tmp_path, {RELU: forward([deep, {"type": "x", "value": deep}], [])})
    trace = open_run(tmp_path)
    assert "$truncated" in trace.collect(trace.calls())["arguments"][0]


def test_names_are_only_text(tmp_path: Path) -> None:
    names = [
        "Torch.<script>alert(1)</script>.0.forward",
        "Torch.=cmd|' /C calc'!A0.0.forward",
        "Torch.[red]a.0.forward",
    ]
    keywords = {'"},{"': scalar("\x1b[31m")}
    write_dump(tmp_path, {name: forward([], []) | {"input_kwargs": keywords} for name in names})
    trace = open_run(tmp_path)
    ops = trace.collect(trace.calls())["op"].to_list()
    assert ops == ["torch.<script>alert(1)</script>", "torch.=cmd|' /C calc'!A0", "torch.[red]a"]
    assert trace.ranks[0].call(0).arguments["kwargs"] == {'"},{"': "\x1b[31m"}
    assert "[red]a" in show(tmp_path, call=2).text()


def test_bare_nan_and_infinity_are_numbers(tmp_path: Path) -> None:
    folder = write_dump(tmp_path, {RELU: forward([tensor(Max=math.nan, Min=-math.inf)], [scalar(math.nan)])})
    assert ": NaN" in (folder / "dump.json").read_text()
    rank = open_run(tmp_path).ranks[0]
    stats = rank.value(0).stats
    assert stats is not None
    assert (stats.nan, stats.neg_inf, stats.norm) == (1, 1, 1.5)
    assert rank.call(0).arguments["returned"] == {"$float": "nan"}


def test_huge_whole_numbers_do_no_harm(tmp_path: Path) -> None:
    write_dump(tmp_path, {RELU: forward([tensor(Max=10**400, Min=-(10**400)), scalar(10**40)], [])})
    stats = open_run(tmp_path).ranks[0].value(0).stats
    assert stats is not None
    assert (stats.max, stats.pos_inf) == (None, 1)


def with_data(tmp_path: Path, name: str, *, stated: Any = None) -> Path:
    data = {RELU: forward([tensor(data_name=name)], [])}
    return write_dump(tmp_path, data, task="tensor", dump_data_dir=stated)


@pytest.mark.parametrize("name", ["../../secret.npy", "/etc/passwd", "a/b.npy", "..", "", "a\\b.npy", "a\0.npy"])
def test_data_outside_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = with_data(tmp_path, name)
    (folder / "dump_tensor_data").mkdir()
    np.save(tmp_path / "secret.npy", np.ones((2, 3), np.float32))
    if name:
        assert "field data_name holds" in refused(tmp_path)
    else:
        assert open_run(tmp_path).ranks[0].value(0).data is None


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    folder = with_data(tmp_path / "dump", "x.npy")
    np.save(tmp_path / "secret.npy", np.ones((2, 3), np.float32))
    (folder / "dump_tensor_data").mkdir()
    os.symlink(tmp_path / "secret.npy", folder / "dump_tensor_data" / "x.npy")
    rank = open_run(tmp_path / "dump").ranks[0]
    with pytest.raises(TraceError, match="is a link to"):
        rank.data(rank.value(0))


def test_data_is_read_beside_a_dump_that_was_moved(tmp_path: Path) -> None:
    folder = with_data(tmp_path / "here", "x.npy", stated=str(tmp_path / "gone" / "dump_tensor_data"))
    (folder / "dump_tensor_data").mkdir()
    elements = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(folder / "dump_tensor_data" / "x.npy", elements)
    (tmp_path / "here").rename(tmp_path / "there")
    rank = open_run(tmp_path / "there").ranks[0]
    found = rank.data(rank.value(0))
    assert found is not None
    assert np.array_equal(found, elements)


def test_data_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with_data(tmp_path, "x.npy")
    rank = open_run(tmp_path).ranks[0]
    assert rank.value(0).data is None
    assert rank.data(rank.value(0)) is None
    assert rank.missing == ("step 0: 1 tensor file is not there, such as x.npy",)


def test_data_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = with_data(tmp_path, "x.npy")
    (folder / "dump_tensor_data").mkdir()
    np.save(folder / "dump_tensor_data" / "x.npy", np.ones(5, np.float32))
    rank = open_run(tmp_path).ranks[0]
    with pytest.raises(TraceError, match=r"holds a tensor of shape \[5\]"):
        rank.data(rank.value(0))


def test_a_compare_config_names_two_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "conf" / "compare.json"
    reference = write_dump(tmp_path / "conf" / "gpu", {}) / "dump.json"
    write_dump(tmp_path / "npu", {})
    paths = {"npu_path": "npu/step0", "bench_path": "./gpu/step0/rank0/dump.json", "is_print_compare_log": True}
    config.write_text(json.dumps(paths))
    monkeypatch.chdir(tmp_path)
    assert is_compare_config(config)
    assert read_compare_config(config) == Pair(reference=reference, target=Path("npu/step0"))
    config.write_text(json.dumps(paths | {"npu_path": "nowhere"}))
    with pytest.raises(UlpscopeError, match=r"field npu_path of .* says 'nowhere'"):
        read_compare_config(config)
    config.write_text(json.dumps({"npu_path": 7}))
    assert not is_compare_config(config)
    with pytest.raises(UlpscopeError, match="has no field bench_path"):
        read_compare_config(config)
