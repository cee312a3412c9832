"""Pages of checks and of overflows: the answer, verdicts by operation and dtype, the way of an overflow."""

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from pages import state_of, text_of, violations
from tests.unit.handmade import HandmadeRun

from conftest import OpenPage, wait_for
from ulpscope.cli.main import main
from ulpscope.report.page import told_json

DATA = Path(__file__).parents[1] / "data" / "ascend" / "precision_data"
MARKUP = "<b>x</b><script>window.hit=1</script>"


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("check") / "result"
    debug = DATA / "npu" / "debug_0"
    arguments = ["check", str(debug / "dump"), "--graph", str(debug / "graph" / "ge_proto_00000_Build.txt")]
    assert main([*arguments, "--out", str(out)]) == 1
    return out


@pytest.fixture
def overflowed(tmp_path: Path) -> Path:
    run = HandmadeRun()
    born = run.call("exp", reads={"args.0": run.value([1.0])}, makes={"output.0": [math.inf]}, module=f"m.{MARKUP}")
    calls = [born]
    for _ in range(20):
        calls.append(run.call("neg", reads={"args.0": run.output(calls[-1])}, makes={"output.0": [-math.inf]}))
    run.use(run.call("backward", phase="backward"), "loss", "args.0", run.output(calls[-1]))
    trace = run.write(tmp_path / "run", framework={"name": "tensorflow"})
    assert main(["overflow", str(trace), "--out", str(tmp_path / "result")]) == 1
    return tmp_path / "result"


def rows(browser: Any, selector: str) -> list[list[str]]:
    script = (
        "return [...document.querySelectorAll(arguments[0])].map((row) => [...row.children].map((c) => c.textContent))"
    )
    return list(browser.execute_script(script, selector))


def test_the_answer_names_the_operator(checked: Path, open_page: OpenPage) -> None:
    summary = json.loads((checked / "summary.json").read_text())
    browser = open_page(checked / "report.html")
    assert text_of(browser, ".hero .sentence") == summary["findings"][0]["sentence"]
    assert text_of(browser, ".hero .command code") == summary["findings"][0]["next"]
    assert violations(browser) == []


def test_the_answer_speaks_chinese(checked: Path, open_page: OpenPage) -> None:
    told = json.loads((checked / "told.json").read_text(encoding="utf-8"))
    browser = open_page(checked / "report.html", language="zh", theme="dark")
    assert text_of(browser, ".hero .sentence") == told["findings"][0]["zh"]
    assert told["findings"][0]["zh"] != told["findings"][0]["en"]
    assert violations(browser) == []


def test_verdicts_are_counted_by_operation_and_dtype(checked: Path, open_page: OpenPage) -> None:
    with open(checked / "details.csv", newline="", encoding="utf-8") as file:
        details = list(csv.DictReader(file))
    browser = open_page(checked / "report.html", view="checks")
    first, *others = rows(browser, ".matrix tbody tr")
    assert first[0] == "Relu"
    assert any(cell.startswith("FAIL") for cell in first[1:])
    assert {row[0] for row in (first, *others)} == {row["op"] for row in details}
    assert len(rows(browser, ".outputs tbody tr")) == len(details)
    assert violations(browser) == []


def test_outputs_are_counted_as_in_the_summary(checked: Path, open_page: OpenPage) -> None:
    counts = json.loads((checked / "summary.json").read_text())["counts"]
    with open(checked / "details.csv", newline="", encoding="utf-8") as file:
        without = sum(row["place"] == "" for row in csv.DictReader(file))
    browser = open_page(checked / "report.html", view="checks")
    assert text_of(browser, ".card:has(.outputs) h2") == (
        f"Outputs: {counts['outputs']}; calls without an output: {without}"
    )


def test_a_cell_shows_the_outputs_behind_it(checked: Path, open_page: OpenPage) -> None:
    browser = open_page(checked / "report.html", view="checks")
    browser.find_element("css selector", ".verdict-cell.FAIL").click()
    wait_for(browser, "return document.querySelector('.verdict-cell[aria-pressed=true]') !== null")
    shown = rows(browser, ".outputs tbody tr")
    assert shown
    assert {row[1].split(".")[0] for row in shown} == {"Relu"}
    assert state_of(browser)["check.op"] == "Relu"


def test_a_verdict_filters(checked: Path, open_page: OpenPage) -> None:
    browser = open_page(checked / "report.html", view="checks", **{"check.verdict": "SKIP"})
    assert {row[0] for row in rows(browser, ".outputs tbody tr")} == {"SKIP"}


def test_a_long_way_is_shown_at_its_ends_and_whole_on_demand(overflowed: Path, open_page: OpenPage) -> None:
    browser = open_page(overflowed / "report.html")
    assert len(rows(browser, ".way li")) == 13
    browser.find_element("css selector", ".way .between button").click()
    calls = browser.execute_script(
        "return [...document.querySelectorAll('.way .mono')].map((each) => each.textContent)"
    )
    assert calls == ["exp.0", *(f"neg.{number}" for number in range(20))]
    assert "the loss" in text_of(browser, ".way li:last-child")
    assert "step" not in text_of(browser, ".way li:first-child")
    assert violations(browser) == []


@pytest.mark.parametrize(("name", "line"), [("model.py", "y = exp(x)"), ("secret.txt", None)])
def test_the_line_of_code_is_told(
    overflowed: Path, tmp_path: Path, open_page: OpenPage, name: str, line: str | None
) -> None:
    (tmp_path / name).write_text("x = 1\n    y = exp(x)\n")
    summary = json.loads((overflowed / "summary.json").read_text())
    summary["findings"][0]["source"] = f"{tmp_path / name}:2"
    (overflowed / "summary.json").write_text(json.dumps(summary))
    (overflowed / "told.json").write_text(json.dumps(told_json(lambda _: summary, [])))
    assert main(["report", str(overflowed)]) == 0
    browser = open_page(overflowed / "report.html")
    assert text_of(browser, ".hero .source .mono") == f"{tmp_path / name}:2"
    assert [code.text for code in browser.find_elements("css selector", ".hero .source code")] == (
        [line] if line else []
    )


def test_a_way_over_several_steps_tells_them(overflowed: Path, open_page: OpenPage) -> None:
    summary = json.loads((overflowed / "summary.json").read_text())
    summary["findings"][0]["evidence"]["way"][-1]["step"] = 3
    (overflowed / "summary.json").write_text(json.dumps(summary))
    assert main(["report", str(overflowed)]) == 0
    browser = open_page(overflowed / "report.html")
    assert "step 0" in text_of(browser, ".way li:first-child")
    assert "step 3" in text_of(browser, ".way li:last-child")


def test_names_are_text(overflowed: Path, open_page: OpenPage) -> None:
    browser = open_page(overflowed / "report.html")
    assert MARKUP in text_of(browser, "#page")
    assert browser.execute_script("return window.hit ?? null") is None
    assert browser.execute_script("return document.querySelectorAll('#page b, #page script').length") == 0


@pytest.fixture
def sound(checked: Path, tmp_path: Path) -> Path:
    """The result of a check without a fault, whose outputs come near to their limits by known shares."""
    copy = tmp_path / "somewhere" / "deep" / "below" / "sound"
    shutil.copytree(checked, copy)
    shares = {"MatMulV2": 0.8, "MaxPool": 0.25, "Add": 0.0}
    with open(copy / "details.csv", newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["op"] in shares]
    for line in lines:
        line |= {"limit_share": str(shares[line["op"]]), "verdict": "PASS", "place": "output.0", "phase": "forward"}
    with open(copy / "details.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    summary = json.loads((copy / "summary.json").read_text())
    summary |= {"verdict": "sound", "findings": [], "notes": [], "trace": "/home/somebody/projects/llama/runs/target"}
    summary["counts"]["repeated"] = 1_234_567
    (copy / "summary.json").write_text(json.dumps(summary))
    (copy / "told.json").write_text(json.dumps(told_json(lambda _: summary, [])))
    assert main(["report", str(copy)]) == 0
    return copy


def test_a_sound_answer_shows_what_comes_nearest_to_its_limit(sound: Path, open_page: OpenPage) -> None:
    browser = open_page(sound / "report.html")
    nearest, spread = (rows(browser, f".card:nth-of-type({at}) .margins tbody tr") for at in (2, 3))
    assert [line[-1] for line in nearest] == sorted((line[-1] for line in nearest), reverse=True)
    assert nearest[0][0].startswith("MatMulV2")
    assert nearest[0][-1] == "80 %"
    assert [line[0] for line in spread] == ["MatMulV2", "MaxPool"]
    assert "rounded truth: 1." in text_of(browser, ".card:nth-of-type(3) p")
    assert violations(browser) == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_counts_stay_inside_of_their_card(sound: Path, open_page: OpenPage, language: str) -> None:
    browser = open_page(sound / "report.html", language=language)
    wait_for(browser, "return document.querySelector('.counts dd') !== null")
    beyond = browser.execute_script(
        """return [...document.querySelectorAll(".counts dd")].filter((number) => {
             const range = document.createRange();
             range.selectNodeContents(number);
             return range.getBoundingClientRect().right > number.closest(".card").getBoundingClientRect().right;
           }).map((number) => number.textContent)"""
    )
    assert beyond == []


def test_the_header_tells_the_end_of_a_long_path(sound: Path, open_page: OpenPage) -> None:
    browser = open_page(sound / "report.html")
    assert text_of(browser, ".top .runs").startswith("…/llama/runs/target (")
    whole = browser.find_element("css selector", ".top .runs").get_attribute("title")
    assert whole.startswith("/home/somebody/projects/llama/runs/target (")
