"""Inf and nan of one run: an error that tells of finite elements only is never shown as if all were well."""

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pages import change_json, saved_csv, text_of
from tests.unit.handmade import HandmadeRun

from conftest import OpenPage, wait_for
from made_results import write_result
from ulpscope.workflows.report.command import make_report

BROKEN, WEAK = 7, 30
"""Rows of which one has nan in the target and is else identical, and one that has the largest error."""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("broken")
    write_result(made, layers=2, faulty=False)
    pairs = pl.read_parquet(made / "pairs.parquet").with_row_index("row")
    at = pl.col("row") == BROKEN
    pairs.with_columns(
        error=pl.when(at).then(0.0).when(pl.col("row") == WEAK).then(3.0).otherwise("error"),
        mismatched=pl.when(at).then(512).otherwise(0),
        judgement=pl.when(at).then(pl.lit("made_here")).otherwise("judgement"),
    ).drop("row").write_parquet(made / "pairs.parquet")
    row = pairs.row(BROKEN, named=True)
    found = {name: row[name] for name in ("rank", "step", "phase", "op", "module")} | {
        "kind": "overflow", "call": row["call_target"], "tensor": row["place"], "source": None, "next": "ulpscope",
        "sentence": "It holds nan.",
        "evidence": {"error_in": 0.0, "error_out": 0.0, "not_finite": [0, 512]},
    }  # fmt: skip
    near = {"nearness": "here", "call": row["call_target"], "op": row["op"], "module": row["module"], "error_in": 0.0,
            "error_out": 0.0, "judgement": "made_here"}  # fmt: skip
    change_json(
        made / "summary.json",
        lambda summary: summary.update(verdict="diverged", findings=[found], neighbours=[near]),
    )
    make_report(made)
    return made


def test_the_answer_counts_them(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html")
    figures = [figure.text for figure in browser.find_elements("css selector", ".hero .figure")]
    assert figures == ["0", "0 / 512"]
    assert "inf" in text_of(browser, ".around tr.here td:nth-child(5)")


def test_the_chart_has_them_on_the_line_of_inf_and_nan(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="run")
    heights = wait_for(
        browser,
        """
        const chart = document.querySelector('.run-view .chart');
        return chart?.data?.filter((trace) => trace.name === 'made_here').flatMap((trace) => Array.from(trace.y));
    """,
    )
    ticks = browser.execute_script("""
        const {tickvals, ticktext} = document.querySelector('.run-view .chart').layout.yaxis;
        return Object.fromEntries(ticktext.map((text, at) => [text, tickvals[at]]));
    """)
    assert heights == [ticks["inf, nan"]]


def test_the_table_puts_them_above_every_number(result: Path, open_page: OpenPage, tmp_path: Path) -> None:
    browser = open_page(result / "report.html", view="table", sort={"column": "error", "descending": True})
    rows = "return [...document.querySelectorAll('.table-view .rows .row')].map((row) => Number(row.dataset.row))"
    assert browser.execute_script(rows)[:2] == [BROKEN, WEAK]
    assert "inf" in text_of(browser, f"#row-{BROKEN}")
    assert saved_csv(browser, tmp_path)[0]["error"] == "inf"


def test_the_model_and_the_map_show_them(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="model")
    assert "inf" in text_of(browser, ".tree .row.current .state")
    browser = open_page(result / "report.html", view="map", **{"map.depth": 1})
    texts = wait_for(browser, "return document.querySelector('.map-plot').data?.[0].text")
    assert texts[0] == ["inf, nan"]


def test_a_trend_of_one_run_shows_nan(tmp_path: Path, open_page: OpenPage) -> None:
    run = HandmadeRun()
    for step, content in enumerate(([4.0], [math.nan], [0.0])):
        run.step = step
        run.call("add", makes={"output.0": content}, module="layer")
    page = make_report(run.write(tmp_path / "run"), page=tmp_path / "page.html")
    browser = open_page(page)
    assert cells(browser)["text"] == [["4.0", "inf, nan", "0"]]
    marks = "return document.querySelector('.map-trend').layout?.annotations?.map((mark) => [mark.x, mark.text])"
    assert wait_for(browser, marks) == [[1, "inf, nan"]]


def cells(browser: Any) -> Any:
    return wait_for(
        browser,
        """
        const plot = document.querySelector('.map-plot').data?.[0];
        return plot && {text: plot.text, z: plot.z, low: plot.zmin, high: plot.zmax};
    """,
    )


def test_zero_infinity_and_nothing_have_colours_of_their_own(tmp_path: Path, open_page: OpenPage) -> None:
    run = HandmadeRun()
    for step, content in enumerate(([4.0], [math.nan], [0.0], [40.0])):
        run.step = step
        run.call("add", makes={"output.0": content}, module="layer")
    run.call("add", makes={"output.0": [1.0]}, module="late")
    page = make_report(run.write(tmp_path / "run"), page=tmp_path / "page.html")
    found = cells(open_page(page))
    small, broken, zero, large = found["z"][0]
    assert found["low"] == zero < small < large < broken == found["high"]
    assert found["z"][1][:3] == [None, None, None]
