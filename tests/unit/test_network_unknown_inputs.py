"""Operators whose inputs could not be compared, or were made outside of what is compared: who is blamed, and how."""

from pathlib import Path

import numpy as np
import pytest
from network_making import NAMES, Network, data, half, modules, random, spoilt

from make_ascend_dumps import Tensor
from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.records.evidence import Evidence
from ulpscope.records.findings import AdviceKind, Outcome
from ulpscope.report.words.language import Language
from ulpscope.workflows.network.command import NetworkOptions, NetworkResult, OperatorChoice
from ulpscope.workflows.network.detail import DetailWish, compare_tensor
from ulpscope.workflows.network.pairing import pair_with_graph

FUSED = {"pass_name": {"s": "AFusionPass"}}


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def evidence(result: NetworkResult) -> Evidence:
    return result.comparison.findings[0].evidence


def heading(result: NetworkResult, language: Language = Language.EN) -> str:
    return result.text(width=200, language=language).splitlines()[0]


def here(result: NetworkResult) -> tuple[str | None, str]:
    [found] = [row for row in result.comparison.neighbours if row.nearness.value == "here"]
    return found.module, found.judgement


def claims(result: NetworkResult) -> str:
    """All that is said, on one line."""
    return " ".join(result.text(width=200).split())


def without_a_reference(network: Network, *, faulty: bool = True) -> NetworkResult:
    """`add` has none, and made the error; `relu`, which reads it, is the first to show that."""
    exact = data(network, "x", random(4, 64)) * 2
    network.add("double", "Muls", half(exact), reads=("x",), reference=exact)
    wrong = spoilt(half(exact + 1)) if faulty else half(exact + 1)
    network.add("add", "Adds", wrong, reads=("double",))
    relu = np.maximum(exact + 1, 0)
    network.add("relu", "Relu", np.maximum(wrong, 0), reads=("add",), reference=relu, attributes=FUSED)
    return network.compare()


def test_inputs_that_were_not_compared_are_not_said_to_agree(network: Network) -> None:
    result = without_a_reference(network)

    assert heading(result) == "DIVERGED at step 0, forward, between add (not compared) and relu"
    assert heading(result, Language.ZH).endswith("在 add（未比较）与 relu 之间")
    assert "its inputs" not in claims(result).lower()
    assert "What it reads was not compared, and comes from add" in claims(result)
    assert "made in between or here" in claims(result)
    assert here(result) == ("relu", "between")


def test_evidence_and_advice_are_of_the_span(network: Network) -> None:
    result = without_a_reference(network)
    told = result.json()

    assert (evidence(result).span.uncompared, evidence(result).numbers.error_in, evidence(result).numbers.gain) == (
        ("add",),
        None,
        None,
    )
    assert evidence(result).span.error_before == pytest.approx(2e-4, rel=0.9)
    assert "error_in" not in told["findings"][0]["evidence"]
    assert told["findings"][0]["evidence"]["uncompared"] == ["add"]
    assert [(advice["kind"], advice["subject"]) for advice in told["advice"]] == [("compare_span", "add, relu")]


def test_a_sound_network_agrees_although_an_operator_has_no_reference(network: Network) -> None:
    assert without_a_reference(network, faulty=False).comparison.outcome is Outcome.AGREE


def test_operators_that_files_do_not_tell_apart_are_all_of_the_span(network: Network) -> None:
    x = data(network, "x", random(4, 64))
    network.add("a/b", "Muls", spoilt(half(x * 2)), reads=("x",), reference=x * 2)
    network.add("a_b", "Muls", half(x * 3), reads=("x",), reference=x * 3)
    network.add("s", "Add", spoilt(half(x * 2)) + half(x * 3), reads=("a/b", "a_b"), reference=x * 5)
    result = network.compare()

    assert heading(result) == "DIVERGED at step 0, forward, between a/b, a_b (not compared) and s"
    assert "Its inputs agree" not in claims(result)


def test_an_operator_that_was_not_dumped_is_blamed_for_what_others_read_of_it(network: Network) -> None:
    x = data(network, "x", random(4, 64))
    network.add("tanh", "Tanh", spoilt(half(np.tanh(x))), reads=("x",), reference=np.tanh(x), dumped=False)
    total = np.tanh(x) + x
    mine = spoilt(half(np.tanh(x))) + half(x)
    network.add("sum", "Add", mine, reads=("tanh", "x"), reference=total, attributes=FUSED)
    result = network.compare()

    assert modules(result) == ["tanh"]
    assert evidence(result).span.seen_at == "sum:input:0"
    assert result.findings[0].next.endswith("--op=sum --input 0")
    assert here(result) == ("tanh", "made_here")
    assert AdviceKind.SWITCH_PASS_OFF not in {advice.kind for advice in result.comparison.advice}


@pytest.mark.parametrize("inputs", [None, ()])
def test_what_the_compiler_inserted_is_not_blamed_for_what_came_in(
    network: Network, inputs: tuple[Tensor, ...] | None
) -> None:
    """Whether what it read was dumped, or only what it made of that."""
    x = data(network, "x", random(4, 64))
    network.add("product", "Muls", spoilt(half(x * 2)), reads=("x",))
    flat = spoilt(half(x * 2)).reshape(256)
    network.add("flat", "Reshape", flat, reads=("product",), reference=(x * 2).reshape(256), dumped=False)
    network.add("cast", "Cast", flat.astype(np.float32), reads=("flat",), inserted=True, inputs=inputs)
    result = network.compare()

    assert heading(result) == "DIVERGED at step 0, forward, between product (not compared) and flat"
    assert evidence(result).span.seen_at == ("cast:input:0" if inputs is None else "cast:output:0")
    assert [advice.kind for advice in result.comparison.advice] == [AdviceKind.COMPARE_SPAN]


def test_what_the_compiler_inserted_is_blamed_for_what_it_made(network: Network) -> None:
    x = data(network, "x", random(4, 64))
    network.add("cast", "Cast", spoilt(half(x)), reads=("x",), inserted=True)
    result = network.compare()

    assert heading(result) == "DIVERGED at step 0, forward, in cast"


def test_a_tensor_that_changes_on_its_way_is_the_fault_of_neither_end(network: Network) -> None:
    x = data(network, "x", random(4, 64))
    network.add("double", "Muls", half(x * 2), reads=("x",), reference=x * 2)
    other = spoilt(half(x * 2))
    relu, inputs = np.maximum(other, 0), [Tensor(other)]
    network.add("relu", "Relu", relu, reads=("double",), reference=np.maximum(x * 2, 0), inputs=inputs)
    result = network.compare()

    assert heading(result) == "DIVERGED at step 0, forward, between double and relu"
    assert here(result) == ("relu", "between")
    assert [advice.kind for advice in result.comparison.advice] == [AdviceKind.COMPARE_SPAN]


def test_a_weight_that_the_reference_lacks_is_not_said_to_agree(network: Network) -> None:
    x, weight = data(network, "x", random(4, 64)), random(64, 64, seed=2)
    network.add("w", "Const", weight, dumped=False)
    network.add("mm", "MatMulV2", spoilt(half(x @ weight)), reads=("x", "w"), reference=x @ weight)
    result = network.compare()

    assert heading(result) == "DIVERGED at step 0, forward, in mm"
    assert "Those of its inputs that were compared are identical" in claims(result)


def test_nothing_is_said_of_inputs_of_which_nothing_is_known(network: Network) -> None:
    x = random(4, 64)
    network.add("x", "Data", x, dumped=False)
    network.add("relu", "Relu", spoilt(half(np.maximum(x, 0))), reads=("x",), reference=np.maximum(x, 0))
    result = network.compare()

    assert modules(result) == ["relu"]
    assert "its inputs" not in claims(result).lower()
    assert evidence(result).numbers.error_in is None


def test_operators_that_stand_for_one_original_are_no_span(network: Network) -> None:
    x = data(network, "x", random(4, 64))
    original = {NAMES: {"list": {"s": ["norm"]}}}
    inner = {**original, "_datadump_is_multiop": {"b": True}}
    exact = x - x.mean()
    network.add("norm_Reduce", "ReduceMean", half(x.mean(keepdims=True)), reads=("x",), attributes=inner)
    reads = ("x", "norm_Reduce")
    wrong = spoilt(half(exact))
    network.add("norm_Update", "Sub", wrong, reads=reads, reference=exact, origin="norm", attributes=original)
    result = network.compare()

    assert heading(result) == "DIVERGED at step 0, forward, in norm_Update"


def casts(network: Network, *, faulty: bool) -> None:
    """float16, then float32: what comes out of the cast has errors that its own type does not explain."""
    exact = np.tanh(data(network, "x", random(4, 64)))
    network.add("tanh", "Tanh", half(exact), reads=("x",), reference=exact)
    mine = half(exact).astype(np.float32)
    network.add("cast", "Cast", mine, reads=("tanh",), inserted=True)
    mine = spoilt(mine * 2) if faulty else mine * 2
    network.add("double", "Muls", mine, reads=("cast",), reference=exact * 2)
    network.add("relu", "Relu", np.maximum(mine, 0), reads=("double",), reference=np.maximum(exact * 2, 0))


@pytest.mark.parametrize("first", range(1, 5))
def test_a_sound_network_agrees_wherever_its_operators_are_chosen(network: Network, first: int) -> None:
    casts(network, faulty=False)
    for last in range(first, 5):
        choice = OperatorChoice(span=(first, last, 1))
        assert network.compare(NetworkOptions(operators=choice)).comparison.outcome is Outcome.AGREE


def test_of_chosen_operators_the_wrong_one_is_named(network: Network) -> None:
    casts(network, faulty=True)
    result = network.compare(NetworkOptions(operators=OperatorChoice(span=(3, 4, 1))))

    assert [(found.kind, found.module) for found in result.findings] == [("computation", "double")]
    assert result.comparison.counts.matched == 2


@pytest.mark.parametrize("name", ["double", "relu"])
def test_a_single_tensor_of_a_sound_network_agrees(network: Network, name: str) -> None:
    casts(network, faulty=False)
    sides = network.root / "reference", network.root / "dump"
    paired = pair_with_graph(*sides, network.graph(), NetworkOptions())

    for side in (Side.INPUT, Side.OUTPUT):
        assert compare_tensor(paired, DetailWish(name, side)).verdict is Outcome.AGREE
