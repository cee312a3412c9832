"""Tells what `ulpscope overflow` found, as text and as JSON.

OVERFLOW: scale/Mul (Muls) overflowed first; 1 overflow in all

  1. scale/Mul (Muls), step 0, forward: AI Core noted: a floating-point result overflowed (status 0x20); task 27 ...
     tensor    dtype    shape     min     max       mean
     input.0   float16  [2, 216]  -2.264  4.395     -0.07611
     output.0  float16  [2, 216]  -65504  65504     -4053

`survey_json` is also summary.json; docs/overflow.md tells its keys.
"""

import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from ulpscope.records.findings import FindingKind
from ulpscope.records.overflows import OverflowFinding, OverflowSurvey, SeenTensor, WayCall
from ulpscope.report.record_json import answer_json, fields_of, finding_entry
from ulpscope.report.tables import BAD, GOOD, OPEN, answer_text, plain, set_in, table
from ulpscope.report.words.language import Language, Phrases, phrases, remark_texts, shown_name
from ulpscope.report.words.overflow import next_command, operation_text, overflow_sentence, written_number

FINDINGS_SHOWN = 10
TENSORS_SHOWN = 12


def survey_text(survey: OverflowSurvey, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    style = BAD if survey.findings else GOOD if survey.counts.looked_at else OPEN
    shown = enumerate(survey.findings[:FINDINGS_SHOWN], start=1)
    blocks = [list(_finding(number, finding, survey, words)) for number, finding in shown]
    ending = [plain(line) for line in _ending(survey, words)]
    commands = [words.say("next", command=next_command(finding)) for finding in survey.findings[:1]]
    heading = plain(_heading(survey, words), style=style)
    return answer_text(heading, [*blocks, ending], commands, width=width, color=color)


def has_several_ranks(survey: OverflowSurvey) -> bool:
    """Whether a place needs its rank beside it."""
    return len({finding.place.rank for finding in (*survey.findings, *survey.notes)}) > 1


def _heading(survey: OverflowSurvey, words: Phrases) -> str:
    counts = survey.counts
    if survey.findings:
        found = words.count(len(survey.findings), "overflow")
        first = survey.findings[0]
        kind = "given" if first.given else "written" if first.written else "overflow"
        return words.say(
            f"overflow.heading.{kind}", what=operation_text(first, words), found=found, number=written_number(first)
        )
    if counts.calls > counts.untold:
        return words.say("overflow.heading.finite", calls=words.count(counts.calls - counts.untold, "call"))
    if counts.records:
        return words.say("overflow.heading.silent", records=words.count(counts.records, "record"))
    if counts.untold:
        return words.say(
            "overflow.heading.untold", calls=words.count(counts.untold, "call"), paths=words.names(survey.paths)
        )
    return words.say("overflow.heading.nothing", paths=words.names(survey.paths))


def _finding(number: int, finding: OverflowFinding, survey: OverflowSurvey, words: Phrases) -> Iterator[RenderableType]:
    sentence = overflow_sentence(finding, words.language, several_ranks=has_several_ranks(survey))
    yield plain(f"{number}. {sentence}")
    if finding.tensors:
        yield set_in(_tensors(finding.tensors[:TENSORS_SHOWN], words), by=3)


def _tensors(tensors: tuple[SeenTensor, ...], words: Phrases) -> RenderableType:
    names = ["tensor", "dtype", "shape", "min", "max", "mean"]
    names += ["not_finite"] if any(tensor.not_finite.total for tensor in tensors) else []
    headers = words.columns(*names)
    rows = (_cells(tensor)[: len(names)] for tensor in tensors)
    return table(headers, rows, right=headers[3:6], folds=[headers[2]])


def _cells(tensor: SeenTensor) -> list[object]:
    stats = tensor.stats
    numbers = (None, None, None) if stats is None else (stats.min, stats.max, stats.mean)
    return [
        shown_name(tensor.place),
        shown_name(tensor.dtype),
        list(tensor.shape),
        *("" if number is None else f"{number:.5g}" for number in numbers),
        plain(tensor.not_finite, style=BAD if tensor.not_finite.total else ""),
    ]


def _ending(survey: OverflowSurvey, words: Phrases) -> Iterator[str]:
    if len(survey.findings) > FINDINGS_SHOWN:
        yield words.say("more", number=f"{len(survey.findings) - FINDINGS_SHOWN:,}", file="overflow.csv")
    for key, number in (
        ("inherited", survey.counts.inherited),
        ("unknown", survey.counts.unknown),
        ("notes", len(survey.notes)),
    ):
        if number:
            yield words.say(f"overflow.{key}", calls=words.count(number, "call"))
    if survey.counts.untold:
        calls, path = words.count(survey.counts.untold, "call"), shlex.quote(survey.paths[0])
        yield words.say("overflow.untold", calls=calls, command=f"ulpscope check {path} --overflow")
    yield from (words.say("missing", text=text) for text in words.remarks(survey.missing, longest=500))


def survey_json(survey: OverflowSurvey, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    several = has_several_ranks(survey)
    return answer_json(
        "overflow",
        {
            "verdict": "overflow" if survey.findings else "finite" if survey.counts.looked_at else "nothing_checked",
            "findings": [_finding_json(finding, language, several) for finding in survey.findings],
            "notes": [_finding_json(finding, language, several) for finding in survey.notes],
            "counts": survey.counts,
            "paths": survey.paths,
            "missing": remark_texts(survey.missing, language),
        },
    )


def _finding_json(finding: OverflowFinding, language: Language, several_ranks: bool) -> dict[str, Any]:
    return finding_entry(
        FindingKind.OVERFLOW,
        finding.place,
        evidence=_evidence(finding),
        sentence=overflow_sentence(finding, language, several_ranks=several_ranks),
        next_command=next_command(finding),
    )


def _evidence(finding: OverflowFinding) -> dict[str, Any]:
    return {
        **fields_of(finding, "path", "verdict", "message", "given", "written", "record"),
        "tensors": [_tensor(tensor) for tensor in finding.tensors],
        "way": [_way_call(call) for call in finding.way],
    }


def _way_call(call: WayCall) -> dict[str, Any]:
    named = fields_of(call, "step", "call", "op", "module", "phase", "tensor")
    return {**named, **fields_of(call.not_finite), "loss": call.is_loss}


def _tensor(tensor: SeenTensor) -> dict[str, Any]:
    names = ("min", "max", "mean", "norm")
    stats = dict.fromkeys(names) if tensor.stats is None else fields_of(tensor.stats, *names)
    return {**fields_of(tensor, "side", "place", "dtype", "shape", "sign"), **fields_of(tensor.not_finite), **stats}
