"""Errors that lie in a small part of what came in: the least of many, elements below an optimizer's eps, scores that
one run alone shows."""

from pathlib import Path

import numpy as np
import pytest
from tests.unit.handmade import HandmadeRun
from tests.unit.test_compare_healthy import ADAM, BACK, INSIDE, LINEAR, Array, blamed, compared, numbers

LEAST = "torch.Tensor.amin"


def least_run(*, noise: float = 0.0, factor: float = 1.0) -> HandmadeRun:
    """The least of many distances, which is far smaller than they are on average."""
    run = HandmadeRun()
    apart = (5.0 + np.abs(numbers(24, 24)) - 4.9 * np.eye(24) + noise * numbers(24, 24, seed=1)).astype(np.float32)
    reads = {"args.0": run.value(numbers(24, 8, seed=2)), "args.1": run.value(numbers(8, seed=3))}
    call = run.call(LINEAR, reads=reads, makes={"output.0": apart}, **INSIDE)
    rounded = run.value(np.float16(numbers(4)), dtype="float16" if noise else "float32")
    run.use(call, "input", "args.2", rounded)
    run.call(LEAST, reads={"args.0": run.output(call)}, makes={"output.0": factor * apart.min(axis=1)}, **INSIDE)
    return run


def test_the_least_of_many_may_have_the_error_of_the_others(tmp_path: Path) -> None:
    result = compared(tmp_path, least_run(), least_run(noise=2e-3))
    assert (LEAST, "output.0") not in blamed(result)


def test_a_wrong_least_is_blamed(tmp_path: Path) -> None:
    result = compared(tmp_path, least_run(), least_run(noise=2e-3, factor=1.5))
    assert (LEAST, "output.0") in blamed(result)


def eps_run(*, noise: float, rate: float = 1e-3) -> HandmadeRun:
    """Adam's first update of 96 elements, of which 12 have a gradient; the others have only noise, of this size."""
    run = HandmadeRun()
    gradient: Array = np.where(np.arange(96) < 12, 1e-2, noise).astype(np.float32) * numbers(96, seed=14)
    before = numbers(96, seed=5)
    after = before - rate * gradient / (np.abs(gradient) + 1e-8)
    reads = {"args.0": run.value(numbers(8, 96, seed=6)), "args.1": run.value(before)}
    forward = run.call(LINEAR, reads=reads, makes={"output.0": numbers(8, 96, seed=7)}, autocast="float16", **INSIDE)
    given = run.value(numbers(8, 96, seed=8) * (1.0 + 1e-4 * (noise > 1e-8)))
    makes = {"args.1": gradient}
    back = run.call(
        LINEAR, forward=forward, reads={"output.0": given}, makes=makes, autocast="float16", **BACK, **INSIDE
    )
    update = run.call(ADAM, kind="optimizer", phase="update")
    run.use(update, "gradient", "model.weight", run.output(back, "args.1"))
    run.use(update, "parameter", "model.weight", run.value(before))
    run.use(update, "parameter_after", "model.weight", run.value(np.float32(after), producer=update))
    return run


def test_an_update_may_be_larger_where_gradients_lay_below_eps(tmp_path: Path) -> None:
    result = compared(tmp_path, eps_run(noise=1e-10), eps_run(noise=1e-5))
    assert (ADAM, "model.weight") not in blamed(result)


@pytest.mark.parametrize("rate", [5e-3, 1e-2])
def test_an_update_of_another_rate_is_blamed_all_the_same(tmp_path: Path, rate: float) -> None:
    result = compared(tmp_path, eps_run(noise=1e-10), eps_run(noise=1e-10, rate=rate))
    assert (ADAM, "model.weight") in blamed(result)
