"""`ulpscope repro`: the script runs on torch alone, is content with sound kernels, and fails on a planted fault."""

import os
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ulpscope
from ulpscope.cli.main import main

# A machine with a faulty device: wrong in the device's dtypes, right in float64; and with no package but torch.
FAULTY_MACHINE = """
import sys, torch
right = torch.nn.functional.gelu
def wrong(x):
    return right(x, approximate="none" if x.dtype == torch.float64 else "tanh")
torch.nn.functional.gelu = wrong
"""
ONLY_TORCH = 'sys.modules["safetensors"] = sys.modules["ulpscope"] = sys.modules["numpy"] = None\n'


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "ref"
    torch.manual_seed(0)
    x = torch.randn(16, 32, requires_grad=True)
    weight = torch.randn(32, requires_grad=True)
    with ulpscope.capture(path, level="api", save="tensors", overwrite=True):
        F.gelu(x).sum().backward()
        F.layer_norm(x.bfloat16(), (32,), weight.bfloat16(), eps=1e-3).sum().backward()
        torch.cat([x.t(), x.t()]).mul_(0.1).sum().backward()
        F.dropout(x, 0.5)
        with torch.autocast("cpu", torch.bfloat16):
            F.linear(x, torch.randn(8, 32))
            F.softmax(x, -1)
        x.argmax()
    return path


def number(trace: Path, op: str, kind: str) -> str:
    """The id of the first call of an operation."""
    found = ulpscope.open_trace(trace)
    calls = found.collect(found.calls())
    return str(calls.filter((pl.col("kind") == kind) & pl.col("op").str.ends_with(f".{op}"))["id"][0])


def repro(trace: Path, op: str, out: Path, *options: str, kind: str = "api") -> int:
    return main(["repro", str(trace), number(trace, op, kind), "-o", str(out), *options])


Execute = Callable[[Path], tuple[int, str]]


@pytest.fixture
def execute(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Execute:
    """Runs a script here: its exit code, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["repro.py"])

    def run(folder: Path) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(folder / "repro.py"), run_name="__main__")
        return int(ended.value.code or 0), capsys.readouterr().out

    return run


@pytest.mark.slow
def test_on_a_machine_with_a_faulty_device_script_and_test_fail(trace: Path, tmp_path: Path) -> None:
    out, machine = tmp_path / "out", tmp_path / "machine"
    assert repro(trace, "gelu", out) == 0
    machine.mkdir()

    def run(*command: str, code: str) -> subprocess.CompletedProcess[str]:
        (machine / "sitecustomize.py").write_text(code)
        environment = os.environ | {"PYTHONPATH": str(machine)}
        return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)

    sound = run(str(out / "repro.py"), code=f"import sys, torch\n{ONLY_TORCH}")
    assert sound.returncode == 0, sound.stdout + sound.stderr
    faulty = run(str(out / "repro.py"), code=FAULTY_MACHINE + ONLY_TORCH)
    assert faulty.returncode == 1, faulty.stdout + faulty.stderr
    assert "output.0 WRONG" in faulty.stdout
    tested = run("-m", "pytest", "-q", str(out / "test_repro.py"), code=FAULTY_MACHINE)
    assert tested.returncode == 1
    assert "output.0 WRONG" in tested.stdout


def test_sound_kernels_are_right(trace: Path, tmp_path: Path, execute: Execute) -> None:
    assert repro(trace, "gelu", tmp_path / "out") == 0
    assert len((tmp_path / "out" / "repro.py").read_text().splitlines()) <= 30
    code, told = execute(tmp_path / "out")
    assert code == 0, told
    assert [line.split()[:2] for line in told.splitlines()] == [["output.0", "right"], ["grad.args.0", "right"]]


def one_wrong_element(out: Tensor, _exact: Tensor) -> Tensor:
    changed = out.clone()
    changed[3, 5] = 1.25
    return changed


def cut(out: Tensor, _exact: Tensor) -> Tensor:
    return (out.view(torch.int32) & ~0x3FF).view(torch.float32)


def towards_zero(_out: Tensor, exact: Tensor) -> Tensor:
    """The exact result, rounded to the wrong side half of the time."""
    nearest = exact.float()
    return torch.where(nearest.abs() > exact.abs(), (nearest.view(torch.int32) - 1).view(torch.float32), nearest)


def with_nan(out: Tensor, _exact: Tensor) -> Tensor:
    return torch.where(torch.arange(out.shape[-1]) == 7, torch.nan, out)


@pytest.mark.parametrize("fault", [one_wrong_element, cut, towards_zero, with_nan])
def test_a_planted_fault_is_shown(
    trace: Path,
    tmp_path: Path,
    execute: Execute,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Tensor, Tensor], Tensor],
) -> None:
    assert repro(trace, "gelu", tmp_path / "out") == 0
    right = F.gelu

    def wrong(x: Tensor) -> Tensor:
        out = right(x)
        return (
            out if x.dtype == torch.float64 else out + (fault(out.detach(), right(x.detach().double())) - out).detach()
        )

    monkeypatch.setattr(F, "gelu", wrong)
    code, told = execute(tmp_path / "out")
    assert code == 1, told
    assert "output.0 WRONG" in told
    assert "grad.args.0 right" in told
    if fault is one_wrong_element:
        assert "at [3, 5]: 1.25, exact " in told


def test_a_wrong_epsilon_is_shown_by_small_data(
    trace: Path, tmp_path: Path, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repro(trace, "layer_norm", tmp_path / "out", "--variant", "tiny") == 0
    assert execute(tmp_path / "out")[0] == 0
    right = F.layer_norm

    def wrong(x: Tensor, *args: object, eps: float, **kwargs: object) -> Tensor:
        return right(x, *args, eps=eps if x.dtype == torch.float64 else 2 * eps, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(F, "layer_norm", wrong)
    code, told = execute(tmp_path / "out")
    assert (code, "output.0 WRONG" in told) == (1, True), told


def test_a_backward_leads_to_its_forward(trace: Path, tmp_path: Path, execute: Execute) -> None:
    assert repro(trace, "layer_norm", tmp_path / "out", kind="backward") == 0
    code, told = execute(tmp_path / "out")
    assert code == 0, told
    assert [line.split()[0] for line in told.splitlines()] == ["output.0", "grad.args.0", "grad.kwargs.weight"]


@pytest.mark.parametrize("op", ["cat", "mul_", "linear", "softmax"])
def test_lists_in_place_writes_transposed_inputs_and_autocast_are_told(
    trace: Path, tmp_path: Path, execute: Execute, op: str
) -> None:
    assert repro(trace, op, tmp_path / "out") == 0
    script = (tmp_path / "out" / "repro.py").read_text()
    assert len(script.splitlines()) <= 30
    code, told = execute(tmp_path / "out")
    assert code == 0, told
    assert ("permute" in script) == (op == "cat")
    assert (".clone()" in script) == (op == "mul_")
    assert ("autocast" in script) == (op == "softmax")


def test_random_data_depends_on_the_seed_alone(trace: Path, tmp_path: Path, execute: Execute) -> None:
    made = {}
    for name, seed in (("one", "1"), ("again", "1"), ("other", "2")):
        assert repro(trace, "gelu", tmp_path / name, "--data", "random", "--seed", seed) == 0
        made[name] = (tmp_path / name / "data.safetensors").read_bytes()
        assert execute(tmp_path / name)[0] == 0
    assert made["one"] == made["again"] != made["other"]


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("dropout", "random: what it draws has no exact result"),
        ("argmax", "it gives nothing that can be judged element by element"),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_reason(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], op: str, reason: str
) -> None:
    assert repro(trace, op, tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert reason in told
    assert "next: look at it: ulpscope show" in told
    assert not (tmp_path / "out").exists()


def test_of_several_calls_one_is_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ulpscope.capture(tmp_path / "twice", level="api") as capture:
        for _ in range(2):
            F.gelu(torch.randn(64))
            capture.step()
    assert main(["repro", str(tmp_path / "twice"), "gelu.0", "-o", str(tmp_path / "a b")]) == 2
    next_step = capsys.readouterr().err.split("next: ")[1].strip()
    assert main(shlex.split(next_step)[1:]) == 0
    assert (tmp_path / "a b" / "repro.py").exists()


def test_only_an_earlier_script_is_replaced(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert repro(trace, "gelu", out) == 0
    assert repro(trace, "gelu", out) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert repro(trace, "gelu", out, "--overwrite") == 0
    (out / "thesis.txt").write_text("mine")
    assert repro(trace, "gelu", out, "--overwrite") == 2
    assert (out / "thesis.txt").read_text() == "mine"


def test_data_that_was_not_saved_cannot_be_real(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], execute: Execute
) -> None:
    with ulpscope.capture(tmp_path / "stats", level="api", overwrite=True):
        F.gelu(torch.randn(64))
    assert repro(tmp_path / "stats", "gelu", tmp_path / "out", "--data", "real") == 2
    assert "was not saved" in capsys.readouterr().err
    assert repro(tmp_path / "stats", "gelu", tmp_path / "out") == 0
    assert execute(tmp_path / "out")[0] == 0


def test_what_the_check_fails_the_script_fails(tmp_path: Path) -> None:
    """PyTorch's layer norm adds up the gradient of its bias in bfloat16: the sum is wrong on this very CPU."""
    x, sent = (torch.randn(2048, 64, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in (0, 1))
    weight, bias = (torch.full((64,), value, dtype=torch.bfloat16, requires_grad=True) for value in (1.0, 0.0))

    with ulpscope.capture(tmp_path / "trace", level="api", save="tensors"):
        F.layer_norm(x.requires_grad_(), (64,), weight, bias).backward(sent)
    assert main(["check", str(tmp_path / "trace"), "--only", "layer_norm", "--no-stress"]) == 1
    assert main(["repro", str(tmp_path / "trace"), "0", "-o", str(tmp_path / "repro")]) == 0
    done = subprocess.run([sys.executable, str(tmp_path / "repro" / "repro.py")], capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    assert "WRONG" in done.stdout
