"""Tells what `ulpscope overflow` found, as text and as JSON.

OVERFLOW: scale/Mul (Muls) overflowed first; 1 overflow in all

  1. scale/Mul (Muls), step 0, forward: AI Core noted: a floating-point result overflowed (status 0x20); task 27 ...
     tensor    dtype    shape     min     max       mean
     input.0   float16  [2, 216]  -2.264  4.395     -0.07611
     output.0  float16  [2, 216]  -65504  65504     -4053

`survey_json` is also summary.json; docs/overflow.md tells its keys.
"""

import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from rich.console import RenderableType

from ulpscope.records.findings import FindingKind
from ulpscope.records.overflows import (
    FLOAT16_LARGEST,
    DeviceRecord,
    Overflow,
    OverflowFinding,
    OverflowSurvey,
    SeenTensor,
    Side,
    Sign,
    WayCall,
)
from ulpscope.report.record_json import answer_json, fields_of, finding_entry
from ulpscope.report.tables import BAD, GOOD, OPEN, answer_text, plain, set_in, table
from ulpscope.report.words.comparison import place_text
from ulpscope.report.words.language import (
    Language,
    Phrases,
    is_plain,
    number_text,
    phrases,
    remark_texts,
    shown_name,
    typed_path,
)

FINDINGS_SHOWN = 10
TENSORS_SHOWN = 12
LONGEST_MESSAGE = 500
_WAY = ("step", "call", "op", "module", "phase", "tensor")


def survey_text(survey: OverflowSurvey, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    style = BAD if survey.findings else GOOD if survey.counts.looked_at else OPEN
    heading = plain(_heading(survey, words), style=style)
    shown = enumerate(survey.findings[:FINDINGS_SHOWN], start=1)
    blocks = [*(_finding(number, finding, survey, words) for number, finding in shown), _ending(survey, words)]
    return answer_text(words, heading, blocks, map(next_command, survey.findings[:1]), width=width, color=color)


def has_several_ranks(survey: OverflowSurvey) -> bool:
    """Whether a place needs its rank beside it."""
    return len({finding.place.rank for finding in (*survey.findings, *survey.notes)}) > 1


def _heading(survey: OverflowSurvey, words: Phrases) -> str:
    counts, paths = survey.counts, words.names(survey.paths)
    if survey.findings:
        first, found = survey.findings[0], words.count(len(survey.findings), "overflow")
        key = "given" if first.given else "written" if first.written else "overflow"
        what = operation_text(first, words)
        return words.say(f"overflow.heading.{key}", what=what, found=found, number=written_number(first))
    if counts.calls > counts.untold:
        return words.say("overflow.heading.finite", calls=words.count(counts.calls - counts.untold, "call"))
    if counts.records:
        return words.say("overflow.heading.silent", records=words.count(counts.records, "record"))
    if counts.untold:
        return words.say("overflow.heading.untold", calls=words.count(counts.untold, "call"), paths=paths)
    return words.say("overflow.heading.nothing", paths=paths)


def _finding(number: int, finding: OverflowFinding, survey: OverflowSurvey, words: Phrases) -> Iterator[RenderableType]:
    sentence = overflow_sentence(finding, words.language, several_ranks=has_several_ranks(survey))
    yield plain(f"{number}. {sentence}")
    if finding.tensors:
        tensors = finding.tensors[:TENSORS_SHOWN]
        names = ["tensor", "dtype", "shape", "min", "max", "mean"]
        names += ["not_finite"] if any(tensor.not_finite.total for tensor in tensors) else []
        headers = words.columns(*names)
        rows = (_cells(tensor)[: len(names)] for tensor in tensors)
        yield set_in(table(headers, rows, right=headers[3:6], folds=[headers[2]]), by=3)


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
    calls = {"inherited": survey.counts.inherited, "unknown": survey.counts.unknown, "notes": len(survey.notes)}
    for key, number in calls.items():
        if number:
            yield words.say(f"overflow.{key}", calls=words.count(number, "call"))
    if survey.counts.untold:
        command = f"ulpscope check {shlex.quote(survey.paths[0])} --overflow"
        yield words.say("overflow.untold", calls=words.count(survey.counts.untold, "call"), command=command)
    yield from (words.say("missing", text=text) for text in words.remarks(survey.missing, longest=500))


def survey_json(survey: OverflowSurvey, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    several = has_several_ranks(survey)
    return answer_json(
        "overflow",
        verdict="overflow" if survey.findings else "finite" if survey.counts.looked_at else "nothing_checked",
        findings=[_finding_json(finding, language, several) for finding in survey.findings],
        notes=[_finding_json(finding, language, several) for finding in survey.notes],
        counts=survey.counts,
        paths=survey.paths,
        missing=remark_texts(survey.missing, language),
    )


def _finding_json(finding: OverflowFinding, language: Language, several_ranks: bool) -> dict[str, Any]:
    evidence = {
        **fields_of(finding, "path", "verdict", "message", "given", "written", "record"),
        "tensors": [_tensor(tensor) for tensor in finding.tensors],
        "way": [{**fields_of(call, *_WAY), **fields_of(call.not_finite), "loss": call.is_loss} for call in finding.way],
    }
    return finding_entry(
        FindingKind.OVERFLOW,
        finding.place,
        evidence=evidence,
        sentence=overflow_sentence(finding, language, several_ranks=several_ranks),
        next_command=next_command(finding),
    )


def _tensor(tensor: SeenTensor) -> dict[str, Any]:
    names = ("min", "max", "mean", "norm")
    stats = dict.fromkeys(names) if tensor.stats is None else fields_of(tensor.stats, *names)
    return {**fields_of(tensor, "side", "place", "dtype", "shape", "sign"), **fields_of(tensor.not_finite), **stats}


def overflow_sentence(finding: OverflowFinding, language: Language, *, several_ranks: bool) -> str:
    """The operation, what the device noted of it, and what its numbers show."""
    words = phrases(language)
    place = place_text(finding.place, language, several_ranks=several_ranks)
    return words.say("sentence", place=place, body=words.semicolon.join(_clauses(finding, words)))


def operation_text(finding: OverflowFinding, words: Phrases) -> str:
    """`scale/Mul (Muls)`, `torch.exp.0`; of a record without its operator, the task."""
    place = finding.place
    name = place.module or place.call
    if name is None:
        return _task(finding.record, words)
    if not place.op or place.op in (name, name.rpartition(".")[0]):
        return shown_name(name)
    return f"{shown_name(name)} ({shown_name(place.op)})"


def written_number(finding: OverflowFinding) -> str:
    """What an argument said that was written."""
    if finding.worst is None or not finding.worst.not_finite.total:
        return number_text(FLOAT16_LARGEST)
    counts = finding.worst.not_finite
    return "nan" if counts.nan else "inf" if counts.pos_inf else "-inf"


def next_command(finding: OverflowFinding) -> str:
    """The command that looks further."""
    words, place = ["ulpscope", "show", typed_path(finding.path)], finding.place
    if place.call_id is not None:
        words.append(str(place.call_id))
    elif place.module and is_plain(place.module):
        words += ["--module", place.module]
    if place.rank:
        words += ["--rank", str(place.rank)]
    return shlex.join(words)


def _clauses(finding: OverflowFinding, words: Phrases) -> Iterator[str]:
    if (record := finding.record) is not None:
        # `AI Core noted: a floating-point result overflowed (status 0x20)`.
        meanings = words.comma.join(words.say(f"overflow.meaning.{meaning}") for meaning in record.meanings)
        status = words.comma.join(f"{word:#x}" for word in record.status)
        yield words.say("overflow.unit", unit=record.unit, meanings=meanings, status=status)
        yield _task(record, words)
        if finding.place.op is None:
            yield words.say("overflow.no_operator")
    if finding.worst is not None:
        yield _shows(finding.worst, words)
    if (source := finding.came_from) is not None:
        yield words.say("overflow.came_from", rank=source.rank, call=shown_name(source.call or ""))
    if finding.given:
        yield words.say("overflow.given")
    elif any(tensor.side is Side.INPUT for tensor in finding.tensors) or (finding.tensors and not finding.written):
        yield _inputs(finding, words)
    if finding.written:
        yield words.say("overflow.verdict.written", number=written_number(finding))
    elif finding.message or finding.verdict is Overflow.STATED:
        message = shown_name(finding.message, longest=LONGEST_MESSAGE)
        yield words.say(f"overflow.verdict.{finding.verdict.value}", message=message)
    if stops := list(_stops(finding.way, words)):
        yield words.say("overflow.way", stops=words.listed(stops))


def _stops(way: Sequence[WayCall], words: Phrases) -> Iterator[str]:
    """Where a way turns: the optimizers that make weights of it, the call by which it enters a later step, the loss."""
    for before, call in pairwise(way):
        place = words.say("place.call", call=shown_name(call.call))
        if call.module is not None:
            named = {"call": shown_name(call.call), "module": shown_name(call.module)}
            place = words.say("overflow.way.call_in", **named)
        if call.is_update:
            yield words.say("overflow.way.update", place=place, tensor=shown_name(call.tensor))
        elif call.is_loss:
            yield words.say("overflow.way.loss", place=place)
        elif call.step != before.step:
            yield words.say("overflow.way.enters", place=place, step=call.step)


def _task(record: DeviceRecord | None, words: Phrases) -> str:
    if record is None:
        return ""
    key = "overflow.task" if record.stream is None else "overflow.task.stream"
    return words.say(key, task=record.task, stream=record.stream)


def _shows(tensor: SeenTensor, words: Phrases) -> str:
    sign = Sign.SATURATED if tensor.sign is Sign.SATURATED else Sign.NOT_FINITE
    largest = number_text(tensor.largest or 0.0) if sign is Sign.NOT_FINITE else f"{tensor.largest:.0f}"
    parts = {"tensor": shown_name(tensor.place), "dtype": shown_name(tensor.dtype), "largest": largest}
    return words.say(f"overflow.shows.{sign.value}", counts=tensor.not_finite, **parts)


def _inputs(finding: OverflowFinding, words: Phrases) -> str:
    read = [tensor for tensor in finding.tensors if tensor.side is Side.INPUT]
    broken = next((tensor for tensor in read if tensor.not_finite.total), None)
    if broken is not None:
        parts = {"tensor": shown_name(broken.place), "dtype": shown_name(broken.dtype)}
        return words.say("overflow.inputs.not_finite", counts=broken.not_finite, **parts)
    known = [tensor.largest for tensor in read if tensor.largest is not None]
    if not known:
        return words.say("overflow.inputs.unknown")
    return words.say("overflow.inputs", largest=number_text(max(known)))
