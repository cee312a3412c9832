"""Compares the traces of every case and says whether the answer was right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.captures import Case
from zoo.expectations import Fault
from zoo.measuring import Effect

BAR = 0.95
TIME_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Score:
    """What was said about a case, and whether it is right."""

    case: Case
    findings: tuple[dict[str, Any], ...]
    problem: str = ""
    effect: Effect | None = None

    @property
    def is_clean(self) -> bool:
        return not isinstance(self.case.subject, Fault)

    @property
    def is_below_noise(self) -> bool:
        return self.effect is not None and self.effect.is_below_noise

    @property
    def is_right(self) -> bool:
        subject = self.case.subject
        if self.problem:
            return False
        if not isinstance(subject, Fault):
            return not self.findings
        return bool(self.findings) and names(subject, self.findings[0])

    @property
    def said(self) -> str:
        if self.problem or not self.findings:
            return self.problem or "no finding"
        first = self.findings[0]
        place = f"{first['module'] or '(no module)'} {first['phase']} step {first['step']} rank {first['rank']}"
        return f"{first['kind']} {place} {first.get('call') or ''}".rstrip()


def names(fault: Fault, finding: dict[str, Any]) -> bool:
    """Whether a finding is the answer to this fault."""
    if finding["rank"] not in fault.ranks or (fault.step is not None and finding["step"] != fault.step):
        return False
    told = {"kind": finding["kind"], "module": finding["module"], "phase": finding["phase"]}
    return any(answer.fits(**told) for answer in fault.answers)


def compare(case: Case, traces: Path, results: Path, *, replay: str = "auto") -> Score:
    """Runs `ulpscope compare` as a user would; its result stays in `results`."""
    out = results / case.name.replace(" ", "-")
    pair = [str(traces / case.reference.name), str(traces / case.target.name)]
    options = ["--replay", replay, "--out", str(out), "--overwrite", "--json"]
    command = [sys.executable, "-m", "ulpscope", "compare", *pair, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIME_LIMIT)
    if done.returncode not in (0, 1):
        return Score(case, (), f"exit code {done.returncode}: {done.stderr.strip()[-200:]}")
    try:
        summary = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        return Score(case, (), f"no JSON: {error}")
    return Score(case, tuple(summary["findings"]))


@dataclass(frozen=True, slots=True)
class Totals:
    """The score of the zoo."""

    right: int
    faults: int
    below_right: int
    below: int
    alarms: int
    clean: int

    @property
    def share(self) -> float:
        return self.right / self.faults if self.faults else 1.0

    @property
    def is_passed(self) -> bool:
        return self.share >= BAR and not self.alarms and self.faults + self.clean > 0


def total(scores: Sequence[Score]) -> Totals:
    faults = [score for score in scores if not score.is_clean]
    above = [score for score in faults if not score.is_below_noise]
    below = [score for score in faults if score.is_below_noise]
    clean = [score for score in scores if score.is_clean]
    return Totals(
        right=sum(score.is_right for score in above),
        faults=len(above),
        below_right=sum(score.is_right for score in below),
        below=len(below),
        alarms=sum(not score.is_right for score in clean),
        clean=len(clean),
    )
