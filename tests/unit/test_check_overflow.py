"""Overflows: which calls are looked into, and what is said of them."""

from dataclasses import replace

import pytest

from ulpscope.judge.soundness.overflows import judge_overflow
from ulpscope.records.calls import Call, Stats, Value
from ulpscope.records.checks import DataSource, Direction, Verdict
from ulpscope.records.enums import Kind, Phase
from ulpscope.records.overflows import NotFinite, OverflowEvidence
from ulpscope.replay.planning import births, born_here, untold_here
from ulpscope.replay.recorded import RecordedCall

OVERFLOWN = OverflowEvidence(
    place="output.0",
    direction=Direction.FORWARD,
    dtype="float16",
    shape=(8, 16),
    recorded=NotFinite(pos_inf=3),
    cpu=NotFinite(pos_inf=3),
    exact=NotFinite(),
    exact_largest=1e5,
    asked_for=False,
    source=DataSource.REAL,
    terms=64.0,
)


def kind(**changes: object) -> str:
    return judge_overflow(replace(OVERFLOWN, **changes)).statistic  # type: ignore[arg-type]


def test_what_the_dtype_cannot_hold_is_normal_and_tells_both_numbers() -> None:
    result = judge_overflow(OVERFLOWN)
    assert (result.statistic, result.verdict) == ("normal", Verdict.PASS)
    assert "1e+05" in result.message
    assert "6.55e+04" in result.message


def test_what_only_the_device_made_is_abnormal() -> None:
    result = judge_overflow(replace(OVERFLOWN, cpu=NotFinite(), exact_largest=120.0))
    assert (result.statistic, result.verdict) == ("abnormal", Verdict.FAIL)
    assert "the exact result reaches 120" in result.message


def test_an_intermediate_result_beyond_the_dtype_is_normal() -> None:
    result = judge_overflow(replace(OVERFLOWN, exact_largest=2.0))
    assert result.statistic == "normal"
    assert "an intermediate result" in result.message


def test_what_is_not_finite_in_any_precision_is_normal() -> None:
    result = judge_overflow(replace(OVERFLOWN, exact=NotFinite(nan=3), exact_largest=None))
    assert result.statistic == "normal"
    assert "3 nan" in result.message


def test_an_argument_that_is_infinite_states_it() -> None:
    assert kind(asked_for=True, exact_largest=2.0) == "stated"


def test_an_infinite_argument_does_not_hide_what_only_the_device_made() -> None:
    assert kind(asked_for=True, cpu=NotFinite(), exact_largest=2.0) == "abnormal"


@pytest.mark.parametrize(("largest", "told"), [(1e5, "normal"), (100.0, "abnormal")])
def test_without_a_kernel_on_the_cpu_the_exact_result_decides(largest: float, told: str) -> None:
    assert kind(cpu=None, exact_largest=largest) == told


def test_made_data_near_the_limit_proves_nothing() -> None:
    result = judge_overflow(replace(OVERFLOWN, source=DataSource.RANDOM, cpu=NotFinite(), exact_largest=2000.0))
    assert (result.statistic, result.verdict) == ("unclear", Verdict.UNTESTED)


def test_made_data_far_from_the_limit_is_an_estimate() -> None:
    result = judge_overflow(replace(OVERFLOWN, source=DataSource.RANDOM, cpu=NotFinite(), exact_largest=10.0))
    assert result.statistic == "abnormal"
    assert "an estimate" in result.message


def test_nan_cannot_be_excluded_by_made_data() -> None:
    made = {"source": DataSource.RANDOM, "cpu": NotFinite(), "exact_largest": 10.0}
    assert kind(recorded=NotFinite(nan=1), **made) == "unclear"


def test_a_device_that_overflows_on_the_same_made_data_is_abnormal() -> None:
    made = {"source": DataSource.RANDOM, "cpu": NotFinite(), "exact_largest": 2000.0}
    assert kind(device=NotFinite(pos_inf=1), **made) == "abnormal"


def test_counts_are_told_with_their_kinds() -> None:
    assert str(NotFinite(nan=1, neg_inf=2000)) == "1 nan, 2,000 -inf"
    assert str(NotFinite()) == "none"


def value(number: int, **counts: int) -> Value:
    none = {"nan": 0, "pos_inf": 0, "neg_inf": 0}
    stats = Stats(
        min=0.0,
        max=1.0,
        mean=0.5,
        norm=1.0,
        abs_sum=1.0,
        set_aside=0,
        zero=0,
        subnormal=0,
        exponents=(),
        **(none | counts),
    )
    return Value(
        id=number,
        storage=number,
        version=0,
        producer=None,
        dtype="float16",
        shape=(2,),
        strides=(1,),
        device="cpu",
        layout="strided",
        requires_grad=True,
        initialized=True,
        stats=stats,
        sketch=None,
        digest=None,
        data=None,
    )


def recorded(**places: dict[str, Value]) -> RecordedCall:
    call = Call(
        id=1,
        name="torch.exp.0",
        kind=Kind.API,
        op="torch.exp",
        module=None,
        module_class=None,
        phase=Phase.FORWARD,
        rank=0,
        step=0,
        micro_step=0,
        parent=None,
        forward=None,
        stack=None,
        autocast=None,
        recompute=False,
        random=False,
        generator=None,
        arguments={},
        error=None,
    )
    return RecordedCall(call, **places)  # type: ignore[arg-type]


def test_a_call_with_finite_inputs_gave_birth_to_what_is_not() -> None:
    one = recorded(inputs={"args.0": value(1)}, outputs={"output.0": value(2, pos_inf=3)})
    assert list(born_here(one)) == [Direction.FORWARD]
    assert births({1: one}).born == (1,)


def test_a_call_that_was_given_nan_has_inherited_it() -> None:
    one = recorded(inputs={"args.0": value(1, nan=1)}, outputs={"output.0": value(2, nan=3)})
    assert born_here(one) == {}
    assert (births({1: one}).born, births({1: one}).inherited) == ((), 1)


def test_a_backward_needs_finite_gradients_and_finite_inputs() -> None:
    whole = {"inputs": {"args.0": value(1)}, "grad_inputs": {"args.0": value(4, neg_inf=1)}}
    assert list(born_here(recorded(**whole, grad_outputs={"output.0": value(3)}))) == [Direction.BACKWARD]
    assert born_here(recorded(**whole, grad_outputs={"output.0": value(3, pos_inf=1)})) == {}


def test_what_nobody_recorded_is_not_taken_for_finite() -> None:
    no_outputs = recorded(inputs={"args.0": value(1)})
    assert (births({1: no_outputs}).born, births({1: no_outputs}).untold) == ((), (1,))
    no_stats = recorded(inputs={"args.0": value(1)}, outputs={"output.0": replace(value(2), stats=None)})
    told = recorded(inputs={"args.0": value(1)}, outputs={"output.0": value(3)})
    assert births({1: no_stats, 2: told}).untold == (1,)
    no_gradients = replace(told, backward=7, grad_outputs={"output.0": value(4)})
    assert untold_here(no_gradients) == (Direction.BACKWARD,)
    assert births({1: no_gradients}).untold == (1,)


def test_a_call_without_outputs_among_others_gave_no_tensor() -> None:
    told = recorded(inputs={"args.0": value(1)}, outputs={"output.0": value(3)})
    whole = replace(value(5), stats=None, dtype="int64")
    assert births({1: recorded(inputs={"args.0": value(1)}), 2: told}).untold == ()
    assert births({1: recorded(inputs={"args.0": value(1)}, outputs={"output.0": whole})}).untold == ()


def test_what_is_not_recorded_is_judged_by_what_comes_out_here() -> None:
    assert kind(recorded=None) == "normal"
    assert kind(recorded=None, cpu=NotFinite(), exact_largest=120.0) == "finite"
    assert kind(recorded=None, cpu=NotFinite(), exact_largest=120.0, device=NotFinite(nan=1)) == "abnormal"
    made = {"source": DataSource.RANDOM, "cpu": NotFinite(), "recorded": None}
    assert kind(**made, exact_largest=2000.0) == "unclear"
    assert kind(**made, exact_largest=10.0) == "finite"


def test_memory_that_nobody_wrote_is_no_overflow() -> None:
    garbage = replace(value(2, nan=3), initialized=False)
    assert births({1: recorded(outputs={"output.0": garbage})}).born == ()
