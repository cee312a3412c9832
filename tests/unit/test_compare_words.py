"""The sentences of a comparison are a product: every kind of finding, in both languages, whatever a name holds."""

import re
import shlex
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.comparisons import EPS, HARMLESS, HOSTILE, diverged, finding, place

from ulpscope.records.enums import Phase
from ulpscope.records.evidence import ArgumentDifference
from ulpscope.records.findings import Advice, AdviceKind, FindingKind, Scope
from ulpscope.records.pairs import Measured
from ulpscope.report.words.comparison import advice_sentence, next_command, note_sentence, sentence
from ulpscope.report.words.language import Language, number_text, phrases, shown_name

LANGUAGES = list(Language)
SHAPES: dict[str, dict[str, Any]] = {
    "nothing": {"measured": Measured.DATA},
    "errors": {"error_in": 1e-3, "error_out": 5.9, "dtype": "bfloat16"},
    "same inputs": {"error_in": 0.0, "error_out": 0.3, "expected": 1e-7, "dtype": "float32"},
    "other inputs": {"error_in": 0.2, "error_out": 0.3, "expected": 0.25, "dtype": "odd", "peers": 1.2, "gain": 3.0},
    "not finite": {
        "error_in": float("nan"),
        "error_out": float("inf"),
        "expected": float("nan"),
        "not_finite": (0, 12),
        "extremes": (3.5, 65504.0),
        "dtype": "float16",
    },
    "half known": {"extremes": (None, 3.0), "not_finite": (0, 0), "scale": float("nan"), "peers": float("inf")},
    "arguments": {"arguments": (EPS, ArgumentDifference("kwargs.dim", "", "-1"), EPS, EPS)},
    "two sides": {"classes": ("A", "B"), "shapes": ((2, 3), ()), "dtypes": ("float32", "bfloat16")},
    "only": {"only_reference": ("a.1", "b.2"), "only_target": ("c.1",) * 5, "error_out": 0.1},
    "moved": {"moved": ("a.1",), "only_target": ("b.2",), "error_out": 0.1},
    "generators": {"generators": ("abc", "def"), "error_out": 1.4},
    "parameters": {"parameters": ("w", "b"), "count": 7, "error_out": 1e-6},
    "digests": {"measured": Measured.DIGEST, "count": 1},
    "worst": {"error_out": 0.1, "worst": (1, 2), "worst_values": (0.1, float("nan")), "scale": 65536.0},
    "followers": {"followers": 1, "count": 1, "error_out": 0.0},
    "given": {"shown": "given", "error_in": 0.0, "error_out": 0.5, "expected": 1e-7, "origins": ("a.0", "b.1")},
    "summed": {
        "shown": "summed",
        "error_in": 0.1,
        "error_out": 0.5,
        "leftover": ("reference", 3),
        "given_as": "args.1",
    },
    "tied": {"shown": "summed", "error_out": 0.5, "tied": ("target", "model.head.weight")},
    "no gradient": {"without_gradient": "reference", "error_out": 1.0},
    "one optimizer": {"updated_in": "target", "parameters": ("w",), "count": 1, "error_out": 1.0},
    "unseen": {"changed_unseen": True, "parameters": ("w",), "error_out": 1.0},
    "unseen in one run": {
        "changed_unseen": True,
        "changed_in": "target",
        "parameters": ("w", "b"),
        "count": 2,
        "error_out": 1.0,
    },
    "step": {"backwards": (1, 2)},
    "whole step": {"shifted": -1},
    "other program": {"paired": (3, 40)},
}


def body(text: str) -> str:
    """What follows the place."""
    return text.split("forward: ")[-1]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", list(FindingKind))
def test_every_kind_and_evidence_gives_a_sentence(kind: FindingKind, language: Language) -> None:
    stop, forward = {Language.EN: (".", "forward: "), Language.ZH: ("。", "前向：")}[language]
    for evidence in SHAPES.values():
        for where in (place(), place(call=None, call_id=None, tensor=None, source=None), place(module="", tensor="a")):
            for tell in (sentence, note_sentence):
                told = tell(finding(kind, where, **evidence), language)
                said = re.sub("inf (or|或) nan", "inf", told.split(forward)[1])
                assert said.endswith(stop)
                assert len(said) > 5
                assert not re.search(r"None|\{|\}|nan|  |;\.|,\.|；。|，。", said), told
                if language is Language.EN:
                    assert not re.search(r"\b1 (calls|tensors|elements)\b", said), told


def test_the_sentence_of_a_computation() -> None:
    assert sentence(finding()) == (
        "torch.Tensor.add.17 in model.layers.2.input_layernorm (modeling.py:66), step 0, forward: its inputs agree "
        "within bfloat16 rounding (1.0e-3), its output differs by 5.9, 5,900 times what came in; an argument differs: "
        "args.1 is 1e-06 in the reference, 1e-02 in the target."
    )
    assert sentence(finding(), Language.ZH) == (
        "model.layers.2.input_layernorm 中的 torch.Tensor.add.17（modeling.py:66），step 0，前向：其输入在 bfloat16 "
        "舍入误差范围内一致（1.0e-3），其输出相差 5.9，是输入误差的 5,900 倍；有一个调用参数不同："
        "args.1 在参考运行中为 1e-06，在目标运行中为 1e-02。"
    )


@pytest.mark.parametrize(
    ("kind", "evidence", "said"),
    [
        (
            FindingKind.COMPUTATION,
            SHAPES["same inputs"],
            "its inputs are identical, its output differs by 0.30, where rounding and its inputs explain 1.0e-7.",
        ),
        (
            FindingKind.COMPUTATION,
            SHAPES["other inputs"],
            "its inputs differ by 0.20, its output differs by 0.30, where rounding and its inputs explain 0.25; "
            "elsewhere in this run the same operation passes on 1.2 times its inputs' error.",
        ),
        (
            FindingKind.INPUT,
            {"measured": Measured.DIGEST, "count": 2},
            "its output is not the same data in both runs; 2 tensors in all; only digests were compared, "
            "so by how much is not known.",
        ),
        (
            FindingKind.PARAMETER,
            SHAPES["parameters"],
            "the runs do not begin with the same parameters; concerned: w, b and 5 more; they differ by up to 1.0e-6.",
        ),
        (
            FindingKind.RANDOMNESS,
            SHAPES["generators"],
            "it draws other random numbers than in the reference; the generator's state before it is abc in the "
            "reference, def in the target; its output differs by 1.4.",
        ),
        (
            FindingKind.OVERFLOW,
            {"not_finite": (0, 12), "extremes": (3.5, 65504.0), "dtype": "float16", "error_in": 2e-4},
            "inf or nan in its output: 12 elements in the target, none in the reference; its inputs agree within "
            "float16 rounding (2.0e-4); the largest finite magnitude is 3.5 in the reference, 65504 in the target "
            "(float16 ends at 65504).",
        ),
        (
            FindingKind.STRUCTURE,
            SHAPES["only"],
            "only the reference calls a.1 and b.2; only the target calls c.1, c.1, c.1 and 2 more; "
            "its output differs by 0.10.",
        ),
        (
            FindingKind.DTYPE,
            {"dtypes": ("float32", "bfloat16"), "count": 40},
            "its output is float32 in the reference, bfloat16 in the target; 40 tensors in all.",
        ),
        (
            FindingKind.CHOICE,
            {"count": 2, "followers": 40},
            "it chooses otherwise than in the reference; concerned: 2 elements; this reaches 40 calls after it.",
        ),
    ],
)
def test_sentences(kind: FindingKind, evidence: dict[str, Any], said: str) -> None:
    assert body(sentence(finding(kind, **evidence))) == said


def test_sentences_of_an_update_and_a_backward() -> None:
    step = place(
        phase=Phase.UPDATE, call="torch.optim.adamw.AdamW.0", module=None, tensor="lm_head.weight", source=None
    )
    lr = ArgumentDifference("lr", "0.001", "0.01")
    told = sentence(finding(FindingKind.OPTIMIZER, step, error_in=0.0, error_out=0.2, arguments=(lr,)))
    assert told == (
        "torch.optim.adamw.AdamW.0, step 0, update: its gradients and state are identical, parameter lm_head.weight "
        "differs by 0.20; a setting differs: lr is 0.001 in the reference, 0.01 in the target."
    )
    backward = place(phase=Phase.BACKWARD, tensor="args.0")
    assert "its gradient of args.0 differs by 0.50" in sentence(finding(place=backward, error_out=0.5))


def test_a_call_that_only_the_reference_makes() -> None:
    alone = finding(FindingKind.STRUCTURE, place(call_id=None), only_reference=("a.1",))
    assert body(sentence(alone)) == "only the reference makes this call; only the reference calls a.1."
    assert next_command(alone, diverged()).startswith("ulpscope show runs/ref torch.Tensor.add.17 ")


def test_notes_do_not_blame() -> None:
    evidence = {"error_in": 1e-3, "error_out": 4e-3, "expected": 5e-3, "dtype": "bfloat16"}
    assert body(note_sentence(finding(**evidence))) == (
        "its inputs agree within bfloat16 rounding (1.0e-3), its output differs by 4.0e-3; "
        "rounding and its inputs explain that."
    )
    choice = note_sentence(finding(FindingKind.CHOICE, count=1, followers=30))
    assert body(choice) == (
        "a choice flipped within the rounding of its inputs; concerned: 1 element; "
        "this reaches 30 calls after it, counted apart."
    )
    start = note_sentence(finding(FindingKind.PARAMETER, place(tensor=None), count=38, error_out=1e-6))
    assert body(start) == (
        "parameters differ a little at the first captured step: a starting condition; 38 tensors in all; "
        "they differ by up to 1.0e-6."
    )


def test_the_rank_is_told_where_there_are_several() -> None:
    assert "rank" not in sentence(finding())
    assert ", forward, rank 0: " in sentence(finding(), several_ranks=True)
    assert ", forward, rank 3: " in sentence(finding(place=place(rank=3)))


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_are_harmless(language: Language) -> None:
    hostile = place(call=HOSTILE, module=HOSTILE, tensor=HOSTILE, source=f"/x/{HOSTILE}:1")
    evil = {
        "classes": (HOSTILE, HOSTILE),
        "only_target": (HOSTILE,),
        "arguments": (ArgumentDifference(*[HOSTILE] * 3),),
    }
    for kind in FindingKind:
        for told in (sentence, note_sentence):
            text = told(finding(kind, hostile, error_out=1.0, **evil), language)
            assert HARMLESS in text
            assert text.isprintable()
    assert advice_sentence(Advice(AdviceKind.UNFUSE, HOSTILE), language).isprintable()


def test_long_names_are_shortened_in_the_middle() -> None:
    assert shown_name("a" * 100 + "b" * 100, longest=10) == "aaaaa...bbbbb"
    assert len(sentence(finding(place=place(call="x" * 10**6)))) < 1000


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", list(AdviceKind))
def test_every_advice_is_a_sentence(kind: AdviceKind, language: Language) -> None:
    for subject in (None, "torch.topk.3"):
        told = advice_sentence(Advice(kind, subject), language)
        assert told.endswith(phrases(language).stop)
        assert "None" not in told
    if kind not in (AdviceKind.GLOBAL_CONSISTENCY, AdviceKind.ZERO_GRADIENTS, AdviceKind.SAME_MODEL):
        assert "torch.topk.3" in told


def test_the_advice_of_the_older_expert_system() -> None:
    assert advice_sentence(Advice(AdviceKind.GLOBAL_CONSISTENCY)) == (
        "Global consistency: all compared data meets the accuracy requirement."
    )
    assert advice_sentence(Advice(AdviceKind.SINGLE_POINT_ERROR, "conv1")) == (
        "By the older measure (cosine similarity 0.99) conv1 is a single-point error: "
        "the last forward tensor still passes it."
    )
    assert advice_sentence(Advice(AdviceKind.PROBLEM_NODE, "conv1"), Language.ZH) == (
        "按旧的标准（余弦相似度 0.99），conv1 是问题节点：最后一个前向张量不达标。"
    )


def test_next_command() -> None:
    comparison = diverged()
    assert next_command(finding(), comparison) == (
        "ulpscope show runs/target torch.Tensor.add.17 --step 0 --phase forward"
    )
    two = replace(comparison, scope=Scope(ranks=(0, 1), steps=(0,)), target="my runs/it's")
    assert shlex.split(next_command(finding(place=place(rank=1)), two)) == (
        ["ulpscope", "show", "my runs/it's", "torch.Tensor.add.17", "--step", "0", "--phase", "forward", "--rank", "1"]
    )
    no_call = finding(FindingKind.PARAMETER, place(call=None, call_id=None, module="a b"))
    assert next_command(no_call, comparison) == "ulpscope show runs/target --module 'a b' --step 0 --phase forward"


def test_a_name_that_cannot_be_typed_is_shown_by_its_id() -> None:
    for name in (HOSTILE, "--json"):
        command = next_command(finding(place=place(call=name)), diverged())
        assert command == "ulpscope show runs/target 57 --step 0 --phase forward"
    assert next_command(finding(), diverged(target="-x")).startswith("ulpscope show ./-x ")


def test_a_path_with_control_characters_reaches_the_shell_as_it_is() -> None:
    path = "runs/a'b\\\n\x1b[2J\u202eX"
    command = next_command(finding(), diverged(target=path))
    assert command.isprintable()
    shown = subprocess.run(
        ["bash", "-c", f'ulpscope() {{ printf %s "$2"; }}; {command}'],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert shown.stdout.decode() == path


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (5.9, "5.9"),
        (0.12345, "0.12"),
        (0.0099, "0.0099"),
        (0.001, "1.0e-3"),
        (12.0, "12"),
        (99.9, "100"),
        (5900.0, "5,900"),
        (123456.0, "120,000"),
        (1e6, "1.0e6"),
        (-0.5, "-0.50"),
        (1e-12, "1.0e-12"),
        (float("inf"), "inf"),
        (float("nan"), "NaN"),
    ],
)
def test_numbers(number: float, text: str) -> None:
    assert number_text(number) == text
