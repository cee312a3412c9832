"""The measured effect of every fault, kept beside the traces so that it is measured once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zoo.captures import Case
from zoo.expectations import Fault
from zoo.measuring import Effect, effect_of

FILE = "effects.json"


def measured(cases: Sequence[Case], work: Path, *, jobs: int) -> dict[str, Effect]:
    """By name of the case; cases without a measure (an optimizer setting, other data) are left out."""
    file = work / FILE
    known = json.loads(file.read_text()) if file.exists() else {}
    missing = [case for case in cases if isinstance(case.subject, Fault) and case.name not in known]
    with ThreadPoolExecutor(jobs) as pool:
        for case, effect in zip(missing, pool.map(lambda case: measure(case, work / "tensors"), missing), strict=True):
            known[case.name] = None if effect is None else [effect.fault, effect.noise]
    file.write_text(json.dumps(known, indent=1))
    return {name: Effect(*pair) for name, pair in known.items() if pair is not None}


def measure(case: Case, traces: Path) -> Effect | None:
    assert isinstance(case.subject, Fault)
    baseline = None if case.baseline is None else traces / case.baseline.name
    return effect_of(case.subject, traces / case.reference.name, traces / case.target.name, baseline)
