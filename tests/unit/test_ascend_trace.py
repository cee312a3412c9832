"""A dump of an NPU is a trace: calls, values, edges and data, for every command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes
from ulpscope.cli.main import main
from ulpscope.dialects.files.opening import load_tensor_file
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.tables import stats_of
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.reader import Trace
from ulpscope.workflows.tensor_lookup import DumpTensors

DATA = Path(__file__).parents[1] / "data" / "ascend"
MANIFEST = json.loads((DATA / "manifest.json").read_text())
NETWORK = DATA / MANIFEST["dump_dir"]
HEALTHY = DATA / "debug_1"


def calls_of(trace: Trace) -> pl.DataFrame:
    return trace.collect(trace.calls())


def write(folder: Path, name: str, number: int, **tensors: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = file_bytes(f"net/{name}", **tensors)
    (folder / f"{name}.net_{name}.{number}.0.{FIRST_TIME + number}").write_bytes(content)


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_operators_are_calls_in_the_order_in_which_they_ran() -> None:
    trace = open_run(DATA / "precision_data" / "npu")
    calls = calls_of(trace)
    assert calls["op"].to_list() == [file["type"] for file in MANIFEST["files"]]
    assert calls["module"].to_list() == [file["op"] for file in MANIFEST["files"]]
    assert calls["name"].to_list()[:3] == ["Cast.0", "TransData.0", "TransData.1"]
    assert (trace.steps, [rank.info.rank for rank in trace.ranks], trace.missing) == ((0,), [0], ())


def test_what_one_operator_made_another_one_reads() -> None:
    rank = open_run(NETWORK).ranks[0]
    calls = {row["module"]: row["id"] for row in rank.collect(rank.calls()).iter_rows(named=True)}

    def maker(operator: str, place: str) -> int | None:
        use = next(use for use in rank.uses(calls[operator]) if use.place == place)
        return rank.value(use.value).producer

    assert maker("fc1/Relu", "args.0") == calls["fc1/MatMul"]
    assert maker("fc2/MatMul", "args.0") == calls["fc1/Relu"]
    assert maker("mask/Greater", "args.0") == calls["fc1/MatMul"]
    assert maker("pool1/MaxPool", "args.0") == calls["conv1/Conv2Dconv1/BiasAddconv1/Relu"]
    assert maker("trans_Cast_0", "args.0") is None


def test_values_have_their_original_shape_their_stats_and_their_data() -> None:
    rank = open_run(NETWORK).ranks[0]
    relu = next(row for row in rank.collect(rank.calls()).iter_rows(named=True) if row["module"] == "fc1/Relu")
    value = rank.value(next(use for use in rank.uses(relu["id"]) if use.place == "output.0").value)
    data = rank.data(value)
    assert data is not None
    # fc1/Relu is |x| instead of max(x, 0) in this data set: the fault that was planted.
    incoming = rank.data(rank.value(next(use for use in rank.uses(relu["id"]) if use.place == "args.0").value))
    assert incoming is not None
    np.testing.assert_array_equal(data, np.abs(incoming))
    assert (value.dtype, value.shape, value.layout, value.device) == ("float16", (2, 40), "strided", "npu:0")
    assert value.stats is not None
    assert (value.stats.min, value.stats.max) == (data.min(), data.max())
    assert value.stats.norm == pytest.approx(np.linalg.norm(data.astype(np.float64)), rel=1e-12)


def test_the_wrong_operator_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = command(capsys, "compare", HEALTHY, DATA / "precision_data" / "npu")
    assert (code, answer["verdict"]) == (1, "diverged")
    finding = answer["findings"][0]
    wrong = MANIFEST["injected"]["wrong_op"]
    assert (finding["op"], finding["module"], finding["tensor"], finding["step"]) == ("Relu", wrong, "output.0", 0)


def test_a_dump_agrees_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = command(capsys, "compare", NETWORK, DATA / "precision_data" / "npu")
    assert (code, answer["verdict"], answer["findings"]) == (0, "agree", [])
    assert answer["counts"]["tensors_compared"] == answer["counts"]["identical"] > 40


def test_diff_tells_what_padding_would_hide(capsys: pytest.CaptureFixture[str]) -> None:
    """The older tool says 0.169 for these two, because it compares padded tiles with rows."""
    reference = next((DATA / "precision_data/tf/dump").glob("fc1_Relu.0.*.npy"))
    dump = next(NETWORK.glob("Relu.*"))
    code, answer = command(capsys, "diff", reference, f"{dump}::output.0")
    assert code == 1
    (tensor,) = answer["tensors"]
    one, other = np.load(reference).astype(float), np.abs(load_tensor_file(dump)["input.0"].array().astype(float))
    cosine = float((one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other))
    assert tensor["metrics"]["cosine"] == pytest.approx(cosine, abs=1e-6)
    assert cosine == pytest.approx(0.568, abs=1e-3)


def test_tensors_of_a_whole_dump_have_names() -> None:
    tensors = load_tensor_file(DATA / "precision_data" / "npu")
    assert {"fc1/Relu.input.0", "fc1/Relu.output.0"} < set(tensors)
    np.testing.assert_array_equal(tensors["mask/Greater.output.0"].array(), tensors["fc1/MatMul.output.0"].array() > 0)


def test_tensors_of_several_devices_and_steps_are_not_mixed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, late in (("reference", 0), ("target", 1)):
        for device in (0, 1):
            for step in (0, 1):
                folder = tmp_path / side / "20260101000000" / str(device) / "net" / "1" / str(step)
                number = 1 + 10 * (device == late)
                write(folder, "Relu", number, outputs=[Tensor(np.full(4, 10.0 * device + step))])
    code, answer = command(capsys, "diff", tmp_path / "reference", tmp_path / "target")
    assert (code, len(answer["tensors"])) == (0, 4)
    names = list(load_tensor_file(tmp_path / "target"))
    assert names == [f"device{device}/step{step}/net/Relu.output.0" for device in (0, 1) for step in (0, 1)]


def test_what_cannot_be_compared_is_told_on_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "Relu", 1, outputs=[Tensor(np.ones(3))])
    write(tmp_path, "Text", 2, outputs=[Tensor(np.frombuffer(b"hello", np.uint8), code=13, shape=(1,))])
    write(tmp_path, "Mul", 3, outputs=[Tensor(np.ones(3))])
    broken = next(tmp_path.glob("Mul.*"))
    broken.write_bytes(broken.read_bytes()[:-1])
    code, answer = command(capsys, "diff", tmp_path, tmp_path)
    agreements = {tensor["reference"]["key"]: tensor["agreement"] for tensor in answer["tensors"]}
    assert agreements == {
        "net/Relu.output.0": "identical",
        "net/Text.output.0": "not_compared",
        broken.name: "not_compared",
    }
    assert code == 1


def test_stats_that_the_device_made() -> None:
    trace = open_run(DATA / "stats")
    assert trace.ranks[0].info.capture["save"] == "stats"
    assert open_run(NETWORK).ranks[0].info.capture["save"] == "tensors"
    values = trace.collect(trace.values())
    assert values["dtype"].to_list() == ["float16", "float16"]
    assert values["shape"].to_list() == [[2, 40], [2, 40]]
    assert values["max"].to_list() == [3.893, 4.49]
    assert values["data_file"].to_list() == [None, None]


def test_stats_with_counts(tmp_path: Path) -> None:
    head = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,"
    head += "Negative Inf Count,Positive Inf Count,l2norm\n"
    rows = "Input,0,8,DT_BF16,ND,2x2,3,-2,0.5,4,1,0,2,3.5\nOutput,0,8,DT_FLOAT,ND,2,inf,-1,nan,2,,,,\n"
    (tmp_path / f"Relu.x.1.0.{FIRST_TIME}.csv").write_text(head + rows)
    values = open_run(tmp_path).collect(open_run(tmp_path).values())
    told = values.select("dtype", "min", "max", "mean", "norm", "nan", "pos_inf", "neg_inf").rows()
    assert told == [("bfloat16", -2, 3, 0.5, 3.5, 1, 2, 0), ("float32", -1, None, None, None, 0, 1, 0)]


def test_stats_that_tell_nothing_are_no_reason_to_take_two_tensors_for_one(tmp_path: Path) -> None:
    head = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value\n"
    (tmp_path / f"Relu.x.1.0.{FIRST_TIME}.csv").write_text(head + "Output,0,8,DT_STRING,ND,2,,,\n")
    (tmp_path / f"Relu.y.2.0.{FIRST_TIME + 1}.csv").write_text(head + "Input,0,8,DT_STRING,ND,2,,,\n")
    trace = open_run(tmp_path)
    assert trace.collect(trace.tensors())["value"].to_list() == [0, 1]
    assert trace.collect(trace.values()).select("nan", "pos_inf", "neg_inf").rows() == [(None, None, None)] * 2


def test_stats_of_tiles_are_told_as_such(tmp_path: Path) -> None:
    head = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value\n"
    rows = "Input,0,64,DT_FLOAT16,NC1HWC0,1x1x1x2x16,3,0,1\nOutput,0,4,DT_FLOAT16,NCHW,1x1x1x2,3,2,2.5\n"
    (tmp_path / f"TransData.x.1.0.{FIRST_TIME}.csv").write_text(head + rows)
    trace = open_run(tmp_path)
    assert trace.collect(trace.values())["layout"].to_list() == ["NC1HWC0", "strided"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("Index,Shape\n", "has no column Input/Output"),
        ("Input/Output,Index,Data Type,Shape\nInput,x,DT_FLOAT,2\n", "line 2 cannot be read"),
        ("Input/Output,Index,Data Type,Shape\nBoth,0,DT_FLOAT,2\n", "line 2 cannot be read"),
        ("Input/Output,Index,Data Type,Shape\nInput,0,DT_FLOAT,-2\n", "line 2 cannot be read"),
    ],
)
def test_stats_that_are_none(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / f"Relu.x.1.0.{FIRST_TIME}.csv").write_text(content)
    with pytest.raises(UlpscopeError, match=told):
        calls_of(open_run(tmp_path))


def test_devices_are_ranks_and_steps_are_steps(tmp_path: Path) -> None:
    for device in (0, 1):
        for step in (3, 7):
            folder = tmp_path / "20260101000000" / str(device) / "net" / "1" / str(step)
            write(folder, "Relu", step, outputs=[Tensor(np.full(4, 10.0 * device + step))])
    trace = open_run(tmp_path)
    assert [(rank.info.rank, rank.steps) for rank in trace.ranks] == [(0, (3, 7)), (1, (3, 7))]
    values = trace.collect(trace.values())
    assert sorted(values["max"]) == [3, 7, 13, 17]


def test_types_that_traces_have_not_become_some_that_they_have(tmp_path: Path) -> None:
    packed = np.arange(4, dtype=np.uint8)
    outputs = [Tensor(packed, code=code, shape=(4,)) for code in (33, 28, 29, 39, 27, 13)]
    write(tmp_path, "Cast", 1, outputs=[*outputs[:4], Tensor(np.zeros(4, np.uint16), code=27), outputs[5]])
    trace = open_run(tmp_path)
    values = trace.collect(trace.values())
    assert values["dtype"].to_list() == ["float32", "int8", "uint8", "float32", "bfloat16", "string"]
    assert values["data_file"].is_null().to_list() == [False] * 5 + [True]
    data = trace.ranks[0].data(trace.ranks[0].value(1))
    assert data is not None
    assert data.tolist() == [0, 0, 1, 0]


def test_all_parts_of_complex_numbers_of_two_halves_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, last in (("reference", 65504), ("target", 3)):
        halves = np.array([1.5, -2, 0, last], np.float16)
        write(tmp_path / side, "Fft", 1, outputs=[Tensor(halves.view(np.uint8), code=32, shape=(2,))])
    values = open_run(tmp_path / "target").collect(open_run(tmp_path / "target").values())
    assert values.select("dtype", "min", "max", "mean", "norm").rows() == [
        ("complex32", -2, 3, pytest.approx(2.5 / 4), pytest.approx(np.sqrt(1.5**2 + 4 + 9)))
    ]
    tensor = DumpTensors(dumps={"": tmp_path / "target"}).find("Fft").stored
    stats = stats_of(tensor.array(), tensor.dtype)
    assert (stats.min, stats.max, stats.mean, stats.zero) == (-2, 3, 2.5 / 4, 1)
    code, answer = command(capsys, "compare", tmp_path / "reference", tmp_path / "target")
    assert (code, answer["verdict"], answer["findings"][0]["tensor"]) == (1, "diverged", "output.0")


def test_a_broken_file_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path, "Relu", 1, outputs=[Tensor(np.ones(3))])
    write(tmp_path, "Mul", 2, outputs=[Tensor(np.ones(3))])
    broken = next(tmp_path.glob("Mul.*"))
    broken.write_bytes(broken.read_bytes()[:-1])
    trace = open_run(tmp_path)
    assert calls_of(trace)["op"].to_list() == ["Relu"]
    assert len(trace.missing) == 1
    assert broken.name in trace.missing[0]


def test_a_broken_tensor_does_not_hide_the_others_of_its_operator(tmp_path: Path) -> None:
    write(tmp_path, "Relu", 1, inputs=[Tensor(np.ones(3), shape=(9,))], outputs=[Tensor(np.full(3, 7.0))])
    trace = open_run(tmp_path)
    assert trace.collect(trace.values())["max"].to_list() == [7]
    assert len(trace.missing) == 1
    assert "input.0 is DOUBLE [9], 72 bytes; it has 24" in trace.missing[0]


def test_nothing_but_broken_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / f"Relu.x.1.0.{FIRST_TIME}").write_bytes(b"\xff" * 100)
    with pytest.raises(UlpscopeError, match="its head claims"):
        calls_of(open_run(tmp_path))


def test_an_unconnected_input_has_a_row_and_no_data(tmp_path: Path) -> None:
    write(tmp_path, "Add", 1, inputs=[Tensor(np.empty(0, np.float32), shape=())], outputs=[Tensor(np.ones(3))])
    trace = open_run(tmp_path)
    assert trace.collect(trace.values())["data_file"].is_null().to_list() == [True, False]


def test_several_runs_side_by_side_must_be_named() -> None:
    with pytest.raises(UlpscopeError, match="holds dumps of 2 places") as caught:
        open_run(DATA / "precision_data")
    assert caught.value.next_step.startswith(f"name one of them: {DATA / 'precision_data'}")


def test_the_newest_of_two_dump_paths_is_not_taken_for_the_newest_run(tmp_path: Path) -> None:
    for kind, time in (("npu", "20260101000000"), ("overflow", "20260102000000")):
        write(tmp_path / kind / time / "0" / "net" / "1" / "0", "Relu", 1, outputs=[Tensor(np.ones(2))])
    with pytest.raises(UlpscopeError, match=rf"2 places: {tmp_path}/npu, {tmp_path}/overflow"):
        open_run(tmp_path)


def test_of_several_runs_of_a_dump_path_the_newest_is_taken(tmp_path: Path) -> None:
    for number, time in enumerate(("20260102000000", "20260101000000")):
        write(tmp_path / time / "0" / "net" / "1" / "0", "Relu", 1, outputs=[Tensor(np.full(2, number))])
    trace = open_run(tmp_path)
    assert trace.collect(trace.values())["max"].to_list() == [0]
    assert any("dumps of 20260101000000 are not read; the newest is, 20260102000000" in one for one in trace.missing)


def test_one_file_is_a_trace_too() -> None:
    hashed = NETWORK / MANIFEST["files"][-1]["file"]
    assert hashed.name.isdigit()
    assert calls_of(open_run(hashed))["module"].to_list() == [MANIFEST["files"][-1]["op"]]
    assert calls_of(open_run(next(NETWORK.glob("Relu.*"))))["op"].to_list() == ["Relu"]


def test_overflow_records_are_no_operators() -> None:
    assert calls_of(open_run(DATA / "overflow_v2"))["op"].to_list() == ["Muls"]
