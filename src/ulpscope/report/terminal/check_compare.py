"""Tells how the errors of two devices compare: two results of `ulpscope check`, set against each other.

DIVERGED: 1 of 192 outputs has errors on cuda:0 that those on cpu do not excuse

  API           output    dtype     rule          missed
  layer_norm.3  output.0  bfloat16  error ratios  rmse 3.4, mean_rel 2.8

  192 outputs compared: 185 PASS, 6 SKIP, 1 FAIL; 0 only in gold, 3 only in mine.
"""

import shlex
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from ulpscope.operations.names import is_torchs_own
from ulpscope.records.check_runs import CheckComparison, CheckedSide, ComparedOutput
from ulpscope.records.checks import CaseId, Verdict
from ulpscope.records.findings import FindingKind
from ulpscope.report.record_json import answer_json, fields_of
from ulpscope.report.tables import OUTCOME_STYLES, answer_text, plain, table, write_table
from ulpscope.report.words.language import Language, Phrases, number_text, phrases, short_name, shown_name

ROWS_SHOWN = 20
RATIO_COLUMNS = (
    "process", "call", "name", "variant", "data", "place", "direction", "dtype", "verdict", "rule", "missed",
)  # fmt: skip


def compared_text(
    comparison: CheckComparison, *, width: int = 80, color: bool = False, language: Language = Language.EN
) -> str:
    """The answer as text of this width."""
    words, outcome = phrases(language), comparison.outcome
    heading = plain(_say(outcome.value, comparison, words), style=OUTCOME_STYLES[outcome])
    blocks = (_failing(comparison, words), [plain(_say("counts", comparison, words))])
    return answer_text(heading, blocks, width=width, color=color)


def _failing(comparison: CheckComparison, words: Phrases) -> list[RenderableType]:
    if not comparison.failing:
        return []
    headers, left = words.columns("api", "output", "dtype", "rule", "missed"), len(comparison.failing) - ROWS_SHOWN
    drawn = table(headers, map(_row, comparison.failing[:ROWS_SHOWN]), folds=[headers[0], headers[-1]])
    more = [plain(words.say("more", number=f"{left:,}", file="ratios.csv"))] if left > 0 else []
    return [drawn, *more]


def compared_json(comparison: CheckComparison, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    sides = comparison.sides
    verdicts = (Verdict.PASS, Verdict.SKIP, Verdict.FAIL)
    counts = {verdict.value.lower(): comparison.count(verdict) for verdict in verdicts}
    devices = {"reference": sides.reference.devices, "target": sides.target.devices}
    return answer_json(
        "compare",
        {
            "verdict": comparison.outcome,
            "findings": [_finding(output, comparison, language) for output in comparison.failing],
            "notes": [],
            "counts": {
                "outputs": len(comparison.outputs),
                **counts,
                "only_reference": sides.reference.alone,
                "only_target": sides.target.alone,
            },
            "reference": sides.reference.path,
            "target": sides.target.path,
            "scope": {"of": "check", "standard": "msprobe-b", "devices": devices},
        },
    )


def write_ratios(comparison: CheckComparison, path: Path) -> None:
    """An output a row, with every ratio in a column of its own."""
    names = dict.fromkeys(name for output in comparison.outputs for name, _ in output.figures)
    write_table(path, [*RATIO_COLUMNS, *names], map(_cells, comparison.outputs))


def missed_text(output: ComparedOutput) -> str:
    """`rmse 3.4, mean_rel 2.8`: what misses its limit, and by what figure."""
    figures = dict(output.figures)
    return ", ".join(f"{name} {number_text(figures[name])}" if name in figures else name for name in output.failing)


def _say(key: str, comparison: CheckComparison, words: Phrases) -> str:
    sides = comparison.sides
    counts = [f"{number:,} {verdict.value}" for verdict in Verdict if (number := comparison.count(verdict))]
    return words.say(
        f"check.compare.{key}",
        failing=f"{len(comparison.failing):,}",
        outputs=f"{len(comparison.outputs):,}",
        counts=", ".join(counts) or "0",
        reference=_device(sides.reference),
        target=_device(sides.target),
        reference_path=shown_name(sides.reference.path),
        target_path=shown_name(sides.target.path),
        alone_reference=f"{sides.reference.alone:,}",
        alone_target=f"{sides.target.alone:,}",
    )


def _device(side: CheckedSide) -> str:
    return shown_name(", ".join(side.devices))


def _row(output: ComparedOutput) -> list[str]:
    target = output.outputs.target
    return [
        short_name(output.case.name),
        shown_name(target.place),
        shown_name(target.dtype or ""),
        output.rule,
        missed_text(output),
    ]


def _finding(output: ComparedOutput, comparison: CheckComparison, language: Language) -> dict[str, Any]:
    case, target = output.case, output.outputs.target
    told = phrases(language).say(
        "check.compare.sentence",
        call=shown_name(case.name),
        place=shown_name(target.place),
        dtype=shown_name(target.dtype or ""),
        target=_device(comparison.sides.target),
        rule=output.rule,
        missed=missed_text(output),
    )
    return {
        **dict.fromkeys(("rank", "step", "phase", "module", "source")),
        "kind": FindingKind.COMPUTATION,
        "call": case.name,
        "op": case.op,
        "tensor": target.place,
        "evidence": {
            "process": case.process,
            "call_id": case.call,
            "variant": case.variant,
            "data": case.source,
            "dtype": target.dtype,
            **fields_of(output, "rule", "failing"),
            "figures": dict(output.figures),
        },
        "sentence": told,
        "next": _next(comparison.sides.target, case),
    }


def _next(target: CheckedSide, case: CaseId) -> str:
    if not target.trace:
        return f"ulpscope show {shlex.quote(target.path)}"
    shown = f"{shlex.quote(target.trace)} {case.call}"
    return f"ulpscope repro {shown} -o repro" if is_torchs_own(case.op) else f"ulpscope show {shown}"


def _cells(output: ComparedOutput) -> dict[str, Any]:
    case, target = output.case, output.outputs.target
    return {
        **dict(output.figures),
        **fields_of(case, "process", "call", "name", "variant"),
        **fields_of(target, "place", "direction", "dtype"),
        **fields_of(output, "verdict", "rule"),
        "data": case.source,
        "missed": missed_text(output),
    }
