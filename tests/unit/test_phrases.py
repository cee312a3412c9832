"""The catalogue: every phrase in both languages, with the same parts, in one place only, and none that nobody says."""

import ast
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from string import Formatter

import pytest

from ulpscope.diagnose.environment.rules import RULES
from ulpscope.phrases import phrase_table
from ulpscope.records.check_runs import WRONG
from ulpscope.records.checks import Variant
from ulpscope.records.enums import Phase
from ulpscope.records.environments import Likelihood
from ulpscope.records.evidence import Maker
from ulpscope.records.findings import AdviceKind, FindingKind, Nearness
from ulpscope.records.investigations import Recovery, Stage
from ulpscope.records.overflows import Overflow
from ulpscope.records.pairs import Judgement, Measured
from ulpscope.records.repeats import Part, Switch
from ulpscope.report.words.language import Language

SOURCE = Path(__file__).resolve().parents[2] / "src" / "ulpscope"
FILES = {
    file.name: json.loads(file.read_text(encoding="utf-8"))
    for file in resources.files("ulpscope.phrases").iterdir()
    if file.name.endswith(".json")
}
SAID, PAGE = (phrase_table("en", of_page=of_page) for of_page in (False, True))
FAMILIES = {
    "phase.": {phase.value for phase in Phase},
    "lead.": {kind.value for kind in FindingKind},
    "advice.": {kind.value for kind in AdviceKind},
    "judgement.": {judgement.value for judgement in Judgement},
    "how.": {measured.value for measured in Measured},
    "label.": {nearness.value for nearness in Nearness},
    "proof.": {maker.value for maker in Maker},
    "check.variant.": {variant.value for variant in Variant},
    "check.wrong.": {verdict.value for verdict in WRONG},
    "repeat.part.": {part.value for part in Part},
    "repeat.switch.": {switch.value for switch in Switch},
    "investigate.stage.": {stage.value for stage in Stage},
    "investigate.word.": {stage.value for stage in Stage},
    "investigate.recovery.": {recovery.value for recovery in Recovery},
    "env.likelihood.": {likelihood.value for likelihood in Likelihood},
    "env.reason.": {rule.reason for rule in RULES},
    "overflow.verdict.": {Overflow.NORMAL.value, Overflow.ABNORMAL.value, Overflow.UNCLEAR.value},
}
"""Keys that are put together: for each member there is a phrase."""


PUT_TOGETHER = {
    "remark.device_chosen",
    "remark.step_chosen",
    "reason.the reference has no saved data",
    "reason.the target has no saved data",
}


def parts(text: str) -> list[str]:
    return sorted(name for _, name, _, _ in Formatter().parse(text) if name is not None)


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_phrase_is_in_every_language_with_the_same_parts(name: str) -> None:
    for key, texts in FILES[name].items():
        assert set(texts) == {language.value for language in Language}, key
        assert parts(texts["en"]) == parts(texts["zh"]), key


@pytest.mark.parametrize("name", ["check.json", "environment.json", "remarks.json"])
def test_chinese_is_chinese(name: str) -> None:
    texts = {key: texts["zh"] for key, texts in FILES[name].items() if re.sub(r"\{.*?\}|[\W\d]", "", texts["en"])}
    assert [key for key, text in texts.items() if not re.search(r"[\u4e00-\u9fff]", text)] == []


def test_a_key_is_in_one_file_only() -> None:
    for of_page, table in ((False, SAID), (True, PAGE)):
        files = [name for name in FILES if name == "shared.json" or name.startswith("page") == of_page]
        assert sum(len(FILES[name]) for name in files) == len(table)


@pytest.mark.parametrize("prefix", sorted(FAMILIES))
def test_every_member_of_a_family_has_a_phrase(prefix: str) -> None:
    assert {member for member in FAMILIES[prefix] if prefix + member not in SAID} == set()


def test_no_phrase_is_unused() -> None:
    """A key is a literal of the source, or put together of what is a literal or a key."""
    literals, patterns = _texts(SOURCE)
    literals |= PUT_TOGETHER

    def is_used(key: str) -> bool:
        return key in literals or any(all(map(is_used, found.groups())) for found in _matches(key, patterns))

    assert [key for key in SAID if not is_used(key)] == []


def test_no_phrase_of_the_page_is_unused() -> None:
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in (SOURCE / "report/page/static").glob("*.js"))
    texts = set(re.findall(r'"([\w.]+)"', scripts))
    heads = set(re.findall(r"`([a-z_.]+\.)\$\{", scripts))
    # calls.js puts `role.` and `phase.` before what a column says; views are named in a list.
    heads |= {"role.", "view.", "language.", "theme.", "title."}
    unused = [key for key in PAGE if key not in texts and not any(key.startswith(head) for head in heads)]
    assert unused == []


def _texts(folder: Path) -> tuple[set[str], set[str]]:
    """All literals of the source, and patterns of the texts in it that are put together and may be keys."""
    nodes = [node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    literals = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    joined = [node.values for node in nodes if isinstance(node, ast.JoinedStr)]
    return literals, {"".join(map(_pattern, values)) for values in joined if _is_a_key(values)}


def _is_a_key(parts: list[ast.expr]) -> bool:
    """`f"heading.{kind}"`, or `f"{key}.one"`."""
    texts = [str(part.value) if isinstance(part, ast.Constant) else "" for part in parts]
    begins = re.fullmatch(r"[a-z_]+\.[a-z_.]*", texts[0]) is not None
    return begins or (len(texts) == 2 and re.fullmatch(r"[._][a-z]+", texts[1]) is not None)


def _pattern(part: ast.expr) -> str:
    return re.escape(str(part.value)) if isinstance(part, ast.Constant) else "(.*)"


def _matches(key: str, patterns: set[str]) -> Iterator[re.Match[str]]:
    return (found for pattern in patterns if (found := re.fullmatch(pattern, key)) and key not in found.groups())
