"""The commands as Python functions, with options as a user writes them."""

from collections.abc import Sequence
from pathlib import Path

from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.enums import Phase
from ulpscope.trace.query import CallFilter
from ulpscope.workflows.answers import Answer, SpokenAnswer
from ulpscope.workflows.check.command import CheckResult, plan_check
from ulpscope.workflows.check.command import check as check_plan
from ulpscope.workflows.compare.command import CompareOptions, CompareResult
from ulpscope.workflows.compare.command import compare as compare_traces
from ulpscope.workflows.compare.trainings import are_trainings, compare_trainings
from ulpscope.workflows.overflow import OverflowAnswer
from ulpscope.workflows.overflow import overflow as find_overflows
from ulpscope.workflows.report.command import make_report
from ulpscope.workflows.repro import ReproOptions, ReproResult
from ulpscope.workflows.repro import repro as write_repro
from ulpscope.workflows.run.python_capture import converted, options_of
from ulpscope.workflows.show.command import DEFAULT_LIMIT
from ulpscope.workflows.show.command import show as show_trace
from ulpscope.workflows.worker_pool import usable_cores

Numbers = str | Sequence[int] | None
"""Steps or ranks: "0,2-4", [0, 2, 3, 4], or None for all."""


def compare(
    reference: str | Path,
    target: str | Path,
    *,
    steps: Numbers = None,
    ranks: Numbers = None,
    mapping: str | Path | None = None,
    standard: str = "rounding",
    details: bool = False,
    jobs: int = 1,
    replay: str = "auto",
) -> CompareResult | SpokenAnswer:
    """Compare two runs, traces or dumps of other tools, as `ulpscope compare` does; of watched gradients an answer."""
    options = options_of(
        CompareOptions,
        steps=steps,
        ranks=ranks,
        mapping=mapping,
        standard=standard,
        details=details,
        jobs=max(jobs, 1),
        replay=replay,
    )
    if are_trainings(reference, target):
        return compare_trainings(reference, target, steps=options.steps, ranks=options.ranks)
    return compare_traces(reference, target, options)


def check(
    trace: str | Path,
    *,
    device: str | Sequence[str] = "cpu",
    steps: Numbers = None,
    ranks: Numbers = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    every: bool = False,
    stress: bool = True,
    data: str | None = None,
    standard: str = "rounding",
    jobs: int | None = None,
    timeout: float = 60.0,
    seed: int = 0,
    references: Sequence[str | Path] = (),
) -> CheckResult:
    """Execute every API call of a trace against a high-precision reference, as `ulpscope check` does."""
    options = options_of(
        CheckOptions,
        called={"source": "data"},
        devices=(device,) if isinstance(device, str) else device,
        steps=steps,
        ranks=ranks,
        only=only,
        skip=skip,
        every=every,
        stress=stress,
        source=data,
        standard=standard,
        jobs=usable_cores() if jobs is None else max(jobs, 1),
        timeout=timeout,
        seed=seed,
        references=references,
    )
    return check_plan(plan_check(trace, options), options)


def overflow(*paths: str | Path) -> OverflowAnswer:
    """Find where runs overflowed, in traces, dumps or overflow records, as `ulpscope overflow` does."""
    return find_overflows(paths)


def repro(
    trace: str | Path,
    call: str | int,
    out: str | Path,
    *,
    step: int | None = None,
    rank: int | None = None,
    phase: str | None = None,
    data: str | None = None,
    variant: str = "recorded",
    seed: int = 0,
    device: str | None = None,
    overwrite: bool = False,
) -> ReproResult:
    """Write one call of a trace as a script of its own, as `ulpscope repro` does."""
    options = options_of(
        ReproOptions,
        called={"source": "data"},
        source=data,
        variant=variant,
        seed=seed,
        device=device,
        overwrite=overwrite,
    )
    chosen = converted(Phase | None, phase, option="phase")
    return write_repro(trace, call, Path(out), options, step=step, rank=rank, phase=chosen)


def show(
    trace: str | Path,
    call: str | int | None = None,
    *,
    op: str | None = None,
    module: str | None = None,
    text: str | None = None,
    phase: str | None = None,
    kind: str | None = None,
    step: int | Numbers = None,
    rank: int | Numbers = None,
    tensor: str | None = None,
    elements: int | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Answer:
    """Look at a trace, at the calls that a filter wants, or at one call, as `ulpscope show` does."""
    steps, ranks = ([given] if isinstance(given, int) else given for given in (step, rank))
    wanted = options_of(CallFilter, op=op, module=module, text=text, phase=phase, kind=kind, step=steps, rank=ranks)
    return show_trace(trace, wanted, call=call, tensor=tensor, elements=elements, limit=limit)


def report(result: str | Path, out: str | Path | None = None) -> Path:
    """Make the page of a result or trace, as `ulpscope report` does; gives its path."""
    return make_report(Path(result), page=None if out is None else Path(out))
