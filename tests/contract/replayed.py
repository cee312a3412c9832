"""Captures a function and executes one of its calls again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from watched import watch

from ulpscope.records.checks import CaseId, DataSource, OutputEvidence, ShareEvidence, Variant
from ulpscope.replay.recorded import RecordedCall, read_calls
from ulpscope.replay.torch.engine import Engine, Executed
from ulpscope.trace.reader import RankTrace


def record(folder: Path, work: Callable[[], Any], op: str, *, save: str = "tensors") -> tuple[RecordedCall, RankTrace]:
    """The first call of an operation, and the trace it is in."""
    watched = watch(folder / "trace", work, level="api", save=save)
    number = watched.call(op).id
    return read_calls(watched.trace, [number])[number], watched.trace


def replay(
    folder: Path,
    work: Callable[[], Any],
    op: str,
    *,
    source: DataSource = DataSource.REAL,
    variant: Variant = Variant.RECORDED,
    **changed: Any,
) -> Executed:
    """Execute that call again, with some of what was recorded of it changed."""
    recorded, rank = record(folder, work, op, save="tensors" if source is DataSource.REAL else "stats")
    recorded = replace(recorded, call=replace(recorded.call, **changed))
    return Engine("cpu").execute(case_of(recorded, rank, source, variant), recorded, rank)


def case_of(recorded: RecordedCall, rank: RankTrace, source: DataSource, variant: Variant = Variant.RECORDED) -> CaseId:
    call = recorded.call
    return CaseId(rank.name, call.id, call.name, call.op, variant, source)


def outputs(executed: Executed) -> dict[str, OutputEvidence]:
    return {each.place: each for each in executed.evidence if isinstance(each, OutputEvidence)}


def share(executed: Executed) -> ShareEvidence:
    return next(each for each in executed.evidence if isinstance(each, ShareEvidence))
