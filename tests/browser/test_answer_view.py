"""The answer: what is wrong, what lies around it, what to do next."""

import json
from pathlib import Path

from pages import text_of

from conftest import OpenPage
from made_results import write_result
from ulpscope.workflows.report import make_report


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
