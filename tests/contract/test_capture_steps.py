"""Steps, micro-steps, phases and the optimizer's call."""

import contextlib
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn
from watched import Watched, watch


def steps_of(watched: Watched, op: str) -> list[tuple[int, int]]:
    frame = watched.calls.filter(watched.calls["op"].str.ends_with(op) & (watched.calls["kind"] == "module"))
    return list(zip(frame["step"], frame["micro_step"], strict=True))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, *, iterations: int, accumulate: int = 1) -> None:
    criterion = nn.MSELoss()
    for _ in range(iterations):
        optimizer.zero_grad()
        for _ in range(accumulate):
            criterion(model(torch.ones(2, 3)), torch.zeros(2, 3)).backward()
        optimizer.step()


def test_an_iteration_is_a_step_from_the_first_on(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    watched = watch(tmp_path, lambda: trained(model, torch.optim.SGD(model.parameters(), 0.1), iterations=3))
    assert steps_of(watched, "Linear") == [(0, 0), (1, 0), (2, 0)]
    assert steps_of(watched, "MSELoss") == [(0, 0), (1, 0), (2, 0)]


def test_gradient_accumulation_makes_micro_steps_also_in_the_first_step(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watched = watch(tmp_path, lambda: trained(model, optimizer, iterations=2, accumulate=2))
    assert steps_of(watched, "Linear") == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_inference_makes_a_step_a_forward(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)

    def work() -> None:
        for _ in range(3):
            model(torch.ones(2, 3)).argmax()

    assert steps_of(watch(tmp_path, work), "Linear") == [(0, 0), (1, 0), (2, 0)]


def test_the_users_own_mark_rules(tmp_path: Path) -> None:
    import ulpscope
    from ulpscope.trace.reader import open_trace

    model = nn.Linear(3, 3)
    with ulpscope.capture(tmp_path / "t") as cap:
        model(torch.ones(1, 3))
        cap.step()
        model(torch.ones(1, 3))
        model(torch.ones(1, 3))
    assert steps_of(Watched(open_trace(tmp_path / "t").ranks[0]), "Linear") == [(0, 0), (1, 0), (1, 1)]


def test_a_step_that_grad_scaler_skips_is_a_step(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def work() -> None:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 3)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()

    watched = watch(tmp_path, work)
    assert steps_of(watched, "Linear") == [(0, 0), (1, 0), (2, 0)]
    assert watched.calls.filter(watched.calls["kind"] == "optimizer")["step"].to_list() == [0, 2]
    unscale = watched.calls.filter(watched.calls["op"].str.contains("unscale"))
    assert set(unscale["phase"]) == {"update"}


def test_phases_follow_the_iteration(tmp_path: Path) -> None:
    def work() -> None:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.ones(2).neg()

    watched = watch(tmp_path, work)
    phase = {op: watched.call(op).phase.value for op in ("kaiming_uniform_", "Linear", "sum", "neg", "SGD")}
    assert phase == {
        "kaiming_uniform_": "setup",
        "Linear": "forward",
        "sum": "forward",
        "neg": "other",
        "SGD": "update",
    }
    assert watched.call("vector_norm").phase.value == "update"


def test_an_optimizer_step_is_one_call_a_group_with_before_and_after(tmp_path: Path) -> None:
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    groups = [{"params": [first]}, {"params": [second], "lr": 0.5}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    before = first.detach().clone()

    def work() -> None:
        (first.sum() + second.sum()).backward()
        optimizer.step()

    watched = watch(tmp_path, work, save="tensors")
    calls = [watched.call("AdamW", number) for number in range(2)]
    assert [call.arguments["kwargs"]["lr"] for call in calls] == [0.1, 0.5]
    np.testing.assert_array_equal(watched.data(calls[0], "parameter", "params.0"), before.numpy())
    np.testing.assert_array_equal(watched.data(calls[0], "parameter_after", "params.0"), first.detach().numpy())
    np.testing.assert_array_equal(watched.data(calls[0], "gradient", "params.0"), np.ones(3, np.float32))
    state = optimizer.state[first]["exp_avg"]
    np.testing.assert_array_equal(watched.data(calls[0], "state_after", "params.0.exp_avg"), state.numpy())
    assert not [op for op in watched.ops(phase="update") if "AdamW" not in op]


def test_a_closure_is_looked_into(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 2)).pow(2).sum()
        loss.backward()
        return loss

    def work() -> None:
        optimizer.step(closure)
        optimizer.step(closure)

    watched = watch(tmp_path, work)
    assert {step for step, _ in steps_of(watched, "Linear")} == {0, 1}
    assert watched.calls.filter(watched.calls["kind"] == "optimizer")["step"].to_list() == [0, 1]
    assert watched.call("pow").phase.value == "forward"
    optimizing = watched.call("LBFGS")
    assert optimizing.error is None
    assert "parameter_after" in {role for role, _ in watched.roles(optimizing)}


def test_names_count_per_step_and_phase_before_any_filter(tmp_path: Path) -> None:
    def work() -> None:
        torch.ones(2).neg()
        model = nn.Identity()
        for _ in range(2):
            x = model(torch.ones(2))
            x.neg().neg()

    watched = watch(tmp_path, work, skip=["torch.Tensor.neg.0"])
    frame = watched.calls.filter(watched.calls["op"] == "torch.Tensor.neg")
    assert list(zip(frame["name"], frame["step"], frame["phase"], strict=True)) == [
        ("torch.Tensor.neg.1", 0, "forward"),
        ("torch.Tensor.neg.1", 1, "forward"),
    ]


def test_backwards_are_numbered_before_any_filter_too(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)

    def work() -> None:
        x.exp().mul(2).mul(3).sum().backward()

    everything = watch(tmp_path, work)
    some = watch(tmp_path, work, only=["torch.Tensor.mul.0", "torch.Tensor.exp"])
    first = everything.call("torch.Tensor.mul", 0, kind="api")
    names = [
        everything.trace.call(number).name
        for number in everything.calls.filter(everything.calls["forward"] == first.id)["id"]
    ]
    assert names == ["torch.Tensor.mul.1"]
    assert names[0] in some.calls.filter(some.calls["kind"] == "backward")["name"].to_list()
    coverage = some.trace.info.coverage
    assert coverage.calls_seen == everything.trace.info.coverage.calls_seen
    assert coverage.calls_recorded + coverage.calls_filtered == coverage.calls_seen


def test_an_optimizer_that_raises_costs_nothing_but_its_own_step(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)

    class Failing(torch.optim.SGD):
        fails = True

        def step(self, closure: object = None) -> None:
            if self.fails:
                raise ValueError
            super().step()

    optimizer = Failing(model.parameters(), 0.1)

    def work() -> None:
        for fails in (True, False, False):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.fails = fails
            with contextlib.suppress(ValueError):
                optimizer.step()

    watched = watch(tmp_path, work)
    assert [step for step, _ in steps_of(watched, "Linear")] == [0, 1, 2]
    assert watched.calls.filter(watched.calls["kind"] == "optimizer")["error"].to_list()[0] is not None


def test_master_weights_are_seen_after_the_step(tmp_path: Path) -> None:
    model = nn.Linear(3, 3, bias=False)
    master = model.weight.detach().clone()

    class Copying(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            master.sub_(0.5)
            model.weight.data.copy_(master)

    optimizer = Copying(model.parameters(), 0.1)

    def work() -> None:
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()

    before = model.weight.detach().clone()
    watched = watch(tmp_path, work, save="tensors")
    linear = watched.call("torch.nn.functional.linear", 1, kind="api")
    np.testing.assert_array_equal(watched.data(linear, "input", "args.1"), (before - 0.5).numpy())


def test_temporary_modules_keep_their_name(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def work() -> None:
        for _ in range(3):
            nn.MSELoss()(model(torch.ones(2, 3)), torch.zeros(2, 3)).backward()
            optimizer.step()

    watched = watch(tmp_path, work)
    losses = watched.calls.filter(watched.calls["op"].str.ends_with("MSELoss") & (watched.calls["kind"] == "module"))
    assert set(losses["module"]) == {"MSELoss"}


class Whole(nn.Module):
    """Calls its parts from a method of its own, as encoder-decoders do before they generate."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(x)

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return self(self.encoder(x))


def test_a_part_that_its_whole_calls_is_named_after_it(tmp_path: Path) -> None:
    model = Whole()
    seen = watch(tmp_path, lambda: model.generate(torch.ones(1, 2)))
    modules = seen.calls.filter(pl.col("kind") == "module")["module"].to_list()
    assert modules == ["model.encoder", "model", "model.decoder"]
    assert [root.name for root in seen.trace.info.roots] == ["model.encoder", "model"]


def test_computing_a_parameter_is_no_step(tmp_path: Path) -> None:
    def work() -> None:
        model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        for _ in range(3):
            model.weight.norm()
        model(torch.ones(1, 2))

    seen = watch(tmp_path, work)
    assert set(seen.calls["step"]) == {0}
    assert [root.module_class.rpartition(".")[2] for root in seen.trace.info.roots] == ["ParametrizedLinear"]


def test_a_batch_belongs_to_the_step_that_reads_it(tmp_path: Path) -> None:
    data = [torch.full((2,), float(number)) for number in range(6)]

    def work() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for batch in torch.utils.data.DataLoader(data, batch_size=2):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    seen = watch(tmp_path, work)
    stacks = seen.calls.filter(pl.col("op") == "torch.stack")
    assert stacks["step"].to_list() == [0, 1, 2]
    assert seen.calls["step"].max() == 2
