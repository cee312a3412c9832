"""Tables that msprobe's own commands wrote: shown, and those of its checker compared as api_precision_compare did."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from ulpscope.cli.main import main
from ulpscope.dialects.msprobe.result_tables import TableKind, table_kind
from ulpscope.workflows.compare.checks import compare_checks

TABLES = Path(__file__).parents[1] / "data" / "msprobe" / "checker"
DETAILS = [TABLES / f"accuracy_checking_details_2026010{day}000000.csv" for day in (1, 2)]
RESULT = TABLES / "accuracy_checking_result_20260101000000.csv"
BY_MSPROBE = TABLES / "api_precision_compare_details_20260103000000.csv"
VERDICTS = {"PASS": "pass", "FAIL": "error", "SKIP": "SKIP"}


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def shown(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main(["show", str(path), "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_details_are_compared_as_msprobe_does() -> None:
    result = compare_checks(*DETAILS)
    assert [VERDICTS[output.verdict.value] for output in result.found.outputs] == [
        row["比对结果"] for row in rows_of(BY_MSPROBE)
    ]
    ratios = [dict(output.figures).get("rmse") for output in result.found.outputs]
    stated = [row["均方根误差比值"].strip() for row in rows_of(BY_MSPROBE)]
    for ratio, word in zip(ratios, stated, strict=True):
        assert ratio is None if not word else ratio == pytest.approx(float(word), abs=1e-9, nan_ok=True)


def test_the_command_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, DETAILS)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("DIVERGED: 4 of 23 outputs")
    assert main(["compare", str(RESULT), str(DETAILS[1]), "--json"]) == 1
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert (finding["op"], finding["tensor"]) == ("torch.nn.functional.layer_norm", "output.0")
    assert finding["next"] == f"ulpscope show {DETAILS[1]}"
    assert main(["compare", str(DETAILS[0]), str(DETAILS[0])]) == 0


@pytest.mark.parametrize(
    ("name", "kind", "column"),
    [
        ("compare_result_statistics", TableKind.COMPARE, "Result"),
        ("compare_result_tensor", TableKind.COMPARE, "Result"),
        ("compare_result_md5", TableKind.COMPARE, "Result"),
        ("accuracy_checking_details_20260101000000", TableKind.CHECK_DETAILS, "Status"),
        ("accuracy_checking_result_20260101000000", TableKind.CHECK, "Forward Test Success"),
        ("api_precision_compare_details_20260103000000", TableKind.DEVICES_DETAILS, "比对结果"),
        ("api_precision_compare_result_20260103000000", TableKind.CHECK, "Forward Test Success"),
    ],
)
def test_every_table_is_shown(name: str, kind: TableKind, column: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = TABLES / f"{name}.csv"
    assert table_kind(path) is kind
    code, told = shown(path, capsys)
    failing = [row for row in rows_of(path) if row[column] in ("error", "warning")]
    assert code == 1
    assert (told["view"], told["kind"], len(told["rows"])) == ("table", kind.value, len(failing))
    assert sum(told["counts"].values()) == len(rows_of(path))
    assert main(["show", str(path)]) == 1
    text = capsys.readouterr().out
    assert f"{len(failing)} of {len(rows_of(path))} rows do not pass" in text
    assert next(iter(failing[0].values())) in text


def test_limits_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = shown(DETAILS[0], capsys, "--limit", "1")
    assert (code, len(told["rows"])) == (1, 1)
    assert main(["show", str(DETAILS[0]), "--op", "x"]) == 2
    assert "--op with a table of msprobe's" in capsys.readouterr().err


def test_a_table_of_ptdbg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Short rows, and the older words of the verdict."""
    path = tmp_path / "compare_result.csv"
    path.write_text(
        "NPU Name,Bench Name,NPU Tensor Dtype,Cosine,MaxAbsErr,Accuracy Reached or Not,Err_message\n"
        "Torch_a_0_forward_output,Torch_a_0_forward_output,torch.float32,1.0,0.0,Yes,\n"
        "Torch_b_0_forward_output,Torch_b_0_forward_output,torch.float32,0.5,3.0,No\n"
    )
    code, told = shown(path, capsys)
    assert (code, told["counts"]) == (1, {"yes": 1, "no": 1})
    assert told["rows"][0]["NPU Name"] == "Torch_b_0_forward_output"
