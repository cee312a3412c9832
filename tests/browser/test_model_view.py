"""The model: the tree of both runs, and operators as a graph."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pages import state_of, text_of
from selenium.webdriver.common.keys import Keys

from conftest import OpenPage, wait_for
from made_results import OPS, OPS_MLP, write_result
from ulpscope.workflows.report.command import make_report

ROWS = """
    return [...document.querySelectorAll('.tree .rows .row')].map((row) =>
        [...row.querySelectorAll('[role=gridcell]')].slice(0, 3).map((cell) => cell.textContent))
"""
BOXES = """
    const chart = document.querySelector('.graph .chart');
    return chart.data?.find((trace) => trace.name === 'boxes')?.text.map((text) => text.trim());
"""
CLICK = """
    const chart = document.querySelector('.graph .chart');
    chart.emit('plotly_click', {points: [{data: chart.data[1], pointNumber: arguments[0]}]});
"""


@pytest.fixture
def result(tmp_path: Path) -> Path:
    write_result(tmp_path, layers=3, steps=2)
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    plan["ranks"][0]["modules"] = {"model.blocks.1.mlp": "model.blocks.1.feed_forward"}
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    make_report(tmp_path)
    return tmp_path


def names(browser: Any, column: int) -> list[str]:
    return [row[column].lstrip("▾▸") for row in browser.execute_script(ROWS)]


def test_the_tree_is_open_down_to_the_answer(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="model")
    targets = names(browser, 2)
    assert targets[:4] == ["model", "blocks", "0", "1"]
    assert "gelu.1" in targets
    assert "gelu.0" not in targets
    worst = {row[2].lstrip("▾▸"): row[1] for row in browser.execute_script(ROWS)}
    assert worst["model"].startswith("made here")
    assert worst["0"].startswith("inherited")


def test_partners_stand_side_by_side(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="model")
    pairs = list(zip(names(browser, 0), names(browser, 2), strict=True))
    assert ("feed_forward", "mlp") in pairs
    assert ("gelu.1", "gelu.1") in pairs


def test_calls_without_a_partner_are_marked(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="model", **{"model.text": "silu"})
    for _ in range(4):
        browser.execute_script("document.querySelectorAll('.tree .row[aria-expanded=false]').forEach((r) => r.click())")
    pairs = list(zip(names(browser, 0), names(browser, 2), strict=True))
    assert ("silu.0", "no partner") in pairs
    assert ("no partner", "silu.0") in pairs


def test_search_shows_what_fits_and_what_is_above(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="model")
    browser.find_element("css selector", ".model-view input[type=search]").send_keys("attention.2")
    wait_for(browser, "return document.querySelectorAll('.tree .rows .row').length > 0")
    assert state_of(browser)["model.text"] == "attention.2"
    calls = [name for name in names(browser, 2) if "." in name]
    assert calls
    assert all("attention.2" in name for name in calls)


def test_the_keyboard_opens_closes_and_selects(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="model")
    browser.find_element("xpath", "//button[text()='Close all']").click()
    tree = browser.find_element("css selector", ".tree")
    tree.send_keys(Keys.HOME, Keys.ARROW_LEFT)
    before = len(names(browser, 2))
    tree.send_keys(Keys.ARROW_RIGHT)
    assert len(names(browser, 2)) > before
    tree.send_keys(Keys.END, Keys.ENTER)
    tree.send_keys(Keys.END, Keys.ENTER)
    assert "selected" in state_of(browser)


def test_the_inside_of_a_module_is_a_graph(result: Path, open_page: OpenPage) -> None:
    state = {"model.graph": "module:model.blocks.1.mlp", "model.step": 0}
    browser = open_page(result / "report.html", view="model", **state)
    boxes = wait_for(browser, BOXES)
    assert boxes == ["linear.10", "gelu.1", "linear.11", "dropout.3"]
    line = browser.execute_script("return document.querySelector('.graph .chart').data[0].x")
    # Every edge is a line of two ends and a gap.
    assert len(line) == 3 * (len(OPS_MLP) - 1)


def test_submodules_are_boxes_that_open(result: Path, open_page: OpenPage) -> None:
    state = {"model.graph": "module:model.blocks.1", "model.step": 0}
    browser = open_page(result / "report.html", view="model", **state)
    assert wait_for(browser, BOXES) == [f"attention ({len(OPS)})", f"mlp ({len(OPS_MLP)})"]
    browser.execute_script(CLICK, 1)
    assert state_of(browser)["model.graph"] == "module:model.blocks.1.mlp"


def test_the_graph_around_a_call(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="model", **{"model.graph": "row:0"})
    assert wait_for(browser, BOXES) == ["layer_norm.0", "linear.0", "linear.1", "linear.2"]
    assert "layer_norm.0" in text_of(browser, ".graph h2")


def test_the_tree_follows_the_selection_to_another_step(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="model", **{"model.step": 0})
    last = len(pl.read_parquet(result / "pairs.parquet")) - 20
    browser.execute_script("document.getElementById('tab-table').click()")
    grid = browser.find_element("css selector", ".table-view .grid")
    grid.send_keys(Keys.END, *[Keys.ARROW_UP] * 19, Keys.ENTER)
    assert state_of(browser)["selected"] == str(last)
    browser.find_element("id", "tab-model").click()
    chosen = "return document.querySelector('.model-view select').selectedOptions[0].textContent"
    assert browser.execute_script(chosen) == "step 1"
    assert text_of(browser, ".tree .row.chosen")


def test_a_module_call_is_one_row_though_its_outputs_come_last(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=2)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet")
    number = pl.lit(9999, pl.Int64)
    wrapping = {
        "kind": pl.lit("module"),
        "call_target": pl.lit("app.Mlp.0"),
        "id_target": number,
        "id_reference": number,
    }
    inside = pairs.filter(pl.col("module") == "model.blocks.0.mlp").with_row_index("at")
    wrap = inside.filter(pl.col("at").is_in([0, 11])).drop("at").with_columns(**wrapping)
    pl.concat([wrap[:1], pairs, wrap[1:]]).write_parquet(tmp_path / "pairs.parquet")
    browser = open_page(make_report(tmp_path), view="model", selected=0)
    assert names(browser, 2).count("app.Mlp.0") == 1
    assert len(browser.find_elements("css selector", ".details .tensors button")) == 2


def test_the_selected_call_is_in_sight_beside_a_graph(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=20)
    state = {"model.graph": "module:model.blocks.1.mlp"}
    browser = open_page(make_report(tmp_path), view="model", selected=600, **state)
    in_sight = """
        const row = document.querySelector('.tree .row.chosen')?.getBoundingClientRect();
        const tree = document.querySelector('.tree').getBoundingClientRect();
        return row !== undefined && row.top >= tree.top && row.bottom <= tree.bottom + 1;
    """
    wait_for(browser, in_sight)
