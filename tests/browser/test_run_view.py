"""Error along the run: the points, their scale, zoom and selection."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pages import state_of, text_of
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from conftest import OpenPage, wait_for
from made_results import write_result
from ulpscope.workflows.report.command import make_report

DRAWN = "return document.querySelector('.run-view .chart')?._fullLayout !== undefined"
CHOOSE = """
    const choice = document.querySelector('.top select');
    choice.value = arguments[0];
    choice.dispatchEvent(new Event('change'));
"""
POINTS = """
    return document.querySelector('.run-view .chart').data.filter((trace) => trace.type === 'scattergl')
        .map((trace) => [trace.name, trace.visible !== false, Array.from(trace.x), Array.from(trace.y)])
"""


@pytest.fixture
def result(tmp_path: Path) -> Path:
    write_result(tmp_path, layers=4, steps=2)
    table = pl.read_parquet(tmp_path / "pairs.parquet")
    odd = pl.when(pl.int_range(pl.len()) == 5).then(0.0).when(pl.int_range(pl.len()) == 6).then(float("inf"))
    table.with_columns(odd.otherwise(pl.col("error")).alias("error")).write_parquet(tmp_path / "pairs.parquet")
    make_report(tmp_path)
    return tmp_path


def opened(result: Path, open_page: OpenPage, **state: Any) -> Any:
    browser = open_page(result / "report.html", view="run", **state)
    wait_for(browser, DRAWN)
    return browser


def test_every_tensor_is_a_point(result: Path, open_page: OpenPage) -> None:
    pairs = pl.read_parquet(result / "pairs.parquet")
    traces = opened(result, open_page).execute_script(POINTS)
    assert sorted(row for _, _, x, _ in traces for row in x) == list(range(pairs.height))
    for judgement, _, x, y in traces:
        assert {pairs["judgement"][row] for row in x} <= {judgement}
        shown = [(row, height) for row, height in zip(x, y, strict=True) if row not in (5, 6)]
        assert [height for _, height in shown] == pytest.approx([pairs["error"][row] for row, _ in shown], rel=1e-5)


def test_zero_and_infinity_have_lines_of_their_own(result: Path, open_page: OpenPage) -> None:
    browser = opened(result, open_page)
    heights = {row: height for _, _, x, y in browser.execute_script(POINTS) for row, height in zip(x, y, strict=True)}
    usual = [height for row, height in heights.items() if row not in (5, 6)]
    assert 0 < heights[5] < min(usual)
    assert max(usual) < heights[6]
    ticks = browser.execute_script("return document.querySelector('.run-view .chart').layout.yaxis.ticktext")
    assert {"0", "inf, nan"} <= set(ticks)


def test_a_filter_leaves_points_where_they_are(result: Path, open_page: OpenPage) -> None:
    pairs = pl.read_parquet(result / "pairs.parquet").with_row_index("row")
    traces = opened(result, open_page, filter={"step": 1}).execute_script(POINTS)
    assert sorted(row for _, _, x, _ in traces for row in x) == pairs.filter(pl.col("step") == 1)["row"].to_list()


def test_a_judgement_is_hidden_by_its_button(result: Path, open_page: OpenPage) -> None:
    browser = opened(result, open_page)
    browser.find_element("css selector", ".legend [data-judgement=inherited]").click()
    wait_for(
        browser,
        "return document.querySelector('.run-view .chart').data.some((t) => t.name === 'inherited' && !t.visible)",
    )
    assert state_of(browser)["run.hidden"] == '["inherited"]'


def test_the_answer_and_phases_are_marked(result: Path, open_page: OpenPage) -> None:
    pairs = pl.read_parquet(result / "pairs.parquet").with_row_index("row")
    browser = opened(result, open_page)
    born = pairs.filter(pl.col("judgement") == "made_here")["row"][0]
    marks = browser.execute_script("return document.querySelector('.run-view .chart').layout.shapes.map((s) => s.x0)")
    assert born in marks
    assert pairs.filter(pl.col("step") == 1)["row"][0] in marks
    strip = browser.execute_script("""
        return document.querySelector('.run-view .chart').data.find((trace) => trace.type === 'heatmap').z[0]
    """)
    assert set(strip) == {1, 2, 3}


def test_zoom_is_kept_in_the_address(result: Path, open_page: OpenPage) -> None:
    browser = opened(result, open_page)
    chart = browser.find_element("css selector", ".run-view .nsewdrag")
    ActionChains(browser).move_to_element_with_offset(chart, -100, -60).click_and_hold().move_by_offset(
        200, 120
    ).release().perform()
    wait_for(browser, "return location.hash.includes('run.range')")
    seen = browser.execute_script("return document.querySelector('.run-view .chart')._fullLayout.xaxis.range")
    height = pl.read_parquet(result / "pairs.parquet").height
    assert 0 < seen[0] < seen[1] < height
    browser.find_element("xpath", "//button[text()='Whole run']").click()
    wait_for(browser, "return !location.hash.includes('run.range')")
    whole = browser.execute_script("return document.querySelector('.run-view .chart')._fullLayout.xaxis.range")
    assert whole[0] < 0
    assert whole[1] > height


def test_hover_tells_and_a_click_selects(result: Path, open_page: OpenPage) -> None:
    browser = opened(result, open_page)
    point = browser.execute_script("""
        const chart = document.querySelector('.run-view .chart');
        const trace = chart.data.find((one) => one.name === 'made_here');
        const {xaxis, yaxis} = chart._fullLayout;
        const box = chart.querySelector('.nsewdrag').getBoundingClientRect();
        return [box.x + xaxis.d2p(trace.x[0]), box.y + yaxis.d2p(trace.y[0]), trace.x[0]];
    """)
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        event = {"type": kind, "x": point[0], "y": point[1], "button": "left", "clickCount": 1}
        if kind == "mouseMoved":
            del event["button"]
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)
        if kind == "mouseMoved":
            wait_for(browser, "return document.querySelector('.run-view .tip:not(.hidden)') !== null")
            assert "gelu.1" in text_of(browser, ".run-view .tip")
    wait_for(browser, "return location.hash.includes('selected=' + arguments[0])", point[2])


def test_the_chart_makes_room_for_details(result: Path, open_page: OpenPage) -> None:
    browser = opened(result, open_page)
    wide = browser.execute_script("return document.querySelector('.run-view .chart').clientWidth")
    browser.find_element("css selector", ".run-view .chart").send_keys(Keys.ARROW_RIGHT)
    fits = """
        const chart = document.querySelector('.run-view .chart');
        return chart.clientWidth < arguments[0] && Math.abs(chart._fullLayout.width - chart.clientWidth) <= 1;
    """
    wait_for(browser, fits, wide)


def test_points_are_drawn_without_webgl(result: Path, open_page: OpenPage, browser: Any) -> None:
    without = """
        const made = HTMLCanvasElement.prototype.getContext;
        HTMLCanvasElement.prototype.getContext = function (kind, ...more) {
            return kind.includes("webgl") ? null : made.call(this, kind, ...more);
        };
    """
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": without})
    try:
        opened(result, open_page)
        points = "return document.querySelectorAll('.run-view .chart .scatterlayer .point').length"
        assert wait_for(browser, points) >= pl.read_parquet(result / "pairs.parquet").height
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_many_changes_of_language_leave_the_chart_alive(result: Path, open_page: OpenPage) -> None:
    browser = opened(result, open_page)
    for language in ["zh", "en"] * 10:
        browser.execute_script(CHOOSE, language)
        wait_for(browser, DRAWN)
    lost = """
        return [...document.querySelectorAll('.run-view canvas')].filter((canvas) =>
            (canvas.getContext('webgl') ?? canvas.getContext('webgl2'))?.isContextLost()).length
    """
    assert browser.execute_script(lost) == 0


def test_of_very_many_points_those_on_each_other_are_drawn_once(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=100, steps=2)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet").with_row_index("row")
    make_report(tmp_path)
    browser = opened(tmp_path, open_page)
    drawn = {name: set(x) for name, _, x, _ in browser.execute_script(POINTS)}
    assert sum(map(len, drawn.values())) < pairs.height
    assert drawn["made_here"] == set(pairs.filter(pl.col("judgement") == "made_here")["row"])
    assert f"{pairs.filter(pl.col('judgement') == 'inherited').height:,}" in text_of(browser, ".legend")
    browser = opened(tmp_path, open_page, **{"run.range": [100, 300, -12, 3]})
    drawn = {name: set(x) for name, _, x, _ in browser.execute_script(POINTS)}
    assert set(range(100, 300)) <= set().union(*drawn.values())
