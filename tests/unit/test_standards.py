"""Fixed standards on rows made by hand."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ulpscope.judge.standards.by_name import AT_LEAST, AT_MOST, Standard, parse_standard
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import PAIR_COLUMNS

METRICS = (*AT_LEAST, *(metric for metric in AT_MOST if metric != "mismatched"))


def row(role: str = "output", *, call: int = 0, **changes: Any) -> dict[str, Any]:
    """A tensor of a pair of calls, sound in every respect."""
    sides = ("reference", "target")
    known: dict[str, Any] = {
        "rank": 0, "id_target": call, "role": role, "mismatched": 0,
        **{f"norm_{side}": 1.0 for side in sides},
        **{f"not_finite_{side}": 0 for side in sides},
        **{f"dtype_{side}": "float32" for side in sides},
        **{f"shape_{side}": [2, 3] for side in sides},
    }  # fmt: skip
    return known | dict.fromkeys(METRICS) | changes


def failing(standard: str, *rows: dict[str, Any]) -> list[bool]:
    found = parse_standard(standard)
    assert found is not None
    frame = pl.DataFrame(list(rows), schema_overrides=dict.fromkeys(METRICS, pl.Float64))
    return found.failing(frame).to_list()


def test_the_default_is_no_fixed_standard() -> None:
    assert parse_standard("rounding") is None


@pytest.mark.parametrize(
    ("cosine", "fails"), [(0.99, False), (0.98, False), (0.9799, True), (-1.0, True), (None, False)]
)
def test_a_cosine_has_a_least(cosine: float | None, fails: bool) -> None:
    assert failing("cosine:0.98", row(cosine=cosine)) == [fails]


@pytest.mark.parametrize(("largest", "fails"), [(0.0, False), (0.001, False), (0.0011, True), (None, False)])
def test_a_difference_has_a_most(largest: float | None, fails: bool) -> None:
    assert failing("max_abs:0.001", row(max_abs=largest)) == [fails]


def test_inf_and_nan_that_do_not_agree_fail_every_limit() -> None:
    assert failing("cosine:0.98", row(cosine=1.0, mismatched=1), row(cosine=1.0)) == [True, False]


@pytest.mark.parametrize("metric", [*AT_LEAST, *AT_MOST])
def test_every_metric_is_a_column(metric: str) -> None:
    assert metric in PAIR_COLUMNS
    assert parse_standard(f"{metric}:0.5") == Standard(f"{metric}:0.5", {metric: 0.5})


def test_all_limits_of_a_file_must_hold(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("cosine: 0.99\nmax_abs: 1e-3\n")
    good = {"cosine": 0.999, "max_abs": 1e-4}
    rows = [row(**good), row(**good | {"cosine": 0.9}), row(**good | {"max_abs": 1.0}), row(cosine=0.9)]
    assert failing(str(path), *rows) == [False, True, True, True]


MESSAGES = [
    ("nonsense", "the standard 'nonsense'"),
    ("cosine", "the standard 'cosine'"),
    ("likeness:0.5", "the standard 'likeness:0.5'"),
    ("cosine:high", "cosine:high, whose limit 'high' is no number"),
    ("cosine:", "cosine:, whose limit '' is no number"),
    ("cosine:nan", "cosine:nan, whose limit 'nan' is no number"),
]


@pytest.mark.parametrize(("text", "seen"), MESSAGES)
def test_a_standard_that_is_none_is_named(text: str, seen: str) -> None:
    with pytest.raises(UlpscopeError) as raised:
        parse_standard(text)
    assert raised.value.seen == seen
    assert raised.value.expected.startswith("rounding, msprobe, METRIC:LIMIT or a YAML file of limits on cosine, ")
    assert raised.value.code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", "which holds no limits"),
        ("[cosine]", "which holds no limits"),
        ("{}", "which holds no limits"),
        ("likeness: 1", "the limit 'likeness' in "),
        ("cosine: high", "whose limit 'high' is no number"),
        ("cosine: [1]", "whose limit [1] is no number"),
        ("cosine: yes", "whose limit True is no number"),
        ("cosine: .nan", "whose limit nan is no number"),
        ("cosine: {", "which cannot be read (while parsing"),
        ("cosine: 2025-13-45", "which cannot be read (month must be in 1..12"),
    ],
)
def test_every_mistake_in_a_file_is_named(tmp_path: Path, text: str, seen: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UlpscopeError) as raised:
        parse_standard(str(path))
    assert seen in raised.value.seen
    assert str(path) in raised.value.seen


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UlpscopeError, match=r"none\.yml, which cannot be read \(.*No such file"):
        parse_standard(str(tmp_path / "none.yml"))


def norms(reference: float, target: float) -> dict[str, float]:
    return {"norm_reference": reference, "norm_target": target}


@pytest.mark.parametrize(
    ("came_in", "went_out", "fails"),
    [
        (1.0, 1.51, True),
        (1.0, 1.49, False),
        (1.09, 1.51, True),
        (1.11, 9.0, False),
        (1.0, 0.49, True),
        (0.5, 0.1, False),
    ],
)
def test_msprobe_calls_an_output_wrong_whose_inputs_are_clean(came_in: float, went_out: float, fails: bool) -> None:
    rows = row("input", **norms(1.0, came_in)), row("output", **norms(1.0, went_out))
    assert failing("msprobe", *rows) == [False, fails]


def test_msprobe_counts_the_worst_input_of_the_same_call() -> None:
    outputs = [row("output", call=call, **norms(1.0, 2.0)) for call in (0, 1)]
    inputs = [row("input", call=0), row("input", call=0, **norms(1.0, 1.3)), row("input", call=1)]
    assert failing("msprobe", *inputs, *outputs) == [False, False, False, False, True]


def test_msprobe_takes_equal_norms_for_equal_also_if_they_are_zero() -> None:
    """Its relative error of equal numbers is 0, whatever they are."""
    rows = row("input", **norms(0.0, 0.0)), row("output", **norms(1.0, 2.0)), row("output", **norms(0.0, 0.0))
    assert failing("msprobe", *rows) == [False, True, False]


def test_msprobe_takes_any_norm_for_wrong_where_the_reference_has_none() -> None:
    assert failing("msprobe", row("input"), row("output", **norms(0.0, 1e-9))) == [False, True]


@pytest.mark.parametrize(
    ("came_in", "went_out", "fails"), [(1.0, 0.05, True), (0.95, 0.09, True), (0.89, 0.0, False), (1.0, 0.11, False)]
)
def test_msprobe_counts_elements_within_a_thousandth(came_in: float, went_out: float, fails: bool) -> None:
    rows = row("input", within_thousandth=came_in), row("output", within_thousandth=went_out)
    assert failing("msprobe", *rows) == [False, fails]


@pytest.mark.parametrize("role", ["input", "output"])
def test_msprobe_calls_other_types_shapes_and_inf_errors(role: str) -> None:
    rows = [
        row(role, dtype_target="bfloat16"),
        row(role, call=1, shape_target=[3, 2]),
        row(role, call=2, not_finite_target=1),
        row(role, call=3, not_finite_target=1, not_finite_reference=2),
        row(role, call=4),
    ]
    assert failing("msprobe", *rows) == [True, True, True, False, False]


def test_msprobe_says_nothing_of_what_it_does_not_know() -> None:
    unknown = {"norm_reference": None, "norm_target": None}
    frame = [row("input", **unknown), row("output", **unknown)]
    known = row("output", call=1)
    assert failing("msprobe", known, *frame) == [False, False, False]
