"""Tells an environment, and how two of them differ, as text and as JSON.

The environments differ in 3 places; 1 likely to change numbers by more than rounding.

  changes numbers  entry                              reference  target  why
  likely           switches float32_matmul_precision  highest    high    products or sums in another precision
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from ulpscope.records.environments import EnvironmentDiff, EnvironmentDifference, Likelihood
from ulpscope.report.record_json import answer_json, fields_of
from ulpscope.report.tables import BAD, GOOD, OPEN, answer_text, plain, table
from ulpscope.report.words.language import Language, Phrases, phrases, shown_name

LONGEST_ENTRY = 60
"""Characters of what one side has: a processor's features fill a page."""
_STYLES = {Likelihood.LIKELY: BAD, Likelihood.POSSIBLE: "yellow", Likelihood.UNLIKELY: ""}


def environment_text(told: Mapping[str, Any], *, width: int, color: bool, language: Language = Language.EN) -> str:
    """The heading and the parts that are read at a glance; the file has the rest."""
    words, around = phrases(language), told["environment"]
    framework = " ".join(str(told["framework"][name]) for name in ("name", "version") if name in told["framework"])
    heading = words.say(
        "env.heading.told",
        framework=framework or f"Python {told['versions']['python']}",
        device=words.names(told["devices"] or [around["machine"]["cpu"]]),
        packages=words.count(len(around["packages"]), "package"),
        variables=words.count(len(around["variables"]), "variable"),
    )
    shown = {name: around[name] for name in ("switches", "variables", "build", "machine", "drivers", "compilers")}
    blocks: list[list[RenderableType]] = [[_entries(part, each)] for part, each in shown.items() if each]
    others = around["other_variables"]
    ending = words.say("env.names_only", variables=words.count(len(others), "variable"), names=words.names(others))
    blocks.append([plain(ending)])
    return answer_text(words, plain(heading, style="bold"), blocks, width=width, color=color)


def _entries(part: str, entries: Mapping[str, Any]) -> RenderableType:
    return table((part, ""), [(name, _short(_text(entry))) for name, entry in entries.items()], folds=("",))


def _text(entry: Any) -> str:
    return " ".join(map(str, entry)) if isinstance(entry, list | tuple) else str(entry)


def environment_json(told: Mapping[str, Any], language: Language = Language.EN) -> dict[str, Any]:
    """What `ulpscope env` writes; its fields are those of rank.json."""
    return answer_json("env", told)


def environment_diff_text(
    diff: EnvironmentDiff, *, count: int, width: int, color: bool, language: Language = Language.EN
) -> str:
    """A table of what differs, `count` rows of it, all if 0."""
    words = phrases(language)
    style = OPEN if not diff.compared else GOOD if diff.agrees else BAD
    shown = diff.differences[:count] if count else diff.differences
    rows: list[RenderableType | str] = [_table(shown, words)] if shown else []
    blocks = [rows, _remarks(diff, len(shown), words)]
    return answer_text(words, plain(_heading(diff, words), style=style), blocks, width=width, color=color)


def _heading(diff: EnvironmentDiff, words: Phrases) -> str:
    if not diff.compared:
        return words.say("env.heading.nothing", reference=diff.paths.reference, target=diff.paths.target)
    if diff.agrees:
        return words.say("env.heading.same", entries=words.count(diff.compared, "entry"))
    likely = sum(each.likelihood is Likelihood.LIKELY for each in diff.differences)
    places = words.count(len(diff.differences), "place")
    if likely:
        return words.say("env.heading.differ", places=places, likely=likely)
    return words.say("env.heading.none_likely", places=places)


def _table(differences: Sequence[EnvironmentDifference], words: Phrases) -> RenderableType:
    headers = words.columns("likelihood", "entry", "reference", "target", "reason")
    rows = [
        (
            plain(words.say(f"env.likelihood.{each.likelihood.value}"), style=_STYLES[each.likelihood]),
            _name(each, words),
            *(_side(text, words) for text in (each.reference, each.target)),
            words.say(f"env.reason.{each.reason}"),
        )
        for each in differences
    ]
    return table(headers, rows, folds=headers[1:4])


def _name(difference: EnvironmentDifference, words: Phrases) -> str:
    name = f"{difference.part} {shown_name(difference.name)}"
    return words.say("env.more", name=name, number=difference.more) if difference.more else name


def _side(text: str | None, words: Phrases) -> str:
    return words.say("env.absent") if text is None else _short(text)


def _short(text: str) -> str:
    return shown_name(text, longest=LONGEST_ENTRY)


def _remarks(diff: EnvironmentDiff, shown: int, words: Phrases) -> Iterator[str]:
    if left := len(diff.differences) - shown:
        yield words.say("env.more_rows", number=left)
    for side in ("reference", "target"):
        if names := getattr(diff.one_sided, side):
            yield words.say("env.one_sided", side=words.say(f"env.side.{side}"), names=words.some(names))
    if diff.untold:
        yield words.say("env.untold", parts=words.comma.join(diff.untold))


def difference_sentence(difference: EnvironmentDifference, words: Phrases) -> str:
    """One difference as a clause, where a comparison of runs quotes it."""
    sides = {side: _side(getattr(difference, side), words) for side in ("reference", "target")}
    reason = words.say(f"env.reason.{difference.reason}")
    return words.say("env.difference", part=difference.part, name=shown_name(difference.name), reason=reason, **sides)


def difference_json(difference: EnvironmentDifference, language: Language) -> dict[str, Any]:
    words = phrases(language)
    return {**fields_of(difference), "sentence": difference_sentence(difference, words)}


def environment_diff_json(diff: EnvironmentDiff, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    return answer_json(
        "diff",
        verdict="nothing_compared" if not diff.compared else "agree" if diff.agrees else "differ",
        reference=diff.paths.reference,
        target=diff.paths.target,
        environments=True,
        compared=diff.compared,
        differences=[difference_json(each, language) for each in diff.differences],
        one_sided=diff.one_sided,
        not_compared=diff.untold,
    )
