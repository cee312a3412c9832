"""Tells how the errors of two devices compare: two results of `ulpscope check`, set against each other.

DIVERGED: 1 of 192 outputs has errors on cuda:0 that those on cpu do not excuse

  API           output    dtype     rule          missed
  layer_norm.3  output.0  bfloat16  error ratios  rmse 3.4, mean_rel 2.8

  192 outputs compared: 185 PASS, 6 SKIP, 1 FAIL; 0 only in gold, 3 only in mine.
"""

import csv
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ulpscope.operations.names import is_torchs_own
from ulpscope.records.check_comparisons import CheckComparison, CheckedSide, ComparedOutput
from ulpscope.records.checks import CaseId, Verdict
from ulpscope.records.findings import FindingKind, Outcome
from ulpscope.report.files.check_tables import csv_cell
from ulpscope.report.tables import plain, render, table
from ulpscope.report.words.language import Language, number_text, shown_name

SCHEMA = 1
ROWS_SHOWN = 20
_STYLES = {Outcome.DIVERGED: "bold red", Outcome.AGREE: "bold green", Outcome.NOTHING_COMPARED: "bold yellow"}
_WORDS = {
    Language.EN: {
        "diverged": "DIVERGED: {failing} of {outputs} outputs have errors on {target} that those on {reference} "
        "do not excuse",
        "agree": "AGREE: {outputs} outputs compared, none has errors on {target} that those on {reference} "
        "do not excuse",
        "nothing_compared": "NOTHING COMPARED: {reference_path} and {target_path} have no output in common that can "
        "be compared",
        "counts": "{outputs} outputs compared: {counts}; {alone_reference} only in {reference_path}, "
        "{alone_target} only in {target_path}.",
        "more": "and {number} more: --json, or ratios.csv of --out",
        "sentence": "{call}: errors of {place} ({dtype}) on {target} miss the limits of {rule}: {missed}.",
        "headers": "API|output|dtype|rule|missed",
    },
    Language.ZH: {
        "diverged": "出现分歧（DIVERGED）：{outputs} 个输出中有 {failing} 个在 {target} 上的误差"
        "超出 {reference} 的误差所允许的范围",
        "agree": "一致（AGREE）：比较了 {outputs} 个输出，{target} 上的误差都在 {reference} 的误差所允许的范围内",
        "nothing_compared": "没有可比较的内容（NOTHING COMPARED）：{reference_path} 和 {target_path} "
        "没有可比较的共同输出",
        "counts": "比较了 {outputs} 个输出：{counts}；只在 {reference_path} 中 {alone_reference} 个，"
        "只在 {target_path} 中 {alone_target} 个。",
        "more": "另有 {number} 个，见 --json 或 --out 的 ratios.csv",
        "sentence": "{call}：{place}（{dtype}）在 {target} 上的误差超出 {rule} 的限度：{missed}。",
        "headers": "API|输出|dtype|规则|超限",
    },
}
RATIO_COLUMNS = (
    "process",
    "call",
    "name",
    "variant",
    "data",
    "place",
    "direction",
    "dtype",
    "verdict",
    "rule",
    "missed",
)


def compared_text(
    comparison: CheckComparison, *, width: int = 80, color: bool = False, language: Language = Language.EN
) -> str:
    """The answer as text of this width."""
    words, outcome = _WORDS[language], comparison.outcome
    parts: list[RenderableType] = [plain(_say(words[outcome.value], comparison), style=_STYLES[outcome]), Text()]
    if comparison.failing:
        headers = words["headers"].split("|")
        rows = [_row(output) for output in comparison.failing[:ROWS_SHOWN]]
        parts += [_set_in(table(headers, rows, folds=[headers[0], headers[-1]]))]
        if (left := len(comparison.failing) - ROWS_SHOWN) > 0:
            parts += [_set_in(plain(words["more"].format(number=f"{left:,}")))]
        parts += [Text()]
    return render(Group(*parts, _set_in(plain(_say(words["counts"], comparison)))), width=width, color=color)


def compared_json(comparison: CheckComparison, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    sides = comparison.sides
    return {
        "schema": SCHEMA,
        "command": "compare",
        "verdict": comparison.outcome.value,
        "findings": [_finding(output, comparison, language) for output in comparison.failing],
        "notes": [],
        "counts": {
            "outputs": len(comparison.outputs),
            **{
                verdict.value.lower(): comparison.count(verdict)
                for verdict in (Verdict.PASS, Verdict.SKIP, Verdict.FAIL)
            },
            "only_reference": sides.reference.alone,
            "only_target": sides.target.alone,
        },
        "reference": sides.reference.path,
        "target": sides.target.path,
        "scope": {"of": "check", "standard": "msprobe-b", "devices": _devices(comparison)},
    }


def write_ratios(comparison: CheckComparison, path: Path) -> None:
    """An output a row, with every ratio in a column of its own."""
    names = list(dict.fromkeys(name for output in comparison.outputs for name, _ in output.figures))
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*RATIO_COLUMNS, *names])
        for output in comparison.outputs:
            figures = dict(output.figures)
            writer.writerow([*map(csv_cell, _cells(output)), *(figures.get(name) for name in names)])


def missed_text(output: ComparedOutput) -> str:
    """`rmse 3.4, mean_rel 2.8`: what misses its limit, and by what figure."""
    figures = dict(output.figures)
    return ", ".join(f"{name} {number_text(figures[name])}" if name in figures else name for name in output.failing)


def _say(template: str, comparison: CheckComparison) -> str:
    sides = comparison.sides
    counts = [f"{number:,} {verdict.value}" for verdict in Verdict if (number := comparison.count(verdict))]
    return template.format(
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


def _devices(comparison: CheckComparison) -> dict[str, list[str]]:
    sides = comparison.sides
    return {"reference": list(sides.reference.devices), "target": list(sides.target.devices)}


def _row(output: ComparedOutput) -> list[str]:
    target = output.outputs.target
    api = ".".join(output.case.name.split(".")[-2:])
    return [shown_name(api), shown_name(target.place), shown_name(target.dtype or ""), output.rule, missed_text(output)]


def _finding(output: ComparedOutput, comparison: CheckComparison, language: Language) -> dict[str, Any]:
    case, target = output.case, output.outputs.target
    told = _WORDS[language]["sentence"].format(
        call=shown_name(case.name),
        place=shown_name(target.place),
        dtype=shown_name(target.dtype or ""),
        target=_device(comparison.sides.target),
        rule=output.rule,
        missed=missed_text(output),
    )
    return {
        **dict.fromkeys(("rank", "step", "phase", "module", "source")),
        "kind": FindingKind.COMPUTATION.value,
        "call": case.name,
        "op": case.op,
        "tensor": target.place,
        "evidence": {
            "process": case.process,
            "call_id": case.call,
            "variant": case.variant.value,
            "data": case.source.value,
            "dtype": target.dtype,
            "rule": output.rule,
            "failing": list(output.failing),
            "figures": {name: _number(figure) for name, figure in output.figures},
        },
        "sentence": told,
        "next": _next(comparison.sides.target, case),
    }


def _next(target: CheckedSide, case: CaseId) -> str:
    if not target.trace:
        return f"ulpscope show {shlex.quote(target.path)}"
    shown = f"{shlex.quote(target.trace)} {case.call}"
    return f"ulpscope repro {shown} -o repro" if is_torchs_own(case.op) else f"ulpscope show {shown}"


def _number(figure: float) -> float | str:
    return figure if math.isfinite(figure) else str(figure)


def _cells(output: ComparedOutput) -> Iterator[str | int | None]:
    case, target = output.case, output.outputs.target
    yield from (case.process, case.call, case.name, case.variant.value, case.source.value)
    yield from (target.place, target.direction.value, target.dtype, output.verdict.value, output.rule)
    yield missed_text(output)


def _set_in(content: RenderableType) -> RenderableType:
    return Padding(content, (0, 0, 0, 2))
