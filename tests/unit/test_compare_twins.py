"""What compare makes of noise twins: errors are told by theirs, as far as these are independent draws."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.handmade import HandmadeRun

from ulpscope.numerics.summaries.estimates import mean_squared_cosines
from ulpscope.records.findings import Outcome
from ulpscope.workflows.compare.command import CompareResult, compare

Array = NDArray[np.float32]
ELEMENTS = 4096
DRAWS = np.random.default_rng(0)
FIRST, SECOND, THIRD = (DRAWS.standard_normal(ELEMENTS).astype(np.float32) for _ in range(3))
DIRECTION = DRAWS.standard_normal(ELEMENTS).astype(np.float32)


def chain(*values: Array, dtype: type = np.float32) -> HandmadeRun:
    """Each value is what a call made of the one before."""
    run = HandmadeRun()
    held = run.value(values[0], dtype=str(values[0].dtype))
    for made in values[1:]:
        reads, makes = {"args.0": held}, {"output.0": made.astype(dtype)}
        held = run.output(run.call("torch.nn.functional.gelu", reads=reads, makes=makes, module="model.act"))
    return run


def apart(number: Array, error: float, seed: int) -> Array:
    """Further by this share of its size, each element by itself."""
    noise = np.random.default_rng(seed).standard_normal(ELEMENTS)
    return (number + error * noise).astype(np.float32)


def along(number: Array, error: float) -> Array:
    """Further by this share of its size, all elements together."""
    return number + np.float32(error) * DIRECTION


def with_twins(folder: Path, target: HandmadeRun, *twins: HandmadeRun) -> CompareResult:
    reference = chain(FIRST, SECOND, THIRD).write(folder / "r")
    for number, twin in enumerate(twins, 1):
        twin.write(folder / "r" / "twins" / str(number))
    if twins:
        told = {"coarsest": "float16", "results": [], "loss_scale": 0}
        (folder / "r" / "twins" / "precision.json").write_text(json.dumps(told))
    return compare(reference, target.write(folder / "t"))


def twin(seed: int) -> HandmadeRun:
    return chain(FIRST, apart(SECOND, 0.005, seed), apart(THIRD, 0.01, seed + 1))


def target(second: float, third: float) -> HandmadeRun:
    return chain(FIRST, apart(SECOND, second, 70), apart(THIRD, third, 71), dtype=np.float16)


def test_an_error_of_two_and_a_half_times_the_twins_is_told(tmp_path: Path) -> None:
    assert with_twins(tmp_path / "rules", target(0.0002, 0.0005)).comparison.outcome is Outcome.AGREE
    found = with_twins(tmp_path, target(0.005, 0.025), twin(10), twin(20)).comparison
    assert found.outcome is Outcome.DIVERGED
    assert found.findings[0].place.call == "torch.nn.functional.gelu.1"


@pytest.mark.parametrize("third", [0.005, 0.01, 0.015])
def test_what_twins_have_is_sound_whatever_rules_say(tmp_path: Path, third: float) -> None:
    by_rules = with_twins(tmp_path / "rules", target(0.0002, third)).comparison
    assert by_rules.outcome is Outcome.DIVERGED
    assert with_twins(tmp_path, target(0.005, third), twin(10), twin(20)).comparison.outcome is Outcome.AGREE


def test_errors_of_one_direction_are_one_draw_however_many_elements_there_are(tmp_path: Path) -> None:
    second = [apart(SECOND, 0.005, seed) for seed in (10, 20, 70)]
    twins = [chain(FIRST, one, along(THIRD, error)) for one, error in zip(second, (0.006, -0.004), strict=False)]
    found = with_twins(tmp_path, chain(FIRST, second[2], along(THIRD, 0.015), dtype=np.float16), *twins)
    assert found.comparison.outcome is Outcome.AGREE
    assert found.pairs.filter(call_target="torch.nn.functional.gelu.1", role="output")["chance"].to_list() == [None]


def test_how_alike_errors_are() -> None:
    sketches = np.random.default_rng(3).standard_normal((3, 400, 61))
    assert np.mean(mean_squared_cosines(list(sketches))) == pytest.approx(1 / 61, rel=0.1)
    alike = mean_squared_cosines([sketches[0], -2.0 * sketches[0], 0.5 * sketches[0]])
    assert np.allclose(alike, 1.0)
    unknown = np.full((400, 61), np.nan)
    assert not mean_squared_cosines([sketches[0], unknown, unknown]).any()


def test_a_twin_that_made_other_calls_tells_nothing(tmp_path: Path) -> None:
    other = HandmadeRun()
    other.call("torch.arange", makes={"output.0": np.arange(3)})
    found = with_twins(tmp_path, target(0.0002, 0.0005), other).comparison
    assert found.outcome is Outcome.AGREE
