"""Captures the sound call of a fault, and checks it with the wrong kernel in its place, as the command would."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import ulpscope
from faults.catalogue import CATALOGUE
from faults.making import Data, Fault, Function, Given, find
from ulpscope.dialects.opening import open_run
from ulpscope.records.check_runs import CheckOptions, CheckStandard, worst_tested
from ulpscope.records.checks import CaseResult, Verdict
from ulpscope.replay.planning import plan_cases
from ulpscope.replay.torch.engine import Engine
from ulpscope.workflows.check.journal import WorkerSettings
from ulpscope.workflows.check.worker import Bench

SEED = 0
SENT = 1e-2
"""Size of the gradients that come back: those of a mean over a batch, under loss scaling."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call to capture and to check."""

    fault: str
    dtype: str
    save: str
    """What is captured: tensors, or stats, from which data is made."""
    harmed: bool = True
    """With the wrong kernel; a control has the sound one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict over all cases of the call, and what decided it."""

    verdict: Verdict
    told: str
    verdicts: tuple[tuple[str, Verdict], ...] = ()
    """Of each output and gradient in each case."""
    changed: float = 0.0
    """Share of the elements that the fault changes, given the captured data."""
    halves: float = 0.0
    """Its largest change there, in half units in the last place."""


def do(job: Job) -> Outcome:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fault = CATALOGUE[job.fault]
    with tempfile.TemporaryDirectory(prefix="ulpscope-faults-") as folder:
        path = Path(folder) / "trace"
        capture(fault, job, path)
        sound = find(fault.op)
        if job.harmed:
            ulpscope.reference_for(fault.op, function=fault.kernel())(sound)
        outcome = check(path, fault.op)
        # Further jobs of this process must not meet the fault.
        ulpscope.reference_for(fault.op, function=sound)(sound)
    changed, halves = change_of(fault, job.dtype) if job.harmed else (0.0, 0.0)
    return replace(outcome, changed=changed, halves=halves)


def made_worse(harmed: Outcome, unharmed: Outcome) -> Verdict:
    """The verdict that the fault itself earned: over the outputs that are worse than without it."""
    before = dict(unharmed.verdicts)
    worse = [verdict for place, verdict in harmed.verdicts if verdict.severity > _severity(before.get(place))]
    return worst_tested(worse) or min(harmed.verdict, Verdict.PASS, key=lambda verdict: verdict.severity)


def _severity(verdict: Verdict | None) -> int:
    return -1 if verdict is None else verdict.severity


def capture(fault: Fault, job: Job, path: Path) -> None:
    sent = sent_back(find(fault.op), make(fault, job.dtype))
    call = make(fault, job.dtype)
    with ulpscope.capture(path, level="api", save=job.save):
        execute(find(fault.op), call, sent)


def make(fault: Fault, dtype: str) -> Given:
    torch.manual_seed(SEED)
    return fault.giving(Data(getattr(torch, dtype)))


def execute(function: Function, call: Given, sent: list[Tensor]) -> list[Tensor]:
    """Call it and its backward; gives outputs, gradients where there are some, and what it may have written."""
    outputs = tensors_of(function(*call.args, **call.kwargs))
    given = tensors_of((call.args, call.kwargs))
    if sent:
        torch.autograd.backward([each for each in outputs if each.requires_grad], sent)
    gradients = [each.grad for each in given if each.grad is not None]
    return outputs + gradients + [each for each in given if not each.requires_grad]


def sent_back(function: Function, call: Given) -> list[Tensor]:
    """Gradients for the outputs that have a history."""
    outputs = [each for each in tensors_of(function(*call.args, **call.kwargs)) if each.requires_grad]
    return [torch.randn_like(each).detach() * SENT if each.dim() else torch.ones_like(each) for each in outputs]


def tensors_of(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def check(path: Path, op: str) -> Outcome:
    """Plan and execute as the command does without options."""
    plan = plan_cases(open_run(path).ranks[0], CheckOptions())
    if {case.op for case in plan.cases} != {op}:
        raise LookupError(f"{op} is not what the trace holds: {sorted({case.op for case in plan.cases})}")
    bench = Bench(WorkerSettings(str(path), "cpu", seed=0, standard=CheckStandard.ROUNDING), Engine("cpu"))
    results = [checked.result for checked in bench.check(plan.cases)]
    verdicts = [verdict for result in results for verdict in (result.forward, result.backward)]
    worst = worst_tested(verdicts) or Verdict.SKIP
    places = [(f"{each.case.variant.value} {output.place}", output) for each in results for output in each.outputs]
    return Outcome(
        worst, "; ".join(_decisive(results, worst)), tuple((place, output.verdict) for place, output in places)
    )


def _decisive(results: list[CaseResult], worst: Verdict) -> Iterator[str]:
    for result in results:
        if worst in (result.forward, result.backward):
            output = next((each for each in result.outputs if each.verdict is worst), None)
            where = f"{output.place} [{output.statistic}]" if output else ""
            yield f"{result.case.variant.value} {where} {output.message if output else result.message}"


def change_of(fault: Fault, dtype: str) -> tuple[float, float]:
    """How many elements the fault changes, and by how many half units in the last place at most."""
    sent = sent_back(find(fault.op), make(fault, dtype))
    sound = execute(find(fault.op), make(fault, dtype), sent)
    wrong = execute(fault.kernel(), make(fault, dtype), sent)
    pairs = [(one.detach(), other.detach()) for one, other in zip(sound, wrong, strict=False)]
    elements = sum(one.numel() for one, _ in pairs)
    changed = sum(int((one != other).sum()) for one, other in pairs)
    floats = [pair for pair in pairs if pair[0].is_floating_point()]
    return changed / elements, max((_halves(*pair) for pair in floats), default=0.0)


def _halves(one: Tensor, other: Tensor) -> float:
    unit = torch.finfo(one.dtype).eps / 2 * 2.0 ** one.double().abs().log2().floor()
    apart = (one.double() - other.double()).abs() / unit.clamp(min=torch.finfo(one.dtype).tiny)
    return float(apart.nan_to_num(posinf=0.0).max())
