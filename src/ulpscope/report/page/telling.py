"""A result's sentences in every language: told.json beside summary.json, which has them in one."""

from collections.abc import Callable, Mapping
from typing import Any

from ulpscope.report.language import Language

PARTS = ("findings", "notes", "advice")


def told_json(answer: Callable[[Language], Mapping[str, Any]], stacks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Sentences of findings, notes and advice, each as {"en": ..., "zh": ...}; and the stack of each finding."""
    by_language = {language.value: answer(language) for language in Language}
    return {"schema": 1, **{part: _sentences(by_language, part) for part in PARTS}, "stacks": stacks}


def told_once(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a result that has only its summary: one language stands for all."""
    by_language = {language.value: summary for language in Language}
    return {"schema": 1, **{part: _sentences(by_language, part) for part in PARTS}, "stacks": []}


def _sentences(by_language: Mapping[str, Mapping[str, Any]], part: str) -> list[dict[str, str]]:
    rows = [[entry["sentence"] for entry in answer.get(part, ())] for answer in by_language.values()]
    return [dict(zip(by_language, sentences, strict=True)) for sentences in zip(*rows, strict=True)]
