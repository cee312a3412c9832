"""The text of scripts: short, valid Python, and nothing of a trace in it but names and literals."""

import ast
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ulpscope.judge.soundness.reproduction import expected_error, script_limits
from ulpscope.records.checks import Direction, OutputEvidence, Reproduction, Rule, ScriptLimits
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.repro_script import LINES, arguments_text, repro_text, script_text
from ulpscope.report.repro_script import test_text as text_of_test

LIMITS = ScriptLimits(largest=6.0, floor=2.0**-8, rms=2.0, rms_scatter=4.2, one_sided=0.4, one_sided_scatter=4.0)
SHOWN = Reproduction(
    name="torch.nn.functional.layer_norm.3 (rank0, step 0, model.py:57)",
    function="torch.nn.functional.layer_norm",
    arguments={
        "args": [{"$tensor": "args.0"}, {"$tuple": [128]}],
        "kwargs": {"weight": {"$tensor": "kwargs.weight"}, "bias": {"$tensor": "kwargs.bias"}, "eps": 1e-05},
    },
    firsts={place: place for place in ("args.0", "kwargs.weight", "kwargs.bias")},
    differentiated=("args.0", "kwargs.weight", "kwargs.bias"),
    sent=("output.0",),
    places=("output.0", "grad.args.0", "grad.kwargs.weight", "grad.kwargs.bias"),
    dtypes=("bfloat16",) * 4,
    outputs=1,
    writes=False,
    stored={"BF16": "bfloat16", "F64": "float64"},
    axes={},
    autocast=None,
    device="cpu",
    full_float32=False,
)


def imported(text: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.name for node in nodes for alias in node.names}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"writes": True},
        {"axes": {"args.0": (1, 0, 2)}},
        {"autocast": "bfloat16"},
        {"device": "cuda:1", "full_float32": True},
        {"device": "npu:0", "imports": ("torch_npu",)},
        {"writes": True, "axes": {"args.0": (1, 0)}, "autocast": "bfloat16"},
        {"writes": True, "axes": {"args.0": (1, 0)}, "autocast": "bfloat16", "imports": ("torch_npu",)},
        {"outputs": 2, "sent": ("output.0", "output.1")},
        {"outputs": 0, "writes": True},
        {"dtypes": ("bool",), "places": ("output.0",), "differentiated": (), "sent": ()},
        {"dtypes": ("complex64", "float32"), "places": ("output.0", "grad.args.0"), "stored": {"C64": "complex64"}},
    ],
)
def test_a_script_is_short_valid_python_that_needs_only_torch(changes: dict[str, Any]) -> None:
    text = script_text(replace(SHOWN, **changes), LIMITS)
    assert len(text.splitlines()) <= LINES
    assert imported(text) == {"json", "pathlib", "sys", "torch", *changes.get("imports", ())}
    assert text.endswith("sys.exit(wrong)\n")


def test_limits_stand_in_it_as_numbers() -> None:
    assert "limits = [6.0, 2.0 + 4.2 / n, max(0.4, 4.0 / n)]" in script_text(SHOWN, LIMITS)


def test_the_recorded_device_is_used_where_it_is_there() -> None:
    assert '["cuda:1" if torch.cuda.is_available() else "cpu"]' in script_text(replace(SHOWN, device="cuda:1"), LIMITS)
    assert '(sys.argv[1:] or ["cpu"])[0]' in script_text(SHOWN, LIMITS)


HOSTILE = 'x"]); import os; os.system("true") #\n"""\\'


def test_hostile_texts_stay_inside_literals() -> None:
    shown = replace(
        SHOWN,
        name=f"{HOSTILE} (rank0)",
        arguments={"args": [{"$tensor": f"kwargs.{HOSTILE}"}, HOSTILE], "kwargs": {HOSTILE: HOSTILE}},
        firsts={f"kwargs.{HOSTILE}": f"kwargs.{HOSTILE}"},
        differentiated=(f"kwargs.{HOSTILE}",),
        places=("output.0", f"grad.kwargs.{HOSTILE}"),
        dtypes=("float32", "float32"),
        axes={f"kwargs.{HOSTILE}": (1, 0)},
        device=HOSTILE,
    )
    text = script_text(shown, LIMITS)
    assert imported(text) == {"json", "pathlib", "sys", "torch"}
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert "os" not in names
    assert imported(text_of_test(shown)) == {"subprocess", "sys", "Path"}


def test_a_test_bears_the_name_of_the_call() -> None:
    assert "def test_torch_nn_functional_layer_norm_3():" in text_of_test(SHOWN)


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        ({"args": [1, True, None, 2.5, "mean"]}, '1, True, None, 2.5, "mean"'),
        ({"args": [{"$tensor": "args.0"}], "kwargs": {"dim": -1}}, 'x["args.0"], dim=-1'),
        ({"args": [[{"$tensor": "args.0.0"}, {"$tensor": "args.0.1"}], 1]}, '[x["args.0.0"], x["args.0.1"]], 1'),
        ({"args": [{"$tuple": [3]}, {"$size": [2, 3]}, {"$tuple": []}]}, "(3,), (2, 3), ()"),
        ({"args": [{"$tuple": [{"$slice": [None, 2, None]}, {"$ellipsis": True}]}]}, "(slice(None, 2, None), ...)"),
        ({"args": [{"$float": "-inf"}, {"$complex": [1.0, 2.0]}]}, 'float("-inf"), complex(1.0, 2.0)'),
        ({"kwargs": {"dtype": {"$dtype": "bfloat16"}}}, "dtype=(torch.float64 if high else torch.bfloat16)"),
        (
            {"kwargs": {"dtype": {"$dtype": "int64"}, "device": {"$device": "cuda:0"}}},
            "dtype=torch.int64, device=device",
        ),
        ({"kwargs": {"memory_format": {"$memory_format": "channels_last"}}}, "memory_format=torch.channels_last"),
        ({"kwargs": {"from": 1}}, '**{"from": 1}'),
    ],
)
def test_arguments_are_written_as_python(encoded: dict[str, Any], text: str) -> None:
    assert arguments_text(encoded, {}) == text


def test_a_tensor_that_is_given_twice_is_the_same_one() -> None:
    arguments = {"args": [{"$tensor": "args.0"}, {"$tensor": "args.1", "as": "args.0"}]}
    assert arguments_text(arguments, {"args.0": "args.0", "args.1": "args.0"}) == 'x["args.0"], x["args.0"]'


@pytest.mark.parametrize("encoded", [{"$callable": "os.system"}, {"$object": "a.B"}, {"$dtype": "float32; import os"}])
def test_what_has_no_literal_is_refused(encoded: dict[str, Any]) -> None:
    with pytest.raises(UlpscopeError, match="which a script cannot write"):
        arguments_text({"args": [encoded]}, {})


def evidence(exact: list[float], **changes: Any) -> OutputEvidence:
    values = np.array(exact)
    plain = OutputEvidence(
        place="output.0",
        direction=Direction.FORWARD,
        rule=Rule.ROUNDED,
        dtype="float32",
        computed=values,
        exact=values,
        reduction=1.0,
        accumulation=2.0**-24,
        input_roundoff=2.0**-24,
        sensitivity=np.abs(values),
    )
    return replace(plain, **changes)


def test_expected_errors_grow_with_the_condition() -> None:
    good, bad = (expected_error(evidence([1.0, 2.0], sensitivity=np.array([c, c]))) for c in (1.0, 1000.0))
    assert (bad > 100 * good).all()
    assert (good > 2.0**-26).all()
    assert (good < 2.0**-20).all()


def test_nothing_is_expected_of_exact_results() -> None:
    # A single error of one ulp, 2**-23 here, must exceed the limits however many elements there are.
    exact = expected_error(evidence([1.0, 1.5], rule=Rule.EXACT, sensitivity=None))
    assert (2.0**-23 / exact > 1e6).all()
    whole = evidence([3.0], dtype="int64", rule=Rule.EXACT, sensitivity=None)
    assert (1.0 / expected_error(whole) > 1e6).all()


def test_what_is_subnormal_may_be_flushed() -> None:
    tiny = 2.0**-130
    assert tiny / expected_error(evidence([tiny]))[0] <= LIMITS.largest


def test_a_side_is_not_limited_where_sound_kernels_lean() -> None:
    exact = np.linspace(1.0, 2.0, 1000)
    straight = evidence(list(exact), ordinary=exact.astype(np.float32).astype(np.float64))
    leaning = evidence(list(exact), ordinary=exact * (1 + 1e-6))
    assert script_limits([straight]).one_sided < 0.5
    assert script_limits([straight, leaning]).one_sided >= 1.0


def test_a_device_out_of_a_trace_steers_no_terminal() -> None:
    told = repro_text(
        out="out", call="a.0", data="real", variant="recorded", lines=1, data_bytes=8, command="python x \x1b[31m"
    )
    assert "\x1b" not in told
    assert "Next: python x \\x1b[31m" in told
