"""What `ulpscope overflow` says, in English and Chinese: both tables have the same keys with the same parts."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
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
from ulpscope.report.words.language import Language, Phrases, is_plain, number_text, phrases, shown_name

LONGEST_MESSAGE = 500

ENGLISH = {
    "heading.overflow": "OVERFLOW: {what} overflowed first; {found} in all",
    "heading.written": "OVERFLOW: {what} wrote {number} first; {found} in all",
    "heading.given": "GIVEN: {what} was the first to get inf or nan, from outside of what was recorded; {found} in all",
    "heading.finite": "FINITE: {calls} looked at, none made inf, nan or a saturated float16 out of other numbers",
    "heading.nothing": "NOTHING CHECKED: no call and no overflow record in {paths}",
    "heading.untold": "NOTHING CHECKED: what {calls} of {paths} gave is not recorded",
    "heading.silent": "FINITE: {records} looked at, none has a status",
    "sentence": "{place}: {body}.",
    "unit": "{unit} noted: {meanings} (status {status})",
    "task": "task {task}",
    "task.stream": "task {task} of stream {stream}",
    "no_operator": "its directory has no dump of this operator",
    "shows.not_finite": "its {tensor} ({dtype}) holds {counts}",
    "shows.saturated": "its {tensor} (float16) reaches {largest}, the largest float16",
    "given": "no recorded call has made it",
    "inputs": "its inputs are finite, up to {largest}",
    "inputs.not_finite": "its {tensor} ({dtype}) already holds {counts}",
    "inputs.unknown": "its inputs are not recorded",
    "verdict.normal": "normal: {message}",
    "verdict.abnormal": "abnormal: {message}",
    "verdict.unclear": "unclear: {message}",
    "verdict.stated": "an argument of the call asks for it",
    "verdict.written": "an argument of the call is {number}",
    "way": "it reaches {stops}",
    "way.call": "{call}",
    "way.call_in": "{call} in {module}",
    "way.update": "{place}, which makes {tensor} of it",
    "way.enters": "{place} of step {step}",
    "way.loss": "the loss ({place})",
    "meaning.negated_smallest": "the smallest signed integer was negated",
    "meaning.integer": "an integer addition, subtraction, multiplication or multiply-add overflowed",
    "meaning.float": "a floating-point result overflowed",
    "meaning.negative_to_unsigned": "a negative number was converted to an unsigned integer",
    "meaning.to_float16": "float32 or int32 overflowed when converted to float16",
    "meaning.cube": "an accumulation in the cube unit overflowed",
    "meaning.overflow": "an atomic addition overflowed",
    "meaning.underflow": "an atomic addition underflowed",
    "meaning.source_nan": "an atomic addition got nan from its source",
    "meaning.target_nan": "an atomic addition found nan in its target",
    "meaning.both_nan": "an atomic addition got nan from its source and found nan in its target",
    "meaning.unknown": "something that is not documented",
    "column.tensor": "tensor",
    "column.dtype": "dtype",
    "column.shape": "shape",
    "column.min": "min",
    "column.max": "max",
    "column.mean": "mean",
    "column.not_finite": "not finite",
    "inherited": "In {calls} more it came with the inputs.",
    "unknown": "In {calls} more it shows, too; their inputs are not recorded.",
    "untold": "What {calls} gave is not recorded. To execute them: {command}",
    "notes": "In {calls} an argument asks for it: nothing is wrong there.",
    "more": "and {number} more: --json, or overflow.csv of --out",
    "missing": "Missing: {text}",
    "next": "Next: {command}",
}
CHINESE = {
    "heading.overflow": "溢出（OVERFLOW）：{what} 最先溢出，共 {found}",
    "heading.written": "溢出（OVERFLOW）：{what} 最先写入 {number}，共 {found}",
    "heading.given": "给入（GIVEN）：{what} 最先得到 inf 或 nan，来自记录之外，共 {found}",
    "heading.finite": "有限（FINITE）：检查了 {calls}，没有一次由其他数产生 inf、nan 或饱和的 float16",
    "heading.untold": "没有可检查的内容（NOTHING CHECKED）：{paths} 中 {calls}的结果没有记录",
    "heading.nothing": "没有可检查的内容（NOTHING CHECKED）：{paths} 中既没有调用，也没有溢出记录",
    "heading.silent": "有限（FINITE）：检查了 {records}，状态均为 0",
    "sentence": "{place}：{body}。",
    "unit": "{unit} 记录：{meanings}（状态 {status}）",
    "task": "任务 {task}",
    "task.stream": "流 {stream} 的任务 {task}",
    "no_operator": "其目录中没有该算子的 dump",
    "shows.not_finite": "{tensor}（{dtype}）含 {counts}",
    "shows.saturated": "{tensor}（float16）达到 {largest}，即 float16 的最大值",
    "given": "没有一次被记录的调用产生它",
    "inputs": "输入均为有限数，最大 {largest}",
    "inputs.not_finite": "其输入 {tensor}（{dtype}）已含 {counts}",
    "inputs.unknown": "没有记录它的输入",
    "verdict.normal": "正常：{message}",
    "verdict.abnormal": "异常：{message}",
    "verdict.unclear": "不明：{message}",
    "verdict.stated": "由调用的参数指定",
    "verdict.written": "调用的一个参数为 {number}",
    "way": "传到 {stops}",
    "way.call": "{call}",
    "way.call_in": "{module} 的 {call}",
    "way.update": "{place}（由它得到 {tensor}）",
    "way.enters": "step {step} 的 {place}",
    "way.loss": "损失（{place}）",
    "meaning.negated_smallest": "对最小有符号整数取负",
    "meaning.integer": "整数加、减、乘或乘加溢出",
    "meaning.float": "浮点计算溢出",
    "meaning.negative_to_unsigned": "负数转换为无符号整数",
    "meaning.to_float16": "float32 或 int32 转换为 float16 时溢出",
    "meaning.cube": "cube 单元累加溢出",
    "meaning.overflow": "原子加上溢",
    "meaning.underflow": "原子加下溢",
    "meaning.source_nan": "原子加的源操作数为 nan",
    "meaning.target_nan": "原子加的目的操作数为 nan",
    "meaning.both_nan": "原子加的源和目的操作数均为 nan",
    "meaning.unknown": "文档未说明的状态",
    "column.tensor": "张量",
    "column.dtype": "dtype",
    "column.shape": "形状",
    "column.min": "最小",
    "column.max": "最大",
    "column.mean": "均值",
    "column.not_finite": "非有限",
    "inherited": "另有 {calls}因输入已如此而如此。",
    "untold": "{calls}的结果没有记录。重新执行：{command}",
    "unknown": "另有 {calls}也如此，其输入没有记录。",
    "notes": "{calls}由参数指定如此，没有问题。",
    "more": "另有 {number} 个，见 --json 或 --out 的 overflow.csv",
    "missing": "缺失：{text}",
    "next": "下一步：{command}",
}
_TEMPLATES = {Language.EN: ENGLISH, Language.ZH: CHINESE}
_NOUNS = {
    Language.EN: {"overflow": ("overflow", "overflows"), "record": ("overflow record", "overflow records")},
    Language.ZH: {"overflow": ("处", "处"), "record": ("条溢出记录", "条溢出记录")},
}


@cache
def overflow_phrases(language: Language) -> Phrases:
    """The table of a language."""
    base = phrases(language)
    return replace(base, templates=_TEMPLATES[language], nouns={**base.nouns, **_NOUNS[language]})


def overflow_sentence(finding: OverflowFinding, language: Language, *, several_ranks: bool) -> str:
    """The operation, what the device noted of it, and what its numbers show."""
    words = overflow_phrases(language)
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
    told = words.comma.join(words.say(f"meaning.{meaning}") for meaning in record.meanings)
    status = words.comma.join(f"{word:#x}" for word in record.status)
    return words.say("unit", unit=record.unit, meanings=told, status=status)


def next_command(finding: OverflowFinding) -> str:
    """The command that looks further."""
    path = f"./{finding.path}" if finding.path.startswith("-") else finding.path
    words, place = ["ulpscope", "show", path], finding.place
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
            yield words.say("no_operator")
    if finding.worst is not None:
        yield _shows(finding.worst, words)
    if finding.given:
        yield words.say("given")
    elif any(tensor.side is Side.INPUT for tensor in finding.tensors) or (finding.tensors and not finding.written):
        yield _inputs(finding, words)
    if finding.written:
        yield words.say("verdict.written", number=written_number(finding))
    elif finding.message or finding.verdict is Overflow.STATED:
        message = shown_name(finding.message, longest=LONGEST_MESSAGE)
        yield words.say(f"verdict.{finding.verdict.value}", message=message)
    if stops := list(_stops(finding.way, words)):
        yield words.say("way", stops=words.listed(stops))


def _stops(way: Sequence[WayCall], words: Phrases) -> Iterator[str]:
    """Where a way turns: the optimizers that make weights of it, the call by which it enters a later step, the loss."""
    for before, call in pairwise(way):
        place = _way_place(call, words)
        if call.is_update:
            yield words.say("way.update", place=place, tensor=shown_name(call.tensor))
        elif call.is_loss:
            yield words.say("way.loss", place=place)
        elif call.step != before.step:
            yield words.say("way.enters", place=place, step=call.step)


def _way_place(call: WayCall, words: Phrases) -> str:
    if call.module is None:
        return words.say("way.call", call=shown_name(call.call))
    return words.say("way.call_in", call=shown_name(call.call), module=shown_name(call.module))


def _task(record: DeviceRecord | None, words: Phrases) -> str:
    if record is None:
        return ""
    key = "task" if record.stream is None else "task.stream"
    return words.say(key, task=record.task, stream=record.stream)


def _shows(tensor: SeenTensor, words: Phrases) -> str:
    sign = Sign.SATURATED if tensor.sign is Sign.SATURATED else Sign.NOT_FINITE
    largest = number_text(tensor.largest or 0.0) if sign is Sign.NOT_FINITE else f"{tensor.largest:.0f}"
    parts = {"tensor": shown_name(tensor.place), "dtype": shown_name(tensor.dtype), "largest": largest}
    return words.say(f"shows.{sign.value}", counts=tensor.not_finite, **parts)


def _inputs(finding: OverflowFinding, words: Phrases) -> str:
    read = [tensor for tensor in finding.tensors if tensor.side is Side.INPUT]
    broken = next((tensor for tensor in read if tensor.not_finite.total), None)
    if broken is not None:
        parts = {"tensor": shown_name(broken.place), "dtype": shown_name(broken.dtype)}
        return words.say("inputs.not_finite", counts=broken.not_finite, **parts)
    known = [tensor.largest for tensor in read if tensor.largest is not None]
    return words.say("inputs", largest=number_text(max(known))) if known else words.say("inputs.unknown")
