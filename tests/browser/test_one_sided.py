"""What only one run has: calls, modules, ranks. It is never taken for a call of the other run that has its name."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pages import change_json, state_of, text_of

from conftest import OpenPage, wait_for
from made_results import write_result
from ulpscope.workflows.report.command import make_report

GELU = "torch.nn.functional.gelu"
ROWS = """
    return [...document.querySelectorAll('.tree .rows .row')].map((row) =>
        [...row.querySelectorAll('[role=gridcell]')].map((cell) => cell.textContent.replace(/^[▾▸]/, '')))
"""


def lone(number: int, name: str, module: str | None, phase: str = "forward") -> dict[str, Any]:
    return {"id": number, "step": 0, "name": name, "module": module, "phase": phase}


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """The reference alone makes a first gelu, so that names of later ones are shifted against the target's."""
    write_result(tmp_path, layers=3)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet")
    number = pl.col("call_reference").str.extract(r"gelu\.(\d+)$").cast(pl.Int64)
    shifted = pl.when(number.is_not_null()).then(pl.format(f"{GELU}.{{}}", number + 1))
    pairs.with_columns(
        call_reference=shifted.otherwise("call_reference"), id_reference=pl.col("id_reference") + 1
    ).write_parquet(tmp_path / "pairs.parquet")

    def tell(summary: Any) -> None:
        found = {**summary["findings"][0], "kind": "structure", "call": f"{GELU}.0", "tensor": None}
        found |= {"module": "model.blocks.0.mlp", "evidence": {"only_reference": [f"{GELU}.0"]}}
        summary["findings"] = [found]
        summary["scope"] |= {"ranks_reference_only": [1, 2], "ranks_target_only": []}

    def plan(content: Any) -> None:
        alone = lone(0, f"{GELU}.0", "model.blocks.0.attention")
        content["ranks"][0] |= {"unmatched_reference": [alone], "unmatched_target": []}

    change_json(tmp_path / "summary.json", tell)
    change_json(tmp_path / "plan.json", plan)
    make_report(tmp_path)
    return tmp_path


def test_a_finding_about_it_leads_to_it_in_the_model(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html")
    browser.find_element("css selector", ".hero h2 button").click()
    wait_for(browser, "return document.querySelectorAll('.tree .rows .row').length > 0")
    assert "selected" not in state_of(browser)
    rows = browser.execute_script(ROWS)
    assert ["gelu.0", "no partner"] in [[row[0], row[2]] for row in rows]
    field = browser.find_element("css selector", ".model-view input[type=search]")
    assert field.get_attribute("value") == f"{GELU}.0"


def test_the_tree_is_open_down_to_it(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="model")
    text = text_of(browser, ".tree .row.current")
    assert "gelu.0" in text
    assert "no partner" in text


def test_the_answer_is_marked_where_it_would_be(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html", view="run")
    assert marks(browser) == [-0.5]


def marks(browser: Any) -> list[float]:
    script = "return document.querySelector('.run-view .chart')?.layout?.shapes.map((shape) => shape.x0)"
    return list(wait_for(browser, script))


@pytest.mark.parametrize("side", ["reference", "target"])
def test_it_is_marked_if_only_the_tables_know_that_it_is_alone(tmp_path: Path, open_page: OpenPage, side: str) -> None:
    """Of many calls without a partner a finding names a few."""
    write_result(tmp_path, layers=2)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet").with_row_index()
    first = pairs.filter(phase="update")["index"][0]
    number = pairs[f"id_{side}"][first]
    ids = [pl.col(name) + (pl.col(name) >= number).cast(pl.Int64) for name in ("id_reference", "id_target")]
    # The gradient of a parameter is told at the end of the backward, by the id of a call made long before.
    late = pl.when(pl.col("index") == first - 1).then(pl.col(f"id_{side}") - 30).otherwise(f"id_{side}")
    shifted = pairs.with_columns(*ids).with_columns(late.alias(f"id_{side}"))
    shifted.drop("index").write_parquet(tmp_path / "pairs.parquet")

    def tell(summary: Any) -> None:
        found = {**summary["findings"][0], "call": "clip.0", "phase": "update", "tensor": "output.0", "module": None}
        summary["findings"] = [found | {"evidence": {f"only_{side}": ["norm.0", "stack.0"]}}]

    alone = [lone(number, "clip.0", None, "update")]
    change_json(tmp_path / "summary.json", tell)
    change_json(tmp_path / "plan.json", lambda plan: plan["ranks"][0].update({f"unmatched_{side}": alone}))
    browser = open_page(make_report(tmp_path), view="run")
    assert marks(browser) == [first - 0.5]
    assert "the answer" in text_of(browser, ".legend")
    browser.find_element("id", "tab-answer").click()
    browser.find_element("css selector", ".hero h2 button").click()
    assert state_of(browser)["model.text"] == "clip.0"


def test_ranks_of_one_run_are_told(result: Path, open_page: OpenPage) -> None:
    browser = open_page(result / "report.html")
    assert "ranks of the reference alone1-2" in text_of(browser, ".answer")
    assert "of the target alone" not in text_of(browser, ".answer")


def test_lone_calls_stand_where_they_were_made(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=2)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet")
    mlp = pairs.filter(pl.col("module") == "model.blocks.0.mlp", pl.col("phase") == "forward")
    first, second = mlp["id_target"].unique(maintain_order=True)[:2]
    # Room for one more id between two calls.
    ids = {name: 2 * pl.col(name) for name in ("id_target", "id_reference")}
    pairs.with_columns(**ids).write_parquet(tmp_path / "pairs.parquet")
    alone = {
        "unmatched_reference": [lone(2 * first + 1, "silu.0", "model.blocks.0.mlp")],
        "unmatched_target": [lone(2 * second + 1, "silu.1", "model.blocks.0.mlp")],
    }
    change_json(tmp_path / "plan.json", lambda plan: plan["ranks"][0].update(alone))
    browser = open_page(make_report(tmp_path), view="model", selected=0)
    browser.execute_script("""
        document.querySelectorAll('.tree .row[aria-expanded=false]').forEach((row) => {
            if (row.textContent.includes('mlp')) row.click();
        })
    """)
    rows = wait_for(browser, ROWS)
    begin = next(at for at, row in enumerate(rows) if row[2].startswith("mlp"))
    assert [(row[0], row[2]) for row in rows[begin + 1 : begin + 5]] == [
        ("linear.4", "linear.4"),
        ("silu.0", "no partner"),
        ("gelu.0", "gelu.0"),
        ("no partner", "silu.1"),
    ]


def test_a_module_that_one_run_calls_nothing_of_is_none_of_its(tmp_path: Path, open_page: OpenPage) -> None:
    write_result(tmp_path, layers=2)
    alone = {
        "unmatched_reference": [lone(3, "silu.0", "old.part")],
        "unmatched_target": [lone(3, "silu.0", "new.constructor")],
    }
    change_json(tmp_path / "plan.json", lambda plan: plan["ranks"][0].update(alone))
    browser = open_page(make_report(tmp_path), view="model", **{"model.text": "silu"})
    sides = [(row[0], row[2]) for row in wait_for(browser, ROWS)]
    assert ("old", "no partner") in sides
    assert ("no partner", "new") in sides
    assert ("no partner", "constructor") in sides
