"""The commands as Python functions, with options as a user writes them."""

from collections.abc import Sequence
from pathlib import Path

from ulpscope.records.check_runs import CheckOptions, CheckStandard
from ulpscope.records.checks import DataSource, Variant
from ulpscope.records.enums import Kind, Phase
from ulpscope.records.ledger import Replay
from ulpscope.trace.query import CallFilter
from ulpscope.workflows.answers import Answer
from ulpscope.workflows.check.command import CheckResult, plan_check
from ulpscope.workflows.check.command import check as check_plan
from ulpscope.workflows.compare.command import CompareOptions, CompareResult
from ulpscope.workflows.compare.command import compare as compare_traces
from ulpscope.workflows.overflow import OverflowAnswer
from ulpscope.workflows.overflow import overflow as find_overflows
from ulpscope.workflows.report.command import make_report
from ulpscope.workflows.repro import ReproOptions, ReproResult
from ulpscope.workflows.repro import repro as write_repro
from ulpscope.workflows.run.python_capture import int_ranges, parse_word
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
) -> CompareResult:
    """Compare two runs, traces or dumps of other tools, as `ulpscope compare` does."""
    options = CompareOptions(
        steps=int_ranges(steps, option="steps"),
        ranks=int_ranges(ranks, option="ranks"),
        mapping=None if mapping is None else Path(mapping),
        standard=standard,
        details=details,
        jobs=max(jobs, 1),
        replay=parse_word(Replay, replay, option="replay"),
    )
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
    options = CheckOptions(
        devices=(device,) if isinstance(device, str) else tuple(device),
        steps=int_ranges(steps, option="steps"),
        ranks=int_ranges(ranks, option="ranks"),
        only=tuple(only),
        skip=tuple(skip),
        every=every,
        stress=stress,
        source=None if data is None else parse_word(DataSource, data, option="data"),
        standard=parse_word(CheckStandard, standard, option="standard"),
        jobs=usable_cores() if jobs is None else max(jobs, 1),
        timeout=timeout,
        seed=seed,
        references=tuple(Path(file) for file in references),
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
    options = ReproOptions(
        source=None if data is None else parse_word(DataSource, data, option="data"),
        variant=parse_word(Variant, variant, option="variant"),
        seed=seed,
        device=device,
        overwrite=overwrite,
    )
    chosen = None if phase is None else parse_word(Phase, phase, option="phase")
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
    wanted = CallFilter(
        op=op,
        module=module,
        text=text,
        phase=None if phase is None else parse_word(Phase, phase, option="phase"),
        kind=None if kind is None else parse_word(Kind, kind, option="kind"),
        step=int_ranges([step] if isinstance(step, int) else step, option="step"),
        rank=int_ranges([rank] if isinstance(rank, int) else rank, option="rank"),
    )
    return show_trace(trace, wanted, call=call, tensor=tensor, elements=elements, limit=limit)


def report(result: str | Path, out: str | Path | None = None) -> Path:
    """Make the page of a result or trace, as `ulpscope report` does; gives its path."""
    return make_report(Path(result), page=None if out is None else Path(out))
