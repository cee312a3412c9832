"""Capture leaves the run as it is: numbers, errors, torch itself."""

import contextlib
import functools
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watched import watch

import ulpscope
from ulpscope.capture.torch.recorder import TorchValues
from ulpscope.capture.torch.watching import calls as watching
from ulpscope.capture.torch.watching.apis import _seeded_aten_names
from ulpscope.trace.reader import open_trace

PATCHED = (
    lambda: nn.Module.__call__,
    lambda: torch.autograd.Function.__dict__["apply"],
    lambda: torch.autograd._engine_run_backward,
    lambda: torch.amp.GradScaler.step,
    lambda: torch.optim.Optimizer.__init__,
    lambda: torch.optim.Optimizer.zero_grad,
    lambda: torch.Tensor.__dict__.get("numpy"),
    lambda: torch.Tensor.__dict__.get("data_ptr"),
    lambda: torch.compile,
    lambda: torch.distributed.Work.wait,
    lambda: torch._C._len_torch_function_stack(),
    lambda: torch._C._len_torch_dispatch_stack(),
)


def test_torch_is_left_as_it_was_found(tmp_path: Path) -> None:
    before = [get() for get in PATCHED]
    with pytest.raises(ZeroDivisionError), ulpscope.capture(tmp_path / "t", level="kernel"):
        torch.ones(2) + 1
        raise ZeroDivisionError
    assert [get() for get in PATCHED] == before
    assert open_trace(tmp_path / "t").ranks[0].info.exit.startswith("ZeroDivisionError")


def add(x: Any) -> Any:
    return x.add(1)


def scaled(original: Any) -> Any:
    """A wrapper whose every run shows in the result."""
    return lambda *args, **kwargs: original(*args, **kwargs) * 3


WRAPPED = {
    "method in C": (torch.Tensor, "add", add),
    "method in Python": (torch.Tensor, "norm", lambda x: x.norm()),
    "operator of a wrapped method": (torch.Tensor, "mul", lambda x: x * 2),
    "operator": (torch.Tensor, "__add__", lambda x: x + 1),
    "function in Python": (F, "softmax", lambda x: F.softmax(x, -1)),
    "function behind a switch": (F, "max_pool1d", lambda x: F.max_pool1d(x[None], 2)),
    "function in C": (torch, "sum", torch.sum),
    "used by a module": (F, "relu", lambda x: nn.ReLU()(x)),
    "initialiser": (nn.init, "ones_", lambda x: nn.init.ones_(x.clone())),
}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kind", WRAPPED)
def test_a_scripts_own_wrapper_runs_as_often_as_without_a_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, early: bool
) -> None:
    owner, name, use = WRAPPED[kind]
    x, original = torch.tensor([3.0, 4.0]), getattr(owner, name)
    results = []

    def work() -> None:
        monkeypatch.setattr(owner, name, scaled(original))
        results.append(use(x))
        results.append(use(x))
        monkeypatch.setattr(owner, name, original)
        results.append(use(x))

    work()
    plain, results = results, []
    if early:
        monkeypatch.setattr(owner, name, scaled(original))
    ops = watch(tmp_path, work).ops()
    assert all(torch.equal(*pair) for pair in zip(plain, results, strict=True))
    assert not [op for op in ops if "scaled" in op or "lambda" in op]


class Named:
    """A wrapper that is an object and has the name of what it wraps."""

    def __init__(self, original: Any) -> None:
        self.original = original
        functools.update_wrapper(self, original)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs) * 3


class Pretending(Named):
    """Has the code and the class of what it wraps, too, as wrapt's proxies do."""

    @property
    def __class__(self) -> Any:
        return type(self.original)

    @__class__.setter
    def __class__(self, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


@pytest.mark.parametrize("wrapper", [Named, Pretending])
@pytest.mark.parametrize("kind", WRAPPED)
def test_a_wrapper_may_look_like_what_it_wraps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, wrapper: Any
) -> None:
    owner, name, use = WRAPPED[kind]
    monkeypatch.setattr(owner, name, wrapper(getattr(owner, name)))
    x, results = torch.tensor([3.0, 4.0]), []
    results.append(use(x))
    watch(tmp_path, lambda: results.append(use(x)))
    assert torch.equal(*results)


def test_a_function_of_torchs_in_the_place_of_another_is_not_called_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, x = F.relu, torch.tensor([-1.0, 2.0])
    monkeypatch.setattr(F, "relu", F.gelu)
    results: list[torch.Tensor] = []
    ops = watch(tmp_path, lambda: results.extend((bound(x), F.relu(x)))).ops()
    assert torch.equal(results[0], torch.tensor([0.0, 2.0]))
    assert torch.equal(results[1], F.gelu(x))
    assert ops == ["torch.nn.functional.relu", "torch.nn.functional.gelu"]


def test_a_wrapped_property_and_a_wrapped_backward_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"is_cuda": 0, "backward": 0}
    is_cuda, backward = torch.Tensor.is_cuda, torch.Tensor.backward

    def get(tensor: torch.Tensor) -> Any:
        counts["is_cuda"] += 1
        return is_cuda.__get__(tensor)

    def run(tensor: torch.Tensor) -> None:  # narrower than torch's own
        counts["backward"] += 1
        backward(tensor)

    monkeypatch.setattr(torch.Tensor, "is_cuda", property(get))
    monkeypatch.setattr(torch.Tensor, "backward", run)
    w = torch.ones(2, requires_grad=True)
    seen = watch(tmp_path, lambda: (w.is_cuda, w.sum().backward()))
    assert counts == {"is_cuda": 1, "backward": 1}
    assert torch.equal(w.grad, torch.ones(2))
    assert "torch.Tensor.backward" in seen.ops()


def test_what_a_script_puts_over_our_own_stays_there(tmp_path: Path) -> None:
    before = nn.Module.__call__
    model, calls = nn.Tanh(), []
    encoder = nn.TransformerEncoderLayer(4, 1, batch_first=True).eval()  # runs with the capture out of the way
    with ulpscope.capture(tmp_path / "t"):
        ours = nn.Module.__call__

        def counting(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            calls.append(type(self).__name__)
            return ours(self, *args, **kwargs)

        nn.Module.__call__ = counting  # type: ignore[method-assign]
        model(torch.ones(1, 2))
        with torch.no_grad():
            encoder(torch.ones(1, 2, 4))
        model(torch.ones(1, 2))
    try:
        assert nn.Module.__call__ is counting
        assert torch.equal(model(torch.zeros(2)), torch.zeros(2))
        assert calls.count("Tanh") == 3
        assert watch_calls(tmp_path / "t", ".Tanh") == 2
    finally:
        nn.Module.__call__ = before  # type: ignore[method-assign]


def test_the_profiler_may_look_at_stacks(tmp_path: Path) -> None:
    script = """
import sys, torch, ulpscope
from torch.profiler import profile
model = torch.nn.Linear(4, 4)
with ulpscope.capture(sys.argv[1]), profile(with_stack=True, with_modules=True, record_shapes=True) as seen:
    model(torch.ones(2, 4)).sum().backward()
print(any("nn.Module: Linear" in event.name for event in seen.events()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True")
    assert watch_calls(tmp_path / "t", "Linear") == 2


@pytest.mark.parametrize("recorder", ["python", "compiled"])
def test_a_warning_points_at_the_line_it_would_point_at_without_a_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: str
) -> None:
    monkeypatch.setenv("ULPSCOPE_HOST", recorder)

    def work() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            F.softmax(torch.ones(2))  # without a dimension
            F.softmax(torch.ones(2))
            torch.ones(2, 1).add_(0).resize(2, 1)
        places.append([(one.filename, one.lineno, str(one.message)) for one in caught])

    places: list[Any] = []
    work()
    watch(tmp_path, work)
    assert len(places[0]) == 3
    assert places[0] == places[1]


class Complaining(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for level in range(1, 5):
            warnings.warn(f"from level {level}", stacklevel=level)
        return F.gelu(x)


def test_a_warning_is_told_once_at_the_level_it_asks_for(tmp_path: Path) -> None:
    def work() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(2):
                Complaining()(torch.ones(2))
                nn.Softmax()(torch.ones(2))  # without a dimension; its warning has a level of five
                F.kl_div(torch.zeros(2), torch.zeros(2))
        places.append([(one.filename, one.lineno, str(one.message)) for one in caught])

    places: list[Any] = []
    work()
    watch(tmp_path, work)
    assert len(places[0]) == 6
    assert places[0] == places[1]


class Unhashable(nn.Linear):
    __hash__ = None  # type: ignore[assignment]


def test_a_module_needs_no_hash(tmp_path: Path) -> None:
    model = nn.Sequential(Unhashable(2, 2))
    seen = watch(tmp_path, lambda: model(torch.ones(1, 2)))
    assert seen.call("Unhashable").module == "model.0"


class LateError(Exception):
    """What a handler raises."""


def test_what_a_signals_handler_raises_is_no_operator_that_is_missing() -> None:
    """torch.ops takes any RuntimeError that comes while it looks for an operator for one that is not there."""

    def late(*_: Any) -> None:
        raise RuntimeError("late")

    before = signal.signal(signal.SIGALRM, late)
    try:
        for shot in range(10):
            signal.setitimer(signal.ITIMER_REAL, 0.002 + shot * 0.001)
            with pytest.raises(RuntimeError, match="late"):
                for _ in range(100):
                    _seeded_aten_names.__wrapped__()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [LateError("with words"), LateError(), RuntimeError("late")])
def test_what_a_signals_handler_raises_reaches_the_script(tmp_path: Path, error: Exception) -> None:
    def late(*_: Any) -> None:
        raise error

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    lost, before = 0, signal.signal(signal.SIGALRM, late)
    try:
        with ulpscope.capture(tmp_path / "t"):
            for shot in range(15):
                model.zero_grad()
                signal.setitimer(signal.ITIMER_REAL, 0.002 + shot * 0.0007)
                try:
                    for _ in range(500):
                        model(torch.ones(1, 4)).sum().backward()
                    lost += 1
                except type(error):
                    pass
            model.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert lost == 0
    assert model[2].bias.grad.tolist() == [1.0, 1.0]
    info = open_trace(tmp_path / "t").ranks[0].info
    assert info.errors == ()


def test_an_interruption_while_the_writer_is_started_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading._start_new_thread  # type: ignore[attr-defined]

    def start_and_interrupt(*args: Any) -> Any:
        start(*args)
        signal.raise_signal(signal.SIGUSR1)

    def late(*_: Any) -> None:
        raise LateError("late")

    died: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", died.append)
    before = signal.signal(signal.SIGUSR1, late)
    try:
        with ulpscope.capture(tmp_path / "t") as running:
            with monkeypatch.context() as patch, contextlib.suppress(LateError):
                patch.setattr(threading, "_start_new_thread", start_and_interrupt)
                torch.ones(2) + 1
                running.step()
            torch.ones(2) + 1
            running.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not died
    assert open_trace(tmp_path / "t").steps[:2] == (0, 1)


class Failing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_optimizer_that_fails_leaves_torch_as_it_was(tmp_path: Path, goes_on: bool) -> None:
    before = [get() for get in PATCHED]
    model = nn.Linear(2, 2)
    with ulpscope.capture(tmp_path / "t"):
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(ZeroDivisionError):
            Failing(model.parameters(), 0.1).step()
        if goes_on:
            model(torch.ones(1, 2)).exp()
    assert [get() for get in PATCHED] == before
    assert goes_on == (watch_calls(tmp_path / "t", "exp") == 1)


class Meeting(torch.optim.SGD):
    """Begins and ends when it is told to."""

    def __init__(self, model: nn.Module, begun: threading.Event, may_end: threading.Event) -> None:
        super().__init__(model.parameters(), 0.1)
        self.begun, self.may_end = begun, may_end

    def step(self, closure: Any = None) -> Any:
        self.begun.set()
        assert self.may_end.wait(20)


def test_optimizers_in_several_threads_do_not_mix(tmp_path: Path) -> None:
    first, second, done = threading.Event(), threading.Event(), threading.Event()
    here, there = nn.Linear(2, 2), nn.Linear(2, 2)
    depths = []

    def elsewhere() -> None:
        assert first.wait(20)
        Meeting(there, second, done).step()
        depths.append(torch._C._len_torch_function_stack())

    other = threading.Thread(target=elsewhere)
    with ulpscope.capture(tmp_path / "t"):
        here(torch.ones(1, 2)).sum().backward()
        other.start()
        Meeting(here, first, second).step()  # begins before the other one, and ends before it
        done.set()
        other.join()
        torch.ones(2).exp()
    assert depths == [0]
    assert watch_calls(tmp_path / "t", "exp") == 1


def watch_calls(trace: Path, op: str) -> int:
    return open_trace(trace).ranks[0].calls().collect()["op"].str.ends_with(op).sum()


def test_an_error_of_ours_is_noted_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULPSCOPE_HOST", "python")  # what is replaced here is used by that code only

    def fail(*_args: Any, **_kwargs: Any) -> int:
        raise ValueError("planted")

    monkeypatch.setattr(TorchValues, "observe", fail)
    model = nn.Linear(2, 2)
    with ulpscope.capture(tmp_path / "t"):
        model(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    assert model.weight.grad is not None
    errors = open_trace(tmp_path / "t").ranks[0].info.errors
    assert errors
    assert all("planted" in error for error in errors)


def test_writing_that_fails_stops_the_capture_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ulpscope.trace.writer import RankWriter

    def fail(*_args: Any, **_kwargs: Any) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(RankWriter, "write_part", fail)
    model, outputs = nn.Linear(2, 2), []
    with ulpscope.capture(tmp_path / "t"):
        for _ in range(8):
            outputs.append(model(torch.ones(1, 2)))
    assert len(outputs) == 8


@pytest.mark.parametrize("inference", [torch.no_grad, torch.inference_mode])
def test_the_transformers_fast_path_is_taken_and_is_one_call(tmp_path: Path, inference: Any) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x, mask = torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    with inference():
        plain = model(x, src_key_padding_mask=mask)
    assert (plain[0, 3:] == 0).all()  # only the fast path gives zeros at padding
    results = []

    def work() -> None:
        with inference():
            results.append(model(x, src_key_padding_mask=mask))

    watched = watch(tmp_path, work, level="kernel")
    assert torch.equal(results[0], plain)
    assert watched.ops(kind="module") == ["torch.nn.modules.transformer.TransformerEncoder"]
    assert watched.trace.info.coverage.calls_unobserved == {"transformer fast path": 1}


@pytest.mark.parametrize("early", [False, True])
def test_a_compiled_function_runs_compiled_and_is_one_call(tmp_path: Path, early: bool) -> None:
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    x = torch.randn(4, requires_grad=True)

    torch._dynamo.reset()
    ready = torch.compile(lambda y: F.gelu(y * 2).sum(), backend=backend) if early else None

    def work() -> None:
        compiled = ready or torch.compile(lambda y: F.gelu(y * 2).sum(), backend=backend)
        for _ in range(3):
            compiled(x).backward()

    watched = watch(tmp_path, work, save="tensors")
    assert len(graphs) == 1
    assert watched.ops(kind="compiled") == [watched.call("<lambda>", kind="compiled").op] * 3
    assert "torch.nn.functional.gelu" not in watched.ops()
    call = watched.call("<lambda>", kind="compiled")
    np.testing.assert_array_equal(watched.data(call, "input"), x.detach().numpy())
    backward = watched.trace.call(watched.calls.filter(watched.calls["forward"] == call.id)["id"][0])
    np.testing.assert_allclose(watched.data(backward, "grad_input"), x.grad.numpy() / 3, rtol=1e-6)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu()


@pytest.mark.parametrize("when", ["before", "inside", "in place"])
def test_a_compiled_module_runs_compiled_and_is_one_call(tmp_path: Path, when: str) -> None:
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = Small()
    early = torch.compile(model, backend=backend) if when == "before" else None
    if when == "in place":
        model.compile(backend=backend)

    def work() -> None:
        runs = early if early is not None else model if when == "in place" else torch.compile(model, backend=backend)
        for _ in range(2):
            runs(torch.ones(1, 3)).sum().backward()

    watched = watch(tmp_path, work)
    assert len(graphs) == 1
    assert len(watched.ops(kind="compiled")) == 2
    assert not watched.ops(op="torch.nn.functional.linear")


def test_eager_form_of_compiled_code_can_be_seen(tmp_path: Path) -> None:
    torch._dynamo.reset()

    def work() -> None:
        torch.compile(lambda y: F.gelu(y * 2), backend="eager")(torch.ones(3))

    watched = watch(tmp_path, work, compiled="eager")
    assert "torch.nn.functional.gelu" in watched.ops()
    assert watched.trace.info.capture["compiled"] == "eager"
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_other_threads_are_counted_not_mixed_in(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)

    def work() -> None:
        thread = threading.Thread(target=lambda: model(torch.ones(1, 2)))
        thread.start()
        thread.join()
        torch.ones(2).neg()

    watched = watch(tmp_path, work)
    assert not watched.ops(kind="module")
    assert watched.trace.info.coverage.other_threads == 1


def test_our_own_torch_calls_are_not_recorded(tmp_path: Path) -> None:
    watched = watch(tmp_path, lambda: torch.ones(3, dtype=torch.complex64).t().conj().exp(), level="kernel")
    assert len(watched.ops(kind="kernel")) <= 6
    assert watching.CallWatcher.__name__ not in str(watched.calls["name"].to_list())


def test_a_second_capture_inside_one_is_refused(tmp_path: Path) -> None:
    from ulpscope.records.errors import UlpscopeError

    with ulpscope.capture(tmp_path / "a"), pytest.raises(UlpscopeError), ulpscope.capture(tmp_path / "b"):
        pass


def test_storages_can_still_be_resized(tmp_path: Path) -> None:
    x = torch.ones(4)

    def work() -> None:
        x * 2
        x.resize_(100)
        x.untyped_storage().resize_(0)

    watch(tmp_path, work, save="tensors")
    assert x.untyped_storage().resizable()


def test_tracing_sees_the_users_operations_only(tmp_path: Path) -> None:
    model, traced = Small(), []
    watch(tmp_path, lambda: traced.append(torch.jit.trace(model, torch.ones(1, 3))))
    assert torch.equal(traced[0](torch.ones(2, 3)), model(torch.ones(2, 3)))


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.func.grad(lambda a: (a**3).sum())(x),
        lambda x: torch.func.jvp(lambda a: a.sin(), (x,), (x,))[1],
        lambda x: torch.func.vmap(lambda a: F.dropout(a * 2, 0.5), randomness="different")(x),
        lambda x: torch.func.hessian(lambda a: (a**3).sum())(x),
    ],
)
def test_function_transforms_run_as_ever(tmp_path: Path, transform: Any) -> None:
    x, results = torch.randn(3), []
    torch.manual_seed(0)
    plain = transform(x)
    torch.manual_seed(0)
    watch(tmp_path, lambda: (x.neg(), results.append(transform(x))))
    assert torch.equal(results[0], plain)


def test_overridden_methods_of_a_tensor_class_are_not_called_by_us(tmp_path: Path) -> None:
    asked = []

    class Nosy(torch.Tensor):
        def stride(self, *args: Any) -> Any:
            asked.append("stride")
            return super().stride(*args)

        def detach(self) -> Any:
            asked.append("detach")
            return super().detach()

    watch(tmp_path, lambda: torch.ones(3).as_subclass(Nosy).neg(), save="tensors")
    assert not asked


def test_modules_on_the_meta_device_are_built_in_peace(tmp_path: Path) -> None:
    def work() -> None:
        with torch.device("meta"):
            nn.Linear(3, 4)

    assert watch(tmp_path, work).ops()


def test_an_empty_capture_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="captured nothing"), ulpscope.capture(tmp_path / "t"):
        pass


def test_steps_that_are_not_wanted_do_not_disturb_compiled_code(tmp_path: Path) -> None:
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = torch.compile(Small(), backend=backend, fullgraph=True)

    def work() -> None:
        for _ in range(4):
            model(torch.ones(1, 3)).sum().backward()

    watched = watch(tmp_path, work, steps="2")
    assert len(graphs) == 1
    assert len(watched.ops(kind="compiled")) == 1


def test_a_compiled_model_has_parameters_and_gradients(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = Small()
    compiled = torch.compile(model, backend="aot_eager")
    watched = watch(tmp_path, lambda: compiled(torch.ones(1, 3)).sum().backward(), save="tensors")
    forward = watched.call("OptimizedModule", kind="compiled")
    assert ("parameter", "_orig_mod.inner.weight") in watched.roles(forward)
    backward = watched.trace.call(watched.calls.filter(watched.calls["forward"] == forward.id)["id"][0])
    found = watched.data(backward, "gradient", "_orig_mod.inner.weight")
    np.testing.assert_array_equal(found, model.inner.weight.grad.numpy())
    assert watched.ops(phase="backward", kind="api") == ["torch.Tensor.backward"]


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.model = nn.Linear(3, 3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return self.model(torch.ones(3))


def test_forked_workers_of_a_capture_from_python_are_left_alone(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)

    def work() -> None:
        model(torch.ones(1, 3))
        for batch in torch.utils.data.DataLoader(Batches(), 2, num_workers=1, timeout=60):
            model(batch)

    watched = watch(tmp_path, work)
    assert watched.ops(kind="module") == ["torch.nn.modules.linear.Linear"] * 3


def test_reading_arguments_runs_none_of_the_users_code(tmp_path: Path) -> None:
    from collections.abc import Iterator, Mapping

    class Lazy(Mapping[str, torch.Tensor]):
        def __getitem__(self, key: str) -> torch.Tensor:
            raise AssertionError("asked")

        def __iter__(self) -> Iterator[str]:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    class Ignoring(nn.Module):
        def forward(self, _given: Any) -> torch.Tensor:
            return torch.ones(1)

    watch(tmp_path, lambda: Ignoring()(Lazy()))


def test_an_exception_without_words_passes_through_as_it_is(tmp_path: Path) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError

    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise MuteError

    def work() -> None:
        with pytest.raises(MuteError):
            Failing()(torch.ones(1))

    assert watch(tmp_path, work).call("Failing").error == "MuteError"


def test_nothing_is_recorded_after_the_end(tmp_path: Path) -> None:
    x, kept = torch.ones(2, requires_grad=True), []
    with ulpscope.capture(tmp_path / "t"):
        kept.append((x * 2).sum())
    kept[0].backward()
    calls = open_trace(tmp_path / "t").ranks[0].calls().collect()
    assert set(calls["kind"]) == {"api"}
