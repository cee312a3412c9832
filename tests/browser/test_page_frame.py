"""The page as a whole: opened from a file, its tabs, address, languages, themes, and what it asks for."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pages import VIEWS, state_of, text_of, violations
from selenium.webdriver.common.keys import Keys

from conftest import OpenPage, requested, wait_for
from made_results import Names, write_result
from ulpscope.phrases import phrase_table
from ulpscope.records.enums import Role
from ulpscope.workflows.report.command import make_report


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("result")
    write_result(result, layers=3, steps=2)
    return make_report(result)


def shown_tab(browser: Any) -> str:
    return str(browser.execute_script("return document.querySelector('[role=tab][aria-selected=true]').id"))


def test_the_first_view_is_the_answer(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    assert shown_tab(browser) == "tab-answer"
    assert "diverged" in text_of(browser, ".top .badge")
    assert "makes an error of 0.5" in text_of(browser, ".hero .sentence")


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_asked_for_beyond_the_file(page: Path, open_page: OpenPage, browser: Any, view: str) -> None:
    requested(browser)
    open_page(page, view=view)
    wait_for(browser, "return document.readyState === 'complete'")
    asked = [address.split("#")[0] for address in requested(browser)]
    assert page.resolve().as_uri() in asked
    allowed = ("data:", "blob:", "about:", page.resolve().as_uri())
    assert [address for address in asked if not address.startswith(allowed)] == []


def test_the_page_cannot_ask_even_if_it_tried(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    script = "const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('sent'), (e) => done(e.name))"
    assert browser.execute_async_script(script) == "TypeError"
    refused = [entry["message"] for entry in browser.get_log("browser")]
    assert any("Content Security Policy" in message for message in refused)


def test_arrows_move_between_tabs(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    browser.find_element("id", "tab-answer").send_keys(Keys.ARROW_RIGHT)
    assert shown_tab(browser) == "tab-run"
    browser.switch_to.active_element.send_keys(Keys.HOME)
    assert shown_tab(browser) == "tab-answer"


def test_the_address_brings_a_view_back(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page, view="table", filter={"judgement": "made_here"}, language="zh", theme="dark")
    assert shown_tab(browser) == "tab-table"
    assert "中的 1 个" in text_of(browser, ".table-view .count")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    assert browser.execute_script("return document.documentElement.lang") == "zh-CN"


def test_the_back_button_goes_back(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    browser.find_element("id", "tab-table").click()
    assert state_of(browser)["view"] == "table"
    browser.back()
    wait_for(browser, "return document.querySelector('[role=tab][aria-selected=true]').id === 'tab-answer'")


def test_the_back_button_brings_the_selection_back(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page, view="model", selected=10)
    chosen = "return document.querySelector('.tree .row.chosen')?.textContent.includes(arguments[0])"
    wait_for(browser, chosen, text_of(browser, ".details h2").removeprefix("torch.nn.functional."))
    browser.find_element("css selector", ".details .tensors button:not([aria-current])").click()
    assert state_of(browser)["selected"] != "10"
    browser.back()
    wait_for(browser, "return new URLSearchParams(location.hash.slice(1)).get('selected') === '10'")


def test_going_back_takes_back_what_a_view_was_told_since(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    browser.find_element("id", "tab-model").click()
    field = "document.querySelector('.model-view input[type=search]')"
    wait_for(browser, f"return {field} !== null")
    browser.find_element("css selector", ".model-view input[type=search]").send_keys("gelu")
    browser.back()
    wait_for(browser, "return document.querySelector('[role=tab][aria-selected=true]').id === 'tab-answer'")
    browser.find_element("id", "tab-model").click()
    wait_for(browser, f"return {field}.offsetParent !== null")
    assert browser.execute_script(f"return {field}.value") == ""
    assert "model.text" not in state_of(browser)


def test_a_text_that_looks_like_a_number_stays_a_text(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page, view="model")
    browser.find_element("css selector", ".model-view input[type=search]").send_keys("1")
    rows = "return document.querySelectorAll('.tree .rows .row').length"
    before = browser.execute_script(rows)
    browser.refresh()
    wait_for(browser, f"{rows} === arguments[0]", before)
    assert browser.find_element("css selector", ".model-view input[type=search]").get_attribute("value") == "1"


@pytest.mark.parametrize("address", ["view=no_such_view", "selected=99999999", "filter=nonsense", "sort=[1]"])
def test_an_address_that_makes_no_sense_does_no_harm(page: Path, open_page: OpenPage, address: str) -> None:
    key, value = address.split("=")
    browser = open_page(page, **{key: value})
    assert not browser.find_elements("css selector", ".fault")
    browser.find_element("id", "tab-table").click()
    assert "456" in text_of(browser, ".table-view .count")


def test_a_switch_of_language_changes_every_text(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    before = [tab.text for tab in browser.find_elements("css selector", "[role=tab]")]
    browser.execute_script("""
        const choice = document.querySelector(".top select");
        choice.value = "zh";
        choice.dispatchEvent(new Event("change"));
    """)
    after = [tab.text for tab in browser.find_elements("css selector", "[role=tab]")]
    assert len(before) == len(after)
    assert not set(before) & set(after)
    assert state_of(browser)["language"] == "zh"
    assert browser.title == "比较: 不一致 - " + page.parent.name + " - ulpscope"


def test_roles_are_told_in_the_language_of_the_page(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page, view="table", language="zh", selected=80)
    options = browser.find_elements("css selector", ".table-view select[name=role] option")
    roles = pl.read_parquet(page.parent / "pairs.parquet")["role"]
    words = phrase_table("zh", of_page=True)
    assert {option.text for option in options[1:]} == {words[f"role.{role}"] for role in roles}
    assert text_of(browser, ".details .tensors [aria-current]").startswith(words[f"role.{roles[80]}"])


def test_every_role_has_a_word_in_each_language() -> None:
    for language in ("en", "zh"):
        words = phrase_table(language, of_page=True)
        assert {f"role.{role.value}" for role in Role} <= words.keys()


def test_the_keyboard_stays_where_it_was(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    browser.find_element("css selector", ".top select[name=theme]").send_keys("D")
    wait_for(browser, "return document.documentElement.dataset.theme === 'dark'")
    assert browser.switch_to.active_element.get_attribute("name") == "theme"


def test_an_old_browser_is_told_so(page: Path, browser: Any) -> None:
    old = "delete window.DecompressionStream; HTMLScriptElement.supports = () => false;"
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": old})
    try:
        browser.get("about:blank")
        browser.get(page.resolve().as_uri())
        told = wait_for(browser, "return document.querySelector('#page').textContent")
        assert "too old" in told or "cannot be shown" in told
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        browser.get_log("browser")


def test_a_page_that_was_cut_off_says_so(page: Path, tmp_path: Path, browser: Any) -> None:
    text = page.read_text(encoding="utf-8")
    begin = text.index('id="content">') + len('id="content">')
    (tmp_path / "cut.html").write_text(text[: begin + 400] + text[text.index("</script>", begin) :], encoding="utf-8")
    browser.get((tmp_path / "cut.html").as_uri())
    told = wait_for(browser, "return document.querySelector('.fault')?.textContent")
    assert "cannot be shown" in told
    assert "ulpscope report" in told
    browser.get_log("browser")


def test_a_selection_is_seen_in_every_view(page: Path, open_page: OpenPage) -> None:
    browser = open_page(page)
    browser.find_element("css selector", ".hero h2 button").click()
    selected = int(state_of(browser)["selected"])
    assert text_of(browser, ".details h2") == "torch.nn.functional.gelu.1"
    browser.find_element("id", "tab-table").click()
    wait_for(browser, "return document.querySelector('.grid .row.chosen')?.dataset.row === arguments[0]", str(selected))
    browser.find_element("id", "tab-model").click()
    assert "gelu.1" in text_of(browser, ".tree .row.chosen")
    browser.find_element("id", "tab-run").click()
    ring = "return document.querySelector('.run-view .chart')?.data?.at(-1).x[0] === arguments[0]"
    wait_for(browser, ring, selected)


@pytest.fixture(scope="module", params=["no rows", "one row", "nothing compared", "no modules"])
def bare_page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("bare")
    write_result(result, layers=2, faulty=False)
    pairs = pl.read_parquet(result / "pairs.parquet")
    nothing = {name: pl.lit(None, pairs.schema[name]) for name in pairs.columns[pairs.columns.index("measured") :]}
    bare = {
        "no rows": pairs[:0],
        "one row": pairs[:1],
        "nothing compared": pairs.with_columns(**nothing),
        "no modules": pairs.with_columns(module=pl.lit(None, pl.String), phase=pl.lit("other")),
    }
    bare[request.param].write_parquet(result / "pairs.parquet")
    return make_report(result)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_of_a_bare_result_can_be_opened(bare_page: Path, open_page: OpenPage, view: str) -> None:
    browser = open_page(bare_page, view=view)
    assert not browser.find_elements("css selector", ".fault")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(page: Path, open_page: OpenPage, view: str, theme: str) -> None:
    browser = open_page(page, view=view, theme=theme, selected=80, **{"model.graph": "module:model.blocks.1.mlp"})
    assert violations(browser) == []


@pytest.fixture(scope="module")
def wide_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run whose names are long and have no place to break."""
    result, long = tmp_path_factory.mktemp("wide"), "x" * 400
    write_result(result, layers=3, names=Names(model=long, function=long, reference=long, target=long))
    return make_report(result)


@pytest.mark.parametrize("width", [1366, 1920])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_the_window(wide_page: Path, open_page: OpenPage, view: str, width: int) -> None:
    browser = open_page(wide_page, view=view, selected=80)
    browser.set_window_size(width, 850)
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.execute_script("return document.documentElement.scrollHeight <= innerHeight")
    finally:
        browser.set_window_size(1366, 850)
