"""`ulpscope check --overflow` and `--perturb` as commands, on captured runs, in real worker processes."""

import csv
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import torch.nn.functional as F

import ulpscope
from ulpscope.cli.main import main
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.replay.torch.modes import move_by_noise
from ulpscope.replay.torch.running import Feed

# The variance as the mean of squares less the square of the mean: unstable where the mean is much the larger.
UNSTABLE = """
import torch, ulpscope

def unstable(x, shape, weight=None, bias=None, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return (x - mean) * torch.rsqrt(variance.clamp_min(0) + eps)

ulpscope.reference_for("layer_norm", function=unstable)(torch.nn.functional.layer_norm)
"""
UNREPEATABLE = """
import torch, ulpscope
runs = []

def unrepeatable(x):
    runs.append(1)
    out = torch.sigmoid(x)
    out.view(torch.int32)[::7] += len(runs) % 2
    return out

ulpscope.reference_for("sigmoid", function=unrepeatable)(torch.sigmoid)
"""
DYING = """
import os, torch, ulpscope
ulpscope.reference_for("sigmoid", function=lambda x: os.kill(os.getpid(), 11))(torch.sigmoid)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, code in {"unstable": UNSTABLE, "unrepeatable": UNREPEATABLE, "dying": DYING}.items():
        (folder / f"{name}.py").write_text(code)
    torch.manual_seed(0)
    with ulpscope.capture(folder / "stable", level="api", save="tensors", overwrite=True):
        x = (torch.randn(8, 64) + 1000.0).requires_grad_()
        F.layer_norm(x, (64,)).sum().backward()
        torch.sigmoid(torch.randn(64))
        F.dropout(torch.ones(64), 0.5)
        torch.arange(5)
    with ulpscope.capture(folder / "modules", level="module", overwrite=True):
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
    for save in ("tensors", "stats"):
        overflow(folder / save, save)
    return folder


def overflow(path: Path, save: str) -> None:
    with ulpscope.capture(path, level="api", save=save, overwrite=True):
        k = torch.full((4,), 300.0, dtype=torch.float16, requires_grad=True)
        (k * k).backward(torch.full((4,), 200.0, dtype=torch.float16))
        scores = torch.randn(4, 4).masked_fill(torch.eye(4, dtype=torch.bool), float("-inf"))
        torch.add(scores, 1.0)
        torch.log(torch.zeros(3))
        torch.exp(torch.linspace(-1, 1, 64))
    say_infinite(path, "torch.exp")


def say_infinite(path: Path, op: str) -> None:
    """As if the device had given inf where this call was computed."""
    trace = ulpscope.open_trace(path)
    call = trace.collect(trace.calls().filter(pl.col("op") == op))["id"][0]
    uses = trace.collect(trace.tensors().filter((pl.col("call") == call) & (pl.col("role") == "output")))
    for file in path.glob("rank0/step*/values-*.parquet"):
        values = pl.read_parquet(file)
        infinite = pl.when(pl.col("id") == uses["value"][0]).then(2).otherwise(pl.col("pos_inf"))
        values.with_columns(pos_inf=infinite.cast(values.schema["pos_inf"])).write_parquet(file)


@pytest.fixture(autouse=True)
def inside(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


def rows(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check(*words: str) -> int:
    return main(["check", *words, "--jobs", "1"])


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


@pytest.mark.parametrize("trace", ["tensors", "stats"])
def test_overflows_are_told_apart(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(trace, "--overflow", "--out", f"{trace}-overflow", "--json") == 1
    content = answer(capsys)
    assert content == json.loads(Path(f"{trace}-overflow/summary.json").read_text())
    assert (content["mode"], content["verdict"]) == ("overflow", "unsound")
    assert [(finding["kind"], finding["op"]) for finding in content["findings"]] == [("overflow", "torch.exp")]
    assert {kind: content["counts"][kind] for kind in ("normal", "abnormal", "stated", "unclear", "inherited")} == {
        "normal": 3,
        "abnormal": 1,
        "stated": 1,
        "unclear": 0,
        "inherited": 1,
    }
    found = {(row["api_name"], row["output"]): row for row in rows(f"{trace}-overflow/overflow.csv")}
    assert {key: row["verdict"] for key, row in found.items()} == {
        ("torch.Tensor.mul.0", "output.0"): "normal",
        ("torch.Tensor.mul.0", "grad.args.0"): "normal",
        ("torch.Tensor.masked_fill.0", "output.0"): "stated",
        ("torch.log.0", "output.0"): "normal",
        ("torch.exp.0", "output.0"): "abnormal",
    }
    assert float(found["torch.Tensor.mul.0", "output.0"]["exact_largest"]) == 90_000
    assert found["torch.Tensor.mul.0", "output.0"]["recorded_pos_inf"] == "4"
    estimated = ["an estimate" in row["message"] for row in found.values() if row["verdict"] != "stated"]
    assert estimated == [trace == "stats"] * 4


def test_an_overflow_of_the_dtype_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("tensors", "--overflow", "--only", "mul") == 0
    told = capsys.readouterr().out
    assert told.startswith("NORMAL: 1 call made inf or nan out of finite numbers")
    assert "the exact result reaches 9e+04, the largest float16 is 6.55e+04" in " ".join(told.split())


def test_a_run_without_overflow_is_finite(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("stable", "--overflow") == 0
    assert capsys.readouterr().out.startswith("FINITE: ")


def test_calls_whose_results_are_not_recorded_are_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As files of the first API accuracy checker are, and dumps of checksums."""
    large = {"type": "torch.Tensor", "dtype": "torch.float16", "shape": [2, 8], "Max": 400, "Min": 300}
    small = large | {"Max": 2.0, "Min": 1.0}
    calls = {f"Torch*square*{number}": {"args": [form], "kwargs": {}} for number, form in enumerate((large, small))}
    file = tmp_path / "forward_info_0.json"
    file.write_text(json.dumps(calls))
    assert check(str(file), "--overflow", "--json") == 0
    counts = answer(capsys)["counts"]
    assert {kind: counts[kind] for kind in ("normal", "finite", "unclear", "unrecorded")} == {
        "normal": 1,
        "finite": 1,
        "unclear": 0,
        "unrecorded": 2,
    }
    assert check(str(file), "--overflow", "--only", "square.0") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("NORMAL: 1 call made inf or nan")
    assert "What 1 call gave in the run is not recorded" in told


def test_calls_that_nobody_can_tell_anything_of_are_not_called_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "md5": "f242a19c"}
    entry = {"input_args": [tensor], "input_kwargs": {}, "output": [tensor]}
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    data = {"Torch.no_such_function.0.forward": entry}
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps(head | {"data": data}))
    assert check(str(tmp_path), "--overflow") == 3
    assert capsys.readouterr().out.startswith("NOTHING CHECKED")


def test_a_trace_without_api_calls_has_nothing_to_ask() -> None:
    assert check("modules", "--overflow") == 3
    assert check("modules", "--perturb") == 3


@pytest.mark.parametrize("mode", ["rounding", "bit_noise", "improve_precision"])
def test_sound_kernels_move_as_they_should(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("stable", "--perturb", mode, "--out", mode) == 0
    assert capsys.readouterr().out.startswith("STABLE: ")
    table = rows(f"{mode}/perturb.csv")
    assert list(table[0])[:9] == [
        "rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index",
    ]  # fmt: skip
    layer_norm = [row for row in table if "layer_norm" in row["api_name"]]
    assert [(row["stage"], row["verdict"]) for row in layer_norm] == [("forward", "PASS"), ("backward", "PASS")]


@pytest.mark.parametrize(("words", "mode"), [((), "rounding"), (("bit_noise",), "bit_noise")])
def test_an_unstable_kernel_is_found_by_moving_last_bits(
    words: tuple[str, ...], mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("stable", "--perturb", *words, "--references", "unstable.py", "--json") == 1
    content = answer(capsys)
    assert [finding["op"] for finding in content["findings"]] == ["torch.nn.functional.layer_norm"]
    assert "is unstable: it moved by" in content["findings"][0]["sentence"]
    assert content["scope"]["perturbation"] == mode


def test_inputs_move_as_those_of_a_noise_twin_do() -> None:
    one, other = torch.randn(4000), torch.randn(4000, dtype=torch.bfloat16)
    moved = move_by_noise(False, 0, Feed({"args.0": one, "args.1": other}, {"output.0": one}))
    for before, after, bits in (
        (one, moved.tensors["args.0"], torch.int32),
        (other, moved.tensors["args.1"], torch.int16),
    ):
        steps = after.view(bits) - before.view(bits)
        assert set(steps.unique().tolist()) == {-1, 0, 1}
        assert 0.2 < float((steps != 0).float().mean()) < 0.3
    assert not torch.equal(moved.tensors["args.0"], moved.grad_outputs["output.0"])


@pytest.mark.parametrize("seed", range(8))
def test_a_single_element_moves_too(seed: int) -> None:
    feed = Feed({"args.0": torch.tensor([1.1])}, {})
    assert not torch.equal(move_by_noise(False, seed, feed).tensors["args.0"], feed.tensors["args.0"])


@pytest.mark.parametrize("given", [0.0, 1.5])
def test_what_no_rounding_made_does_not_move(given: float) -> None:
    with pytest.raises(CannotReplayError, match="no float input"):
        move_by_noise(False, 0, Feed({"args.0": torch.full((3,), given)}, {}))


def test_a_kernel_that_does_not_repeat_itself_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("stable", "--perturb", "no_change", "--references", "unrepeatable.py", "--json") == 0
    content = answer(capsys)
    assert [note["op"] for note in content["notes"]] == ["torch.sigmoid"]
    assert "10 of 64 elements" in content["notes"][0]["sentence"]


def test_the_old_standard_is_at_hand(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--perturb", "no_change", "--standard", "free-benchmark", "--references", "unrepeatable.py")
    assert check("stable", *words, "--json") == 1
    content = answer(capsys)
    assert content["scope"]["standard"] == "free-benchmark"
    assert [finding["op"] for finding in content["findings"]] == ["torch.sigmoid"]


def test_a_worker_that_dies_costs_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("stable", "--perturb", "--references", "dying.py", "--json") == 1
    content = answer(capsys)
    assert (content["counts"]["crash"], content["counts"]["fail"]) == (1, 0)
    assert content["counts"]["pass"] >= 2


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (("--perturb", "to_cpu"), "--perturb to_cpu with --device cpu"),
        (("--standard", "free-benchmark"), "--standard free-benchmark without --perturb"),
        (("--overflow", "--standard", "thousandth"), "--standard thousandth with --overflow"),
        (("--perturb", "--resume", "--out", "x"), "--resume with --perturb"),
        (("--overflow", "--perturb"), "not allowed with argument"),
        (("--perturb", "sideways"), "invalid choice"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], seen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("stable", *words) == 2
    assert seen in capsys.readouterr().err
