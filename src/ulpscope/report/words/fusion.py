"""What `ulpscope fusion` says, in English and Chinese: both tables have the same keys with the same parts."""

from dataclasses import replace
from functools import cache

from ulpscope.report.words.language import Language, Phrases, phrases

ENGLISH = {
    "heading.result": "{path}: {graphs}, {effective} of {passes} took effect",
    "heading.switch": "{path}: switches of fusion passes",
    "heading.nothing": "NOTHING COMPARED: no operator has a partner in the dump without fusion",
    "heading.agree": "AGREE: {operators} compared, fusion changes none beyond rounding",
    "heading.diverged": "DIVERGED: {statement}",
    "statement.unfused": "{name} parts, which no pass has fused: look at both runs before blaming fusion",
    "statement.pass": "{passes} parts: {name} gives other numbers with fusion",
    "statement.passes": "{passes} part: {name} gives other numbers with fusion",
    "difference": "Its output differs by {size}",
    "difference.explained": "Its output differs by {size}, where rounding and its inputs explain {expected}",
    "sentence": "{statement}. {difference}.",
    "stop": "{text}.",
    "graph": "graph {name}",
    "no_effect": "No pass took effect.",
    "more_graphs": "and {graphs} more: --json",
    "more": "{names} and {left} more",
    "switches": "switches",
    "switched_off": "Switched off: {passes}",
    "written": "Written to {path}: give it to the compiler as fusion_switch_file",
    "not_fused": "(not fused)",
    "missing": "Missing: {text}",
    "next": "Next: {command}",
    "column.pass": "pass",
    "column.stage": "stage",
    "column.effect": "effect",
    "column.match": "match",
    "column.state": "state",
    "column.operators": "operators",
    "column.identical": "identical",
    "column.rounding": "rounding",
    "column.inherited": "inherited",
    "column.parting": "parting",
    "column.which": "which",
}
CHINESE = {
    "heading.result": "{path}：{graphs}，{passes}中有 {effective} 个生效",
    "heading.switch": "{path}：融合规则开关",
    "heading.nothing": "没有可比较的内容（NOTHING COMPARED）：没有算子能在关闭融合的 dump 中找到对应者",
    "heading.agree": "一致（AGREE）：比较了 {operators}，融合带来的差异均在舍入范围内",
    "heading.diverged": "出现分歧（DIVERGED）：{statement}",
    "statement.unfused": "{name} 出现分歧，但没有融合规则作用于它：归因于融合之前，请先查看两次运行",
    "statement.pass": "{passes} 引入误差：融合后 {name} 的数值不同",
    "statement.passes": "{passes} 引入误差：融合后 {name} 的数值不同",
    "difference": "其输出相差 {size}",
    "difference.explained": "其输出相差 {size}，舍入与输入只能解释 {expected}",
    "sentence": "{statement}。{difference}。",
    "stop": "{text}。",
    "graph": "图 {name}",
    "no_effect": "没有融合规则生效。",
    "more_graphs": "另有 {graphs}，见 --json",
    "more": "{names} 等，另有 {left} 个",
    "switches": "开关",
    "switched_off": "已关闭：{passes}",
    "written": "已写入 {path}：作为 fusion_switch_file 交给编译器",
    "not_fused": "（未融合）",
    "missing": "缺失：{text}",
    "next": "下一步：{command}",
    "column.pass": "融合规则",
    "column.stage": "阶段",
    "column.effect": "生效",
    "column.match": "匹配",
    "column.state": "状态",
    "column.operators": "算子",
    "column.identical": "相同",
    "column.rounding": "舍入",
    "column.inherited": "继承",
    "column.parting": "分歧",
    "column.which": "算子名",
}
_TEMPLATES = {Language.EN: ENGLISH, Language.ZH: CHINESE}
_NOUNS = {
    Language.EN: {
        "graph": ("graph", "graphs"),
        "pass": ("pass", "passes"),
        "operator": ("operator", "operators"),
    },
    Language.ZH: {
        "graph": ("张图", "张图"),
        "pass": ("个融合规则", "个融合规则"),
        "operator": ("个算子", "个算子"),
    },
}


@cache
def fusion_phrases(language: Language) -> Phrases:
    """The table of a language."""
    base = phrases(language)
    return replace(base, templates=_TEMPLATES[language], nouns={**base.nouns, **_NOUNS[language]})
