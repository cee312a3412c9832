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
from ulpscope.workflows.report.command import make_report

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


SIZES = """
    const plots = ['.map-plot', '.map-trend'].map((place) => document.querySelector(place));
    const drawn = ({ _fullLayout: layout, clientWidth, clientHeight }) =>
        layout?.width === clientWidth && layout?.height === clientHeight;
    return plots.every(drawn) ? plots.map((plot) => plot.clientHeight) : null
"""


@pytest.mark.parametrize("width", [1366, 1600])
def test_every_line_keeps_its_room_when_the_window_changes(tmp_path: Path, open_page: OpenPage, width: int) -> None:
    write_result(tmp_path, layers=20)
    make_report(tmp_path)
    browser = opened(tmp_path, open_page, **{"map.depth": 3})
    lines = len(browser.execute_script(CELLS)[0])
    try:
        sizes = []
        for shown in (width, width - 60, width):
            browser.set_window_size(shown, 768)
            wait_for(browser, "return Math.abs(innerWidth - arguments[0]) < 20", shown)
            sizes.append(wait_for(browser, SIZES))
    finally:
        browser.set_window_size(1366, 850)
    assert lines > 20
    assert sizes[0][0] >= 18 * lines
    assert sizes == [[sizes[0][0], 240]] * 3
    choose(browser, "Depth", "1")
    wait_for(browser, "return document.querySelector('.map-plot').data[0].y.length < arguments[0]", lines)
    assert wait_for(browser, SIZES)[0] < sizes[0][0]


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


def test_what_was_not_compared_was_not_made_here(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=2, faulty=False)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet").with_row_index("row")
    left = pl.when(pl.col("row") < 9).then(None).otherwise("judgement")
    pairs.with_columns(judgement=left).drop("row").write_parquet(tmp_path / "pairs.parquet")
    make_report(tmp_path)
    browser = opened(tmp_path, open_page, **{"map.measure": "made_here"})
    assert {text for line in browser.execute_script(CELLS)[2] for text in line} == {"0"}


def test_operators_of_networks_are_cut_at_slashes(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=3)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet")
    pairs.with_columns(pl.col("module").str.replace_all(".", "/", literal=True)).write_parquet(
        tmp_path / "pairs.parquet"
    )
    make_report(tmp_path)
    browser = opened(tmp_path, open_page, **{"map.depth": 2})
    assert browser.execute_script(CELLS)[0] == ["model/blocks", "(outside of modules)"]
    browser = open_page(tmp_path / "report.html", view="table", filter={"module": "model/blocks/1"})
    wanted = pairs.filter(pl.col("module").str.starts_with("model.blocks.1.")).height
    assert text_of(browser, ".count").startswith(f"{wanted:,} of")


def test_of_thousands_of_modules_the_worst_are_drawn(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=20)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet").with_row_index("row")
    many = pairs.with_columns(module=pl.format("m.{}", "row")).drop("row")
    many.write_parquet(tmp_path / "pairs.parquet")
    make_report(tmp_path)
    browser = open_page(tmp_path / "report.html", view="map")
    errors = wait_for(browser, "return document.querySelector('.map-plot').data?.[0].z")
    assert len(errors) == 1000
    shown = sorted((10 ** line[0] for line in errors), reverse=True)
    assert shown == pytest.approx(sorted(many["error"], reverse=True)[:1000], rel=1e-4)
    assert f"{many.height - 1000:,} others are not" in text_of(browser, ".map")
    height = browser.execute_script("return document.querySelector('.map-plot').clientHeight")
    assert height < 20000


def test_what_a_trace_lacks_is_told(tmp_path: Path, open_page: OpenPage) -> None:
    run = HandmadeRun()
    run.call("add", makes={"output.0": [1.0]}, module="m")
    trace = run.write(tmp_path / "run")
    (trace / "rank1").mkdir()
    browser = open_page(make_report(trace, page=tmp_path / "page.html"))
    assert "rank1" in text_of(browser, ".map")
