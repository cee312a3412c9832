"""The words of `ulpscope overflow`: a sentence a finding, and the command that looks further."""

import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ulpscope.records.overflows import (
    FLOAT16_LARGEST,
    DeviceRecord,
    Overflow,
    OverflowFinding,
    SeenTensor,
    Side,
    Sign,
    WayCall,
)
from ulpscope.report.words.comparison import place_text
from ulpscope.report.words.language import Language, Phrases, is_plain, number_text, phrases, shown_name, typed_path

LONGEST_MESSAGE = 500


def overflow_sentence(finding: OverflowFinding, language: Language, *, several_ranks: bool) -> str:
    """The operation, what the device noted of it, and what its numbers show."""
    words = phrases(language)
    place = place_text(finding.place, language, several_ranks=several_ranks)
    return words.say("sentence", place=place, body=words.semicolon.join(_clauses(finding, words)))


def operation_text(finding: OverflowFinding, words: Phrases) -> str:
    """`scale/Mul (Muls)`; of a record without its operator, the task."""
    place = finding.place
    name = place.module or place.call
    if name is None:
        return _task(finding.record, words)
    return shown_name(name) if not place.op or place.op == name else f"{shown_name(name)} ({shown_name(place.op)})"


def written_number(finding: OverflowFinding) -> str:
    """What an argument said that was written."""
    if finding.worst is None or not finding.worst.not_finite.total:
        return number_text(FLOAT16_LARGEST)
    counts = finding.worst.not_finite
    return "nan" if counts.nan else "inf" if counts.pos_inf else "-inf"


def unit_text(record: DeviceRecord, words: Phrases) -> str:
    """`AI Core noted: a floating-point result overflowed (status 0x20)`."""
    told = words.comma.join(words.say(f"overflow.meaning.{meaning}") for meaning in record.meanings)
    status = words.comma.join(f"{word:#x}" for word in record.status)
    return words.say("overflow.unit", unit=record.unit, meanings=told, status=status)


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
    if finding.record is not None:
        yield unit_text(finding.record, words)
        yield _task(finding.record, words)
        if finding.place.op is None:
            yield words.say("overflow.no_operator")
    if finding.worst is not None:
        yield _shows(finding.worst, words)
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
        place = _way_place(call, words)
        if call.is_update:
            yield words.say("overflow.way.update", place=place, tensor=shown_name(call.tensor))
        elif call.is_loss:
            yield words.say("overflow.way.loss", place=place)
        elif call.step != before.step:
            yield words.say("overflow.way.enters", place=place, step=call.step)


def _way_place(call: WayCall, words: Phrases) -> str:
    if call.module is None:
        return words.say("place.call", call=shown_name(call.call))
    return words.say("overflow.way.call_in", call=shown_name(call.call), module=shown_name(call.module))


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
    return (
        words.say("overflow.inputs", largest=number_text(max(known))) if known else words.say("overflow.inputs.unknown")
    )
