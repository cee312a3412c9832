"""Overflows of long runs: the call of birth is told, healthy trainings are left alone, nothing else is kept."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch

import overflow_zoo as zoo
import ulpscope
from ulpscope.capture.watch.overflow import MOST_SKIPS
from ulpscope.compat.msprobe_config import read_config
from ulpscope.records.enums import ExitCode
from ulpscope.trace.reader import open_trace
from ulpscope.trace.writer import RankWriter
from ulpscope.workflows.overflow import overflow

torch.set_num_threads(1)
QUICK = ("fp16_logits", "exp", "inf_weight", "loss_scale", "custom_backward", "eps_underflow", "empty_mean")
FAULTS = {fault.name: fault for fault in zoo.FAULTS}
HEALTHY = dict(zoo.healthy_trainings())


def fresh() -> zoo.Training:
    torch.manual_seed(0)
    model = zoo.Model()
    return zoo.Training(model, zoo._adam(model))


@pytest.mark.parametrize("name", QUICK)
def test_the_call_of_birth_is_named(name: str, tmp_path: Path) -> None:
    assert zoo.judged(FAULTS[name], tmp_path / "run") is None


@pytest.mark.parametrize("name", [*HEALTHY])
def test_a_healthy_training_is_left_alone_and_nothing_of_it_is_kept(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert zoo.trained(HEALTHY[name](), tmp_path / "run", steps=6) == []
    trace = open_trace(tmp_path / "run")
    assert (trace.steps, trace.ranks[0].info.errors) == ((), ())
    survey = overflow([tmp_path / "run"]).survey
    assert (survey.code, survey.counts.calls > 100) == (ExitCode.OK, True)


@pytest.mark.parametrize("recorder", ["", "python"])
def test_only_steps_with_an_overflow_and_the_one_after_are_kept(
    recorder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if recorder:
        monkeypatch.setenv("ULPSCOPE_HOST", recorder)
    said = zoo.trained(fresh(), tmp_path / "run", steps=9, plant=FAULTS["exp"].plant)
    assert [text.partition(":")[0] for text in said] == ["overflow in step 5, forward"]
    rank = open_trace(tmp_path / "run").ranks[0]
    assert (rank.steps, rank.missing, rank.info.errors) == ((5, 6), (), ())
    (found,) = overflow([tmp_path / "run"]).survey.findings
    assert found.place.call == "torch.Tensor.exp.0"
    assert found.place.source is not None
    assert found.way[-1].is_loss


@pytest.mark.parametrize("recorder", ["", "python"])
def test_values_of_steps_that_were_thrown_away_are_there_where_they_are_used(
    recorder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if recorder:
        monkeypatch.setenv("ULPSCOPE_HOST", recorder)
    zoo.trained(fresh(), tmp_path / "run", steps=9, plant=FAULTS["exp"].plant)
    rank = open_trace(tmp_path / "run").ranks[0]
    values, uses = rank.collect(rank.values()), rank.collect(rank.tensors())
    assert values["id"].is_unique().all()
    assert set(uses["value"]) == set(values["id"])
    # Weights are summarised once, after an update.
    updated = uses.filter(
        role="parameter_after", call=min(rank.collect(rank.calls(5).filter(pl.col("kind") == "optimizer"))["id"])
    )
    read = rank.collect(rank.tensors(6).filter(pl.col("role") == "parameter"))
    assert set(updated["value"]) <= set(read["value"])


def test_numbers_stay_as_they_were(tmp_path: Path) -> None:
    ends = []
    for out in (None, tmp_path / "run"):
        training = fresh()
        tokens = torch.randint(zoo.WORDS, (zoo.BATCH, zoo.LENGTH), generator=torch.Generator().manual_seed(1))
        if out is None:
            for _ in range(3):
                training.step(tokens, tokens)
        else:
            with ulpscope.watch(training.model, out=out, what="overflow"):
                for _ in range(3):
                    training.step(tokens, tokens)
        ends.append([one.detach().clone() for one in training.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_ring_has_the_data_of_the_last_calls(tmp_path: Path) -> None:
    training = fresh()
    training.model.blocks[1].extra = lambda x: (x.abs() * 1e3).exp()  # type: ignore[assignment]
    tokens = torch.zeros(zoo.BATCH, zoo.LENGTH, dtype=torch.long)
    watch = ulpscope.watch(training.model, out=tmp_path / "run", what="overflow", ring=64_000)
    watch.say_by(lambda text: None)
    with watch:
        for _ in range(2):
            training.step(tokens, tokens)
    rank = open_trace(tmp_path / "run").ranks[0]
    assert rank.info.errors == ()
    values = rank.collect(rank.values().select("id", "data_file"))
    held = values.drop_nulls("data_file")
    assert 0 < held.height < values.height
    read = [rank.data(value) for value in rank.find_values(held["id"]).values()]
    assert all(each is not None for each in read)


def test_what_a_scaler_skips_is_told_apart_until_the_scale_cannot_be_the_reason(tmp_path: Path) -> None:
    training = fresh()
    training.autocast = torch.float16
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    said: list[str] = []
    tokens = torch.zeros(zoo.BATCH, zoo.LENGTH, dtype=torch.long)
    with zoo.watched(tmp_path / "run", training.model, said):
        for _ in range(6):
            training.step(tokens, tokens)
    assert [text.split()[0] for text in said] == ["GradScaler"]
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    with zoo.watched(tmp_path / "other", training.model, said):
        for _ in range(MOST_SKIPS + 2):
            training.step(tokens, tokens)
    assert said[-1].startswith(f"overflow in step {MOST_SKIPS - 1}, ")


def test_so_many_overflows_are_kept_as_are_asked_for(tmp_path: Path) -> None:
    training, said = fresh(), list[str]()
    watch = ulpscope.watch(training.model, out=tmp_path / "run", what="overflow", overflows=2)
    watch.say_by(said.append)
    tokens = torch.zeros(zoo.BATCH, zoo.LENGTH, dtype=torch.long)
    with watch, torch.no_grad():
        for step in range(9):
            training.model.blocks[1].extra = (lambda x: (x - x).log()) if step in (1, 4, 7) else None  # type: ignore
            training.model(tokens)
            watch.step()
    assert [text.partition(",")[0] for text in said] == ["overflow in step 1", "overflow in step 4"]
    assert open_trace(tmp_path / "run").steps == (1, 2, 4, 5)


def test_a_disk_that_is_full_ends_the_watch_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULPSCOPE_HOST", "python")

    def full(*_: object, **__: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(RankWriter, "write_part", full)
    with pytest.warns(UserWarning, match="No space left"):
        zoo.trained(fresh(), tmp_path / "run", steps=8, plant=FAULTS["exp"].plant)


STOPPED = """
import torch
from torch import nn
net = nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(50):
    optimizer.zero_grad()
    out = net(torch.ones(2, 3))
    if step == 4:
        out = (out * 0).log()
    out.sum().backward()
    optimizer.step()
print("to the end")
"""


def test_the_command_tells_it_and_ends_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STOPPED)
    options = ["--watch", "overflow", "--stop-on-overflow"]
    command = [sys.executable, "-m", "ulpscope", "run", "-o", str(tmp_path / "run"), *options, "--", sys.executable]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False)
    assert "overflow in step 4, forward: torch.Tensor.log.0 (train.py:10) made 6 -inf" in done.stderr
    assert (done.returncode, "to the end" in done.stdout) == (1, False)


def test_overflow_check_of_msprobe() -> None:
    config = read_config(None, {"dump_path": "x", "task": "overflow_check", "overflow_nums": 3})
    assert config.overflow is not None
    assert (config.overflow.most, config.remarks) == (3, ())
    assert read_config(None, {"dump_path": "x", "overflow_nums": 3}).overflow is None


def test_places_in_the_code_are_known_of_every_step_that_is_kept(tmp_path: Path) -> None:
    training = fresh()
    watch = ulpscope.watch(training.model, out=tmp_path / "run", what="overflow", overflows=2)
    watch.say_by(lambda text: None)
    tokens = torch.zeros(zoo.BATCH, zoo.LENGTH, dtype=torch.long)
    with watch, torch.no_grad():
        for step in range(6):
            training.model.blocks[1].extra = (lambda x: (x - x).log()) if step in (1, 4) else None  # type: ignore
            training.model(tokens)
            watch.step()
    found = overflow([tmp_path / "run"]).survey.findings
    assert [(each.place.step, each.place.source is not None) for each in found] == [(1, True), (4, True)]
