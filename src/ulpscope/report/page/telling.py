"""A result's sentences in every language: told.json beside summary.json, which has them in one."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ulpscope.report.page.compare_content import innermost_line
from ulpscope.report.words.language import Language

PARTS = ("findings", "notes", "advice")


def told_json(answer: Callable[[Language], Mapping[str, Any]], stacks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Sentences of findings, notes, advice and what is missing, each as {"en": ..., "zh": ...}; stacks of findings.

    Where no stacks are given the lines stand for them that the findings name.
    """
    answers = {language.value: answer(language) for language in Language}
    findings = answers[Language.EN.value].get("findings", ())
    return _told(answers, stacks or [innermost_line(finding) for finding in findings])


def told_once(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a result that has only its summary: one language stands for all."""
    return _told({language.value: summary for language in Language}, [])


def _told(answers: Mapping[str, Mapping[str, Any]], stacks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    sentences = {part: _texts(answers, part, lambda entry: entry["sentence"]) for part in PARTS}
    return {"schema": 1, **sentences, "missing": _texts(answers, "missing", str), "stacks": stacks}


def _texts(answers: Mapping[str, Mapping[str, Any]], part: str, text: Callable[[Any], str]) -> list[dict[str, str]]:
    by_language: Iterable[list[str]] = ([text(entry) for entry in answer.get(part, ())] for answer in answers.values())
    return [dict(zip(answers, texts, strict=True)) for texts in zip(*by_language, strict=True)]
