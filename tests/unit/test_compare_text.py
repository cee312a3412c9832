"""`ulpscope compare` on the screen and as JSON, from comparisons built by hand."""

import io
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from tests.unit.comparisons import HOSTILE, agreeing, diverged, finding, nothing_compared, place

from ulpscope.records.findings import (
    Advice,
    AdviceKind,
    AnchorPart,
    Comparison,
    Counts,
    FindingKind,
    Nearness,
    Neighbour,
    Outcome,
    Scope,
)
from ulpscope.records.pairs import Measured
from ulpscope.report.progress import progress
from ulpscope.report.terminal.compare import compare_json, compare_text
from ulpscope.report.words.language import Language

DIVERGED = """\
DIVERGED at step 0, forward, in model.layers.2.input_layernorm

  torch.Tensor.add.17   modeling.py:66
  Its inputs agree within bfloat16 rounding (1.0e-3), its output differs by 5.9, 5,900 times what came in.
  An argument differs: args.1 is 1e-06 in the reference, 1e-02 in the target.

  anchor     first inputs, parameters and embedding output: identical bits
  before it  layers.1.mlp.down_proj    linear  in 7.0e-3  out 7.2e-3  rounding
             layers.1                  add     in 7.2e-3  out 4.4e-3  rounding
  here       layers.2.input_layernorm  add     in 1.0e-3  out 5.9     made here
  after it   683 calls carry this error on; none stands out.
  advice     Give torch.Tensor.add.17 the same arguments in both runs and compare again.
  scope      6 calls of the reference and 6 calls of the target have no partner

  1,001 calls compared (12 without a partner), distances estimated from sketches; 2,913 tensors: 401
  identical, 1,120 rounding, 1,391 inherited, 1 made here.
  Next: ulpscope show runs/target torch.Tensor.add.17 --step 0 --phase forward
"""

DIVERGED_ZH = """\
出现分歧（DIVERGED）：step 0，前向，model.layers.2.input_layernorm

  torch.Tensor.add.17   modeling.py:66
  其输入在 bfloat16 舍入误差范围内一致（1.0e-3），其输出相差 5.9，是输入误差的 5,900 倍。
  有一个调用参数不同：args.1 在参考运行中为 1e-06，在目标运行中为 1e-02。

  起点  最初的输入、模型参数、embedding 的输出：逐比特相同
  之前  layers.1.mlp.down_proj    linear  输入 7.0e-3  输出 7.2e-3  舍入
        layers.1                  add     输入 7.2e-3  输出 4.4e-3  舍入
  此处  layers.2.input_layernorm  add     输入 1.0e-3  输出 5.9     在此产生
  之后  683 次调用继续传递这一误差；没有更突出的。
  建议  让 torch.Tensor.add.17 在两次运行中使用相同的调用参数，然后重新比较。
  范围  参考运行有 6 次调用、目标运行有 6 次调用没有对应的调用

  比较了 1,001 次调用（另有 12 次没有对应的调用），差距由 sketch 估计；2,913 个张量：逐比特相同 401、舍入
  1,120、继承 1,391、在此产生 1。
  下一步：ulpscope show runs/target torch.Tensor.add.17 --step 0 --phase forward
"""

AGREE = """\
AGREE: 1,001 calls and 2,913 tensors compared (steps 0-2)

  anchor     first inputs, parameters and embedding output: identical bits

  1,001 calls compared, distances estimated from sketches; 2,913 tensors: 401 identical, 2,512 rounding.
"""

NOTHING = """\
NOTHING COMPARED: no tensor of runs/ref could be compared with one of runs/target

  scope      12 calls in the reference, 1,007 calls in the target, 0 calls paired
             only the reference has step 0-1
             only the target has step 4
             12 calls of the reference and 1,007 calls of the target have no partner

  Next: ulpscope show runs/ref
  Next: ulpscope show runs/target
"""


def text(comparison: Comparison, *, width: int = 100, language: Language = Language.EN) -> str:
    return compare_text(comparison, width=width, color=False, language=language)


@pytest.mark.parametrize(
    ("comparison", "language", "expected"),
    [
        (diverged(), Language.EN, DIVERGED),
        (diverged(), Language.ZH, DIVERGED_ZH),
        (agreeing(), Language.EN, AGREE),
        (nothing_compared(), Language.EN, NOTHING),
    ],
    ids=["diverged", "diverged-zh", "agree", "nothing"],
)
def test_text(comparison: Comparison, language: Language, expected: str) -> None:
    assert text(comparison, width=106, language=language) == expected


def test_the_source_line_is_read_where_the_file_is(tmp_path: Path) -> None:
    source = tmp_path / "modeling.py"
    source.write_text("a\nvariance = variance + eps\n", encoding="utf-8")
    told = text(diverged(findings=(finding(place=place(source=f"{source}:2")),)), width=120)
    assert "  torch.Tensor.add.17   variance = variance + eps   modeling.py:2\n" in told
    for odd in (f"{source}:9", f"{source}:x", f"{tmp_path}:1", "modeling.py:2", ":", "/dev/zero:1", "no line"):
        assert "variance + eps" not in text(diverged(findings=(finding(place=place(source=odd)),)))


def test_causes_stand_in_the_heading() -> None:
    headings = {
        FindingKind.INPUT: "DIVERGED at step 0, forward, in model.layers.2.input_layernorm: other input data",
        FindingKind.OVERFLOW: "DIVERGED at step 0, forward, in model.layers.2.input_layernorm: overflow",
        FindingKind.COMPUTATION: "DIVERGED at step 0, forward, in model.layers.2.input_layernorm",
    }
    for kind, heading in headings.items():
        assert text(diverged(findings=(finding(kind),))).splitlines()[0] == heading
    two = diverged(scope=Scope(ranks=(0, 1), steps=(0,)), findings=(finding(place=place(rank=1, module=None)),))
    assert text(two).splitlines()[0] == "DIVERGED at step 0, forward, rank 1"
    assert text(diverged(findings=())).startswith("DIVERGED, and no single call stands out\n")


def test_further_findings_and_notes_are_listed_briefly() -> None:
    more = tuple(finding(place=place(call=f"torch.relu.{number}")) for number in range(9))
    told = text(diverged(findings=more, notes=more), width=400)
    assert "683 calls carry this error on; 8 findings more below." in told
    assert told.count("torch.relu.5 in") == 1
    assert "torch.relu.6 in" not in told
    assert "and 3 more, in --json and summary.json" in told
    assert "and 4 more, in --json and summary.json" in told


def test_followers() -> None:
    for followers, said in (
        (0, "no later call carries this error on."),
        (1, "1 call carries this error on; none stands out."),
    ):
        assert f"after it   {said}" in text(diverged(findings=(finding(error_out=1.0, followers=followers),)))
    after = Neighbour(Nearness.AFTER, "torch.relu.1", "torch.relu", None, 5.9, None, "odd word")
    told = text(diverged(neighbours=(after,)))
    assert "after it   torch.relu.1  relu  in 5.9    odd word\n             683 calls" in told


def test_nobody_reads_agree_where_nothing_was_compared() -> None:
    hollow = agreeing(counts=Counts(calls_reference=3, calls_target=3, matched=3))
    for language in Language:
        assert "AGREE" not in text(hollow, language=language)
    assert compare_json(hollow)["verdict"] == "nothing_compared"


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (((Measured.DATA, 9),), "distances measured on the data"),
        (((Measured.STATS, 9),), "distances guessed from stats"),
        (((Measured.DIGEST, 9),), "from digests only: identical or not"),
        (
            ((Measured.DATA, 1200), (Measured.SKETCH, 3), (Measured.DIGEST, 9)),
            "distances measured on the data (1,200), distances estimated from sketches (3)",
        ),
        ((), "nothing measured"),
    ],
)
def test_how_it_was_measured(measured: tuple[tuple[Measured, int], ...], said: str) -> None:
    scope = Scope(ranks=(0,), steps=(0,), measured=measured)
    told = text(agreeing(scope=scope), width=200)
    assert f"1,001 calls compared, {said}; 2,913 tensors" in told
    assert "compared (step 0)" in told


def test_everything_left_out_is_said() -> None:
    scope = Scope(
        ranks=(0,),
        steps=(0,),
        ranks_reference_only=(2, 3),
        ranks_target_only=(5,),
        levels=("api", "module"),
        not_compared=(("shapes differ", 3),),
        standard="msprobe",
    )
    anchor = (
        AnchorPart("inputs", 2, 2, None),
        AnchorPart("parameters", 38, 36, 1e-6),
        AnchorPart("model.embed", 1, 0, None),
        AnchorPart("embedding", 0, 0, None),
    )
    told = text(agreeing(scope=scope, anchor=anchor, missing=("rank 1: step 2 is half written",)), width=120)
    for part in (
        "first inputs: identical bits",
        "parameters: 36 of 38 identical, the others differ by up to 1.0e-6",
        "model.embed: 0 of 1 identical",
        "embedding output: not compared",
        "only the reference has rank 2-3",
        "only the target has rank 5",
        "the reference was captured at level api, the target at level module",
        "3 tensors not compared: shapes differ",
        "missing    rank 1: step 2 is half written",
        "Judged by the standard msprobe, not by what rounding explains.",
        "(step 0, rank 0)",
        "AGREE in 1 of 4 ranks",
    ):
        assert part in told
    assert "3 个张量未比较：形状不同" in text(agreeing(scope=scope), language=Language.ZH)


@pytest.mark.parametrize("outcome", [Outcome.AGREE, Outcome.INCOMPLETE])
def test_the_first_line_says_how_much_was_compared(outcome: Outcome) -> None:
    scope = Scope(ranks=(0,), steps=(0, 1), ranks_target_only=(1,), steps_reference_only=(2,))
    part = agreeing(scope=scope, outcome=outcome)
    first = text(part, width=200).splitlines()[0]
    assert first.startswith(outcome.value.upper())
    assert "2 of 3 steps" in first
    assert "1 of 2 ranks" in first
    chinese = text(part, width=200, language=Language.ZH).splitlines()[0]
    assert "3 个 step" in chinese
    assert outcome.value.upper() in chinese
    answer = compare_json(part)
    assert answer["extent"]["complete"] is False
    assert answer["extent"]["steps"] == {"compared": 2, "of": 3}
    assert " in 2 of" not in text(agreeing(), width=200)


def test_other_filters_and_a_run_beside_itself_are_told() -> None:
    scope = Scope(ranks=(0,), steps=(0,), filters=("--only torch.relu", ""), same_run=True)
    told = text(agreeing(scope=scope), width=200)
    assert "--only torch.relu in the reference, all in the target" in told
    assert "it was compared with itself" in told


def hostile() -> Comparison:
    bad = finding(place=place(call=HOSTILE, module=HOSTILE, source=f"/x/{HOSTILE}:1"), error_in=0.0, error_out=1.0)
    near = Neighbour(Nearness.HERE, HOSTILE, HOSTILE, HOSTILE, float("nan"), float("inf"), "made_here")
    return diverged(
        reference=HOSTILE,
        target=HOSTILE,
        findings=(bad, bad),
        notes=(bad,),
        neighbours=(near,),
        missing=(HOSTILE,),
        advice=(Advice(AdviceKind.UNFUSE, HOSTILE),),
        anchor=(AnchorPart(HOSTILE, 1, 0, 0.1),),
        scope=Scope(ranks=(0,), steps=(0,), not_compared=((HOSTILE, 1),), standard=HOSTILE),
    )


@pytest.mark.parametrize("language", list(Language))
@pytest.mark.parametrize("outcome", list(Outcome))
def test_names_are_neither_markup_nor_terminal_control(outcome: Outcome, language: Language) -> None:
    told = text(replace(hostile(), outcome=outcome), width=400, language=language)
    assert all(line.isprintable() for line in told.split("\n"))
    assert "[red]torch[/red]" in told
    assert ":smile:" in told
    colored = compare_text(replace(hostile(), outcome=outcome), width=400, color=True, language=language)
    assert "\x1b[2J" not in colored
    assert "\x07" not in colored
    assert "\x1b[" in colored


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_only_commands_are_wider_than_the_terminal(width: int) -> None:
    for comparison in (diverged(), agreeing(), nothing_compared(), hostile()):
        for language in Language:
            lines = text(comparison, width=width, language=language).splitlines()
            wide = [line for line in lines if cell_len(line) > width]
            assert all("ulpscope show" in line for line in wide)


def test_json_has_the_keys_of_every_command() -> None:
    answer = compare_json(diverged(notes=(finding(FindingKind.DTYPE),)))
    assert list(answer)[:6] == ["schema", "command", "verdict", "findings", "notes", "counts"]
    further = "reference target scope extent anchor neighbours advice missing ledger environment".split()
    assert list(answer)[6:] == further
    assert answer["ledger"] is None
    keys = "kind rank step phase call op module tensor source evidence sentence next".split()
    assert list(answer["findings"][0]) == list(answer["notes"][0]) == keys
    assert (answer["schema"], answer["command"], answer["verdict"]) == (1, "compare", "diverged")
    counts = answer["counts"]
    judged = [counts[name] for name in ("identical", "rounding", "inherited", "made_here", "after_choice")]
    assert sum(judged) == counts["tensors_compared"]
    assert answer["findings"][0]["evidence"]["arguments"] == [
        {"place": "args.1", "reference": "1e-06", "target": "1e-02"}
    ]
    assert answer["scope"]["measured"] == {"digest": 401, "sketch": 2512}
    assert answer["neighbours"][2]["nearness"] == "here"
    assert answer["advice"][0]["kind"] == "same_argument"
    assert answer["advice"][0]["sentence"].startswith("Give torch.Tensor.add.17")


def test_json_is_strict() -> None:
    infinite = finding(error_in=float("nan"), error_out=float("-inf"), worst_values=(1.0, float("inf")))
    answer = compare_json(replace(hostile(), findings=(infinite,)), Language.ZH)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    evidence = answer["findings"][0]["evidence"]
    assert (evidence["error_in"], evidence["error_out"], evidence["worst_values"]) == ("nan", "-inf", [1.0, "inf"])
    assert answer["target"] == HOSTILE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_on_a_terminal_when_it_takes_long() -> None:
    slow, quick, pipe = Terminal(), Terminal(), io.StringIO()
    with progress("comparing [tensors]", total=10, stream=slow, patience=0.0) as advance:
        for _ in range(20):
            time.sleep(0.02)
            advance(1)
    assert "comparing [tensors]" in slow.getvalue()
    for stream in (quick, pipe):
        with progress("comparing tensors", total=10, stream=stream) as advance:
            advance(10)
        assert stream.getvalue() == ""


def test_progress_ends_with_an_error_of_the_work() -> None:
    with pytest.raises(ZeroDivisionError), progress("comparing", stream=Terminal(), patience=0.0):
        raise ZeroDivisionError
