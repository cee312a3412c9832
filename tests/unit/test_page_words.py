"""The words of the page: both languages say everything, and every word that scripts ask for is there."""

import json
import re
from importlib import resources
from typing import Any

STATIC = resources.files("ulpscope.report.page").joinpath("static")
SCRIPTS = {file.name: file.read_text(encoding="utf-8") for file in STATIC.iterdir() if file.name.endswith(".js")}


def words(language: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in STATIC.iterdir():
        if file.name.startswith("words") and file.name.endswith(f"_{language}.json"):
            part: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
            assert not part.keys() & found.keys(), f"{file.name} says again what another file says"
            found |= part
    return found


def test_both_languages_have_the_same_words() -> None:
    assert words("en").keys() == words("zh").keys()


def test_both_languages_have_the_same_places() -> None:
    def places(text: str) -> list[str]:
        return sorted(re.findall(r"\{(\w+)\}", text))

    english, chinese = words("en"), words("zh")
    assert [key for key in english if places(english[key]) != places(chinese[key])] == []


def test_scripts_ask_for_words_that_there_are() -> None:
    asked = {(name, key) for name, text in SCRIPTS.items() for key in re.findall(r"\bword\(\"([\w.]+)\"", text)}
    assert asked
    assert [one for one in sorted(asked) if one[1] not in words("en")] == []


def test_every_view_has_a_name() -> None:
    names = re.findall(r'\{ name: "(\w+)"', SCRIPTS["views.js"])
    assert names
    assert [name for name in names if f"view.{name}" not in words("en")] == []


def test_scripts_make_no_markup_and_ask_for_nothing_elsewhere() -> None:
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|https?://")
    found: list[Any] = [(name, forbidden.findall(text)) for name, text in SCRIPTS.items() if forbidden.search(text)]
    assert found == []


def test_scripts_keep_to_the_columns_of_the_house() -> None:
    wide = [(name, len(line)) for name, text in SCRIPTS.items() for line in text.splitlines() if len(line) > 120]
    assert wide == []
