"""What `ulpscope check` says, in English and Chinese: both tables have the same keys with the same parts."""

import shlex
from dataclasses import replace
from functools import cache

from ulpscope.operations.names import is_torchs_own
from ulpscope.records.check_runs import CheckedCall, CheckRun
from ulpscope.records.checks import DataSource, OutputResult, Variant, Verdict
from ulpscope.report.words.comparison import place_text
from ulpscope.report.words.language import Language, Phrases, element_text, phrases, shown_name

LONGEST_MESSAGE = 500

ENGLISH = {
    "heading.unsound": "UNSOUND: of {apis} on {devices}, {wrong}",
    "wrong.FAIL": "{number} compute wrongly",
    "wrong.FAIL.one": "{number} computes wrongly",
    "wrong.CRASH": "{number} crash",
    "wrong.CRASH.one": "{number} crashes",
    "wrong.TIMEOUT": "{number} take too long",
    "wrong.TIMEOUT.one": "{number} takes too long",
    "heading.sound": "SOUND: {apis} checked on {devices}, none computes wrongly",
    "heading.warn": "{heading}; {number} less precise than need be (WARN)",
    "heading.nothing": "NOTHING CHECKED: not one of {apis} of {trace} could be tested on {devices}",
    "heading.interrupted": "{heading} (interrupted: {cases} left)",
    "sentence": "{place}: {body}.",
    "output": "{output}{dtype} is wrong on {device}{variant}: {message}",
    "case": "{verdict} on {device}{variant}: {message}",
    "dtype": " ({dtype})",
    "variant.recorded": "",
    "variant.tiny": ", with its data scaled down",
    "variant.offset": ", with a mean far from zero added to its data",
    "variant.large": ", with data near the largest numbers of its dtype",
    "variant.long": ", with a long reduction",
    "column.api": "API",
    "column.operator": "operator",
    "column.type": "type",
    "column.verdict": "verdict",
    "column.dtype": "dtype",
    "column.forward": "forward",
    "column.backward": "backward",
    "column.message": "message",
    "more": "and {number} more: --json, or result.csv of --out",
    "counts": "{apis} ({cases}, {outputs}): {counts}.",
    "repeated": "{calls} more of the same operations, arguments, dtypes and shapes: --all checks them, too.",
    "untested_outputs": "Of the calls that were tested, {outputs} could not be: UNTESTED in details.csv of --out.",
    "reason": "{verdict} {number}: {reason}",
    "standard": "Judged by the standard {standard}, not by what rounding explains.",
    "remark": "Note: {text}.",
    "missing": "Missing: {text}",
    "next": "Next: {command}",
    "live": "checking",
}
CHINESE = {
    "heading.unsound": "有错（UNSOUND）：在 {devices} 上，{apis} 中 {wrong}",
    "wrong.FAIL": "{number} 个计算错误",
    "wrong.FAIL.one": "{number} 个计算错误",
    "wrong.CRASH": "{number} 个崩溃",
    "wrong.CRASH.one": "{number} 个崩溃",
    "wrong.TIMEOUT": "{number} 个超时",
    "wrong.TIMEOUT.one": "{number} 个超时",
    "heading.sound": "正确（SOUND）：在 {devices} 上检查了 {apis}，没有计算错误",
    "heading.warn": "{heading}；{number} 个的精度低于应有水平（WARN）",
    "heading.nothing": "没有可检查的内容（NOTHING CHECKED）：{trace} 的 {apis} 在 {devices} 上都无法检验",
    "heading.interrupted": "{heading}（已中断：还剩 {cases}）",
    "sentence": "{place}：{body}。",
    "output": "{output}{dtype}在 {device} 上{variant}结果错误：{message}",
    "case": "在 {device} 上{variant}为 {verdict}：{message}",
    "dtype": "（{dtype}）",
    "variant.recorded": "",
    "variant.tiny": "（数据缩小）",
    "variant.offset": "（均值远大于离散程度的数据）",
    "variant.large": "（接近 dtype 最大值的数据）",
    "variant.long": "（很长的归约）",
    "column.api": "API",
    "column.operator": "算子",
    "column.type": "类型",
    "column.verdict": "结论",
    "column.dtype": "dtype",
    "column.forward": "前向",
    "column.backward": "反向",
    "column.message": "说明",
    "more": "另有 {number} 个，见 --json 或 --out 的 result.csv",
    "counts": "{apis}（{cases}，{outputs}）：{counts}。",
    "repeated": "另有 {calls}，其运算、参数、dtype 和形状与上面的相同：--all 也检查它们。",
    "untested_outputs": "在已检验的调用中，{outputs}无法检验：见 --out 的 details.csv 中的 UNTESTED。",
    "reason": "{verdict} {number} 个：{reason}",
    "standard": "判断所用标准为 {standard}，而不是舍入所能解释的范围。",
    "remark": "注意：{text}。",
    "missing": "缺失：{text}",
    "next": "下一步：{command}",
    "live": "检查中",
}
# What decided, where the judge's own English sentence will not do; the worst element follows.
CHINESE_STATISTICS = {
    "not_finite": "inf 或 nan 的位置与真值不符",
    "flushed": "过小的数被清零",
    "underflow": "数值低于该类型的正规数，部分因下溢丢失",
    "unequal": "与应当精确给出的真值不等",
    "outlier": "单个元素的误差超出舍入所能解释的范围",
    "near": "单个元素的误差超出存储精度的一次舍入",
    "noise": "误差的均方根大于正确实现应有的水平",
    "bias": "误差偏向一侧",
    "structure": "误差集中在某一轴的某个下标",
    "norm": "误差的范数过大",
    "share": "出现的比例与概率不符",
    "empty": "输出为空",
    "all_not_finite": "全部元素都是 inf 或 nan",
    "saturated": "全部元素都是常数或已饱和",
    "few_trials": "次数太少，无法判断比例",
}
_NOUNS = {
    Language.EN: {
        "api": ("API", "APIs"),
        "operator": ("operator", "operators"),
        "case": ("case", "cases"),
        "output": ("output", "outputs"),
        "call": ("call", "calls"),
    },
    Language.ZH: {
        "api": ("个 API", "个 API"),
        "operator": ("个算子", "个算子"),
        "case": ("个用例", "个用例"),
        "output": ("个输出", "个输出"),
        "call": ("次调用", "次调用"),
    },
}
_TEMPLATES = {Language.EN: ENGLISH, Language.ZH: CHINESE}


@cache
def check_phrases(language: Language) -> Phrases:
    """The table of a language."""
    return replace(phrases(language), templates=_TEMPLATES[language], nouns=_NOUNS[language])


def check_sentence(call: CheckedCall, language: Language = Language.EN, *, several_ranks: bool = False) -> str:
    """A full sentence: the call, where it is, and what is wrong with it."""
    place = place_text(call.place, language, several_ranks=several_ranks)
    return check_phrases(language).say("sentence", place=place, body=statement(call, language))


def statement(call: CheckedCall, language: Language = Language.EN) -> str:
    """What is wrong with a call: `output.0 (bfloat16) is wrong on cuda:0: outlier: ...`."""
    words, decisive, output = check_phrases(language), call.decisive, call.output
    parts = {
        "device": shown_name(decisive.device),
        "variant": words.say(f"variant.{decisive.result.case.variant.value}"),
        "message": message_text(call, language),
    }
    if output is None:
        return words.say("case", verdict=call.verdict.value, **parts)
    dtype = "" if output.dtype is None else words.say("dtype", dtype=shown_name(output.dtype))
    return words.say("output", output=shown_name(output.place), dtype=dtype, **parts)


def message_text(call: CheckedCall, language: Language = Language.EN) -> str:
    """Why a call is not PASS."""
    output = call.output
    if language is Language.ZH and output is not None and output.statistic in CHINESE_STATISTICS:
        return _chinese(output)
    return shown_name(call.message, longest=LONGEST_MESSAGE)


def _chinese(output: OutputResult) -> str:
    told = f"{CHINESE_STATISTICS[output.statistic]}（{output.statistic}）"
    if output.worst is None or output.worst_computed is None or output.worst_exact is None:
        return told
    computed, exact = element_text(output.worst_computed), element_text(output.worst_exact)
    return f"{told}，最差元素 {list(output.worst)}：得到 {computed}，应为 {exact}"


def marked_message(call: CheckedCall, language: Language = Language.EN) -> str:
    """The message with the kind of data, where that was not the recorded one: `tiny: outlier: ...`."""
    message, variant = message_text(call, language), call.decisive.result.case.variant
    return message if variant is Variant.RECORDED or not message else f"{variant.value}: {message}"


def next_command(call: CheckedCall, run: CheckRun) -> str:
    """What to look at next: the call as a script of its own, or the operator with what was dumped of it."""
    if run.graph is None:
        return repro_command(call, run)
    return shlex.join(["ulpscope", "show", _path(run.graph), call.place.module or "", "--dumps", _path(run.trace)])


def repro_command(call: CheckedCall, run: CheckRun) -> str:
    """The command that makes a script of this call, or shows it where no script can have its function."""
    # Names repeat in backwards and steps, an id does not.
    trace = f"{run.trace.rstrip('/')}/{call.process}" if run.processes > 1 else run.trace
    if not is_torchs_own(call.place.op or ""):
        return shlex.join(["ulpscope", "show", _path(trace), str(call.place.call_id)])
    case = call.decisive.result.case
    words = ["ulpscope", "repro", _path(trace), str(call.place.call_id), "-o", "repro"]
    words += ["--data", case.source.value] if case.source is DataSource.RANDOM else []
    words += ["--variant", case.variant.value] if case.variant is not Variant.RECORDED else []
    words += ["--seed", str(run.options.seed)] if run.options.seed else []
    words += ["--device", call.decisive.device] if call.decisive.device != "cpu" else []
    return shlex.join(words)


def show_command(run: CheckRun) -> str:
    return f"ulpscope show {shlex.quote(_path(run.trace))}"


def _path(path: str) -> str:
    """One that no command takes for an option."""
    return f"./{path}" if path.startswith("-") else path


def live_text(counts: dict[Verdict, int], language: Language = Language.EN) -> str:
    """`checking: 61 PASS, 1 FAIL`, beside a progress bar."""
    words = check_phrases(language)
    told = [f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts.get(verdict)]
    return ": ".join([words.say("live"), ", ".join(told)] if told else [words.say("live")])
