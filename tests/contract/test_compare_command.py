"""`ulpscope compare` as a command, on captured runs: exit codes, files, and traces that are broken or hostile."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from trained import other_eps, write

from ulpscope.cli.main import main
from ulpscope.workflows.compare.command import compare

# The design's object for every command; what follows is documented in docs/compare.md.
COMMON_KEYS = {"schema", "command", "verdict", "findings", "notes", "counts"}
COMPARE_KEYS = set("reference target scope extent anchor neighbours advice missing ledger environment".split())
FINDING_KEYS = {
    "kind", "rank", "step", "phase", "call", "op", "module", "tensor", "source", "evidence", "sentence", "next",
}  # fmt: skip
JUDGEMENTS = ("identical", "rounding", "inherited", "made_here", "after_choice", "another_way", "unresolved")
COUNT_KEYS = {
    "calls_reference", "calls_target", "matched", "unmatched_reference", "unmatched_target", "tensors_compared",
    *JUDGEMENTS,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a reference, the same again, one with another eps, and one of another step."""
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "ref", only_steps="0")
    write(folder / "same", only_steps="0")
    write(folder / "eps", other_eps, only_steps="0")
    write(folder / "later", only_steps="1")
    return folder


@pytest.fixture(autouse=True)
def inside(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


def test_agreement_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "ref", "same"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("AGREE")
    assert "made here" not in told


def test_a_difference_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "ref", "eps"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("DIVERGED at step 0, forward, in model.blocks.1.norm2")
    assert "1e-05 in the reference, 0.1 in the target" in told


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["ref", "nowhere"], "nowhere"),
        (["ref"], "one run, ref"),
        (["ref", "eps", "--steps", "x"], "--steps"),
        (["ref", "eps", "--jobs", "0"], "--jobs 0"),
        (["ref", "eps", "--xlsx"], "--xlsx without --out"),
        (["ref", "eps", "--standard", "nonsense"], "the standard 'nonsense'"),
        (["ref", "eps", "--plan", "--standard", "nonsense"], "the standard 'nonsense'"),
        (["ref", "eps", "--map", "none.yaml"], "mapping file none.yaml"),
    ],
)
def test_bad_usage_is_exit_code_2(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    told = capsys.readouterr()
    assert problem in told.err
    assert "\n  expected: " in told.err
    assert "\n  next: " in told.err
    assert told.out == ""


def test_a_wrong_standard_leaves_no_result_behind(tmp_path: Path) -> None:
    out = tmp_path / "result"
    assert main(["compare", "ref", "eps", "--standard", "nonsense", "--out", str(out)]) == 2
    assert not out.exists()


def test_nothing_in_common_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "ref", "later"]) == 3
    assert "no common step: ref has 0, later has 1" in capsys.readouterr().err
    assert main(["compare", "ref", "same", "--steps", "5"]) == 3
    assert main(["compare", "ref", "same", "--ranks", "5"]) == 3


def test_json_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "ref", "eps", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert set(told) == COMMON_KEYS | COMPARE_KEYS
    assert (told["schema"], told["command"], told["verdict"]) == (1, "compare", "diverged")
    assert all(set(entry) == FINDING_KEYS for entry in (*told["findings"], *told["notes"]))
    first = told["findings"][0]
    assert (first["kind"], first["rank"], first["step"], first["phase"]) == ("computation", 0, 0, "forward")
    assert (first["module"], first["tensor"]) == ("model.blocks.1.norm2", "output.0")
    assert first["call"].startswith(first["op"])
    assert first["sentence"]
    assert first["next"].startswith("ulpscope show eps ")


@pytest.mark.parametrize("target", ["same", "eps"])
def test_counts_add_up(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", "ref", target, "--json"])
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert set(counts) == COUNT_KEYS
    assert sum(counts[word] for word in JUDGEMENTS) == counts["tensors_compared"] > 100
    assert counts["matched"] + counts["unmatched_reference"] == counts["calls_reference"]
    assert counts["matched"] + counts["unmatched_target"] == counts["calls_target"]
    assert (counts["made_here"] > 0) == (target == "eps")


def test_the_next_command_works(capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    main(["compare", "ref", "eps", "--json"])
    command = json.loads(capsys.readouterr().out)["findings"][0]["next"]
    assert main(shlex.split(command)[1:]) == 0
    assert "layer_norm" in capsys.readouterr().out


def test_a_result_holds_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result"
    assert main(["compare", "ref", "eps", "--out", str(out), "--xlsx", "--json"]) == 1
    assert {path.name for path in out.iterdir()} == {
        "report.html",
        "summary.json",
        "told.json",
        "pairs.parquet",
        "plan.json",
        "tensors.csv",
        "tensors.xlsx",
    }
    summary = json.loads((out / "summary.json").read_text())
    assert summary == json.loads(capsys.readouterr().out)
    pairs = pl.read_parquet(out / "pairs.parquet")
    by_judgement = Counter(pairs["judgement"].drop_nulls())
    assert {word: by_judgement[word] for word in JUDGEMENTS} == {word: summary["counts"][word] for word in JUDGEMENTS}
    plan = json.loads((out / "plan.json").read_text())
    assert len(plan["ranks"][0]["pairs"]["target"]) == summary["counts"]["matched"]


def test_a_result_is_replaced_only_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "ref", "eps", "--out", str(tmp_path / "result")]
    assert main(words) == 1
    before = (tmp_path / "result/summary.json").read_bytes()
    assert main(["compare", "ref", "same", "--out", str(tmp_path / "result")]) == 2
    assert "already holds a result; add --overwrite" in capsys.readouterr().err
    assert (tmp_path / "result/summary.json").read_bytes() == before
    assert main(["compare", "ref", "same", "--out", str(tmp_path / "result"), "--overwrite"]) == 0
    assert json.loads((tmp_path / "result/summary.json").read_text())["verdict"] == "agree"


def test_a_result_behind_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert main(["compare", "ref", "eps", "--out", str(tmp_path / "link")]) == 1
    assert main(["compare", "ref", "same", "--out", str(tmp_path / "link"), "--overwrite"]) == 0
    assert json.loads((tmp_path / "real/summary.json").read_text())["verdict"] == "agree"


def test_files_of_others_are_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    assert main(["compare", "ref", "eps", "--out", str(tmp_path), "--overwrite"]) == 2
    assert "no result of ulpscope" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_an_earlier_result_outlives_a_comparison_that_fails(tmp_path: Path) -> None:
    out = tmp_path / "result"
    assert main(["compare", "ref", "eps", "--out", str(out)]) == 1
    assert main(["compare", "ref", "nowhere", "--out", str(out), "--overwrite"]) == 2
    assert json.loads((out / "summary.json").read_text())["verdict"] == "diverged"


def test_the_plan_is_printed_and_nothing_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "ref", "eps", "--plan"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "rank 0: target <- reference"
    norm = "torch.nn.functional.layer_norm.3"
    assert f"  step 0 forward  {norm} <- {norm}  model.blocks.1.norm2" in told
    assert not any("(no partner)" in line for line in told)
    assert main(["compare", "ref", "later", "--plan"]) == 3


def test_a_fixed_standard_judges_by_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "ref", "eps", "--standard", "cosine:0.98", "--json"]) in (0, 1)
    told = json.loads(capsys.readouterr().out)
    assert told["scope"]["standard"] == "cosine:0.98"
    pairs = compare("ref", "eps").pairs.filter(pl.col("judgement").is_not_null())
    failing = pairs.filter(pl.col("cosine") < 0.98).height
    assert told["counts"]["made_here"] + told["counts"]["inherited"] == failing
    assert sum(told["counts"][word] for word in JUDGEMENTS) == told["counts"]["tensors_compared"]


def test_a_strict_standard_names_the_same_call_and_a_loose_one_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "ref", "eps", "--standard", "cosine:0.9999999", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["module"] == "model.blocks.1.norm2"
    assert main(["compare", "ref", "eps", "--standard", "error:1000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize("table", ["calls", "values", "tensors"])
def test_a_truncated_table_is_named(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    shutil.copytree("eps", broken)
    (file,) = broken.rglob(f"{table}-000.parquet")
    file.write_bytes(file.read_bytes()[:200])
    assert main(["compare", "ref", str(broken)]) == 2
    assert str(file) in capsys.readouterr().err
    assert main(["compare", str(broken), "ref", "--json"]) == 2
    assert capsys.readouterr().out == ""


HOSTILE = "[red]b[/red]\x1b[2J\x07\u202e<b>&{0}%s"


def renamed(trace: Path, out: Path) -> Path:
    """The same trace, in which a layer, its calls and an argument bear a hostile name."""
    shutil.copytree(trace, out)
    for file in out.rglob("calls-*.parquet"):
        frame = pl.read_parquet(file)
        texts = [pl.col(name).str.replace_all("norm", HOSTILE, literal=True) for name in ("name", "op", "module")]
        frame.with_columns(texts).write_parquet(file)
    return out


def test_hostile_names_break_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(renamed(Path(name), tmp_path / name)) for name in ("ref", "eps")]
    assert main(["compare", *runs]) == 1
    text = capsys.readouterr().out
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "[red]b[/red]" in text
    assert main(["compare", *runs, "--json", "--out", str(tmp_path / "out"), "--xlsx"]) == 1
    first = json.loads(capsys.readouterr().out)["findings"][0]
    assert first["module"] == f"model.blocks.1.{HOSTILE}2"
    assert not set(first["sentence"] + first["next"]) & {"\x1b", "\x07", "\u202e"}
    assert main(["compare", *runs, "--plan"]) == 0
    assert not set(capsys.readouterr().out) & {"\x1b", "\x07", "\u202e"}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_chinese_changes_sentences_and_nothing_else(tmp_path: Path) -> None:
    told = []
    for language in ("en", "zh"):
        main(["compare", "ref", "eps", "--language", language, "--out", str(tmp_path / language)])
        told.append(read(tmp_path / language / "summary.json"))
    english, chinese = told
    assert english["counts"] == chinese["counts"]
    one, other = english["findings"][0], chinese["findings"][0]
    assert {key for key in one if one[key] != other[key]} == {"sentence"}
