"""A result that is larger as a whole is told from rounding, which moves elements to either side."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.handmade import HandmadeRun

from ulpscope.records.findings import Outcome
from ulpscope.report.words.comparison import sentence
from ulpscope.workflows.compare.command import compare

Array = NDArray[np.float32]
GELU = "torch.nn.functional.gelu"


def chain(*values: Array) -> HandmadeRun:
    """Each value is what a call made of the one before."""
    run = HandmadeRun()
    held = run.value(values[0], dtype=str(values[0].dtype))
    for made in values[1:]:
        call = run.call(GELU, reads={"args.0": held}, makes={"output.0": made}, module="model.act")
        held = run.output(call)
    return run


def compared(tmp_path: Path, factors: Sequence[float], elements: int = 1200) -> tuple[Outcome, list[str]]:
    draws = np.random.default_rng(0)
    first, *made = [draws.standard_normal(elements).astype(np.float32) for _ in range(3)]
    target = [(each * factor).astype(np.float16) for each, factor in zip(made, factors, strict=True)]
    comparison = compare(
        chain(first, *made).write(tmp_path / "r"), chain(first, *target).write(tmp_path / "t")
    ).comparison
    return comparison.outcome, [sentence(found) for found in comparison.findings]


@pytest.mark.parametrize("factor", [1.001, 0.999])
def test_a_factor_of_twice_the_roundoff_is_told(tmp_path: Path, factor: float) -> None:
    outcome, sentences = compared(tmp_path, (1.0, factor))
    assert outcome is Outcome.DIVERGED
    assert sentences[0].startswith("torch.nn.functional.gelu.1 ")
    assert f"as a whole it is {factor} times the reference's" in sentences[0]


@pytest.mark.parametrize(
    ("factors", "elements"),
    [((1.0, 1.0), 1200), ((1.0, 1.001), 12), ((1.0001, 1.0), 1200)],
    ids=["none", "few elements", "small"],
)
def test_noise_is_no_factor(tmp_path: Path, factors: Sequence[float], elements: int) -> None:
    assert compared(tmp_path, factors, elements) == (Outcome.AGREE, [])


def test_a_factor_that_came_in_is_not_made_again(tmp_path: Path) -> None:
    outcome, sentences = compared(tmp_path, (1.001, 1.001))
    assert (outcome, len(sentences)) == (Outcome.DIVERGED, 1)
    assert sentences[0].startswith("torch.nn.functional.gelu.0 ")
