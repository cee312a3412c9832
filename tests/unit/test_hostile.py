"""A sample of what benchmarks/hostile.py does: damaged traces, results and other tools' files, given to commands."""

from pathlib import Path

import pytest

from hostile import CASES, Laid, judged
from hostile_runs import RUN_CASES

EVERY = 97
"""Mutations of all kinds, and commands in turn: a prime, so that no kind is left out."""


@pytest.mark.parametrize("case", [name for name in RUN_CASES if name != ".pt"])
def test_damaged_runs_are_answered_or_refused(case: str, tmp_path: Path) -> None:
    laid = Laid(CASES[case], tmp_path)
    for number in range(0, 6 * EVERY, EVERY):
        found = laid.outcome(number)
        assert found in ("answer", "error"), f"python benchmarks/hostile.py --case {case} --first {number} --files 1"


def test_what_is_wrong_is_seen() -> None:
    def faulty() -> None:
        raise KeyError(7)

    assert "KeyError: 7" in judged(faulty, size=0)
