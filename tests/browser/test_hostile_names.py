"""Names out of a trace are text in every view, whatever they hold."""

from pathlib import Path
from typing import Any

import pytest
from pages import VIEWS

from conftest import OpenPage, wait_for
from made_results import Names, write_result
from ulpscope.workflows.report.command import make_report

MARKUP = '<img src=x onerror="window.hit=1"><script>window.hit=2</script></script><b>\'"&amp;{{content}}${1}`\\'
STEERING = "a\nb\u202ecba\u2066\u0000\ttail"


def page_with(result: Path, name: str) -> Path:
    names = Names(
        model=f"m{name}", function=f"f{name}", sentence=name.replace("{", "(").replace("}", ")"), reference=name,
        target=name,
    )  # fmt: skip
    write_result(result, layers=2, names=names)
    return make_report(result)


@pytest.mark.parametrize("name", [MARKUP, STEERING], ids=["markup", "steering"])
@pytest.mark.parametrize("view", VIEWS)
def test_names_are_text(tmp_path: Path, open_page: OpenPage, view: str, name: str) -> None:
    graph = {"model.graph": "row:60"}
    browser = open_page(page_with(tmp_path, name), view=view, selected=60, **graph)
    if view in ("run", "model"):
        wait_for(browser, "return document.querySelector('.panel:not(.hidden) .chart .main-svg') !== null")
    assert browser.execute_script("return window.hit ?? null") is None
    made = "return document.querySelectorAll('#page img, #page script, #page b, #page iframe').length"
    assert browser.execute_script(made) == 0
    assert_unseen_is_written_out(browser)
    wanted = "onerror" if name is MARKUP else "\\u202e"
    assert wanted in browser.execute_script("return document.querySelector('#page').textContent")


def assert_unseen_is_written_out(browser: Any) -> None:
    text = browser.execute_script("return document.querySelector('#page').textContent")
    assert not set(text) & set("\u202e\u2066\u0000\n")
