"""Tells what `ulpscope overflow` found, as text.

OVERFLOW: scale/Mul (Muls) overflowed first; 1 overflow in all

  1. scale/Mul (Muls), step 0, forward: AI Core noted: a floating-point result overflowed (status 0x20); task 27 ...
     tensor    dtype    shape     min     max       mean
     input.0   float16  [2, 216]  -2.264  4.395     -0.07611
     output.0  float16  [2, 216]  -65504  65504     -4053
"""

import shlex
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ulpscope.records.overflows import OverflowFinding, OverflowSurvey, SeenTensor
from ulpscope.report.tables import plain, render, table
from ulpscope.report.words.language import Language, Phrases, phrases, remark_texts, shown_name
from ulpscope.report.words.overflow import next_command, operation_text, overflow_sentence, written_number

FINDINGS_SHOWN = 10
TENSORS_SHOWN = 12


def survey_text(survey: OverflowSurvey, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    style = "bold red" if survey.findings else "bold green" if survey.counts.looked_at else "bold yellow"
    parts: list[RenderableType] = [plain(_heading(survey, words), style=style)]
    for number, finding in enumerate(survey.findings[:FINDINGS_SHOWN], start=1):
        parts += [Text(), _set_in(*_finding(number, finding, survey, language))]
    parts += [Text(), *(_set_in(plain(line)) for line in _ending(survey, language))]
    command = f"  {words.say('next', command=next_command(survey.findings[0]))}\n" if survey.findings else ""
    return render(Group(*parts), width=width, color=color) + command


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


def _finding(
    number: int, finding: OverflowFinding, survey: OverflowSurvey, language: Language
) -> Iterator[RenderableType]:
    sentence = overflow_sentence(finding, language, several_ranks=has_several_ranks(survey))
    yield plain(f"{number}. {sentence}")
    if finding.tensors:
        yield Padding(_tensors(finding.tensors[:TENSORS_SHOWN], phrases(language)), (0, 0, 0, 3))


def _tensors(tensors: tuple[SeenTensor, ...], words: Phrases) -> RenderableType:
    names = ["tensor", "dtype", "shape", "min", "max", "mean"]
    names += ["not_finite"] if any(tensor.not_finite.total for tensor in tensors) else []
    headers = [words.say(f"column.{name}") for name in names]
    rows = (_cells(tensor)[: len(names)] for tensor in tensors)
    return table(headers, rows, right=headers[3:6], folds=[headers[2]])


def _cells(tensor: SeenTensor) -> list[Text]:
    stats = tensor.stats
    numbers = (None, None, None) if stats is None else (stats.min, stats.max, stats.mean)
    return [
        plain(shown_name(tensor.place)),
        plain(shown_name(tensor.dtype)),
        plain(list(tensor.shape)),
        *(plain("" if number is None else f"{number:.5g}") for number in numbers),
        plain(tensor.not_finite, style="bold red" if tensor.not_finite.total else ""),
    ]


def _ending(survey: OverflowSurvey, language: Language) -> Iterator[str]:
    words = phrases(language)
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
    yield from (
        words.say("missing", text=shown_name(sentence, longest=500))
        for sentence in remark_texts(survey.missing, language)
    )


def _set_in(*parts: RenderableType) -> RenderableType:
    return Padding(Group(*parts), (0, 0, 0, 2))
