"""Filters, limits and what a trace says about itself."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from watched import watch

import ulpscope
from ulpscope.capture.torch.repeatable import make_repeatable
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import CaptureSettings
from ulpscope.trace.reader import open_trace
from ulpscope.workflows.results import held_destination


def three_steps(model: nn.Module) -> None:
    for _ in range(3):
        model(torch.ones(2, 3)).relu().sum()


def test_only_the_wanted_steps_are_there(tmp_path: Path) -> None:
    watched = watch(tmp_path, lambda: three_steps(nn.Linear(3, 3)), steps="0,2")
    assert watched.trace.steps == (0, 2)
    assert set(watched.calls["step"]) == {0, 2}


def test_a_storage_written_between_captured_steps_has_no_known_producer(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def work() -> None:
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    watched = watch(tmp_path, work, steps="0,2")
    linear = watched.call("torch.nn.functional.linear", step=2, kind="api")
    assert watched.value(linear, "input", "args.1").producer is None


@pytest.mark.parametrize(
    ("options", "ops"),
    [
        ({"only": ["relu"]}, {"torch.Tensor.relu"}),
        ({"only": ["torch.Tensor.*"]}, {"torch.Tensor.relu", "torch.Tensor.sum"}),
        ({"only": ["model"], "skip": ["Linear"]}, {"torch.nn.functional.linear"}),
        ({"skip": ["torch.nn.*", "relu"]}, {"torch.ones", "torch.Tensor.sum"}),
    ],
)
def test_patterns_choose_calls(tmp_path: Path, options: dict[str, list[str]], ops: set[str]) -> None:
    watched = watch(tmp_path, lambda: three_steps(nn.Linear(3, 3)), steps="1", **options)
    assert set(watched.ops()) == ops
    assert watched.trace.info.coverage.calls_filtered > 0


def test_saving_stops_at_the_limit_and_says_so(tmp_path: Path) -> None:
    def work() -> None:
        x = torch.randn(1000)
        for _ in range(10):
            x = x * 2

    watched = watch(tmp_path, work, save="tensors", max_disk=60_000)
    coverage = watched.trace.info.coverage
    assert 0 < coverage.saved_bytes < 60_000
    assert coverage.not_saved > 0
    values = watched.trace.values().collect()
    assert values["data_file"].null_count() == coverage.not_saved
    assert values["digest"].null_count() == 0


def trained(width: int, iterations: int) -> None:
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(iterations):
        model(torch.randn(4, width)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize(("save", "width"), [("tensors", 32), ("tensors", 4), ("stats", 4)])
def test_a_trace_keeps_to_the_limit_and_the_limit_is_no_error(tmp_path: Path, save: str, width: int) -> None:
    limit = 400_000
    watched = watch(tmp_path, lambda: trained(width, 40), save=save, max_disk=limit)  # a trace without errors
    assert 0.5 * limit < size_of(tmp_path) < 1.1 * limit
    coverage = watched.trace.info.coverage
    last = max(watched.trace.steps)
    assert coverage.ended_early == f"--max-disk reached in step {last}"
    assert 0 < last < 39
    assert watched.calls.height == coverage.calls_recorded <= coverage.calls_seen
    assert size_of(tmp_path / "trace" / "rank0" / "step1") > 0
    if save == "tensors":
        saved = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
        assert 0 < saved < 0.8 * limit


def test_a_limit_that_is_not_reached_changes_nothing(tmp_path: Path) -> None:
    watched = watch(tmp_path, lambda: trained(4, 3), save="tensors", max_disk=10**9)
    coverage = watched.trace.info.coverage
    assert (coverage.ended_early, coverage.not_saved) == ("", 0)
    assert watched.trace.missing == ()
    assert coverage.calls_recorded == coverage.calls_seen


def test_each_content_is_saved_once(tmp_path: Path) -> None:
    def work() -> None:
        x = torch.randn(256, 256)
        x.t()
        x.view(-1)
        x.clone()
        x.expand(4, 256, 256)

    watch(tmp_path, work, save="tensors")
    data = sum(file.stat().st_size for file in (tmp_path / "trace").rglob("*.safetensors"))
    assert 256 * 256 * 4 <= data < 256 * 256 * 4 * 1.2


def test_a_view_reads_back_as_it_was(tmp_path: Path) -> None:
    x = torch.randn(6, 8)
    views = [x.t(), x[::2, 1:5], x.expand(2, 6, 8), x.flatten()[3:7], x.unfold(1, 3, 1)]

    def work() -> None:
        for view in views:
            view.exp()

    watched = watch(tmp_path, work, save="tensors")
    for number, view in enumerate(views):
        assert (watched.data(watched.call("exp", number), "input") == view.numpy()).all()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_that_another_capture_holds_is_refused(tmp_path: Path, overwrite: bool) -> None:
    """As `ulpscope run` does from its start on, long before its script has written anything."""
    out = tmp_path / "t"
    with held_destination(out, shared=False):
        with (
            pytest.raises(UlpscopeError, match="another capture is writing"),
            ulpscope.capture(out, overwrite=overwrite),
        ):
            torch.ones(2) + 1
        assert not list(out.glob("rank*"))
    with ulpscope.capture(out):
        torch.ones(2) + 1
        with pytest.raises(UlpscopeError, match="another capture is writing"), held_destination(out, shared=True):
            pass
    assert os.listdir(out) == ["rank0"]


def test_existing_trace_is_refused_and_replaced_only_on_demand(tmp_path: Path) -> None:
    watch(tmp_path, lambda: torch.ones(2).neg())
    with pytest.raises(UlpscopeError, match="already holds a trace"), ulpscope.capture(tmp_path / "trace"):
        pass
    watched = watch(tmp_path, lambda: torch.ones(2).exp())
    assert "torch.Tensor.neg" not in watched.ops()


def test_a_capture_of_another_process_is_not_joined(tmp_path: Path) -> None:
    with ulpscope.capture(tmp_path / "trace"):
        code = f"import torch, ulpscope\nwith ulpscope.capture({str(tmp_path / 'trace')!r}):\n    torch.ones(2).neg()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        torch.ones(2).exp()
    assert "another capture is writing into" in done.stderr
    assert [rank.name for rank in open_trace(tmp_path / "trace").ranks] == ["rank0"]


def test_the_trace_tells_environment_and_seeds(tmp_path: Path) -> None:
    torch.manual_seed(1234)
    info = watch(tmp_path, lambda: torch.ones(2).neg()).trace.info
    assert info.framework["version"] == torch.__version__
    assert info.seeds["torch_initial_seed"] == "1234"
    assert info.environment["switches"]["num_threads"] == 1
    assert info.environment["variables"]["OMP_NUM_THREADS"] == "1"
    assert info.closed is not None


def test_nothing_captured_leaves_no_rank(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="nothing"), ulpscope.capture(tmp_path / "t"):
        pass
    with pytest.raises(UlpscopeError):
        open_trace(tmp_path / "t")


def test_unknown_words_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UlpscopeError, match="level"):
        ulpscope.capture(tmp_path / "t", level="deep")
    with pytest.raises(UlpscopeError, match="steps"):
        ulpscope.capture(tmp_path / "t", steps="x")


def test_values_of_every_kind_have_a_row(tmp_path: Path) -> None:
    def work() -> None:
        for tensor in (
            torch.empty(0).neg(),
            torch.tensor(3.0).neg(),
            torch.ones(3, dtype=torch.int64).neg(),
            torch.ones(3, dtype=torch.bool),
            torch.ones(3, dtype=torch.complex64).conj(),
            torch.ones(3, dtype=torch.float8_e4m3fn),
            torch.ones(3).to_sparse(),
            torch.ones(3, device="meta"),
        ):
            tensor.clone()

    watched = watch(tmp_path, work, save="tensors")
    unsummarized = watched.trace.info.coverage.values_unsummarized
    assert set(unsummarized) == {"sparse", "meta"}
    values = watched.trace.values().collect()
    assert {"float32", "int64", "bool", "complex64", "float8_e4m3fn"} <= set(values["dtype"])


def test_lazy_conjugates_and_negatives_are_contents_of_their_own(tmp_path: Path) -> None:
    z = torch.tensor([1 + 2j, 3 + 4j])

    def work() -> None:
        z.imag.clone()
        z.conj().imag.clone()
        z.conj().clone()

    watched = watch(tmp_path, work, save="tensors", verify=True)
    for number, true in enumerate((z.imag, z.conj().imag, z.conj())):
        call = watched.call("torch.Tensor.clone", number)
        assert (watched.data(call, "input") == true.resolve_neg().resolve_conj().numpy()).all()
    assert watched.trace.info.coverage.summaries_wrong == 0


def test_a_backward_that_raises_says_so(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)

    def work() -> None:
        y = x * 2
        y.register_hook(lambda _gradient: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            y.sum().backward()

    call = watch(tmp_path, work).call("torch.Tensor.backward")
    assert call.error == "ZeroDivisionError: division by zero"


SECRET = "hf_averysecretvalue"


def test_no_secret_stands_in_a_trace_and_its_settings_do(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(f"lr: 0.5\nhub_token: {SECRET}\n", encoding="utf-8")
    script = "import torch\ntorch.ones(2).neg()"
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    words = ["run", "-o", "t", "--config", "train.yaml", "--", sys.executable, "train.py", "--token", SECRET]
    words += ["--data", f"https://me:{SECRET}@host/x"]
    environ = {**os.environ, "HF_TOKEN": SECRET, "TORCH_TOKEN": SECRET, "NCCL_NET": f"https://me:{SECRET}@host"}
    done = subprocess.run([sys.executable, "-m", "ulpscope", *words], cwd=tmp_path, env=environ, check=False)
    assert done.returncode == 0
    assert all(SECRET.encode() not in file.read_bytes() for file in (tmp_path / "t").rglob("*") if file.is_file())
    info = open_trace(tmp_path / "t").ranks[0].info
    assert {"HF_TOKEN", "TORCH_TOKEN"} <= set(info.environment["other_variables"])
    (told,) = info.environment["configs"].values()
    assert told["values"] == {"lr": 0.5, "hub_token": "***"}
    assert info.environment["packages"]["torch"] == torch.__version__
    assert not info.errors


def test_a_switch_that_torch_refuses_to_tell_is_no_error(tmp_path: Path) -> None:
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        info = watch(tmp_path, lambda: torch.ones(2).neg()).trace.info
    finally:
        matmul.fp32_precision = before
    assert info.environment["switches"]["float32_matmul_precision"] == "mixed"


def test_a_run_is_made_repeatable_from_outside() -> None:
    benchmark = torch.backends.cudnn.benchmark
    drawn = []
    try:
        for _ in range(2):
            make_repeatable(CaptureSettings(Path("t"), seed=3, deterministic=True))
            drawn.append((torch.rand(()).item(), random.random(), np.random.rand()))
        assert torch.are_deterministic_algorithms_enabled()
        assert drawn[0] == drawn[1]
        make_repeatable(CaptureSettings(Path("t")))
        assert torch.rand(()).item() not in drawn[0]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = benchmark
