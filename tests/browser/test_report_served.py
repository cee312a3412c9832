"""A pair of tensors in a served report: what a user sees of the elements, and does with mouse and keys."""

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pages import state_of, text_of, violations
from tests.unit.network_data import DUMPS, GRAPH, REFERENCE
from tests.unit.saved_runs import serving, write_result

from conftest import OpenPage, requested, wait_for
from ulpscope.cli.main import main
from ulpscope.numerics.pairs.overview import Advance, PairOverview, overview
from ulpscope.numerics.pairs.pieces import PairBoxes
from ulpscope.workflows.report import tensor_answers
from ulpscope.workflows.report.command import make_report
from ulpscope.workflows.report.serving import ReportServer

CHANNEL = 17
MARKUP = "<img src=x onerror=window.hit=1>\u202e</script><b>"


def images() -> tuple[Any, Any]:
    """Two images of 32 channels, one of which is spoilt in the target, most of all at one place."""
    reference = np.random.default_rng(0).standard_normal((4, 32, 6, 40)).astype(np.float32)
    target = reference.copy()
    target[:, CHANNEL] *= 1.25
    target[2, CHANNEL, 3, 7] += 5.0
    return reference, target


def long_rows() -> tuple[Any, Any]:
    reference = np.zeros((3, 700), np.float32)
    target = reference.copy()
    target[1, 650] = 2.0
    return reference, target


def broken() -> tuple[Any, Any]:
    reference, target = np.ones((2, 5), np.float32), np.ones((2, 5), np.float32)
    target[1, 3], target[0, 0] = np.nan, 1.5
    return reference, target


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = {
        "torch.conv2d": images(),
        "torch.cumsum": long_rows(),
        "torch.sqrt": broken(),
        "torch.neg": (np.ones(3, np.float32), np.ones(3, np.float32)),
        f"torch.{MARKUP}": images(),
    }
    return write_result(tmp_path_factory.mktemp("served"), pairs)


@pytest.fixture(scope="module")
def server(result: Path) -> Iterator[ReportServer]:
    with serving(result) as found:
        yield found


def row_of(result: Path, op: str) -> int:
    """The row of what a call made."""
    table = pl.read_parquet(result / "pairs.parquet").with_row_index("row")
    found = table.filter((pl.col("op") == op) & (pl.col("place") == "output.0"))
    return int(found["row"][0])


@pytest.fixture
def look(server: ReportServer, result: Path, open_page: OpenPage) -> Any:
    """Opens the elements of a call's output and waits for all charts."""

    def look_at(op: str, *, charts: int = 4, **state: Any) -> Any:
        browser = open_page(server.address, view="tensor_pair", selected=row_of(result, op), **state)
        drawn(browser, charts)
        return browser

    return look_at


def drawn(browser: Any, charts: int) -> None:
    wait_for(browser, f"return document.querySelectorAll('.tensor-chart[data-drawn]').length === {charts}")


def chart(browser: Any, name: str, script: str) -> Any:
    """What a script says of a chart, which it knows as `it`."""
    return browser.execute_script(f"const it = document.querySelector('[data-chart={name}]'); return {script}")


def choose(browser: Any, name: str, value: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element(By.CSS_SELECTOR, f"[data-choice={name}]")).select_by_value(value)


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.by import By

    for key in keys:
        browser.find_element(By.CSS_SELECTOR, ".tensor-field").send_keys(key)


def click(browser: Any, selector: str) -> None:
    wait_for(browser, "return document.querySelector(arguments[0])", selector)
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def readout(browser: Any, begins: str) -> str:
    """What is said of the chosen element, once it is this one."""
    script = (
        "const it = document.querySelector('.tensor-readout').textContent; return it.startsWith(arguments[0]) && it"
    )
    return str(wait_for(browser, script, begins))


def test_the_spoilt_channel_is_named_and_seen(look: Any, server: ReportServer) -> None:
    browser = look("torch.conv2d")
    said = text_of(browser, ".tensor-sentence")
    assert f"Index {CHANNEL} of axis 1 (32) has 100 % of all error." in said
    assert "960 of 30,720 elements differ" in said
    assert chart(browser, "heat", "it.data[0].z.findIndex((row) => row.some((error) => error > 0))") == CHANNEL
    assert chart(browser, "heat", "it.data[0].z.length") == 32
    asked = [url for url in requested(browser) if re.match(r"(http|ws)s?:", url)]
    assert [url for url in asked if not url.startswith(server.address)] == []
    assert any(url.endswith("/overview") for url in asked)


def test_histograms_count_all_elements_of_both(look: Any) -> None:
    browser = look("torch.conv2d")
    sums = chart(browser, "values", "it.data.map((side) => side.y.slice(0, -1).reduce((sum, count) => sum + count))")
    assert sums == [30720, 30720]
    choose(browser, "scale", "log")
    wait_for(browser, "return document.querySelector('[data-chart=values]').layout.xaxis.type === 'log'")
    sums = chart(browser, "values", "it.data.map((side) => side.y.slice(0, -1).reduce((sum, count) => sum + count))")
    assert sums == [30720, 30720]
    assert state_of(browser)["tensor.scale"] == "log"


def test_errors_are_counted_by_sign_and_ulp(look: Any) -> None:
    browser = look("torch.conv2d")
    assert chart(browser, "errors", "it.data[0].y[it.data[0].x.indexOf('0')]") == 30720 - 960
    assert chart(browser, "errors", "it.data[0].y.reduce((sum, count) => sum + count)") == 30720
    assert "Equal elements: 29,760" in text_of(browser, ".tensor-grid")


def test_other_axes_can_be_chosen_for_heat_map_and_slice(look: Any) -> None:
    browser = look("torch.conv2d")
    choose(browser, "heat-rows", "0")
    wait_for(browser, "return document.querySelector('[data-chart=heat]').data[0].z.length === 4")
    assert chart(browser, "slice", "document.querySelector('[data-choice=slice-rows]').value") == "0"
    wait_for(browser, "return document.querySelector('[data-chart=slice]').data[0].z.length === 4")
    choose(browser, "heat-columns", "0")
    wait_for(browser, "return document.querySelector('[data-chart=heat]').data[0].z[0].length === 4")
    assert (state_of(browser)["tensor.rows"], state_of(browser)["tensor.columns"]) == ("3", "0")


def test_mean_and_largest_error_are_two_maps(look: Any) -> None:
    browser = look("torch.conv2d")
    largest = chart(browser, "heat", "Math.max(...it.data[0].z.flat())")
    reference, target = images()
    assert largest == pytest.approx(float(np.abs(target - reference).max()), rel=1e-5)
    choose(browser, "reduce", "mean")
    script = "return Math.max(...document.querySelector('[data-chart=heat]').data[0].z.flat()) < arguments[0]"
    wait_for(browser, script, largest / 2)


def test_an_index_of_the_ranking_leads_to_its_slice(look: Any) -> None:
    browser = look("torch.conv2d", **{"tensor.at": [0, 0, 0, 0]})
    click(browser, f".tensor-ranking [data-axis='1'][data-index='{CHANNEL}']")
    assert readout(browser, f"[0, {CHANNEL}, 0, 0]")
    assert state_of(browser)["tensor.at"] == f"[0,{CHANNEL},0,0]"


def test_the_worst_element_is_listed_first_and_chosen(look: Any) -> None:
    browser = look("torch.conv2d")
    reference, target = (side[2, CHANNEL, 3, 7] for side in images())
    first = text_of(browser, ".tensor-worst tbody tr")
    assert first.startswith(f"[2, {CHANNEL}, 3, 7]{reference!s}{target!s}")
    said = readout(browser, f"[2, {CHANNEL}, 3, 7]")
    assert f"reference {float(f'{reference:.7g}')}, target {float(f'{target:.7g}')}" in said
    choose(browser, "order", "relative")
    script = "return document.querySelectorAll('.tensor-worst tbody tr').length"
    assert wait_for(browser, script) == 50


def test_keys_move_through_a_slice(look: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = look("torch.conv2d", **{"tensor.rows": 2, "tensor.columns": 3, "tensor.at": [2, CHANNEL, 3, 7]})
    press(browser, Keys.ARROW_RIGHT)
    readout(browser, f"[2, {CHANNEL}, 3, 8]")
    press(browser, Keys.ARROW_UP, Keys.HOME)
    readout(browser, f"[2, {CHANNEL}, 2, 0]")
    press(browser, Keys.SHIFT + Keys.ARROW_RIGHT)
    readout(browser, f"[2, {CHANNEL}, 2, 16]")
    press(browser, Keys.END, Keys.ARROW_RIGHT, Keys.PAGE_DOWN)
    readout(browser, f"[2, {CHANNEL}, 5, 39]")


def test_indices_of_other_axes_are_typed(look: Any) -> None:
    browser = look("torch.conv2d", **{"tensor.rows": 2, "tensor.columns": 3, "tensor.at": [0, 0, 0, 0]})
    script = (
        "const input = document.querySelector(`.tensor-slice input[data-axis='1']`);"
        "input.value = '17'; input.dispatchEvent(new Event('change'))"
    )
    browser.execute_script(script)
    readout(browser, "[0, 17, 0, 0]")
    choose(browser, "show", "reference")
    expected = float(images()[0][0, 17, 5, 39])
    wait_for(browser, "return document.querySelector('[data-chart=slice]').data[0].z[5][39] === arguments[0]", expected)


def test_a_window_moves_over_a_long_axis(look: Any) -> None:
    browser = look("torch.cumsum", **{"tensor.at": [1, 0]})
    assert chart(browser, "slice", "it.data[0].z[0].length") == 256
    assert "3 indices to a cell" in text_of(browser, ".tensor-heat")
    click(browser, ".tensor-moves [data-move='1,1']")
    readout(browser, "[1, 256]")
    click(browser, ".tensor-moves [data-move='1,1']")
    readout(browser, "[1, 512]")
    wait_for(browser, "return document.querySelector('[data-chart=slice]').data[0].z[0].length === 700 - 512")
    assert chart(browser, "slice", "it.data[0].z[1][650 - 512]") == 2.0
    assert (
        browser.execute_script("return document.querySelector(`[data-move='1,1']`).getAttribute('aria-disabled')")
        == "true"
    )


def test_inf_and_nan_of_one_side_come_first(look: Any) -> None:
    browser = look("torch.sqrt")
    assert "At 1 places only one is inf or nan." in text_of(browser, ".tensor-sentence")
    assert text_of(browser, ".tensor-worst tbody tr").startswith("[1, 3]1.0nan")
    assert "target nan" in readout(browser, "[1, 3]")


def test_of_equal_tensors_only_the_values_are_shown(look: Any) -> None:
    browser = look("torch.neg", charts=2)
    assert "All elements are equal (3)." in text_of(browser, ".tensor-sentence")


def test_the_view_follows_the_selection(look: Any, result: Path) -> None:
    browser = look("torch.conv2d")
    click(browser, ".details .tensors button:not([aria-current])")
    wait_for(browser, "return document.querySelector('.tensor-head .mono')?.textContent.includes('args.0')")
    drawn(browser, 2)


def test_nothing_selected_offers_the_finding(server: ReportServer, open_page: OpenPage, result: Path) -> None:
    browser = open_page(server.address, view="tensor_pair")
    click(browser, ".tensor-empty button")
    drawn(browser, 4)
    assert state_of(browser)["selected"] == str(row_of(result, "torch.conv2d"))


@pytest.mark.parametrize("state", [{"tensor.at": "x", "tensor.rows": 99}, {"tensor.at": [1e9, -1, 2.5, None]}])
def test_a_hand_made_address_does_no_harm(look: Any, state: dict[str, Any]) -> None:
    browser = look("torch.conv2d", **state, **{"tensor.show": "<b>", "tensor.order": {"a": 1}, "tensor.scale": []})
    assert re.match(r"\[\d, \d+, \d, \d+\]: reference", readout(browser, "["))


def test_texts_are_in_chinese_too(look: Any) -> None:
    browser = look("torch.conv2d", language="zh")
    text = text_of(browser, ".tensor")
    assert "的索引 17 占全部误差的 100 %" in text
    assert "tensor." not in text.replace("tensor.conv", "")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_accessible(look: Any, theme: str) -> None:
    assert violations(look("torch.conv2d", theme=theme)) == []


def test_names_with_markup_are_text(look: Any) -> None:
    browser = look(f"torch.{MARKUP}")
    assert "<img src=x onerror=window.hit=1>\\u202e</script><b>" in text_of(browser, ".tensor-head")
    assert browser.execute_script("return window.hit ?? null") is None
    assert browser.execute_script("return document.querySelectorAll('#page img, #page b, #page script').length") == 0


def test_long_reading_tells_its_progress(monkeypatch: pytest.MonkeyPatch, result: Path, open_page: OpenPage) -> None:
    go_on = threading.Event()

    def halfway(pair: PairBoxes, advance: Advance) -> PairOverview:
        advance(0.5)
        go_on.wait(60)
        return overview(pair, advance)

    monkeypatch.setattr(tensor_answers, "overview", halfway)
    with serving(result) as server:
        browser = open_page(server.address, view="tensor_pair", selected=row_of(result, "torch.conv2d"))
        wait_for(browser, "return document.querySelector('.tensor-wait progress')?.value === 0.5")
        go_on.set()
        drawn(browser, 4)


def test_stats_alone_are_shown_with_how_to_save_more(tmp_path: Path, open_page: OpenPage) -> None:
    result = write_result(tmp_path, {"torch.conv2d": images()}, unsaved=True)
    with serving(result) as server:
        browser = open_page(server.address, view="tensor_pair", selected=row_of(result, "torch.conv2d"))
        assert text_of(browser, "[data-problem=not_saved] code").startswith("ulpscope run --save tensors -o ")
        largest = images()[1].max()
        assert f"{float(f'{largest:.7g}')}" in text_of(browser, ".tensor-stats")
        assert violations(browser) == []


def test_of_a_network_the_command_that_shows_elements_is_told(tmp_path: Path, open_page: OpenPage) -> None:
    result = tmp_path / "result"
    main(["compare", str(REFERENCE), str(DUMPS), "--graph", str(GRAPH), "--out", str(result)])
    with serving(result) as server:
        browser = open_page(server.address, view="tensor_pair", selected=0)
        command = text_of(browser, "[data-problem=error] code")
        assert command.startswith(f"ulpscope compare {REFERENCE} {DUMPS} --graph {GRAPH} --op=")
    # The browser tells on its console that a question was refused.
    browser.get_log("browser")


def test_a_missing_file_is_named_in_the_page(tmp_path: Path, open_page: OpenPage) -> None:
    result = write_result(tmp_path / MARKUP.replace("/", "_"), {"torch.conv2d": images()})
    for file in (result.parent / "target").rglob("*.safetensors"):
        file.unlink()
    with serving(result) as server:
        browser = open_page(server.address, view="tensor_pair", selected=row_of(result, "torch.conv2d"))
        assert "data-000.safetensors" in text_of(browser, "[data-problem=unreadable]")
        assert "onerror" in text_of(browser, "[data-problem=unreadable]")
        assert browser.execute_script("return window.hit ?? null") is None


def test_a_server_that_was_stopped_is_said_to_be_gone(tmp_path: Path, open_page: OpenPage) -> None:
    result = write_result(tmp_path, {"torch.conv2d": images(), "torch.sqrt": broken()})
    with serving(result) as server:
        browser = open_page(server.address, view="tensor_pair")
    click(browser, ".tensor-empty button")
    assert "does not answer" in text_of(browser, "[data-problem=gone]")
    # The browser tells on its console that nobody listens.
    browser.get_log("browser")


def test_the_file_alone_tells_how_to_serve(browser: Any, tmp_path: Path, result: Path, open_page: OpenPage) -> None:
    requested(browser)
    copy = tmp_path / "result"
    shutil.copytree(result, copy)
    open_page(make_report(copy), view="tensor_pair", selected=row_of(result, "torch.conv2d"))
    assert text_of(browser, ".tensor-empty code") == "ulpscope report RESULT --serve"
    assert not [url for url in requested(browser) if url.startswith("http")]
