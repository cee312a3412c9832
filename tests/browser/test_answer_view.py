"""The answer: what is wrong, what lies around it, what to do next."""

import json
from pathlib import Path

import polars as pl
from pages import change_json, selected_row, text_of

from conftest import OpenPage, wait_for
from made_results import write_result
from ulpscope.report.page import told_json
from ulpscope.workflows.report.command import make_report


def test_a_finding_is_told_with_its_evidence(tmp_path: Path, open_page: OpenPage) -> None:
    summary = write_result(tmp_path, layers=2)
    found = summary["findings"][0]
    browser = open_page(make_report(tmp_path))
    assert text_of(browser, ".hero h2") == found["call"]
    assert found["module"] in text_of(browser, ".hero .where")
    assert [figure.text for figure in browser.find_elements("css selector", ".flow .figure")] == [
        "1.0e-7", "4.0e-7", "0.50", "× 5.0e6",
    ]  # fmt: skip
    assert "model.py:57" in text_of(browser, ".hero .source")
    assert "'tanh'" in text_of(browser, ".hero table")
    assert text_of(browser, ".hero .command code") == found["next"]
    assert "Look at torch.nn.functional.gelu.1." in text_of(browser, ".answer")


def test_the_stack_and_sentences_of_both_languages(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=2)
    frames = [
        {"file": "model.py", "line": 57, "function": "forward", "text": "x = gelu(x)"},
        {"file": "train.py", "line": 9, "function": "main", "text": None},
    ]
    told = {"schema": 1, "findings": [{"en": "It is gelu.", "zh": "是 gelu。"}], "notes": [],
            "advice": [{"en": "Look.", "zh": "请看。"}], "stacks": [frames]}  # fmt: skip
    (tmp_path / "told.json").write_text(json.dumps(told), encoding="utf-8")
    browser = open_page(make_report(tmp_path), language="zh")
    assert text_of(browser, ".hero .sentence") == "是 gelu。"
    assert text_of(browser, ".source code.line") == "x = gelu(x)"
    assert "train.py:9 main" in text_of(browser, "ol.stack")


def test_the_command_is_copied(tmp_path: Path, open_page: OpenPage) -> None:
    summary = write_result(tmp_path, layers=2)
    browser = open_page(make_report(tmp_path))
    browser.execute_script("""
        window.copied = [];
        Object.defineProperty(navigator, "clipboard", {value: {writeText: async (text) => copied.push(text)}});
    """)
    browser.find_element("css selector", ".hero .command button").click()
    assert browser.execute_script("return copied") == [summary["findings"][0]["next"]]


def test_runs_that_agree(tmp_path: Path, open_page: OpenPage) -> None:
    summary = write_result(tmp_path, layers=2, faulty=False)
    browser = open_page(make_report(tmp_path))
    assert text_of(browser, ".hero h2") == "The two runs agree"
    assert str(summary["counts"]["tensors_compared"]) in text_of(browser, ".hero .sentence")


def test_nothing_compared(tmp_path: Path, open_page: OpenPage) -> None:
    summary = write_result(tmp_path, layers=2, faulty=False)
    counts = dict.fromkeys(summary["counts"], 0)
    left = [{"reason": "shapes differ", "tensors": 7}]
    nothing = {**summary, "verdict": "nothing_compared", "counts": counts}
    nothing["scope"] = {**summary["scope"], "not_compared": left, "measured": {}}
    (tmp_path / "summary.json").write_text(json.dumps(nothing), encoding="utf-8")
    browser = open_page(make_report(tmp_path))
    assert text_of(browser, ".hero h2") == "Nothing could be compared"
    assert "7: shapes differ" in text_of(browser, ".answer")


def test_rows_without_a_verdict_are_counted_even_if_no_reason_is_given(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=2, faulty=False)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet").with_row_index("row")
    verdicts = pl.when(pl.col("row") < 12).then(None).otherwise("judgement")
    pairs.with_columns(judgement=verdicts).drop("row").write_parquet(tmp_path / "pairs.parquet")
    left = [{"reason": "no stats", "tensors": 4}]
    change_json(tmp_path / "summary.json", lambda summary: summary["scope"].update(not_compared=left))
    browser = open_page(make_report(tmp_path))
    assert "not compared12" in text_of(browser, ".answer")
    assert "8: not judged" in text_of(browser, ".answer")
    browser.find_element("xpath", "//button[.='not compared']").click()
    wait_for(browser, "return document.querySelector('.table-view .count')?.textContent.startsWith('12 of')")


def test_a_neighbour_leads_to_the_call_of_its_phase(tmp_path: Path, open_page: OpenPage) -> None:
    """Names are counted per phase: the backward of a call has the name of its forward."""
    summary = write_result(tmp_path, layers=2)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet").with_row_index("row")
    found = {**summary["findings"][0], "phase": "backward", "tensor": None}
    near = {"nearness": "before", "call": "torch.nn.functional.dropout.0", "op": "", "module": None, "error_in": 0.0,
            "error_out": 0.0, "judgement": "rounding"}  # fmt: skip
    change_json(tmp_path / "summary.json", lambda summary: summary.update(findings=[found], neighbours=[near]))
    browser = open_page(make_report(tmp_path))
    browser.find_element("css selector", ".around td button").click()
    assert pairs["phase"][selected_row(browser)] == "backward"


def test_of_several_tensors_made_here_the_worst_is_selected(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=2)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet").with_row_index("row")
    call = pairs.filter(pl.col("judgement") == "made_here").row(0, named=True)
    mine = (pl.col("call_target") == call["call_target"]) & (pl.col("phase") == "forward")
    first, second, _ = pairs.filter(mine)["row"]
    errors = pl.when(pl.col("row") == second).then(2.0).when(pl.col("row") == first).then(1.0).otherwise("error")
    judged = pl.when(mine).then(pl.lit("made_here")).otherwise("judgement")
    pairs.with_columns(error=errors, judgement=judged).drop("row").write_parquet(tmp_path / "pairs.parquet")
    change_json(tmp_path / "summary.json", lambda summary: summary["findings"][0].update(tensor=None))
    browser = open_page(make_report(tmp_path))
    browser.find_element("css selector", ".hero h2 button").click()
    assert selected_row(browser) == second


def test_what_is_missing_is_told_in_the_language_of_the_page(tmp_path: Path, open_page: OpenPage) -> None:
    summary = write_result(tmp_path, layers=2)
    missing = {language: {**summary, "missing": [text]} for language, text in (("en", "a rank"), ("zh", "一个 rank"))}
    told = told_json(lambda language: missing[language.value], [])
    (tmp_path / "told.json").write_text(json.dumps(told), encoding="utf-8")
    page = make_report(tmp_path)
    assert "一个 rank" in text_of(open_page(page, language="zh"), ".answer")
    assert "a rank" in text_of(open_page(page, language="en"), ".answer")
