"""What `ulpscope check --overflow` and `--perturb` say, in English and Chinese."""

from dataclasses import replace
from functools import cache

from ulpscope.records.check_runs import CheckedCall
from ulpscope.records.checks import OutputResult
from ulpscope.report.words.check import check_phrases
from ulpscope.report.words.comparison import place_text
from ulpscope.report.words.language import Language, Phrases, shown_name

ENGLISH = {
    "overflow.abnormal": "ABNORMAL: of {calls} that made inf or nan out of finite numbers, {abnormal} did so where the"
    " CPU does not",
    "overflow.normal": "NORMAL: {calls} made inf or nan out of finite numbers, as the CPU does in the same dtype",
    "overflow.none": "FINITE: no call made inf or nan out of finite numbers",
    "overflow.nothing": "NOTHING CHECKED: what {calls} gave is not recorded, and executing them does not tell",
    "overflow.untold": "What {calls} gave in the run is not recorded: it was computed here.",
    "overflow.kinds": "{kinds}.",
    "overflow.inherited": "{calls} more gave inf or nan because they were given it.",
    "overflow.estimate": "Data was made from stats: an estimate. Saved data (ulpscope run --save tensors) is exact.",
    "overflow.sentence": "{place}: {output} ({dtype}) is {kind}: {message}.",
    "perturb.unstable": "UNSTABLE: of {apis} on {devices}, perturbed by {mode}, {wrong} more than it should",
    "perturb.unstable.several": "UNSTABLE: of {apis} on {devices}, perturbed by {mode}, {wrong} more than they should",
    "perturb.stable": "STABLE: {apis} on {devices}, perturbed by {mode}: none moves more than it should",
    "perturb.nothing": "NOTHING CHECKED: not one of {apis} on {devices} could be perturbed by {mode}",
    "perturb.warn": "{heading}; {number} poor or not repeatable (WARN)",
    "perturb.moves": "{number} move",
    "perturb.moves.one": "{number} moves",
    "perturb.standard": "Judged by the standard {standard}: a fixed ratio of the dtype.",
    "perturb.sentence": "{place}: {output} ({dtype}) is unstable: {message}.",
    "lost": "{place}: {verdict}: {message}.",
    "interrupted": "{heading} (interrupted: {cases} left)",
    "column.call": "call",
    "column.output": "output",
    "column.dtype": "dtype",
    "column.not_finite": "not finite",
    "column.exact": "exact max",
    "column.verdict": "verdict",
    "column.message": "message",
    "more": "and {number} more: --json, or the table of --out",
}
CHINESE = {
    "overflow.abnormal": "异常（ABNORMAL）：{calls}由有限数产生了 inf 或 nan，其中 {abnormal} 次在 CPU 上不会",
    "overflow.normal": "正常（NORMAL）：{calls}由有限数产生了 inf 或 nan，CPU 上同样的 dtype 也是如此",
    "overflow.none": "有限（FINITE）：没有调用由有限数产生 inf 或 nan",
    "overflow.nothing": "没有可检查的内容（NOTHING CHECKED）：{calls}的结果没有记录，重新执行也无法判断",
    "overflow.untold": "{calls}在运行中的结果没有记录：以上是在此重新执行得到的。",
    "overflow.kinds": "{kinds}。",
    "overflow.inherited": "另有 {calls}因输入已含 inf 或 nan 而如此。",
    "overflow.estimate": "数据由统计量生成，结果是估计；保存数据（ulpscope run --save tensors）则是准确的。",
    "overflow.sentence": "{place}：{output}（{dtype}）为 {kind}：{message}。",
    "perturb.unstable": "不稳定（UNSTABLE）：在 {devices} 上以 {mode} 扰动 {apis}，{wrong}超出应有范围",
    "perturb.unstable.several": "不稳定（UNSTABLE）：在 {devices} 上以 {mode} 扰动 {apis}，{wrong}超出应有范围",
    "perturb.stable": "稳定（STABLE）：在 {devices} 上以 {mode} 扰动 {apis}，变化都在应有范围内",
    "perturb.nothing": "没有可检查的内容（NOTHING CHECKED）：在 {devices} 上，{apis}都无法以 {mode} 扰动",
    "perturb.warn": "{heading}；{number} 个较差或不可重复（WARN）",
    "perturb.moves": "{number} 个的变化",
    "perturb.moves.one": "{number} 个的变化",
    "perturb.standard": "判断所用标准为 {standard}：按 dtype 的固定比值。",
    "perturb.sentence": "{place}：{output}（{dtype}）不稳定：{message}。",
    "lost": "{place}：{verdict}：{message}。",
    "interrupted": "{heading}（已中断：还剩 {cases}）",
    "column.call": "调用",
    "column.output": "输出",
    "column.dtype": "dtype",
    "column.not_finite": "非有限",
    "column.exact": "精确最大值",
    "column.verdict": "结论",
    "column.message": "说明",
    "more": "另有 {number} 个，见 --json 或 --out 的表",
}
_TEMPLATES = {Language.EN: ENGLISH, Language.ZH: CHINESE}
LONGEST_MESSAGE = 500


@cache
def mode_phrases(language: Language) -> Phrases:
    """The table of a language."""
    return replace(check_phrases(language), templates=_TEMPLATES[language])


def overflow_sentence(call: CheckedCall, language: Language, *, several_ranks: bool) -> str:
    """The call, and why what it made is not the dtype's own limit."""
    return _sentence("overflow.sentence", call, language, several_ranks=several_ranks)


def perturb_sentence(call: CheckedCall, language: Language, *, several_ranks: bool) -> str:
    """The call, and how far it moved."""
    return _sentence("perturb.sentence", call, language, several_ranks=several_ranks)


def _sentence(key: str, call: CheckedCall, language: Language, *, several_ranks: bool) -> str:
    words, output = mode_phrases(language), call.output
    place = place_text(call.place, language, several_ranks=several_ranks)
    if output is None:
        message = shown_name(call.message, longest=LONGEST_MESSAGE)
        return words.say("lost", place=place, verdict=call.verdict.value, message=message)
    return words.say(key, place=place, kind=output.statistic, **_parts(output))


def _parts(output: OutputResult) -> dict[str, str]:
    return {
        "output": shown_name(output.place),
        "dtype": shown_name(output.dtype or ""),
        "message": shown_name(output.message, longest=LONGEST_MESSAGE),
    }


def short_name(call: CheckedCall, *, longest: int = 48) -> str:
    """`linear.3`."""
    return shown_name(".".join((call.place.call or "").split(".")[-2:]), longest=longest)
