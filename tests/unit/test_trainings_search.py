"""What is odd in a training's numbers, and what is not, on plain values."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ulpscope.capture.events import EventLog
from ulpscope.records.anomalies import Anomaly, AnomalyKind, Quantity
from ulpscope.report.terminal.anomalies import anomaly_text
from ulpscope.report.terminal.training_course import sparkline
from ulpscope.report.words.language import Language
from ulpscope.trace.trainings.earlier import LossCourse
from ulpscope.trace.trainings.numbers import NUMBERS, StepNumbers
from ulpscope.trace.trainings.search import AnomalySearch
from ulpscope.trace.trainings.written import add_anomaly, anomaly_fields, read_anomalies
from ulpscope.workflows.run.command import RunWatch

OUTPUT, LOSS, GRADIENT, UPDATE = Quantity.OUTPUT, Quantity.LOSS, Quantity.GRADIENT, Quantity.UPDATE


def row(quantity: Quantity, name: str, size: float, **others: Any) -> dict[str, Any]:
    usual = {"not_finite": 0, "minus_inf": 0, "zeros": 0, "elements": 64, "call": f"call of {name}", "call_id": 1}
    return dict.fromkeys(NUMBERS) | usual | {"quantity": quantity.value, "name": name, "size": size} | others


def numbers(step: int, rows: list[dict[str, Any]], *, scale: float | None = None) -> StepNumbers:
    return StepNumbers(step, pl.DataFrame([each | {"step": step} for each in rows], schema=NUMBERS), scale)


class Training:
    """Three layers whose numbers scatter by a tenth."""

    def __init__(self, *, noise: float = 0.1, seed: int = 0) -> None:
        self.search, self.step = AnomalySearch(0), 0
        self._noise, self._draw = noise, np.random.default_rng(seed)

    def rows(self, **changed: dict[str, Any]) -> list[dict[str, Any]]:
        """What is `changed` is named by quantity and layer: `output_1`."""
        made = {f"output_{layer}": self._row(OUTPUT, f"layers.{layer}", call_id=layer) for layer in range(3)}
        made["loss"] = self._row(LOSS, "loss", call_id=5, elements=1)
        for layer in range(3):
            name = f"layers.{layer}.weight"
            made[f"gradient_{layer}"] = self._row(GRADIENT, name, call_id=9)
            made[f"update_{layer}"] = self._row(UPDATE, name, lr=0.1, moved=True, distance=0.0, call_id=9)
        order = list(Quantity)
        rows = [made[key] | changed.get(key, {}) for key in made]
        return sorted(rows, key=lambda each: order.index(Quantity(each["quantity"])))

    def _row(self, quantity: Quantity, name: str, **others: Any) -> dict[str, Any]:
        return row(quantity, name, float(np.exp(self._noise * self._draw.standard_normal())), **others)

    def go(self, steps: int, **changed: dict[str, Any]) -> list[Anomaly]:
        return [each for _ in range(steps) for each in self.look(**changed)]

    def look(self, *, skipped: bool = False, **changed: dict[str, Any]) -> list[Anomaly]:
        self.step += 1
        return self.search.look(numbers(self.step - 1, self.rows(**changed)), skipped=skipped)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3, 1.0])
def test_noise_is_no_anomaly_however_large_it_is(noise: float) -> None:
    assert Training(noise=noise, seed=3).go(300) == []


def test_a_jump_is_told_once_with_what_follows_from_it() -> None:
    training = Training()
    assert training.go(40) == []
    (found,) = training.look(output_1={"size": 50.0}, output_2={"size": 60.0}, gradient_0={"size": 40.0})
    assert (found.kind, found.step, found.quantity, found.name) == (AnomalyKind.JUMP, 40, OUTPUT, "layers.1")
    assert found.others == 2
    assert found.usual == pytest.approx(1.0, rel=0.2)
    assert training.go(6, output_1={"size": 50.0}, output_2={"size": 60.0}) == []


def test_a_second_anomaly_after_a_quiet_time_is_another_one() -> None:
    training = Training()
    training.go(40)
    assert len(training.look(output_1={"size": 50.0})) == 1
    assert training.go(20) == []
    assert [each.name for each in training.look(gradient_2={"size": 500.0})] == ["layers.2.weight"]


def test_what_is_no_longer_finite_is_told_though_a_jump_came_before() -> None:
    training = Training()
    training.go(40)
    training.look(output_1={"size": 50.0})
    assert [each.kind for each in training.look(gradient_0={"not_finite": 3})] == [AnomalyKind.NOT_FINITE]
    assert training.go(30, gradient_0={"not_finite": 3}, gradient_1={"not_finite": 3}) == []


def test_a_run_that_scatters_more_allows_more() -> None:
    calm, wild = Training(noise=0.02), Training(noise=0.8)
    assert calm.go(40) == wild.go(40) == []
    assert calm.look(gradient_1={"size": 8.0}) != []
    assert wild.look(gradient_1={"size": 8.0}) == []


def test_the_first_steps_may_do_anything() -> None:
    training = Training(noise=0.02)
    sizes = [1e4, 1e3, 100.0, 50.0, 20.0, 10.0, 5.0, 2.0]
    assert [found for size in sizes for found in training.look(gradient_1={"size": size})] == []


def test_a_fall_is_told_if_it_lasts() -> None:
    training = Training()
    training.go(40)
    assert training.look(gradient_1={"size": 0.001}) == []
    assert training.go(20) == [], "sums of either sign are small for a moment"
    found = training.go(2, gradient_1={"size": 0.001})
    assert [(each.kind, each.step, each.name) for each in found] == [(AnomalyKind.JUMP, 62, "layers.1.weight")]
    assert training.go(9, update_2={"size": 1e-6}) == [], "an optimizer's momentum turns round"


def test_a_state_that_nobody_writes_is_not_quiet() -> None:
    search, draw = AnomalySearch(0), np.random.default_rng(0)
    told = []
    for step in range(120):
        runs = step < 40 or step >= 100  # an expert without tokens, whose moments are left alone
        size = 5.0 if step >= 100 else float(np.exp(0.1 * draw.standard_normal())) if runs else 1.0
        rows = [row(Quantity.STATE, "experts.3.weight.exp_avg", size, digest=step + 1 if runs else 40)]
        rows += [row(GRADIENT, "layers.0.weight", float(np.exp(0.1 * draw.standard_normal())))]
        told += search.look(numbers(step, rows))
    assert told == []


def test_an_update_is_measured_by_its_learning_rate() -> None:
    training = Training(noise=0.05)
    training.go(40)
    assert training.go(5, update_1={"lr": 1.0, "size": 10.0}) == []
    assert [each.kind for each in training.look(update_2={"size": 10.0})] == [AnomalyKind.JUMP]


def test_masks_of_minus_inf_and_what_was_never_finite_are_usual() -> None:
    training = Training()
    masked = {"output_0": {"minus_inf": 10}, "output_2": {"not_finite": 4}}
    assert training.go(20, **masked) == []
    assert [each.name for each in training.look(output_1={"not_finite": 1}, **masked)] == ["layers.1"]


def test_what_a_gradscaler_skips_is_its_business_unless_it_goes_on() -> None:
    local = Quantity.LOCAL_GRADIENT
    search = AnomalySearch(0)
    told = []
    for step in range(20):
        rows = [row(LOSS, "loss", 1.0), row(local, "layers.0.weight", 1.0, not_finite=0 if step < 2 else 5)]
        told += [(each.step, each.kind) for each in search.look(numbers(step, rows), skipped=step >= 2)]
    assert told == [(18, AnomalyKind.NOT_FINITE)]


def test_a_dead_layer_is_told_in_its_second_step() -> None:
    training = Training()
    training.go(20, output_1={"zeros": 30})
    dead = {"zeros": 64, "size": 0.0}
    assert training.look(output_1=dead) == []
    assert [(each.kind, each.name) for each in training.look(output_1=dead)] == [(AnomalyKind.DEAD, "layers.1")]
    assert Training().go(30, output_1=dead) == [], "zeros from the start on are how it is made"


def test_gradients_that_vanish() -> None:
    training = Training()
    training.go(20)
    gone = {"zeros": 64, "size": 0.0}
    found = training.go(2, gradient_1=gone)
    assert [(each.kind, each.name) for each in found] == [(AnomalyKind.VANISHED, "layers.1.weight")]
    fading = Training()
    fading.go(20)
    found = [each for step in range(60) for each in fading.look(gradient_1={"size": 0.7**step})]
    assert [(each.kind, each.name) for each in found] == [(AnomalyKind.VANISHED, "layers.1.weight")]


def test_a_module_that_does_not_run_may_have_no_gradient_and_not_move() -> None:
    training = Training()
    training.go(20)
    for step in range(20, 24):
        rows = [each for each in training.rows() if each["name"] != "layers.1"]
        for each in rows:
            if each["name"] == "layers.1.weight":
                each.update(zeros=64, size=0.0, moved=False)
        assert training.search.look(numbers(step, rows)) == []


def test_a_parameter_that_no_longer_moves() -> None:
    training = Training()
    training.go(20)
    still = {"moved": False, "size": 0.0}
    assert training.look(update_1=still) == []
    assert [(each.kind, each.name) for each in training.look(update_1=still)] == [
        (AnomalyKind.STUCK, "layers.1.weight")
    ]


def test_a_learning_rate_of_nothing_moves_nothing() -> None:
    training = Training()
    training.go(20)
    still = {"moved": False, "size": 0.0, "lr": 0.0}
    assert training.go(5, update_0=still, update_1=still, update_2=still) == []


def test_a_parameter_that_somebody_else_writes() -> None:
    training = Training()
    training.go(20)
    assert training.look(update_0={"distance": 0.5}) == [], "less than an update moves it"
    found = training.look(update_1={"distance": 9.0})
    assert [(each.kind, each.name, each.value) for each in found] == [(AnomalyKind.WRITTEN, "layers.1.weight", 9.0)]
    assert Training().go(40, update_1={"distance": 9.0}) == [], "in every step: the training does so"


def test_what_was_not_watched_for_a_while_may_be_anywhere() -> None:
    training = Training()
    training.go(40)
    training.step += 100
    assert training.go(20, output_1={"size": 50.0}, gradient_0={"size": 0.001}) == []
    assert [each.name for each in training.look(output_1={"size": 5000.0})] == ["layers.1"]


def test_an_alarm_by_chance_is_rarer_than_one_run_in_fifty() -> None:
    """Heavy tails: exponential ones, as gradients have."""
    false = 0
    for seed in range(12):
        draw, search = np.random.default_rng(seed), AnomalySearch(0)
        for step in range(200):
            sizes = np.exp(0.3 * draw.laplace(size=40))
            rows = [row(GRADIENT, f"layers.{at}.weight", float(size)) for at, size in enumerate(sizes)]
            false += len(search.look(numbers(step, rows)))
    assert false == 0


class Earlier:
    def of(self, rank: int) -> dict[int, float]:
        return dict.fromkeys(range(200), 2.0)


def parted(losses: list[float]) -> list[int]:
    course = LossCourse(Earlier(), 0)  # type: ignore[arg-type]
    return [
        each.step for step, loss in enumerate(losses) for each in course.look(numbers(step, [row(LOSS, "loss", loss)]))
    ]


def test_a_loss_that_parts_from_an_earlier_one() -> None:
    draw = np.random.default_rng(0)
    noisy = [2.0 * (1 + 0.01 * float(each)) for each in draw.standard_normal(100)]
    assert parted(noisy) == []
    assert parted([2.0] * 30 + [2.02] * 5) == [30], "identical until then"
    assert parted([2.0 * (1 + 1e-7)] * 30 + [2.0] * 5) == []
    assert parted([*noisy[:50], 2.8]) == [50]
    (drifted,) = parted([loss * (1 + 0.002 * step) for step, loss in enumerate(noisy)])
    assert 20 < drifted < 60


def test_anomalies_are_lines_beside_the_tables(tmp_path: Path) -> None:
    first = Anomaly(AnomalyKind.JUMP, 3, 0, LOSS, "loss", 9.0, 1.5, "call", 4, tests=12)
    second = Anomaly(AnomalyKind.NOT_FINITE, 5, 1, OUTPUT, "model", 3, math.inf)
    for each in (first, second):
        add_anomaly(tmp_path, each)
    with (tmp_path / "anomalies.jsonl").open("a") as file:
        file.write('{"kind": "jump", "st')  # of a process that was killed
    assert read_anomalies(tmp_path) == [first, second]
    assert [json.loads(line)["step"] for line in (tmp_path / "anomalies.jsonl").read_text().splitlines()[:2]] == [3, 5]


def test_sentences_in_both_languages() -> None:
    jump = Anomaly(AnomalyKind.JUMP, 3, 0, LOSS, "loss", 9.0, 1.5, others=1)
    assert anomaly_text(jump) == (
        "anomaly in step 3: loss is 9.0, 6.0 times what it was (1.5), far beyond this run's own noise; "
        "1 more is odd in this step"
    )
    ranks = Anomaly(AnomalyKind.RANKS, 3, 1, Quantity.PARAMETER, "a.weight", other_rank=0)
    assert (
        anomaly_text(ranks, Language.ZH) == "第 3 步异常（进程 1）：更新后 a.weight 在进程 0 与 1 上不同，而它应当相同"
    )


def test_what_ranks_see_alike_is_told_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    watch = RunWatch(tmp_path)
    seen = [Anomaly(AnomalyKind.NOT_FINITE, 7, rank, GRADIENT, "a.weight", 2.0) for rank in range(3)]
    first = Anomaly(AnomalyKind.NOT_FINITE, 7, 2, OUTPUT, "a", 2.0)
    for each in (*seen, first):
        EventLog(tmp_path / "1.jsonl").emit("anomaly", found=anomaly_fields(each))
    watch.tick()
    assert watch.anomalies == [seen[0], first]
    assert min(watch.anomalies, key=lambda each: each.when) == first, "an output comes before a gradient"
    assert capsys.readouterr().err.count("anomaly in step 7") == 2


def test_a_line_of_a_training_is_drawn_by_stretches() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0] * 4) == "▁▁▁▁"
    assert sparkline([0.0, 0.0, 7.0, 7.0, math.nan, 1.0], columns=3) == "▁█!"
    assert sparkline([]) == ""
