"""Tells what `ulpscope check --overflow`, `--perturb` and `ulpscope compare` of two checks found, as text and as JSON.

ABNORMAL: of 3 calls that made inf or nan out of finite numbers, 1 did so where the CPU does not

  call       output    dtype    not finite  exact max  verdict   message
  exp.0      output.0  float16  5 +inf      1.2e+03    abnormal  the CPU gives finite numbers: ...

UNSTABLE: of 71 APIs on cuda:0, perturbed by rounding, 1 moves more than it should

  call          output    dtype    verdict  message
  layer_norm.3  output.0  float32  FAIL     it moved by 0.012 where the exact result moves by 1.2e-06: 310 times ...

DIVERGED: 1 of 192 outputs has errors on cuda:0 that those on cpu do not excuse

  API           output    dtype     rule          missed
  layer_norm.3  output.0  bfloat16  error ratios  rmse 3.4, mean_rel 2.8

  192 outputs compared: 185 PASS, 6 SKIP, 1 FAIL; 0 only in gold, 3 only in mine.

The objects of the modes are those of a check, with what else these ask.
"""

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from ulpscope.operations.registry import is_torchs_own
from ulpscope.records.check_runs import (
    WRONG,
    CheckComparison,
    CheckedCall,
    CheckedSide,
    CheckRun,
    ComparedOutput,
    OverflowRun,
    PerturbRun,
)
from ulpscope.records.checks import CaseId, DataSource, OutputResult, PerturbStandard, Verdict
from ulpscope.records.findings import FindingKind
from ulpscope.records.overflows import NotFinite, Overflow
from ulpscope.report.files.check_tables import rows_of
from ulpscope.report.record_json import answer_json, fields_of
from ulpscope.report.tables import BAD, GOOD, OPEN, OUTCOME_STYLES, answer_text, plain, table, write_table
from ulpscope.report.terminal.check import (
    HEADING_STYLES,
    LONGEST_API,
    LONGEST_MESSAGE,
    REASONS_SHOWN,
    ROWS_SHOWN,
    check_json,
    counts_line,
    interrupted,
    outputs_of,
    repro_command,
    warned,
    whole_heading,
)
from ulpscope.report.words.language import Language, Phrases, number_text, phrases, short_name, shown_name

_STYLES = {Overflow.ABNORMAL.value: BAD, Overflow.UNCLEAR.value: "yellow"}
_ORDER = [kind.value for kind in (Overflow.ABNORMAL, Overflow.UNCLEAR, Overflow.NORMAL, Overflow.STATED)]
RATIO_COLUMNS = (
    "process", "call", "name", "variant", "data", "place", "direction", "dtype", "verdict", "rule", "missed",
)  # fmt: skip


def overflow_text(found: OverflowRun, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    shown = (row for row in rows_of(found.run) if row[1] is None or row[1].statistic != Overflow.FINITE.value)
    rows = [_overflow_cells(*row) for row in sorted(shown, key=lambda row: _rank(row[1]))]
    columns = ("call", "output", "dtype", "not_finite", "exact", "verdict", "message")
    style = BAD if found.run.wrong else GOOD if found.tells else OPEN
    blocks, commands = (_table(columns, rows, words), _overflow_ending(found, words)), _commands(found.run)
    heading = plain(_overflow_heading(found, words), style=style)
    return answer_text(words, heading, blocks, commands, width=width, color=color)


def perturb_text(found: PerturbRun, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words, run = phrases(language), found.run
    rows = [_perturb_cells(call, call.output) for call in (*run.wrong, *warned(run))]
    columns = ("call", "output", "dtype", "verdict", "message")
    blocks, commands = (_table(columns, rows, words), _perturb_ending(found, words)), _commands(run)
    heading = plain(_perturb_heading(found, words), style=HEADING_STYLES[run.soundness])
    return answer_text(words, heading, blocks, commands, width=width, color=color)


def compared_text(
    comparison: CheckComparison, *, width: int = 80, color: bool = False, language: Language = Language.EN
) -> str:
    """The answer as text of this width."""
    words, outcome = phrases(language), comparison.outcome
    rows = [
        [
            short_name(output.case.name),
            shown_name(output.outputs.target.place),
            shown_name(output.outputs.target.dtype or ""),
            output.rule,
            missed_text(output),
        ]
        for output in comparison.failing
    ]
    drawn = _table(("api", "output", "dtype", "rule", "missed"), rows, words, more="more", folds=(0, -1))
    heading = plain(_say(outcome.value, comparison, words), style=OUTCOME_STYLES[outcome])
    return answer_text(words, heading, (drawn, [_say("counts", comparison, words)]), width=width, color=color)


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    words: Phrases,
    *,
    more: str = "check.more_of_table",
    folds: Sequence[int] = (-1,),
) -> list[RenderableType]:
    if not rows:
        return []
    headers, left = words.columns(*columns), len(rows) - ROWS_SHOWN
    rest = [plain(words.say(more, number=f"{left:,}", file="ratios.csv"))] if left > 0 else []
    return [table(headers, rows[:ROWS_SHOWN], folds=[headers[place] for place in folds]), *rest]


def _commands(run: CheckRun) -> list[str]:
    return [repro_command(call, run) for call in run.wrong[:1]]


def overflow_json(found: OverflowRun, language: Language) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    content = check_json(found.run, language, mode="overflow")
    for finding in content["findings"]:
        finding["kind"] = FindingKind.OVERFLOW.value
    kinds = Counter(output.statistic for output in outputs_of(found.run))
    content["counts"] |= {kind.value: kinds.get(kind.value, 0) for kind in Overflow}
    content["counts"] |= {"inherited": found.inherited, "unrecorded": len(found.untold)}
    # Nothing that overflows is an answer too.
    verdict = "unsound" if found.run.wrong else "sound" if found.tells else "nothing_checked"
    return content | {"mode": "overflow", "verdict": verdict}


def perturb_json(found: PerturbRun, language: Language) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    content = check_json(found.run, language, mode="perturb")
    content["scope"] |= {"perturbation": found.mode.value, "standard": found.standard.value}
    return content | {"mode": "perturb"}


def _overflow_heading(found: OverflowRun, words: Phrases) -> str:
    run, overflowed = found.run, found.overflowed
    if run.wrong:
        # What crashed here may have overflowed in the run.
        calls = words.count(len({id(call) for call in (*overflowed, *run.wrong)}), "call")
        told = words.say("check.overflow.abnormal", calls=calls, abnormal=f"{len(run.wrong):,}")
    elif found.tells:
        calls = words.count(len(overflowed), "call")
        told = words.say("check.overflow.normal" if overflowed else "check.overflow.none", calls=calls)
    else:
        told = words.say("check.overflow.nothing", calls=words.count(len(run.calls), "call"))
    return interrupted(told, run, words)


def _rank(output: OutputResult | None) -> int:
    if output is None:
        return -1
    if output.statistic == Overflow.UNCLEAR.value and "recorded_nan" not in dict(output.metrics):
        return len(_ORDER)
    return _ORDER.index(output.statistic)


def _overflow_cells(call: CheckedCall, output: OutputResult | None) -> list[object]:
    name = short_name(call.place.call or "", longest=LONGEST_API)
    if output is None:
        return [name, "", "", "", "", call.verdict.value, shown_name(call.message, longest=LONGEST_MESSAGE)]
    figures = dict(output.metrics)
    largest = figures.get("exact_largest", math.nan)
    # What was not finite in the run; where that is not recorded, here.
    who = next((who for who in ("recorded", "device", "cpu") if f"{who}_nan" in figures), "exact")
    return [
        name,
        shown_name(output.place),
        shown_name(output.dtype or ""),
        NotFinite(*(int(figures.get(f"{who}_{name}", 0)) for name in ("nan", "pos_inf", "neg_inf"))),
        "" if math.isnan(largest) else f"{largest:.4g}",
        plain(output.statistic, style=_STYLES.get(output.statistic, "")),
        shown_name(output.message, longest=LONGEST_MESSAGE),
    ]


def _overflow_ending(found: OverflowRun, words: Phrases) -> Iterator[str]:
    lost = {Verdict.SKIP: "skipped"}
    kinds = Counter(
        output.statistic if output else lost.get(call.verdict, call.verdict.value)
        for call, output in rows_of(found.run)
    )
    if kinds:
        told = words.comma.join(f"{number:,} {kind}" for kind, number in kinds.items())
        yield words.say("check.overflow.kinds", kinds=told)
    for key, number in (("untold", len(found.untold)), ("inherited", found.inherited)):
        if number:
            yield words.say(f"check.overflow.{key}", calls=words.count(number, "call"))
    cases = [case.result.case for call in found.run.calls for case in call.cases]
    if any(case.source is DataSource.RANDOM for case in cases):
        yield words.say("check.overflow.estimate")


def _perturb_heading(found: PerturbRun, words: Phrases) -> str:
    run, number = found.run, len(found.run.wrong)
    parts = {
        "apis": words.count(len(run.calls), "api"),
        "devices": words.listed([shown_name(device) for device in run.options.devices]),
        "mode": found.mode.value,
    }
    if number:
        key = "check.perturb.unstable" if number == 1 else "check.perturb.unstable.several"
        told = words.say(key, wrong=words.say_number("check.perturb.moves", number), **parts)
    else:
        told = words.say("check.perturb.stable" if run.tested else "check.perturb.nothing", **parts)
    return whole_heading(told, "check.perturb.warn", run, words)


def _perturb_cells(call: CheckedCall, output: OutputResult | None) -> list[object]:
    return [
        short_name(call.place.call or "", longest=LONGEST_API),
        shown_name(output.place if output else ""),
        shown_name(output.dtype or "" if output else ""),
        plain(call.verdict.value, style=BAD if call.verdict in WRONG else "yellow"),
        shown_name(call.message, longest=LONGEST_MESSAGE),
    ]


def _perturb_ending(found: PerturbRun, words: Phrases) -> Iterator[str]:
    run = found.run
    yield counts_line(run, words)
    reasons = Counter(call.message for call in run.calls if call.verdict is Verdict.SKIP)
    for reason, number in reasons.most_common(REASONS_SHOWN):
        shown = shown_name(reason, longest=LONGEST_MESSAGE)
        yield words.say("check.reason", verdict=Verdict.SKIP.value, number=f"{number:,}", reason=shown)
    if found.standard is not PerturbStandard.CONDITION:
        yield words.say("check.perturb.standard", standard=found.standard.value)
    yield from (words.say("check.remark", text=text) for text in words.remarks(run.remarks, longest=LONGEST_MESSAGE))


def compared_json(comparison: CheckComparison, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    sides = comparison.sides
    counted = {each.value.lower(): comparison.count(each) for each in (Verdict.PASS, Verdict.SKIP, Verdict.FAIL)}
    devices = {"reference": sides.reference.devices, "target": sides.target.devices}
    return answer_json(
        "compare",
        verdict=comparison.outcome,
        findings=[_finding(output, comparison, language) for output in comparison.failing],
        notes=[],
        counts={
            "outputs": len(comparison.outputs),
            **counted,
            "only_reference": sides.reference.alone,
            "only_target": sides.target.alone,
        },
        reference=sides.reference.path,
        target=sides.target.path,
        scope={"of": "check", "standard": "msprobe-b", "devices": devices},
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
        reference=shown_name(", ".join(sides.reference.devices)),
        target=shown_name(", ".join(sides.target.devices)),
        reference_path=shown_name(sides.reference.path),
        target_path=shown_name(sides.target.path),
        alone_reference=f"{sides.reference.alone:,}",
        alone_target=f"{sides.target.alone:,}",
    )


def _finding(output: ComparedOutput, comparison: CheckComparison, language: Language) -> dict[str, Any]:
    case, target = output.case, output.outputs.target
    told = phrases(language).say(
        "check.compare.sentence",
        call=shown_name(case.name),
        place=shown_name(target.place),
        dtype=shown_name(target.dtype or ""),
        target=shown_name(", ".join(comparison.sides.target.devices)),
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
