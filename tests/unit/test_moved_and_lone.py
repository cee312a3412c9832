"""Calls that only moved, updates that one run alone makes, and parameters that bear other names."""

from pathlib import Path
from typing import Any

import numpy as np
from tests.unit.handmade import HandmadeRun

from ulpscope.records.findings import Finding, FindingKind
from ulpscope.workflows.compare.command import CompareResult, compare

RANDOM = np.random.default_rng(11)
X = RANDOM.standard_normal((64, 48)).astype(np.float32)
INSIDE: dict[str, Any] = {"module": "model", "module_class": "Net"}
LINEAR, GELU, SUM = "torch.nn.functional.linear", "torch.nn.functional.gelu", "torch.sum"


def compared(folder: Path, reference: HandmadeRun, target: HandmadeRun) -> CompareResult:
    return compare(reference.write(folder / "r"), target.write(folder / "t"))


def ordered(*ops: str) -> HandmadeRun:
    """Calls of which each reads what the one before it made; what an operation makes depends on what it reads."""
    run, last, content = HandmadeRun(), None, X
    last = run.value(content)
    for op in (*ops, SUM):
        content = np.abs(content) ** 1.5 if op == GELU else content * np.float32(0.5) - np.float32(0.2)
        call = run.call(op, reads={"args.0": last}, makes={"output.0": content.astype(np.float32)}, **INSIDE)
        last = run.output(call)
    return run


def test_a_call_that_moved_is_told_as_a_move(tmp_path: Path) -> None:
    found = compared(tmp_path, ordered(LINEAR, GELU), ordered(GELU, LINEAR)).comparison
    told = [each.evidence.one_run for each in (*found.findings, *found.notes)]
    moved = {name for each in told for name in each.moved}
    assert moved in ({f"{GELU}.0"}, {f"{LINEAR}.0"})
    assert not any(each.calls for each in told)


def test_a_call_that_one_run_lacks_has_not_moved(tmp_path: Path) -> None:
    found = compared(tmp_path, ordered(LINEAR), ordered(LINEAR, GELU)).comparison
    told = [each.evidence.one_run for each in (*found.findings, *found.notes)]
    assert {name for each in told for name in each.only_target} == {f"{GELU}.0"}
    assert not any(each.moved for each in told)


def updated(
    *steps: int,
    names: tuple[str, ...] = ("a.weight", "b.weight"),
    shape: tuple[int, ...] = (8, 8),
    cancelled: int | None = None,
) -> HandmadeRun:
    """In each step a forward, and so many updates of the same gradients; in one step these are zeros."""
    run = HandmadeRun()
    for step, times in enumerate(steps):
        run.step = step
        run.call("Net", kind="module", reads={"args.0": run.value(X)}, **INSIDE)
        gradients = {name: run.value(np.full(shape, 0.0 if step == cancelled else 0.25)) for name in names}
        for _ in range(times):
            call = run.call("torch.optim.sgd.SGD", kind="optimizer", phase="update")
            for name, gradient in gradients.items():
                run.use(call, "gradient", name, gradient)
    return run


def optimizers(result: CompareResult) -> list[Finding]:
    return [each for each in result.comparison.findings if each.kind is FindingKind.OPTIMIZER]


def test_an_update_that_one_run_makes_twice_is_told_where_numbers_say_nothing(tmp_path: Path) -> None:
    (found,) = optimizers(compared(tmp_path, updated(1, 1, 1), updated(1, 2, 1)))
    assert (found.place.step, found.evidence.history.updated_in) == (1, "target")
    assert found.evidence.history.parameters == ("a.weight", "b.weight")


def test_gradients_that_are_exactly_zero_are_given_all_the_same(tmp_path: Path) -> None:
    assert not optimizers(compared(tmp_path, updated(1, 1, 1, cancelled=1), updated(1, 1, 1)))


def test_a_last_step_that_ended_before_its_update_lacks_none(tmp_path: Path) -> None:
    assert not optimizers(compared(tmp_path, updated(1, 1, 1), updated(1, 1, 0)))


def test_a_parameter_that_one_run_never_updates_is_told(tmp_path: Path) -> None:
    (found,) = optimizers(compared(tmp_path, updated(1, 1), updated(1, 1, names=("a.weight",))))
    assert found.evidence.history.without_gradient == "target"
    assert found.evidence.history.parameters[0] == "b.weight"


def test_a_parameter_under_another_name_is_updated(tmp_path: Path) -> None:
    renamed = updated(1, 1, names=("a.weight", "b.parametrizations.weight.original"))
    assert not optimizers(compared(tmp_path, updated(1, 1), renamed))
