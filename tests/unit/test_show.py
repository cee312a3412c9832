"""`ulpscope show`: what it says, in which width, and with which exit code."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.traces import call_row, frame, make_trace, rank_info, step_calls, use_row, value_row

import ulpscope.report.terminal.show as show_module
from ulpscope.cli.main import main
from ulpscope.report.program import argument_lines, argument_text, source_line
from ulpscope.report.tables import draw_long, plain, render
from ulpscope.trace.query import CallFilter
from ulpscope.trace.schema import CALLS, STACKS, TENSORS, VALUES
from ulpscope.trace.writer import RankWriter, claim_rank_directory
from ulpscope.workflows.show.command import show

Shown = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Run the command on a trace of two ranks; gives exit code, stdout, stderr."""
    make_trace(tmp_path / "run", steps=3, save=True)
    make_trace(tmp_path / "run", rank=1, closed=False)

    def run(*options: str, trace: str = "run") -> tuple[int, str, str]:
        code = main(["show", str(tmp_path / trace), *options])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run


def write_calls(out: Path, calls: list[dict[str, Any]], *, values: Any = (), uses: Any = ()) -> None:
    """A trace of one part."""
    writer = RankWriter(claim_rank_directory(out, 0), rank_info(closed="now"))
    writer.write_part(
        0,
        calls=frame(CALLS, calls),
        values=frame(VALUES, list(values)),
        tensors=frame(TENSORS, list(uses)),
        stacks=frame(STACKS, []),
    )


def test_overview(shown: Shown) -> None:
    code, out, err = shown()
    assert (code, err) == (0, "")
    for part in (
        "2 processes, 35 calls",
        "torch 2.13.0",
        "python train.py --name 'a b'",
        "level api, save stats",
        "0-2 (3)",
        "23, 22 with data",
        "21 of 23 calls recorded, 2 not looked into",
        "not closed: the process is still running or was killed",
        "optimizer",
    ):
        assert part in out
    assert "\x1b" not in out


def test_environment_and_coverage(shown: Shown) -> None:
    _, environment, _ = shown("--env")
    for part in ("OMP_NUM_THREADS", "numpy", "2.4.6", "seed torch", "17", "4711"):
        assert part in environment
    code, coverage, _ = shown("--coverage", "--rank", "0")
    assert code == 0
    assert "2: fast path" in coverage
    assert "rank1" not in coverage
    assert shown("--env", "--rank", "7")[0] == 3


def test_the_coverage_of_a_killed_run_is_unknown(shown: Shown) -> None:
    unknown = "unknown: calls are counted when a trace is closed, and this one was not"
    assert unknown in " ".join(shown()[1].split())
    _, coverage, _ = shown("--coverage", "--rank", "1")
    assert unknown in " ".join(coverage.split())
    assert "calls recorded" not in coverage
    ranks = json.loads(shown("--json", "--coverage")[1])["ranks"]
    assert [rank["coverage"] is None for rank in ranks] == [False, True]


def test_list_of_calls(shown: Shown) -> None:
    code, out, _ = shown("--op", "linear", "--rank", "0")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == 11
    assert " ".join(lines[2].split()) == "1 rank0 0 forward torch.nn.functional.linear.0 layers.0 float32[2, 3]"
    assert lines[-1] == "9 calls"


def test_the_list_is_cut_and_says_so(shown: Shown) -> None:
    _, out, _ = shown("--op", "*", "--limit", "4")
    assert len(out.splitlines()) == 6
    assert out.endswith("31 more; --limit 0 for all\n")
    assert "35 calls" in shown("--op", "*", "--limit", "0")[1]
    assert "35 calls" in shown("--op", "*", "--limit", "35")[1]


def test_one_call(shown: Shown) -> None:
    code, out, _ = shown("linear.0", "--step", "1", "--phase", "forward", "--rank", "0")
    assert code == 0
    for part in (
        "torch.nn.functional.linear.0   id 8",
        "step 1, micro-step 0, forward, rank0",
        "layers.0 (Linear)",
        "Linear.0 (id 7)",
        "backward  torch.nn.functional.linear.0 (id 11)",
        "traces.py:1 in forward",
        '"""Small traces made with the writer',
        "/nowhere/train.py:12 in <module>",
        "kwargs.bias  None",
        "8000000000000008",
        "SGD.0 (id 5)",
        "torch.relu.0 (id 9)",
        "as args.0",
        "3.5",
    ):
        assert part in out


def test_a_random_call_with_uninitialised_output(shown: Shown) -> None:
    _, out, _ = shown("rand.0", "--step", "1", "--rank", "0", "--elements", "2")
    assert "generator state abc123" in out
    assert "uninitialised" in out
    assert "nobody has written these elements" in out


def test_elements_of_a_tensor(shown: Shown) -> None:
    code, out, _ = shown("19", "--tensor", "gradient:weight", "--elements", "3")
    assert code == 0
    assert "gradient weight: float32[2, 3]" in out
    assert [line.split() for line in out.splitlines() if line.startswith("  [")] == [
        ["[0,", "0]", "20.0"],
        ["[0,", "1]", "21.0"],
        ["[1,", "2]", "25.0"],
    ]
    assert "3 of 6 elements" in out
    every = shown("19", "--tensor", "weight", "--elements", "0")[1]
    assert every.count("[1, 1]") == 3
    assert "of 6" not in every


def test_tensors_that_are_not_there_or_not_saved(shown: Shown) -> None:
    code, out, err = shown("19", "--tensor", "output.5")
    assert (code, out) == (2, "")
    assert "SGD.0 has no tensor 'output.5'" in err
    assert "one of weight" in err
    code, _, err = shown("5", "--tensor", "weight", "--rank", "1")
    assert code == 3
    assert "--save tensors" in err


def test_json_is_one_object(shown: Shown) -> None:
    views = {
        "overview": (),
        "environment": ("--env",),
        "coverage": ("--coverage",),
        "calls": ("--op", "linear"),
        "call": ("15",),
        "elements": ("15", "--tensor", "output.0"),
    }
    for view, options in views.items():
        code, out, err = shown(*options, "--json")
        assert (code, err, out.count("\n")) == (0, "", 1)
        answer = json.loads(out)
        assert (answer["schema"], answer["command"], answer["view"]) == (1, "show", view)


def test_json_of_a_call_holds_everything(shown: Shown) -> None:
    answer = json.loads(shown("15", "--json", "--elements", "2")[1])
    assert answer["call"]["name"] == "torch.nn.functional.linear.0"
    assert answer["call"]["kind"] == "api"
    assert [tensor["place"] for tensor in answer["tensors"]] == ["args.0", "args.1", "output.0"]
    assert answer["tensors"][0]["value"]["stats"]["norm"] == 3.5
    assert answer["made_by"][0]["call"]["name"] == "SGD.0"
    assert answer["stack"][1] == {"file": "/nowhere/train.py", "line": 12, "function": "<module>", "source": None}
    assert answer["elements"][0]["indices"] == [[0, 0], [1, 2]]


def test_json_has_no_bare_nan(tmp_path: Path) -> None:
    values = [value_row(1, producer=0, min=float("nan"), max=float("inf"), nan=2, pos_inf=1)]
    uses = [use_row(0, "output", "output.0", 1)]
    write_calls(tmp_path, [call_row(0, "torch.log.0")], values=values, uses=uses)
    answer = show(tmp_path, call=0).json()
    json.dumps(answer, allow_nan=False)
    assert answer["tensors"][0]["value"]["stats"]["min"] == {"$float": "nan"}


def test_nothing_matched_is_exit_code_3_and_helps(shown: Shown) -> None:
    code, out, _ = shown("--op", "torch.rleu")
    assert code == 3
    assert "No call" in out
    assert "torch.relu" in out
    code, out, _ = shown("--rank", "4", "--step", "8")
    assert code == 3
    assert "This trace has rank 0-1." in out
    assert "This trace has step 0-2." in out
    code, out, _ = shown("--op", "zzz", "--json")
    assert (code, json.loads(out)["calls"]) == (3, [])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("relu.7",), "has no call 'relu.7'"),
        (("relu.0",), "5 calls are named"),
        (("--tensor", "output.0"), "--tensor with no CALL"),
        (("--elements", "0"), "--elements with no CALL"),
        (("1", "--op", "x"), "--op with the name of one call"),
        (("--env", "--text", "x"), "--text with --env"),
        (("--env", "--coverage"), "not allowed with"),
        (("--limit", "-1"), "limit"),
        (("--step", "x"), "--step 'x'"),
        (("1", "--step", "0-2"), "one number"),
        (("--phase", "never"), "invalid choice"),
    ],
)
def test_bad_usage_is_exit_code_2(shown: Shown, options: tuple[str, ...], problem: str) -> None:
    code, out, err = shown(*options)
    assert (code, out) == (2, "")
    assert problem in err
    assert "next:" in err
    assert "Traceback" not in err


def test_what_is_no_trace_is_exit_code_2(shown: Shown, tmp_path: Path) -> None:
    code, _, err = shown(trace="nowhere")
    assert code == 2
    assert "no trace" in err
    (tmp_path / "run/rank0/step0/calls-000.parquet").write_bytes(b"PAR1")
    code, _, err = shown()
    assert code == 2
    assert "calls-000.parquet cannot be read" in err


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    make_trace(tmp_path, save=True)
    for result in (show(tmp_path), show(tmp_path, call=1, elements=3), show(tmp_path, call=5)):
        assert max(map(len, result.text(width=width).splitlines())) <= width
    text = show(tmp_path, call=1).text(width=80)
    assert "torch.nn.functional.linear.0" in text


def test_numbers_stay_whole_in_eighty_columns(tmp_path: Path) -> None:
    numbers = {"min": -3.054321e-10, "max": 123456.7, "mean": -8.75445e-10, "norm": 1.234567e10}
    values = [value_row(7, **numbers), value_row(8, nan=12345, set_aside=12345, **numbers)]
    uses = [use_row(0, "parameter_after", "model.layers.10.attention.weight", number) for number in (7, 8)]
    write_calls(tmp_path, [call_row(0, "torch.optim.adamw.AdamW.0")], values=values, uses=uses)
    text = show(tmp_path, call=0).text(width=80)
    for whole in ("-3.05432e-10", "123457", "-8.75445e-10", "1.23457e+10", "12,345", "8000000000000007"):
        assert whole in text
    assert "+inf" not in text


def test_names_are_neither_markup_nor_terminal_control(tmp_path: Path) -> None:
    name = "[red]torch[/red].\x1b[2Jadd\x07:smile:[link=x].0"
    arguments = json.dumps({"args": ["[bold]x[/bold]", {"$odd": "\x1b[0m"}]})
    hostile = call_row(0, name, module="[/]", module_class="[blink]", arguments=arguments, error="[/nope]\x1b]0;x\x07")
    write_calls(tmp_path, [hostile])
    for text in (show(tmp_path, call=0).text(width=200, color=True), show(tmp_path, call=0).text(width=200)):
        assert "[red]torch[/red].\\x1b[2Jadd\\x07:smile:[link=x].0" in text
        assert "[/nope]\\x1b]0;x\\x07" in text
        assert "[bold]x[/bold]" in text
        assert "\x1b[2J" not in text
        assert "\x07" not in text


def test_colors_only_where_wanted(tmp_path: Path) -> None:
    make_trace(tmp_path)
    result = show(tmp_path)
    assert "\x1b" not in result.text()
    assert render(plain("x", style="bold"), width=80, color=False) == "x\n"


def test_a_call_that_lost_a_value_is_still_shown(tmp_path: Path) -> None:
    write_calls(tmp_path, step_calls(0)[:1], uses=[use_row(0, "input", "args.0", 77)])
    assert "missing" in show(tmp_path, call=0).text()


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (1, "1"),
        ("a", "'a'"),
        (None, "None"),
        ([1, {"$tuple": [2]}], "[1, (2,)]"),
        ({"$tuple": [1, 2]}, "(1, 2)"),
        ({"$size": [1, 2]}, "torch.Size(1, 2)"),
        ({"$float": "nan"}, "nan"),
        ({"$complex": [1.0, {"$float": "inf"}]}, "(1.0 + infj)"),
        ({"$slice": [None, 2, None]}, "slice(None, 2, None)"),
        ({"$ellipsis": True}, "..."),
        ({"$dtype": "float32"}, "float32"),
        ({"$device": "cuda:0"}, "cuda:0"),
        ({"$generator": "cpu"}, "<generator cpu>"),
        ({"$callable": "m.f"}, "m.f"),
        ({"$dict": [["k", {"$tensor": "args.0.k"}]]}, "{'k': tensor args.0.k}"),
        ({"$bytes": "YQ=="}, "<bytes YQ==>"),
        ({"$object": "m.C"}, "<object m.C>"),
        ({"$object": "m.C", "fields": {"$dict": [["a", 1]]}}, "m.C{'a': 1}"),
        ({"$truncated": 9}, "... (9 left out)"),
        ({"$tuple": 3}, "<tuple 3>"),
        ({"$dict": [3]}, "<dict [3]>"),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_arguments_in_words(encoded: Any, text: str) -> None:
    assert argument_text(encoded) == text


def test_argument_lines() -> None:
    nested: Any = 1
    for _ in range(900):
        nested = [nested]
    arguments = {"args": [{"$tensor": "args.0"}, "x" * 500, nested], "kwargs": {"eps": 1e-5}, "returned": 3}
    lines = dict(argument_lines(arguments))
    assert lines["args.0"] == "tensor"
    assert lines["args.1"].endswith("(102 more characters)")
    assert lines["args.2"] == "(nested too deeply to show)"
    assert (lines["kwargs.eps"], lines["returned"]) == ("1e-05", "3")
    assert list(argument_lines({"args": 3, "kwargs": []})) == []


def test_source_lines_never_fail(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"x = 1\n\n  y = '\xff'\n")
    assert source_line(str(tmp_path / "a.py"), 3) == "y = '\ufffd'"
    for file, line in (
        (str(tmp_path / "a.py"), 2),
        (str(tmp_path / "a.py"), -1),
        (str(tmp_path / "a.py"), 99),
        (str(tmp_path), 1),
        ("/dev/zero", 1),
        ("\0", 1),
        ("<string>", 1),
        ("", 1),
    ):
        assert source_line(file, line) is None


def test_a_long_list_looks_as_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["torch.relu.0", "你好.1", "a\x1b[31mred.2", "torch.nn.functional.scaled_dot_product_attention.12345"]
    calls = [call_row(number, names[number % 4], module=None if number % 3 else "model.层") for number in range(12)]
    uses = [use_row(number, "output", "output.0", number) for number in range(0, 12, 2)]
    values = [value_row(number, shape=[number, 7]) for number in range(0, 12, 2)]
    write_calls(tmp_path / "run", calls, values=values, uses=uses)
    found = show(tmp_path / "run", CallFilter(op="*"), limit=0)
    for width in (70, 100, 240):
        monkeypatch.setattr(show_module, "LONG", 1000)
        short = found.text(width=width)
        monkeypatch.setattr(show_module, "LONG", 1)
        assert found.text(width=width) == short


def test_a_hundred_thousand_calls_are_listed_in_seconds() -> None:
    rows = ([number, 0, "forward", f"torch.nn.functional.linear.{number}", "model", ""] for number in range(100_000))
    headers = ["id", "step", "phase", "call", "module", "output"]
    started = time.process_time()
    told = draw_long(headers, rows, right=("id",), width=240, color=False)
    assert told is not None
    assert told.count("\n") == 100_001
    # 1 s where it was written, rich takes 60.
    assert time.process_time() - started < 20


def test_a_wrong_path_is_told_in_few_words(shown: Shown, tmp_path: Path) -> None:
    for wrong, following in (("rnu", f"did you mean {tmp_path / 'run'}?"), ("nothing-like-it", "check the path")):
        code, _, said = shown(trace=wrong)
        assert (code, following in said) == (2, True)
        assert len(said.split()) < 40
    (tmp_path / "empty").mkdir()
    code, _, said = shown(trace="empty")
    assert code == 2
    assert "msprobe" in said
    assert len(said.split()) < 60
