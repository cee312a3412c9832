"""The words of the page: every word that scripts ask for is there, and scripts keep to the rules of the house."""

import re
from importlib import resources
from typing import Any

from ulpscope.phrases import phrase_table

STATIC = resources.files("ulpscope.report.page").joinpath("static")
WORDS = phrase_table("en", of_page=True)
SCRIPTS = {file.name: file.read_text(encoding="utf-8") for file in STATIC.iterdir() if file.name.endswith(".js")}


def test_scripts_ask_for_words_that_there_are() -> None:
    asked = {(name, key) for name, text in SCRIPTS.items() for key in re.findall(r"\bword\(\"([\w.]+)\"", text)}
    assert asked
    assert [one for one in sorted(asked) if one[1] not in WORDS] == []


def test_every_view_has_a_name() -> None:
    names = re.findall(r'\{ name: "(\w+)"', SCRIPTS["views.js"])
    assert names
    assert [name for name in names if f"view.{name}" not in WORDS] == []


def test_scripts_make_no_markup_and_ask_for_nothing_elsewhere() -> None:
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|https?://")
    found: list[Any] = [(name, forbidden.findall(text)) for name, text in SCRIPTS.items() if forbidden.search(text)]
    assert found == []


def test_scripts_keep_to_the_columns_of_the_house() -> None:
    wide = [(name, len(line)) for name, text in SCRIPTS.items() for line in text.splitlines() if len(line) > 120]
    assert wide == []
