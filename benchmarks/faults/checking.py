"""Captures the sound call of a fault, and checks it with the wrong kernel in its place, as the command would."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import ulpscope
from faults.catalogue import CATALOGUE
from faults.making import Data, Fault, Function, Given, find
from ulpscope.dialects.opening import open_run
from ulpscope.records.check_runs import CheckStandard, worst_tested
from ulpscope.records.checks import CaseResult, Verdict
from ulpscope.replay.planning import Choice, plan_cases
from ulpscope.replay.torch.engine import Engine
from ulpscope.workflows.check_messages import WorkerSettings
from ulpscope.workflows.check_worker import Bench

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
    changed: float = float("nan")
    """Share of the elements that the fault changes in the captured data; only of what was not found."""
    halves: float = float("nan")
    """Its largest change there, in half units in the last place."""


def do(job: Job) -> Outcome:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fault = CATALOGUE[job.fault]
    with tempfile.TemporaryDirectory(prefix="ulpscope-faults-") as folder:
        path = Path(folder) / "trace"
        capture(fault, job, path)
        sound = find(fault.op)
        ulpscope.reference_for(fault.op, function=fault.kernel() if job.harmed else sound)(sound)
        outcome = check(path)
    if job.harmed and outcome.verdict not in (Verdict.FAIL, Verdict.WARN):
        return Outcome(outcome.verdict, outcome.told, *change_of(fault, job.dtype))
    return outcome


def capture(fault: Fault, job: Job, path: Path) -> None:
    call = make(fault, job.dtype)
    with ulpscope.capture(path, level="api", save=job.save):
        execute(find(fault.op), call)


def make(fault: Fault, dtype: str) -> Given:
    torch.manual_seed(SEED)
    return fault.giving(Data(getattr(torch, dtype)))


def execute(function: Function, call: Given) -> list[Tensor]:
    """Call it and its backward; gives outputs, and gradients where there are some."""
    outputs = tensors_of(function(*call.args, **call.kwargs))
    sources = [each for each in outputs if each.requires_grad]
    wanted = [each for each in tensors_of((call.args, call.kwargs)) if each.requires_grad]
    if not sources or not wanted:
        return outputs
    torch.autograd.backward(sources, [sent_to(each) for each in sources])
    return outputs + [each.grad for each in wanted if each.grad is not None]


def sent_to(output: Tensor) -> Tensor:
    chance = torch.Generator().manual_seed(output.numel())
    sent = SENT * torch.randn(output.shape, generator=chance) if output.dim() else torch.ones(())
    return sent.to(output.dtype)


def tensors_of(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def check(path: Path) -> Outcome:
    """Plan and execute as the command does without options."""
    plan = plan_cases(open_run(path).ranks[0], Choice())
    bench = Bench(WorkerSettings(str(path), "cpu", seed=0, standard=CheckStandard.ROUNDING), Engine("cpu"))
    results = [checked.result for checked in bench.check(plan.cases)]
    verdicts = [verdict for result in results for verdict in (result.forward, result.backward)]
    worst = worst_tested(verdicts) or Verdict.SKIP
    return Outcome(worst, "; ".join(_decisive(results, worst)) or "; ".join(each.reason for each in plan.left))


def _decisive(results: list[CaseResult], worst: Verdict) -> Iterator[str]:
    for result in results:
        if worst in (result.forward, result.backward):
            output = next((each for each in result.outputs if each.verdict is worst), None)
            where = f"{output.place} [{output.statistic}]" if output else ""
            yield f"{result.case.variant.value} {where} {output.message if output else result.message}"


def change_of(fault: Fault, dtype: str) -> tuple[float, float]:
    """How many elements the fault changes, and by how many half units in the last place at most."""
    sound = execute(find(fault.op), make(fault, dtype))
    wrong = execute(fault.kernel(), make(fault, dtype))
    pairs = [(one.detach(), other.detach()) for one, other in zip(sound, wrong, strict=False)]
    elements = sum(one.numel() for one, _ in pairs)
    changed = sum(int((one != other).sum()) for one, other in pairs)
    floats = [pair for pair in pairs if pair[0].is_floating_point()]
    return changed / elements, max((_halves(*pair) for pair in floats), default=0.0)


def _halves(one: Tensor, other: Tensor) -> float:
    unit = torch.finfo(one.dtype).eps / 2 * 2.0 ** one.double().abs().log2().floor()
    apart = (one.double() - other.double()).abs() / unit.clamp(min=torch.finfo(one.dtype).tiny)
    return float(apart.nan_to_num(posinf=0.0).max())
