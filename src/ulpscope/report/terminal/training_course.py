"""Draws how a watched training went, and tells what was found odd in it.

             first   last    min    max
loss           4.1   0.92   0.90    4.2  █▇▆▅▅▄▄▃▃▃▂▂▂▂▁▁
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import polars as pl
from rich.console import RenderableType

from ulpscope.report.tables import plain, table
from ulpscope.report.terminal.anomalies import anomaly_entry, anomaly_text
from ulpscope.report.words.language import Language, number_text, phrases
from ulpscope.trace.trainings.course import TrainingCourse

BARS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "!"
COLUMNS = 48
"""Of a line that is drawn: with its numbers it fits into 100."""
LINES_SHOWN, ANOMALIES_SHOWN = 8, 20


def training_parts(course: TrainingCourse) -> Iterator[RenderableType]:
    """A line each of loss, gradient norm and learning rates, and what was found odd."""
    headers = ["", "first", "last", "min", "max", "steps " + _steps(course.table)]
    lines = course.table.partition_by("what", "of", maintain_order=True)
    yield table(headers, map(_line, lines[:LINES_SHOWN]), right=("first", "last", "min", "max"))
    words = phrases(Language.EN)
    for anomaly in course.anomalies[:ANOMALIES_SHOWN]:
        yield plain(anomaly_text(anomaly), style="yellow")
    left = len(course.anomalies) - ANOMALIES_SHOWN
    if left > 0:
        yield plain(f"{left:,} more anomalies; --json lists all")
    if not course.anomalies:
        yield plain(words.say("anomaly.none"))


def training_entry(course: TrainingCourse) -> dict[str, Any]:
    """As --json has it."""
    return {"course": course.table.to_dicts(), "anomalies": [anomaly_entry(each) for each in course.anomalies]}


def sparkline(numbers: Sequence[float], *, columns: int = COLUMNS) -> str:
    """Means of so many stretches as bars; what is not finite anywhere in one is `!`."""
    stretches = _stretches(numbers, min(columns, len(numbers)))
    means = [math.fsum(each) / len(each) if all(map(math.isfinite, each)) else math.nan for each in stretches]
    known = [mean for mean in means if math.isfinite(mean)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    top = len(BARS) - 1
    return "".join(
        (BARS[round(top * (mean - low) / (high - low))] if high > low else BARS[0])
        if math.isfinite(mean)
        else NOT_FINITE
        for mean in means
    )


def _stretches(numbers: Sequence[float], count: int) -> Iterator[Sequence[float]]:
    bounds = [round(place * len(numbers) / count) for place in range(count + 1)] if count else [0]
    return (numbers[start:stop] for start, stop in pairwise(bounds))


def _line(rows: pl.DataFrame) -> list[object]:
    what, of = rows.select("what", "of").row(0)
    numbers = [math.nan if each is None else each for each in rows["value"].to_list()]
    known = [each for each in numbers if math.isfinite(each)]
    shown = [numbers[0], numbers[-1], min(known, default=math.nan), max(known, default=math.nan)]
    return [f"{what.replace('_', ' ')} {of}".strip(), *map(number_text, shown), sparkline(numbers)]


def _steps(course: pl.DataFrame) -> str:
    steps = course["step"].to_list()
    return f"{min(steps)}-{max(steps)}" if steps else "none"
