"""Long trainings: what is recorded of them, that nothing of the run changes, and that what goes wrong is told."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.unit.test_tensorboard import read_scalars
from torch import nn

import monitored
import monitoring
import ulpscope
from ulpscope.records.anomalies import AnomalyKind
from ulpscope.trace.overview import training_trends
from ulpscope.trace.reader import RankTrace, open_trace
from ulpscope.trace.trainings.course import course_of
from ulpscope.trace.trainings.following import TrainingFollower
from ulpscope.trace.watched import SCALE
from ulpscope.trace.writer import RankWriter
from ulpscope.workflows.report.exports import export_tensorboard
from ulpscope.workflows.report.serving import LivePage

torch.set_num_threads(1)
STEPS = 6


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Dropout(0.2), nn.Linear(7, 2))


def plain(net: nn.Module, *, steps: int = STEPS) -> list[dict[str, Any]]:
    """AdamW with clipped gradients and a schedule; gives what each step had."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    batches, seen = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        optimizer.zero_grad()
        made = net(torch.randn(5, 4, generator=batches))
        loss = made.square().mean()
        loss.backward()
        known: dict[str, Any] = {"loss": loss.item(), "lr": schedule.get_last_lr()[0], "output": made.norm().item()}
        known["local"] = {name: one.grad.norm().item() for name, one in net.named_parameters()}
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        known["read"] = {name: one.grad.norm().item() for name, one in net.named_parameters()}
        optimizer.step()
        known["after"] = {name: one.norm().item() for name, one in net.named_parameters()}
        known["moment"] = {n: optimizer.state[one]["exp_avg"].norm().item() for n, one in net.named_parameters()}
        seen.append(known)
        schedule.step()
    return seen


def autocast(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(torch.randn(5, 4)).float().square().mean()
        loss.backward()
        optimizer.step()


def scaled(net: nn.Module) -> None:
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", 2.0**126)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(net(torch.randn(5, 4)).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()


def several(net: nn.Sequential) -> None:
    optimizers = [torch.optim.Adam(net[0].parameters(), lr=0.1), torch.optim.SGD(net[3].parameters(), lr=0.1)]
    for _ in range(STEPS):
        net(torch.randn(5, 4)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def wait_for_steps(path: Path, steps: int) -> None:
    """Until so many are on disk: another process writes them."""
    until = time.monotonic() + 60
    while len(list(path.glob("rank0/step*/step.json"))) < steps and time.monotonic() < until:
        time.sleep(0.05)


def only_rank(path: Path) -> RankTrace:
    (rank,) = open_trace(path).ranks
    assert rank.info.errors == ()
    return rank


def uses(rank: RankTrace, step: int) -> pl.DataFrame:
    """What each call of a step has, with its norm."""
    calls = rank.calls(step).select("id", "kind", "module", "op")
    used = (
        rank.tensors(step)
        .join(calls, left_on="call", right_on="id")
        .select("kind", "module", "op", "role", "place", "value")
    )
    return rank.collect(used.join(rank.values().select("id", "norm", "mean"), left_on="value", right_on="id"))


@pytest.mark.parametrize("train", [plain, autocast, scaled, several])
def test_a_watched_training_has_the_same_bits(train: Callable[[nn.Sequential], object], tmp_path: Path) -> None:
    nets = [network(), network()]
    torch.manual_seed(3)
    train(nets[0])
    torch.manual_seed(3)
    with ulpscope.watch(nets[1], out=tmp_path / "run", what="training"):
        train(nets[1])
    pairs = zip(nets[0].parameters(), nets[1].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert only_rank(tmp_path / "run").steps == tuple(range(STEPS))


def test_what_is_recorded_is_what_the_training_had(tmp_path: Path) -> None:
    net = network()
    with ulpscope.watch(net, out=tmp_path / "run", what="training"):
        seen = plain(net)
    rank = only_rank(tmp_path / "run")
    for step, known in enumerate(seen):
        used = uses(rank, step)

        def norm(kind: str, role: str, place: str, module: str | None = None, used: pl.DataFrame = used) -> float:
            found = used.filter(pl.col("kind") == kind, pl.col("role") == role, pl.col("place") == place)
            return float(found.filter(pl.col("module").eq_missing(pl.lit(module)))["norm"][0])

        assert used.filter(pl.col("role") == "loss")["mean"].to_list() == pytest.approx([known["loss"]])
        assert norm("module", "output", "output.0", "model") == pytest.approx(known["output"])
        for name, parameter in net.named_parameters():
            module, _, place = f"model.{name}".rpartition(".")
            assert norm("module_backward", "grad_input", place, module) == pytest.approx(known["local"][name], rel=1e-5)
            assert norm("optimizer", "gradient", f"model.{name}") == pytest.approx(known["read"][name], rel=1e-5)
            assert norm("optimizer", "parameter_after", f"model.{name}") == pytest.approx(
                known["after"][name], rel=1e-5
            )
            moment = norm("optimizer", "state_after", f"model.{name}.exp_avg")
            assert moment == pytest.approx(known["moment"][name], rel=1e-5)
            assert parameter.grad is not None
    course = course_of(rank)
    assert course is not None
    shown = {what: list(rows["value"]) for (what,), rows in course.table.group_by("what", maintain_order=True)}
    assert shown["loss"] == pytest.approx([known["loss"] for known in seen])
    assert shown["lr"] == [known["lr"] for known in seen]
    norms = [math.hypot(*known["read"].values()) for known in seen]
    assert shown["gradient_norm"] == pytest.approx(norms, rel=1e-5)


def test_a_loss_scale_is_recorded_and_taken_out_of_the_loss(tmp_path: Path) -> None:
    net, losses = network(), []
    optimizer, scaler = (
        torch.optim.SGD(net.parameters(), lr=1e-3),
        torch.amp.GradScaler("cpu", 1024.0, growth_interval=2),
    )
    with ulpscope.watch(net, out=tmp_path / "run", what="training"):
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = net(torch.randn(5, 4)).square().sum()
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    rank = only_rank(tmp_path / "run")
    scales = [uses(rank, step).filter(pl.col("place") == SCALE)["mean"][0] for step in rank.steps]
    assert scales == [1024.0, 1024.0, 2048.0, 2048.0, 4096.0, 4096.0]
    course = course_of(rank)
    assert course is not None
    assert course.table.filter(pl.col("what") == "loss")["value"].to_list() == pytest.approx(losses)


def test_chosen_modules_steps_and_optimizers(tmp_path: Path) -> None:
    net = network()
    with ulpscope.watch(net, out=tmp_path / "some", what="training", only=("3",), steps="1-4", every=2):
        plain(net)
    rank = only_rank(tmp_path / "some")
    assert rank.steps == (2, 4)
    used = uses(rank, 2)
    assert set(used["module"].drop_nulls()) == {"model.3"}
    assert set(used.filter(pl.col("role") == "gradient", pl.col("kind") == "optimizer")["place"]) == {
        "model.3.weight",
        "model.3.bias",
    }
    assert used.filter(pl.col("role") == "loss").height == 1
    net = network()
    optimizers = [torch.optim.SGD(net[0].parameters(), lr=0.1), torch.optim.SGD(net[3].parameters(), lr=0.1)]
    with ulpscope.watch(net, optimizers[1], out=tmp_path / "one", what="training"):
        net(torch.randn(5, 4)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    read = uses(only_rank(tmp_path / "one"), 0).filter(pl.col("kind") == "optimizer", pl.col("role") == "gradient")
    assert sorted(read["place"]) == ["model.3.bias", "model.3.weight"]


def test_a_file_changes_what_is_recorded_while_the_training_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, control = network(), tmp_path / "control.yaml"
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    contents = {1: "watch: off", 3: "only: ['3']", 5: "every: [", 6: "evry: 3", 7: "every: 4\nonly: []"}
    with ulpscope.watch(net, out=tmp_path / "run", what="training", control=control):
        for step in range(13):
            if step in contents:
                control.write_text(contents[step])
                os.utime(control, (step, step))  # two writes may share a moment
            optimizer.zero_grad()
            net(torch.randn(5, 4)).sum().backward()
            optimizer.step()
    rank = only_rank(tmp_path / "run")
    # It is looked at when a step begins, which it does at its first forward.
    assert rank.steps == (0, 3, 4, 5, 6, 8, 12)
    assert set(uses(rank, 5)["module"].drop_nulls()) == {"model.3"}
    assert "model.0" in set(uses(rank, 8)["module"])
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(" is ignored: ")[0] for line in told] == [f"ulpscope: {control}"] * 2
    assert "evry is none of watch, every, only, skip" in told[1]


def test_updates_that_nobody_saw_are_no_writes_of_somebody_else(tmp_path: Path) -> None:
    net, control = network(), tmp_path / "control.yaml"
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with ulpscope.watch(net, out=tmp_path / "run", what="training", control=control) as watching:
        for step in range(60):
            if step in (20, 40):
                control.write_text(f"watch: {'off' if step == 20 else 'on'}")
                os.utime(control, (step, step))
            optimizer.zero_grad()
            net(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
    assert only_rank(tmp_path / "run").steps == (*range(20), *range(40, 60))
    assert watching.anomalies == []


def test_a_disk_that_is_full_ends_the_watch_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network()

    def full(*_: object, **__: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setenv("ULPSCOPE_HOST", "python")
    monkeypatch.setattr(RankWriter, "write_part", full)
    with pytest.warns(UserWarning, match="No space left"), ulpscope.watch(net, out=tmp_path / "run", what="training"):
        assert len(plain(net)) == STEPS


def test_a_step_that_cannot_be_asked_is_recorded_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no such number")

    monkeypatch.setenv("ULPSCOPE_HOST", "python")
    monkeypatch.setattr(TrainingFollower, "look", fail)
    with (
        pytest.warns(UserWarning, match="no such number"),
        ulpscope.watch(network(), out=tmp_path / "run", what="training"),
    ):
        plain(network())
    (rank,) = open_trace(tmp_path / "run").ranks
    assert rank.steps == tuple(range(STEPS))
    assert len(rank.info.errors) == 1


KILLED = """
import os, signal, sys, torch, ulpscope
from torch import nn
net = nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
ulpscope.watch(net, optimizer, out=sys.argv[1], what="training")
for step in range(100):
    optimizer.zero_grad()
    net(torch.ones(2, 3)).sum().backward()
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
"""


def test_a_killed_run_loses_at_most_the_step_it_was_in(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")], check=False)
    assert done.returncode == -signal.SIGKILL
    rank = open_trace(tmp_path / "run").ranks[0]
    assert set(rank.steps) >= {0, 1, 2, 3, 4}
    assert uses(rank, 4).filter(pl.col("role") == "parameter_after").height == 2


SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(30):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    if step == 24:
        net[2].weight.grad[0, 0] = float("nan")
    optimizer.step()
    print("step", step, "done", file=sys.stderr, flush=True)
"""


def test_the_command_tells_an_anomaly_once_while_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "ulpscope", "run", "-o", str(tmp_path / "run"), "--watch", "training", "--json"]
    done = subprocess.run(
        [*command, "--", sys.executable, str(tmp_path / "train.py")], capture_output=True, text=True, check=True
    )
    sentence = "anomaly in step 24: gradient of model.2.weight, as the optimizer reads it, has 1 nan or inf"
    lines = done.stderr.splitlines()
    told = [line for line in lines if line.startswith("ulpscope: anomaly")]
    assert len(told) == 1
    assert told[0].startswith(f"ulpscope: {sentence}")
    assert sum(line.startswith(f"  {sentence}") for line in lines) == 1, "once more in the summary"
    (found,) = json.loads(done.stdout)["findings"]
    assert (found["kind"], found["step"], found["name"]) == ("not_finite", 24, "model.2.weight")
    shown = ulpscope.show(tmp_path / "run")
    assert sentence in " ".join(shown.text(width=200).split())
    assert [each["kind"] for each in shown.json()["ranks"][0]["anomalies"]] == ["not_finite"]


@pytest.mark.parametrize("name", ["scaled_gradient", "written", "frozen", "moment"])
def test_what_is_planted_is_told_within_two_steps(name: str, tmp_path: Path) -> None:
    fault = monitoring.FAULTS[name]
    found = monitoring.watched(tmp_path / "run", fault.training, steps=monitoring.FAULT_STEP + 4, fault=fault)
    assert monitoring.judged(fault, found) is None
    assert len(found) == 1


def test_a_loss_that_parts_from_an_earlier_training_is_told(tmp_path: Path) -> None:
    assert monitoring.judged(monitoring.LIKE, monitoring.parted(tmp_path)) is None


def test_a_healthy_training_with_a_growing_loss_scale_is_silent(tmp_path: Path) -> None:
    assert monitoring.watched(tmp_path / "run", monitored.writer_scaled, steps=60) == []


def test_ranks_that_should_agree(tmp_path: Path) -> None:
    (found,) = monitoring.parallel(tmp_path / "run", planted=True)
    assert (found.kind, found.rank, found.other_rank) == (AnomalyKind.RANKS, 1, 0)
    assert (found.step, found.name) == (monitoring.FAULT_STEP, "model.module.0.weight")


def test_ranks_have_the_same_bits_and_gradients_from_before_they_are_reduced(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    script = Path(__file__).with_name("training_ranks.py")
    done = subprocess.run([*launch, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[-2:] == ["rank 0 ok", "rank 1 ok"]


def test_its_course_is_on_the_page_and_in_tensorboard(tmp_path: Path) -> None:
    net = network()
    with ulpscope.watch(net, out=tmp_path / "run", what="training"):
        seen = plain(net)
    trends = training_trends(open_trace(tmp_path / "run"))
    assert set(trends["what"]) == {"training"}
    for name, key in (("loss", "loss"), ("lr", "lr")):
        rows = trends.filter(pl.col("module") == name).sort("step")
        assert rows["norm"].to_list() == pytest.approx([known[key] for known in seen])
    export_tensorboard(tmp_path / "run", tmp_path / "board")
    scalars = read_scalars(tmp_path / "board/rank0/events.out.tfevents.0.ulpscope")
    assert [scalars[step, "loss"] for step in range(STEPS)] == pytest.approx([known["loss"] for known in seen])
    assert {(0, tag) for tag in ("lr", "gradient_norm", "norm/output/model.0")} <= scalars.keys()


def test_a_served_page_has_the_steps_that_came_since(tmp_path: Path) -> None:
    net = network()
    with ulpscope.watch(net, out=tmp_path / "run", what="training") as watching:
        plain(net, steps=3)
        wait_for_steps(tmp_path / "run", 2)
        page = LivePage(tmp_path / "run")
        first = page.read()
        plain(net, steps=3)
        watching.close()
    assert page.read() != first
    assert page.read() == page.read()
