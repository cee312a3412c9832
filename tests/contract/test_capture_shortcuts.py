"""What capture leaves out to be fast: summaries of other views, encodings, walks, hooks, steps nobody asked for."""

import ctypes
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from watched import Watched, watch

import ulpscope
from ulpscope.capture.recording.tensors import HostBatch, RowRef
from ulpscope.capture.torch.summaries.device import RowPool
from ulpscope.capture.torch.watching.mode import is_bare, run_without
from ulpscope.trace.reader import open_trace

View = Callable[[torch.Tensor], torch.Tensor]

SAME_SEQUENCE: Sequence[View] = (
    lambda x: x,
    lambda x: x.view(4, 6),
    lambda x: x.unsqueeze(1),
    lambda x: x.flatten(),
    lambda x: x.detach().view(2, 12),
)
OTHER_SEQUENCES: Sequence[View] = (
    lambda x: x.t(),
    lambda x: x[:, ::2],
    lambda x: x[:, 1::2],
    lambda x: x[1:],
    lambda x: x[:1].expand(8, 3),
    lambda x: x.view(torch.int32),
    lambda x: x.view(2, 4, 3).transpose(0, 1),
)


def numbers() -> torch.Tensor:
    return torch.arange(24.0).view(8, 3)


def digests(watched: Watched) -> list[int | None]:
    count = len(watched.ops(op="torch.Tensor.clone"))
    return [watched.value(watched.call("torch.Tensor.clone", number), "input").digest for number in range(count)]


def test_views_of_the_same_elements_share_a_summary(tmp_path: Path) -> None:
    x = numbers()
    watched = watch(tmp_path, lambda: [view(x).clone() for view in SAME_SEQUENCE])
    # One of x in all its views, and one of each clone.
    assert watched.trace.info.coverage.summaries_made == 1 + len(SAME_SEQUENCE)


def test_every_view_has_the_digest_of_its_own_elements(tmp_path: Path) -> None:
    views = [*SAME_SEQUENCE, *OTHER_SEQUENCES, *SAME_SEQUENCE]
    x = numbers()
    together = digests(watch(tmp_path / "one", lambda: [view(x).clone() for view in views]))
    alone = digests(watch(tmp_path / "each", lambda: [view(numbers()).contiguous().clone() for view in views]))
    assert together == alone
    assert len(set(together)) > len(OTHER_SEQUENCES)


def test_negation_that_is_pending_makes_another_content(tmp_path: Path) -> None:
    z = torch.complex(torch.ones(4), torch.full((4,), 2.0))
    plain, negated = z.imag, z.conj().imag  # the same memory, read with another sign
    watched = watch(tmp_path, lambda: (plain.clone(), negated.clone()))
    one, other = digests(watched)
    assert one != other


def test_the_place_of_saved_data_is_each_views_own(tmp_path: Path) -> None:
    views = [*SAME_SEQUENCE, *OTHER_SEQUENCES]
    x = numbers()
    watched = watch(tmp_path, lambda: [view(x).clone() for view in views], save="tensors")
    for number, view in enumerate(views):
        saved = watched.data(watched.call("torch.Tensor.clone", number), "input")
        np.testing.assert_array_equal(saved, view(x).numpy())


def test_verify_finds_a_lie_in_a_summary_that_views_share(tmp_path: Path) -> None:
    x = torch.zeros(4)
    view, pointer = x.view(2, 2), x.data_ptr()

    def work() -> None:
        x.neg()
        (ctypes.c_float * 4).from_address(pointer)[:] = [1.0] * 4  # unseen by torch
        view.neg()

    with pytest.warns(UserWarning, match="content had changed"), ulpscope.capture(tmp_path / "t", verify=True):
        work()
    coverage = open_trace(tmp_path / "t").ranks[0].info.coverage
    assert (coverage.summaries_verified, coverage.summaries_wrong) == (1, 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0.0,), (-0.0,)),
        ((1,), (1.0,)),
        ((1,), (True,)),
        (([1, 2],), ((1, 2),)),
        (((1, 2),), (torch.Size((1, 2)),)),
        ((slice(0, 1),), (slice(0, 1, 1),)),
        ((None,), (float("nan"),)),
    ],
)
def test_arguments_that_are_equal_but_not_the_same_are_told_apart(
    tmp_path: Path, one: tuple[Any, ...], other: tuple[Any, ...]
) -> None:
    from ulpscope.capture.recording.arguments import Encodings, to_json
    from ulpscope.capture.torch.tensors import ARGUMENTS, encode_call

    encodings = Encodings(ARGUMENTS)
    for args in (one, other, one, other):
        placed, text = encodings.encode(args, {})
        expected_placed, expected = encode_call(args, {})
        assert (placed, text) == (expected_placed, to_json(expected))
    assert encodings.encode(one, {})[1] != encodings.encode(other, {})[1]


def test_a_tensor_given_twice_is_named_as_such() -> None:
    from ulpscope.capture.recording.arguments import Encodings
    from ulpscope.capture.torch.tensors import ARGUMENTS

    encodings, x, y = Encodings(ARGUMENTS), torch.ones(1), torch.ones(1)
    texts = [encodings.encode(args, {})[1] for args in ((x, y), (x, x), (y, x), (y, y))]
    assert texts[0] == texts[2] != texts[1] == texts[3]


def test_a_list_that_holds_itself_is_encoded() -> None:
    from ulpscope.capture.recording.arguments import Encodings
    from ulpscope.capture.torch.tensors import ARGUMENTS

    endless: list[Any] = []
    endless.append(endless)
    assert "$truncated" in Encodings(ARGUMENTS).encode((endless,), {})[1]


class Telling(nn.Module):
    """Notes the stack of its own forward."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleList(inner)
        self.lines: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._told(x)
        for module in self.inner:
            x = module(x)
        return x

    def _told(self, x: torch.Tensor) -> torch.Tensor:
        frames = traceback.extract_stack()[::-1]
        self.lines.append([frame.lineno + 2 * (not depth) for depth, frame in enumerate(mine(frames))])
        return x.neg()


def mine(frames: Sequence[Any]) -> list[Any]:
    return [frame for frame in frames if getattr(frame, "filename", getattr(frame, "file", None)) == __file__]


def test_a_stack_inside_modules_is_whole(tmp_path: Path) -> None:
    leaf = Telling()
    middle = Telling(leaf, leaf)
    model = Telling(middle)

    def work() -> None:
        for _ in range(2):
            model(torch.ones(2))
        model(torch.ones(2))  # from another line

    watched = watch(tmp_path, work)
    calls = watched.calls.filter(watched.calls["op"] == "torch.Tensor.neg")
    recorded = [[frame.line for frame in mine(watched.trace.stack(stack))] for stack in calls["stack"]]
    assert sorted(recorded) == sorted(leaf.lines + middle.lines + model.lines)


def test_a_backward_that_writes_into_its_gradient_is_recorded_with_what_arrived(tmp_path: Path) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.mul_(2)

    x = torch.ones(3, requires_grad=True)
    watched = watch(tmp_path, lambda: (Scaled.apply(x) * 5.0).sum().backward(), save="tensors")
    call = watched.call("Scaled", kind="backward")
    np.testing.assert_array_equal(watched.data(call, "grad_output"), np.full(3, 5.0, np.float32))
    np.testing.assert_array_equal(watched.data(call, "grad_input"), np.full(3, 10.0, np.float32))


def test_a_module_and_the_function_in_it_each_have_their_backward(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    x = torch.ones(2, 3, requires_grad=True)
    watched = watch(tmp_path, lambda: model(x).sum().backward())
    for op, kind in (("linear", "backward"), ("Linear", "module_backward")):
        roles = watched.roles(watched.call(op, kind=kind))
        assert ("grad_output", "output.0") in roles
        assert ("grad_input", "args.0") in roles


def iterate(model: nn.Module, optimizer: torch.optim.Optimizer, each: Callable[[int], None]) -> None:
    for number in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 3), float(number))).sum().backward()
        each(number)
        optimizer.step()


@pytest.mark.parametrize("level", ["module", "api", "kernel"])
def test_steps_that_are_not_recorded_run_without_modes(tmp_path: Path, level: str) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    modes = []

    def look(_number: int) -> None:
        modes.append((torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()))

    watched = watch(tmp_path, lambda: iterate(model, optimizer, look), steps="1,3", level=level)
    on, off = (1, int(level == "kernel")), (0, 0)
    assert modes == [off, on, off, on]
    assert sorted(set(watched.calls["step"])) == [1, 3]


def test_a_step_is_recorded_the_same_whether_those_before_it_are(tmp_path: Path) -> None:
    def run(folder: str, **options: Any) -> list[tuple[Any, ...]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        watched = watch(tmp_path / folder, lambda: iterate(model, optimizer, lambda _: None), **options)
        frame = watched.calls.filter(watched.calls["step"] == 2)
        functions = [
            watched.trace.call(number) for number in frame.filter(op="torch.nn.functional.linear", kind="api")["id"]
        ]
        values = [watched.value(call, "output").digest for call in functions]
        return [*frame.select("name", "kind", "phase", "module", "micro_step").rows(), tuple(values)]

    assert run("some", steps="2") == run("all")


def test_memory_handed_out_in_a_step_that_is_not_recorded_is_not_trusted_later(tmp_path: Path) -> None:
    x, model = torch.zeros(4), nn.Identity()
    pointers = []

    with ulpscope.capture(tmp_path / "t", save="tensors", steps="1") as running:
        running.step()
        model(x)  # recorded: x is known from here on
        running.begin_at(0)
        pointers.append(x.data_ptr())
        running.begin_at(1)
        model(x)
        (ctypes.c_float * 4).from_address(pointers[0])[:] = [7.0] * 4
        model(x)
    watched = Watched(open_trace(tmp_path / "t").ranks[0])
    last = watched.calls.filter(watched.calls["kind"] == "module")["id"][-1]
    np.testing.assert_array_equal(watched.data(watched.trace.call(last), "input"), np.full(4, 7.0, np.float32))


def test_torch_is_left_as_it_was_after_steps_that_were_not_recorded(tmp_path: Path) -> None:
    before = {name: torch.Tensor.__dict__.get(name) for name in ("data_ptr", "numpy", "__dlpack__", "untyped_storage")}
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ulpscope.capture(tmp_path / "t", steps="0"):
        iterate(model, optimizer, lambda _: None)
    assert {name: torch.Tensor.__dict__.get(name) for name in before} == before
    assert torch._C._len_torch_function_stack() == 0


class Queue:
    """A pool of rows that reads tensors only when it is told to settle."""

    def __init__(self) -> None:
        self.waiting = 0
        self.settled = 0
        self._batch = HostBatch()

    def summarize(self, _tensor: torch.Tensor) -> RowRef:
        self.waiting += 1
        return self._batch, 0

    def settle(self) -> None:
        self.settled += self.waiting
        self.waiting = 0


def test_no_summary_waits_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULPSCOPE_HOST", "python")  # what is replaced here is used by that code only
    queue = Queue()
    monkeypatch.setattr(RowPool, "summarize", lambda _pool, tensor: queue.summarize(tensor))
    monkeypatch.setattr(RowPool, "settle", lambda _pool: queue.settle())
    monkeypatch.setattr(RowPool, "unsettled", property(lambda _pool: queue.waiting > 0))
    waiting = []

    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            waiting.append(queue.waiting)
            y = x * 2
            waiting.append(queue.waiting)
            return y

    model = nn.Sequential(nn.Linear(3, 3), Looking(), nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[0].weight.register_hook(lambda _gradient: waiting.append(queue.waiting))
    model[0].weight.register_post_accumulate_grad_hook(lambda _weight: waiting.append(queue.waiting))
    with ulpscope.capture(tmp_path / "t", model=model) as running:
        iterate(model, optimizer, lambda _: waiting.append(queue.waiting))
        running.record("own", "mine", {"x": torch.ones(2)})
        waiting.append(queue.waiting)
    assert queue.settled > 50
    assert set(waiting) == {0}


Enter = Callable[[nn.Linear, Callable[[torch.Tensor], None], pytest.MonkeyPatch], None]


def before(change: Callable[[torch.Tensor], None], original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that changes its first tensor's memory before it does what it did."""

    def changed(*args: Any) -> Any:
        change(next(item for item in args if isinstance(item, torch.Tensor)))
        return original(*args)

    return changed


def add_global_hook(_linear: nn.Linear, change: Callable[[torch.Tensor], None], patch: pytest.MonkeyPatch) -> None:
    hooks = nn.modules.module._global_forward_pre_hooks
    patch.setitem(hooks, 0, lambda module, args: change(args[0]) if isinstance(module, nn.Linear) else None)


# Ways by which code of the run's own gets into a module of torch's.
WAYS_IN: dict[str, Enter] = {
    "a hook": lambda linear, change, _: linear.register_forward_hook(lambda _m, args, _o: change(args[0])) and None,
    "a hook before": lambda linear, change, _: (
        linear.register_forward_pre_hook(lambda _, args: change(args[0])) and None
    ),
    "a hook of all modules": add_global_hook,
    "its own forward": lambda linear, change, patch: patch.setattr(linear, "forward", before(change, linear.forward)),
    "its class's forward": lambda _, change, patch: patch.setattr(
        nn.Linear, "forward", before(change, nn.Linear.forward)
    ),
    "another function": lambda _, change, patch: patch.setattr(
        nn.functional, "linear", before(change, nn.functional.linear)
    ),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_memory_that_a_module_of_torch_hands_out_is_not_trusted_at_level_module(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return cast(torch.Tensor, first(x) + second(x))

    WAYS_IN[way](first, lambda tensor: tensor.numpy().fill(7.0), monkeypatch)
    watched = watch(tmp_path, lambda: Twice()(torch.zeros(2, 3)), level="module")
    given = [watched.value(watched.call("Linear", number), "input").digest for number in range(2)]
    assert given[0] != given[1]


@contextmanager
def saving(work: Callable[[torch.Tensor], None]) -> Iterator[None]:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: (work(saved), saved)[1], lambda saved: saved):
        yield


class Looking(TorchDispatchMode):
    """A mode of the user's own that reads what goes through it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_the_mode_is_off_only_while_nobody_else_looks_on() -> None:
    linear = nn.Linear(3, 3)
    assert is_bare(linear)
    with saving(lambda _: None):
        assert not is_bare(linear)
    with Looking():  # type: ignore[no-untyped-call]
        assert not is_bare(linear)
    assert not is_bare(nn.BatchNorm1d(3))
    assert not is_bare(type("Own", (nn.Linear,), {})(3, 3))
    assert is_bare(linear)


def test_a_mode_that_was_taken_off_comes_back() -> None:
    class Mode(TorchFunctionMode):
        pass

    depths = []

    def run(_module: nn.Module, *, fails: bool) -> None:
        depths.append(torch._C._len_torch_function_stack())
        if fails:
            raise ZeroDivisionError

    mode, above = Mode(), Mode()  # type: ignore[no-untyped-call]
    with mode:
        run_without(mode, run, nn.Identity(), (), {"fails": False})
        with pytest.raises(ZeroDivisionError):
            run_without(mode, run, nn.Identity(), (), {"fails": True})
        with above:
            run_without(mode, run, nn.Identity(), (), {"fails": False})
        assert torch._C._len_torch_function_stack() == 1
    assert depths == [0, 0, 2]
