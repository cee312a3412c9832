"""What a run reads is what was last written there, or somebody has changed it unseen: told whatever the noise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.records.findings import Finding, FindingKind
from ulpscope.workflows.compare.command import compare

RANDOM = np.random.default_rng(7)
X, W = RANDOM.standard_normal((64, 48)), RANDOM.standard_normal((48, 48))
NOISE = 0.01 * RANDOM.standard_normal((48, 48))
"""Far more than what is changed unseen."""
LITTLE = 1.0 + 1e-4
LINEAR = "torch.nn.functional.linear"


def trained(*, after: float = 1.0, noise: bool = False, writer: str = "", **info: Any) -> HandmadeRun:
    """Two forwards and the update between; `after` is by how much the weight has changed when it is read again."""
    run = HandmadeRun()
    before = W + 0.5 * NOISE if noise else W
    updated = 0.9 * W + NOISE if noise else 0.9 * W
    weight = run.value(before, storage=3, producer=None)
    _forward(run, weight)
    step = run.call("torch.optim.sgd.SGD", kind="optimizer", phase="update")
    run.use(step, "parameter", "model.weight", weight)
    made = run.value(updated, storage=3, producer=step)
    run.use(step, "parameter_after", "model.weight", made)
    read = made
    if writer:
        call = run.call(writer, reads={"args.0": made}, phase="other")
        read = run.value(after * updated, storage=3, producer=call if writer.endswith("_") else step)
    elif after != 1.0:
        read = run.value(after * updated, storage=3, producer=step)
    run.step = 1
    _forward(run, read)
    return run


def _forward(run: HandmadeRun, weight: int) -> None:
    module = run.call("Net", kind="module", module="model", module_class="Net", reads={"args.0": run.value(X)})
    run.use(module, "parameter", "weight", weight)


def found(folder: Path, reference: HandmadeRun, target: HandmadeRun) -> tuple[Finding, ...]:
    return compare(reference.write(folder / "r"), target.write(folder / "t")).comparison.findings


def unseen(findings: tuple[Finding, ...]) -> list[tuple[FindingKind, int, str | None, tuple[str, ...]]]:
    told = ((each, each.evidence.history) for each in findings if each.evidence.history.changed_unseen)
    return [(each.kind, each.place.step, history.changed_in, history.parameters) for each, history in told]


@pytest.mark.parametrize("noise", [False, True])
def test_a_weight_that_changes_in_one_run_is_told_below_the_noise(tmp_path: Path, noise: bool) -> None:
    findings = found(tmp_path, trained(), trained(after=LITTLE, noise=noise))
    assert unseen(findings) == [(FindingKind.PARAMETER, 1, "target", ("model.weight",))]


def test_a_weight_that_changes_in_the_reference_is_told(tmp_path: Path) -> None:
    findings = found(tmp_path, trained(after=LITTLE), trained(noise=True))
    assert unseen(findings) == [(FindingKind.PARAMETER, 1, "reference", ("model.weight",))]


def test_what_both_runs_write_unseen_is_judged_by_its_numbers(tmp_path: Path) -> None:
    assert not unseen(found(tmp_path, trained(after=LITTLE), trained(after=LITTLE, noise=True)))


def test_what_a_recorded_call_writes_is_not_unseen(tmp_path: Path) -> None:
    assert not unseen(found(tmp_path, trained(), trained(after=LITTLE, writer="torch.Tensor.mul_", noise=True)))


def test_a_function_of_the_runs_own_may_write_what_it_is_given(tmp_path: Path) -> None:
    assert not unseen(found(tmp_path, trained(), trained(after=LITTLE, writer="mine.scale", noise=True)))


def test_a_call_of_torchs_that_only_reads_does_not_write(tmp_path: Path) -> None:
    findings = found(tmp_path, trained(), trained(after=LITTLE, writer="torch.Tensor.detach", noise=True))
    assert len(unseen(findings)) == 1


def test_of_a_run_that_was_not_recorded_as_a_whole_nobody_knows_who_wrote(tmp_path: Path) -> None:
    reference, target = trained().write(tmp_path / "r"), trained(after=LITTLE, noise=True)
    filtered = target.write(tmp_path / "t", coverage={"calls_seen": 9, "calls_recorded": 3, "calls_filtered": 6})
    assert not unseen(compare(reference, filtered).comparison.findings)
