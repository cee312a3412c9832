"""Tells what was found odd in a watched training.

anomaly in step 61: output of model.layers.2 is 9.1, 12 times what it was (0.76), far beyond this run's own noise
"""

from typing import Any

from ulpscope.records.anomalies import Anomaly, AnomalyKind
from ulpscope.report.record_json import fields_of
from ulpscope.report.words.language import Language, Phrases, number_text, phrases, shown_name


def anomaly_text(anomaly: Anomaly, language: Language = Language.EN, *, several: bool = False) -> str:
    """One sentence; `several` ranks are told apart."""
    words = phrases(language)
    others = words.say_number("anomaly.others", anomaly.others) if anomaly.others else ""
    rank = words.say("anomaly.rank", rank=anomaly.rank) if several or anomaly.rank else ""
    return words.say("anomaly.told", step=anomaly.step, rank=rank, what=_what(anomaly, words), others=others)


def anomaly_entry(anomaly: Anomaly) -> dict[str, Any]:
    """As --json has it."""
    names = ("kind", "step", "rank", "quantity", "name", "value", "usual", "call", "others", "other_rank")
    return fields_of(anomaly, *names) | {"sentence": anomaly_text(anomaly)}


def _what(anomaly: Anomaly, words: Phrases) -> str:
    name, value, usual = shown_name(anomaly.name), anomaly.value, anomaly.usual
    key = f"anomaly.{anomaly.kind.value}"
    parts: dict[str, object] = {
        "what": words.say(f"anomaly.quantity.{anomaly.quantity.value}", name=name),
        "name": name,
        "rank": anomaly.rank,
        "other": anomaly.other_rank,
        "value": "" if value is None else number_text(value),
        "usual": "" if usual is None else number_text(usual),
    }
    if anomaly.kind is AnomalyKind.NOT_FINITE:
        parts["number"] = f"{int(value or 0):,}"
    elif anomaly.kind is AnomalyKind.DEAD:
        parts["share"] = f"{value or 0.0:.0%}"
    elif anomaly.kind is AnomalyKind.VANISHED and usual:
        key = f"{key}.from"
    elif anomaly.kind is AnomalyKind.JUMP:
        parts["factor"] = number_text(value / usual) if value and usual else "?"
    return words.say(key, **parts)
