"""The table: rows in sight only, filters, order, keyboard, CSV."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pages import saved_csv, state_of, text_of
from selenium.webdriver.common.keys import Keys

from conftest import OpenPage, wait_for
from made_results import write_result
from ulpscope.workflows.report.command import make_report


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("result")
    write_result(made, layers=20, steps=3)
    make_report(made)
    return made


@pytest.fixture(scope="module")
def pairs(result: Path) -> pl.DataFrame:
    return pl.read_parquet(result / "pairs.parquet").with_row_index("row")


def rows(browser: Any) -> list[int]:
    script = "return [...document.querySelectorAll('.table-view .rows .row')].map((row) => Number(row.dataset.row))"
    return list(browser.execute_script(script))


def test_only_rows_in_sight_are_there(result: Path, pairs: pl.DataFrame, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="table")
    assert f"{pairs.height:,} of {pairs.height:,}" in text_of(browser, ".count")
    assert rows(browser)[0] == 0
    assert len(rows(browser)) < 100
    browser.execute_script("const grid = document.querySelector('.grid'); grid.scrollTop = grid.scrollHeight")
    last = "return [...document.querySelectorAll('.table-view .rows .row')].at(-1).dataset.row === arguments[0]"
    wait_for(browser, last, str(pairs.height - 1))


def test_rows_of_set_up_stand_behind_the_others(result: Path, open_page: OpenPage, tmp_path: Path) -> None:
    shutil.copytree(result, tmp_path / "copy")
    pairs = pl.read_parquet(result / "pairs.parquet")
    first = pl.int_range(pl.len()) < 5
    changed = pairs.with_columns(phase=pl.when(first).then(pl.lit("setup")).otherwise("phase"))
    changed.write_parquet(tmp_path / "copy" / "pairs.parquet")
    browser = open_page(make_report(tmp_path / "copy"), view="table")
    assert rows(browser)[:2] == [5, 6]
    browser.execute_script("const grid = document.querySelector('.grid'); grid.scrollTop = grid.scrollHeight")
    last = "return [...document.querySelectorAll('.table-view .rows .row')].at(-1).dataset.row === arguments[0]"
    wait_for(browser, last, "4")


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"judgement": "made_here"}, pl.col("judgement") == "made_here"),
        ({"step": 1, "phase": "backward"}, (pl.col("step") == 1) & (pl.col("phase") == "backward")),
        ({"op": "torch.nn.functional.gelu"}, pl.col("op") == "torch.nn.functional.gelu"),
        ({"module": "model.blocks.1"}, pl.col("module").str.contains(r"^model\.blocks\.1(\.|$)")),
        ({"text": "LAYER_norm"}, pl.col("op").str.contains("layer_norm")),
        ({"text": "no such text"}, pl.lit(False)),
    ],
)
def test_filters(
    result: Path, pairs: pl.DataFrame, open_page: OpenPage, chosen: dict[str, Any], expected: pl.Expr
) -> None:
    wanted = pairs.filter(expected)["row"].to_list()
    browser = open_page(result / "report.html", view="table", filter=chosen)
    assert f"{len(wanted):,} of" in text_of(browser, ".count")
    seen = rows(browser)
    assert seen == wanted[: len(seen)]


def test_typing_filters(result: Path, pairs: pl.DataFrame, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="table")
    browser.find_element("css selector", ".table-view input[name=text]").send_keys("gelu.1")
    wanted = pairs.filter(pl.col("call_target").str.contains("gelu.1", literal=True)).height
    wait_for(browser, "return document.querySelector('.count').textContent.startsWith(arguments[0])", f"{wanted} of")


def test_a_heads_click_sorts(result: Path, pairs: pl.DataFrame, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="table")
    head = ".table-view [data-column=error]"
    browser.find_element("css selector", head).click()
    largest = pairs.sort("error", descending=True, maintain_order=True)["row"].to_list()
    assert rows(browser)[:10] == largest[:10]
    browser.find_element("css selector", head).click()
    assert rows(browser)[:10] == pairs.sort("error", maintain_order=True)["row"].to_list()[:10]
    browser.find_element("css selector", head).click()
    assert rows(browser)[:10] == list(range(10))


def test_the_keyboard_moves_and_selects(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="table")
    grid = browser.find_element("css selector", ".table-view .grid")
    grid.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    assert state_of(browser)["selected"] == "2"
    grid.send_keys(Keys.END, Keys.ENTER)
    assert int(state_of(browser)["selected"]) == int(rows(browser)[-1])
    grid.send_keys(Keys.ESCAPE)
    assert "selected" not in state_of(browser)


def test_measures_are_chosen(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="table")
    browser.find_element("css selector", ".popup summary").click()
    browser.find_element("css selector", ".popup input[name=max_ulp]").click()
    assert browser.find_elements("css selector", ".table-view [data-column=max_ulp]")
    browser.find_element("css selector", ".popup input[name=error_in]").click()
    assert not browser.find_elements("css selector", ".table-view [data-column=error_in]")


def test_what_is_shown_is_saved_as_csv(result: Path, pairs: pl.DataFrame, open_page: OpenPage, tmp_path: Path) -> None:
    browser = open_page(result / "report.html", view="table", filter={"op": "torch.nn.functional.gelu", "step": 0})
    found = saved_csv(browser, tmp_path)
    wanted = pairs.filter((pl.col("op") == "torch.nn.functional.gelu") & (pl.col("step") == 0))
    assert [row["call_target"] for row in found] == wanted["call_target"].to_list()
    assert [float(row["error"]) for row in found] == pytest.approx(wanted["error"].to_list(), rel=1e-6)


def test_filters_can_be_cleared_while_one_is_typed(result: Path, pairs: pl.DataFrame, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="table")
    browser.find_element("css selector", ".table-view input[name=text]").send_keys("gelu.1")
    clear = "return document.querySelector('.table-view button[name=reset]:enabled') !== null"
    wait_for(browser, clear)
    # The field that is typed in stays the same one: an input method would lose what it composes.
    assert browser.switch_to.active_element.get_attribute("value") == "gelu.1"
    browser.find_element("css selector", ".table-view button[name=reset]").click()
    assert browser.find_element("css selector", ".table-view input[name=text]").get_attribute("value") == ""
    assert f"{pairs.height:,} of" in text_of(browser, ".count")


@pytest.mark.parametrize("chosen", [{"text": 5}, {"module": ["a"]}, {"op": {}}, {"rank": "0"}, {"judgement": 1}])
def test_a_filter_that_makes_no_sense_does_no_harm(result: Path, open_page: OpenPage, chosen: dict[str, Any]) -> None:
    browser = open_page(result / "report.html", view="table", filter=chosen, sort={"column": "constructor"})
    assert not browser.find_elements("css selector", ".fault")
    assert " of " in text_of(browser, ".count")


def test_filters_that_let_nothing_through_say_so(result: Path, open_page: OpenPage) -> None:
    told = "No tensor passes these filters."
    nothing = {"filter": {"text": "no such text"}}
    assert text_of(open_page(result / "report.html", view="table", **nothing), ".nothing:not(.hidden)") == told
    browser = open_page(result / "report.html", view="run", **nothing)
    wait_for(browser, "return document.querySelector('.run-view .legend').textContent.includes(arguments[0])", told)
    assert not open_page(result / "report.html", view="table").find_elements("css selector", ".nothing:not(.hidden)")
