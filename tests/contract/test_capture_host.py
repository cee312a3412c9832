"""The compiled host part gives the rows that the Python code gives, and keeps its promises."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import ulpscope
from ulpscope.capture.recording import writing_process as writing
from ulpscope.capture.torch.host import loading
from ulpscope.capture.torch.host import recorder as part
from ulpscope.capture.torch.host.recorder import Bridge
from ulpscope.records.enums import Save
from ulpscope.records.runs import CaptureSettings
from ulpscope.trace.reader import RankTrace, open_trace

Work = Callable[[], None]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    loading.load()


def capture(folder: Path, kind: str, work: Work, monkeypatch: pytest.MonkeyPatch, **options: Any) -> RankTrace:
    monkeypatch.setenv(loading.CHOICE, kind)
    torch.manual_seed(0)
    with ulpscope.capture(folder / kind, **options):
        work()
    return open_trace(folder / kind).ranks[0]


def table(folder: Path, kind: str, name: str) -> pl.DataFrame:
    files = sorted((folder / kind / "rank0").glob(f"step*/{name}-*.parquet"), key=lambda path: path.parts)
    return pl.concat([pl.read_parquet(path) for path in files])


SUMMARY = "dtype shape device layout requires_grad initialized digest min max mean norm zero exponents sketch".split()


def uses(folder: Path, kind: str) -> pl.DataFrame:
    """Every use with what it shows, in an order that does not depend on who recorded it."""
    values = table(folder, kind, "values")
    joined = table(folder, kind, "tensors").join(values, left_on="value", right_on="id", how="left")
    return joined.select("call", "role", "place", *SUMMARY).sort("call", "role", "place", "digest")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6)
        self.drop = nn.Dropout(0.3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        hidden = self.drop(self.act(self.first(self.norm(x))))
        left, right = hidden.split(4, dim=1)
        joined = torch.cat([right * scale, left], dim=1)
        return x + self.second(joined.view(2, -1, 8).transpose(0, 1).reshape(-1, 8))


ALIVE: list[nn.Module] = []
"""Steps are told apart by roots, and roots by their ids: none of these must be used again."""


def alive(module: nn.Module) -> nn.Module:
    ALIVE.append(module)
    return module


def train() -> None:
    model = alive(nn.Sequential(Block(), Block()))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model(torch.randn(4, 6)), torch.tensor([0, 1, 2, 3])).backward()
        optimizer.step()


def recompute() -> None:
    block, x = alive(Block()), torch.randn(4, 6, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    checkpoint(block, x, use_reentrant=True).sum().backward()


def mixed_precision() -> None:
    model = alive(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 2)))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(3, 6)).float().pow(2).mean()
        torch.ones(3)
    loss.backward()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def own_functions() -> None:
    x = torch.randn(3, requires_grad=True)
    Twice.apply(x).exp().sum().backward()


def gradients_of_gradients() -> None:
    x = torch.randn(4, requires_grad=True)
    y = (x * x * x + x.sin() + x).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    first.pow(2).sum().backward(retain_graph=True)
    first.pow(2).sum().backward()


def writes() -> None:
    x = torch.zeros(4, 6)
    x[1] = 1.0
    x[:, 2].add_(3.0)
    x.mul_(2.0)
    base = torch.randn(6, requires_grad=True) * 1.0
    view = base.view(2, 3)
    view[0].mul_(2.0)
    alive(nn.ReLU(inplace=True))(view).sum().backward()
    torch.add(x, x, out=torch.empty(4, 6))
    filled = torch.empty(3)
    filled.fill_(2.0)
    filled.numpy()[0] = 7.0
    filled + 1


class Writes(nn.Module):
    """Writes what it is given, and gives it and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(self.scale)
        return x, other * x


def written_views() -> None:
    model = alive(Writes())
    inner = alive(nn.Sequential(nn.ReLU(inplace=True), nn.Identity()))
    inner((torch.randn(6, requires_grad=True) * 1.0).view(2, 3)[1]).sum().backward()
    for of in (lambda base: base.view(2, 3), lambda base: base.view(3, 2).t(), lambda base: base[:6].view(2, 3)):
        base = torch.randn(6, requires_grad=True) * 1.0
        given, product = model(of(base), of(torch.randn(6, requires_grad=True)))
        (given.sum() * 3 + product.sum() + base.sum()).backward()
    base = torch.randn(8, requires_grad=True) * 1.0
    first, second = base[:6].view(2, 3), base[2:].view(2, 3)
    base.mul_(2.0)
    model(first, second)[1].sum().backward()
    model(torch.ones(2, 2, 3)[0], torch.randn(2, 3))[0].sum().backward()
    model(torch.ones(2, 3), torch.ones(2, 2, 3)[1])[1].sum().backward()


def many_results() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    values, _ = x.max(dim=1)
    torch.topk(x, 2).values.sum().backward()
    float(values.sum())
    x.tolist()
    alive(nn.LSTM(5, 4, 2, batch_first=True))(x[None])
    torch.einsum("ij,kj->ik", x, x)
    torch.where(x > 0, x, -x)
    x.split([2, 3], dim=1)
    torch.equal(x, x)


def evaluation() -> None:
    model = alive(nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 2)).eval())
    with torch.inference_mode():
        model(torch.randn(2, 5))
    with torch.no_grad():
        model(torch.randn(2, 5)).argmax(1)


def odd_tensors() -> None:
    torch.randn(2, 3, device="meta") * 2
    torch.eye(3).to_sparse() @ torch.ones(3, 2)
    torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).dequantize()
    torch.complex(torch.ones(2), torch.ones(2)).conj() * 2
    torch._neg_view(torch.ones(3)) + 1
    torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2
    nn.Parameter(torch.ones(2)).as_subclass(torch.Tensor) + 1
    torch.vmap(lambda row: row * 2)(torch.ones(2, 3))
    torch.func.grad(lambda number: (number * number).sum())(torch.ones(2))


def failures() -> None:
    x = torch.ones(2, 3)
    for attempt in (lambda: x @ x, lambda: alive(nn.Linear(4, 4))(x), lambda: torch.cat([x, "no"])):
        with pytest.raises((RuntimeError, TypeError)):
            attempt()
    x.sum()


class Hooked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        inner = x.exp()
        inner.register_hook(lambda gradient: gradient.clamp(-1, 1))
        outer: Tensor = Twice.apply(inner * inner)
        outer.add_(1)  # recorded by Python, in a module that is not
        outer.register_hook(torch.sin)
        return outer


def hooks_of_the_run() -> None:
    model = alive(Hooked())
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        optimizer = torch.optim.SGD([x], 0.1)
        loss = model(x).sum()
        loss.register_hook(lambda gradient: gradient * 2)  # before any of ours
        loss.backward()
        optimizer.step()


class Listening(TorchDispatchMode):
    """Sees the operators of the run, and none of ours."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum()


def modes_in_the_backward() -> None:
    loss = alive(Square())(torch.randn(4, requires_grad=True))
    with Listening():
        loss.backward()


def missing_parameters() -> None:
    model = alive(nn.Linear(3, 3))
    model(torch.ones(1, 3))
    model._parameters["missing"] = None
    model(torch.ones(1, 3))


class Passing(nn.Module):
    """Runs a layer that is gone before the next one is made, perhaps at the same address."""

    kept: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        x = nn.Linear(2, 2)(x)
        self.kept = nn.Linear(2, 2)
        return self.kept(x)  # type: ignore[no-any-return]


def passing_modules() -> None:
    alive(Passing())(torch.ones(1, 2)).sum().backward()


CASES = [
    train,
    passing_modules,
    recompute,
    mixed_precision,
    own_functions,
    gradients_of_gradients,
    writes,
    written_views,
    many_results,
    evaluation,
    odd_tensors,
    failures,
    hooks_of_the_run,
    modes_in_the_backward,
    missing_parameters,
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["api", "module"])
@pytest.mark.parametrize("work", CASES)
def test_both_ways_record_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Work, level: str) -> None:
    def repeated() -> None:  # a function that is met for the first time is always looked at by Python
        for _ in range(3):
            work()

    slow = capture(tmp_path, "python", repeated, monkeypatch, level=level)
    fast = capture(tmp_path, "compiled", repeated, monkeypatch, level=level)
    assert fast.info.errors == slow.info.errors == ()
    one, other = slow.info.coverage, fast.info.coverage
    assert (one.calls_seen, one.calls_recorded, one.values) == (other.calls_seen, other.calls_recorded, other.values)
    assert one.values_unsummarized == other.values_unsummarized
    assert table(tmp_path, "python", "calls").equals(table(tmp_path, "compiled", "calls"), null_equal=True)
    assert uses(tmp_path, "python").equals(uses(tmp_path, "compiled"), null_equal=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["api", "module"])
def test_a_capture_that_pauses_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    model = alive(Block())

    def captured(kind: str) -> RankTrace:
        monkeypatch.setenv(loading.CHOICE, kind)
        torch.manual_seed(0)
        with ulpscope.capture(tmp_path / kind, level=level, model=model) as running:
            for _ in range(3):
                loss = model(torch.randn(4, 6)).pow(2).sum()
                running.record("own", "loss", loss)
                loss.backward()
                running.pause()
                model(torch.randn(4, 6)).sum().backward()
                running.step()
                running.resume()
        return open_trace(tmp_path / kind).ranks[0]

    slow, fast = captured("python"), captured("compiled")
    assert fast.info.errors == slow.info.errors == ()
    assert fast.info.coverage.calls_recorded == slow.info.coverage.calls_recorded
    assert table(tmp_path, "python", "calls").equals(table(tmp_path, "compiled", "calls"), null_equal=True)


def test_a_captured_run_computes_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def weights(captured: bool) -> list[Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(Block(), Block())
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)

        def work() -> None:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(4, 6)).pow(2).sum().backward()
                optimizer.step()

        if captured:
            monkeypatch.setenv(loading.CHOICE, "compiled")
            with ulpscope.capture(tmp_path / "t"):
                work()
        else:
            work()
        return [*model.state_dict().values()]

    assert all(torch.equal(one, other) for one, other in zip(weights(False), weights(True), strict=True))


def test_nothing_of_the_run_is_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[weakref.ref[Tensor]] = []

    def work() -> None:
        model = nn.Linear(3, 3)
        for _ in range(3):
            output = model(torch.ones(1, 3))
            kept.append(weakref.ref(output))
            output.sum().backward()

    capture(tmp_path, "compiled", work, monkeypatch)
    gc.collect()
    assert [reference() for reference in kept] == [None] * 3


def test_hooks_of_a_graph_that_outlives_its_capture_do_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[Tensor] = []
    model = nn.Linear(3, 3)

    def work() -> None:
        for _ in range(3):
            outputs.append(model(torch.ones(1, 3)).exp())

    trace = capture(tmp_path, "compiled", work, monkeypatch)
    outputs[-1].sum().backward()
    assert model.weight.grad is not None
    assert "backward" not in set(table(tmp_path, "compiled", "calls")["phase"])
    assert trace.info.errors == ()


def test_a_backward_in_another_thread_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        for _ in range(3):
            loss = alive(nn.Linear(3, 3))(torch.ones(1, 3)).exp().sum()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()

    for kind in ("python", "compiled"):
        assert capture(tmp_path, kind, work, monkeypatch).info.errors == ()
    assert table(tmp_path, "python", "calls").equals(table(tmp_path, "compiled", "calls"), null_equal=True)


def test_an_error_of_ours_is_noted_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setattr(Bridge, "summarize", fail)
    model = nn.Linear(2, 2)

    def work() -> None:
        for _ in range(3):
            model(torch.ones(1, 2)).exp().sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()

    errors = capture(tmp_path, "compiled", work, monkeypatch).info.errors
    assert model.weight.grad is not None
    assert errors
    assert all("planted" in error for error in errors)


def test_a_module_may_empty_the_list_that_it_is_given(tmp_path: Path) -> None:
    script = """
import sys, torch, ulpscope
from torch import nn

class Emptying(nn.Module):
    def forward(self, tensors):
        factor = tensors.pop().mean().item()
        return (tensors.pop() * factor).sum()

with ulpscope.capture(sys.argv[1]):
    model = Emptying()
    for _ in range(3):
        model([torch.ones(5, requires_grad=True), torch.ones(5)])
"""
    environment = os.environ | {loading.CHOICE: "compiled", "PYTHONMALLOC": "debug"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "t")], env=environment, check=True)


def test_something_else_among_the_buffers_is_left_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    model._buffers["odd"] = "text"  # type: ignore[assignment]

    def work() -> None:
        for _ in range(3):
            model(torch.ones(1, 2))

    traces = [capture(tmp_path, kind, work, monkeypatch) for kind in ("python", "compiled")]
    assert all(trace.info.errors for trace in traces)
    assert table(tmp_path, "python", "calls").equals(table(tmp_path, "compiled", "calls"), null_equal=True)


def test_backwards_in_several_threads_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def backward(number: int, x: Tensor, y: Tensor) -> None:
        torch.autograd.grad(y, x, torch.full_like(x, float(number + 1)))

    def work() -> None:
        for _ in range(20):
            pairs = [(x, x * 3.0) for x in (torch.ones(16, requires_grad=True) for _ in range(4))]
            threads = [threading.Thread(target=backward, args=(number, *pair)) for number, pair in enumerate(pairs)]
            for thread in threads:
                thread.start()
            for _ in range(10):
                torch.ones(4).exp()
            for thread in threads:
                thread.join()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        trace = capture(tmp_path, "compiled", work, monkeypatch)
    finally:
        sys.setswitchinterval(interval)
    assert trace.info.errors == ()
    seen = uses(tmp_path, "compiled")
    came, left = (seen.filter(pl.col("role") == role) for role in ("grad_output", "grad_input"))
    both = came.join(left, on="call")
    assert len(both) == 80
    assert (both["max_right"] == 3 * both["max"]).all()
    assert (both["min_right"] == 3 * both["max"]).all()


def test_an_interrupt_in_our_own_work_reaches_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, armed = nn.Linear(2, 2), [False]
    summarize = Bridge.summarize

    def interrupted(self: Bridge, tensor: Tensor) -> Any:
        if armed.pop():
            armed.append(False)
            raise KeyboardInterrupt
        armed.append(False)
        return summarize(self, tensor)

    def interrupt(work: Callable[[], Any]) -> None:
        armed[0] = True
        with pytest.raises(KeyboardInterrupt):
            work()

    def work() -> None:
        for _ in range(3):
            model(torch.ones(1, 2)).exp().sum().backward()
        output = model(torch.ones(1, 2))
        interrupt(output.exp)
        interrupt(lambda: model(torch.zeros(1, 2)))
        interrupt(output.sum().backward)

    monkeypatch.setattr(Bridge, "summarize", interrupted)
    assert capture(tmp_path, "compiled", work, monkeypatch).info.errors == ()


def test_a_capture_may_close_while_a_hook_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, closed = threading.Event(), threading.Event()
    summarize, model = Bridge.summarize, nn.Linear(2, 2)
    threads: list[threading.Thread] = []

    def slow(self: Bridge, tensor: Tensor) -> Any:
        if threading.current_thread() in threads:
            reached.set()
            closed.wait(10)
        return summarize(self, tensor)

    def work() -> None:
        for _ in range(3):
            loss = model(torch.ones(1, 2)).exp().sum()
        threads.append(threading.Thread(target=loss.backward))
        threads[0].start()
        assert reached.wait(10)
        threading.Timer(1.0, closed.set).start()

    monkeypatch.setattr(Bridge, "summarize", slow)
    capture(tmp_path, "compiled", work, monkeypatch)
    threads[0].join()
    assert model.weight.grad is not None


def test_a_capture_that_is_resumed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loading.CHOICE, "compiled")
    with ulpscope.capture(tmp_path / "t") as running:
        running.pause()
        torch.ones(2).add_(1)
        running.resume()
        torch.ones(2).add_(1)  # a write is looked at by Python's code
    assert open_trace(tmp_path / "t").ranks[0].calls().collect()["op"].to_list() == ["torch.ones", "torch.Tensor.add_"]


def test_a_writing_process_that_dies_stops_the_capture_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, outputs = nn.Linear(2, 2), []

    def work() -> None:
        for _ in range(8):
            outputs.append(model(torch.ones(1, 2)))

    write = writing.WritingProcess.write

    def die(self: writing.WritingProcess, *args: Any) -> int:
        self._process.kill()
        self._process.wait()
        return write(self, *args)

    monkeypatch.setattr(writing.WritingProcess, "write", die)
    monkeypatch.setenv(loading.CHOICE, "compiled")
    with pytest.warns(UserWarning, match="has ended"), ulpscope.capture(tmp_path / "t"):
        work()
    assert len(outputs) == 8


def test_a_forked_process_that_lives_on_does_not_keep_the_end_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, release = os.pipe()
    children: list[int] = []

    def work() -> None:
        torch.ones(2).exp()
        child = os.fork()
        if child == 0:
            os.close(release)
            os.read(held, 1)
            os._exit(0)
        children.append(child)

    coverage = capture(tmp_path, "compiled", work, monkeypatch).info.coverage
    os.close(release)
    os.waitpid(children[0], 0)
    assert coverage.calls_recorded == 2


def test_without_a_compiler_the_slower_code_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    script = """
import sys, torch, ulpscope
with ulpscope.capture(sys.argv[1]):
    torch.nn.Linear(3, 3)(torch.ones(1, 3))
"""
    environment = os.environ | {loading.CHOICE: "compiled", "CXX": "/nowhere/c++"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "t")], env=environment, check=True)
    assert open_trace(tmp_path / "t").ranks[0].info.coverage.calls_recorded > 1


@pytest.mark.parametrize(
    ("choice", "accelerator", "built", "wanted", "missed"),
    [
        (None, False, True, True, False),
        (None, False, False, False, True),
        (None, True, False, True, False),
        ("python", False, True, False, False),
        ("compiled", False, False, True, False),
    ],
)
def test_when_it_is_chosen(
    choice: str | None, accelerator: bool, built: bool, wanted: bool, missed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(loading.CHOICE, raising=False)
    if choice is not None:
        monkeypatch.setenv(loading.CHOICE, choice)
    monkeypatch.setattr(loading, "_has_accelerator", lambda: accelerator)
    monkeypatch.setattr(loading, "is_built", lambda: built)
    assert (loading.is_wanted(), loading.is_missed()) == (wanted, missed)


def test_a_long_run_has_it_compiled_for_later_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun: list[bool] = []
    monkeypatch.delenv(loading.CHOICE, raising=False)
    monkeypatch.setattr(loading, "_has_accelerator", lambda: False)
    monkeypatch.setattr(loading, "is_built", lambda: False)
    monkeypatch.setattr(part, "build_beside", lambda: begun.append(True) or True)
    later = part.LaterHost(CaptureSettings(out=tmp_path))
    assert [later.is_begun(count) for count in (0, part.LONG_RUN_CALLS - 1)] == [False, False]
    assert [later.is_begun(part.LONG_RUN_CALLS) for _ in range(2)] == [True, False]
    filtered = part.LaterHost(CaptureSettings(out=tmp_path, save=Save.TENSORS))
    assert not filtered.is_begun(part.LONG_RUN_CALLS)
    assert begun == [True]
