"""Steps and ranks: the cells of the heat map, its choices, keys and selection; the same of a single run."""

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pages import state_of, text_of, violations
from tests.unit.handmade import HandmadeRun

from conftest import OpenPage, wait_for
from made_results import write_result
from ulpscope.workflows.report import make_report

CELLS = """
    const plot = document.querySelector('.map-plot');
    return plot.data ? [plot.layout.yaxis.ticktext, plot.layout.xaxis.ticktext, plot.data[0].text] : null
"""


@pytest.fixture
def result(tmp_path: Path) -> Path:
    write_result(tmp_path, layers=4, steps=3)
    make_report(tmp_path)
    return tmp_path


def opened(result: Path, open_page: OpenPage, **state: Any) -> Any:
    browser = open_page(result / "report.html", view="map", **state)
    wait_for(browser, CELLS)
    return browser


def choose(browser: Any, key: str, value: str) -> None:
    script = """
        const lists = [...document.querySelectorAll(".map-bar select")];
        const list = lists.find((each) => each.closest("label").textContent.startsWith(arguments[0]));
        list.value = arguments[1];
        list.dispatchEvent(new Event('change'));
    """
    browser.execute_script(script, key, value)


def test_a_cell_is_the_worst_error_of_a_module_in_a_step(result: Path, open_page: OpenPage) -> None:
    pairs = pl.read_parquet(result / "pairs.parquet")
    browser = opened(result, open_page, **{"map.depth": 1, "map.measure": "error"})
    modules, steps, texts = browser.execute_script(CELLS)
    top = pl.col("module").str.split(".").list.first()
    worst = pairs.drop_nulls("error").group_by(top, "step").agg(pl.col("error").max())
    assert steps == [str(step) for step in sorted(pairs["step"].unique())]
    for module, step, error in worst.drop_nulls("module").iter_rows():
        shown = float(texts[modules.index(module)][steps.index(str(step))].replace(",", ""))
        assert math.isclose(shown, error, rel_tol=0.06, abs_tol=1e-300)


def test_counts_are_summed(result: Path, open_page: OpenPage) -> None:
    pairs = pl.read_parquet(result / "pairs.parquet")
    browser = opened(result, open_page, **{"map.depth": 1, "map.measure": "made_here"})
    _modules, _steps, texts = browser.execute_script(CELLS)
    shown = sum(float(text.replace(",", "")) for line in texts for text in line if text != "–")
    assert shown == pairs.filter(pl.col("judgement") == "made_here").height


def test_keys_move_the_chosen_cell_and_select_its_tensor(result: Path, open_page: OpenPage) -> None:
    browser = opened(result, open_page, **{"map.depth": 3})
    modules, _steps, _texts = browser.execute_script(CELLS)
    press = "document.querySelector('.map-plot').dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}))"
    for key in ["ArrowUp"] * len(modules) + ["ArrowLeft"] * 3 + ["ArrowDown"]:
        browser.execute_script(press, key)
    state = state_of(browser)
    assert (state["map.module"], state["map.column"]) == (modules[1], "0")
    pairs = pl.read_parquet(result / "pairs.parquet")
    assert pairs["step"][int(state["selected"])] == 0
    assert pairs["module"][int(state["selected"])].startswith(modules[1])


def test_ranks_may_stand_across(result: Path, open_page: OpenPage) -> None:
    browser = opened(result, open_page)
    choose(browser, "Columns", "rank")
    wait_for(browser, "return document.querySelector('.map-plot').layout.xaxis.title.text === 'rank'")
    pairs = pl.read_parquet(result / "pairs.parquet")
    assert browser.execute_script(CELLS)[1] == [str(rank) for rank in sorted(pairs["rank"].unique())]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_accessible(result: Path, open_page: OpenPage, theme: str) -> None:
    assert violations(opened(result, open_page, theme=theme)) == []


def test_a_single_run_has_trends(tmp_path: Path, open_page: OpenPage) -> None:
    run = HandmadeRun()
    for step in range(3):
        run.step = step
        run.call("add", makes={"output.0": [10.0**step]}, module="m.<b>layer")
    page = make_report(run.write(tmp_path / "run"), page=tmp_path / "page.html")
    browser = open_page(page)
    modules, steps, texts = wait_for(browser, CELLS)
    assert (modules, steps, texts) == (["m.&lt;b&gt;layer"], ["0", "1", "2"], [["1.0", "10", "100"]])
    assert "norm 100" in text_of(browser, ".map-status")
    assert browser.execute_script("return document.querySelectorAll('#page b').length") == 0
    assert violations(browser) == []
