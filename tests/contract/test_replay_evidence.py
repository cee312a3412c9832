"""Evidence: what is put beside the truth, and how it is to be judged."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replayed import outputs, record, replay, share

from ulpscope.judge.soundness.verdicts import judge_output
from ulpscope.records.checks import Direction, Rule, Verdict
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.replay.torch.composing import IdealKernels
from ulpscope.replay.torch.evidence import Comparer, ImpossibleSelectionError, ordered, selected
from ulpscope.replay.torch.factorising import invariants, with_signs_of
from ulpscope.replay.torch.running import Feed, make_recipe, run, run_precise

BF16 = torch.bfloat16


def test_dropout_tells_its_share_and_scales_survivors(tmp_path: Path) -> None:
    x = torch.full((1000,), 2.0, requires_grad=True)
    executed = replay(tmp_path, lambda: torch.nn.functional.dropout(x, 0.2).sum().backward(), "dropout")
    told = share(executed)
    assert (told.trials, told.probability) == (1000, 0.2)
    # Six standard deviations of the binomial.
    assert abs(told.successes - 200) < 6 * (1000 * 0.2 * 0.8) ** 0.5
    assert set(outputs(executed)["output.0"].exact.tolist()) == {0.0, 2.5}
    assert set(outputs(executed)["grad.args.0"].exact.tolist()) == {0.0, 1.25}


def test_dropout_that_does_not_scale_is_seen(tmp_path: Path) -> None:
    x = torch.full((100,), 2.0)
    executed = replay(tmp_path, lambda: torch.nn.functional.dropout(x, 0.5), "dropout")
    wrong = replace(executed.ran, outputs={"output.0": executed.ran.outputs["output.0"] / 2})
    from ulpscope.replay.torch.drawing import random_evidence

    evidence = {each.place: each for each in random_evidence(executed.recipe, executed.feed, wrong)[1:]}
    assert {4.0, 0.0} == set(evidence["output.0"].exact.tolist())  # type: ignore[union-attr]
    assert {2.0, 0.0} == set(evidence["output.0"].computed.tolist())  # type: ignore[union-attr]


def test_whole_channels_fall_together(tmp_path: Path) -> None:
    x = torch.ones(50, 40, 3, 3)
    assert share(replay(tmp_path, lambda: torch.nn.functional.dropout2d(x, 0.5), "dropout2d")).trials == 2000


def test_alpha_dropout_drops_to_its_own_number(tmp_path: Path) -> None:
    x = torch.linspace(1, 2, 500)
    executed = replay(tmp_path, lambda: torch.nn.functional.alpha_dropout(x, 0.5, training=True), "alpha_dropout")
    told = share(executed)
    assert abs(told.successes - 250) < 6 * 125**0.5
    found = outputs(executed)["output.0"]
    np.testing.assert_allclose(found.computed, found.exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "work"),
    [
        ("rand", lambda: torch.rand(4000)),
        ("randn", lambda: torch.randn(4000)),
        ("normal_", lambda: torch.zeros(4000).normal_(3, 0.5)),
        ("uniform_", lambda: torch.zeros(4000).uniform_(-1, 3)),
        ("bernoulli", lambda: torch.bernoulli(torch.full((4000,), 0.3))),
        ("bernoulli_", lambda: torch.zeros(4000).bernoulli_(0.3)),
        ("exponential_", lambda: torch.zeros(4000).exponential_(2.0)),
        ("cauchy_", lambda: torch.zeros(4000).cauchy_(1.0, 2.0)),
        ("geometric_", lambda: torch.zeros(4000).geometric_(0.25)),
        ("log_normal_", lambda: torch.zeros(4000).log_normal_(0.5, 1.0)),
        ("randint", lambda: torch.randint(3, 10, (4000,))),
        ("poisson", lambda: torch.poisson(torch.full((4000,), 2.5))),
        ("multinomial", lambda: torch.multinomial(torch.rand(400, 5) + 0.1, 2)),
        ("normal", lambda: torch.normal(torch.arange(4000.0), torch.ones(4000))),
    ],
)
def test_laws_hold_of_torchs_own_draws(tmp_path: Path, op: str, work: object) -> None:
    told = share(replay(tmp_path, work, op))  # type: ignore[arg-type]
    assert 0.0 < told.probability < 1.0
    spread = (told.trials * told.probability * (1 - told.probability)) ** 0.5
    assert abs(told.successes - told.trials * told.probability) < 6 * spread


def test_few_draws_are_repeated(tmp_path: Path) -> None:
    assert share(replay(tmp_path, lambda: torch.rand(3), "rand")).trials >= 64


def test_an_unknown_law_is_a_reason(tmp_path: Path) -> None:
    q = torch.rand(1, 1, 4, 4)

    def work() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    with pytest.raises(CannotReplayError, match="law is not known"):
        replay(tmp_path, work, "scaled_dot_product_attention")


def test_ties_may_be_broken_either_way() -> None:
    source = torch.tensor([[1.0, 5.0, 5.0]])
    arguments = {"args": [{"$tensor": "args.0"}, 1]}
    for index in (1, 2):
        assert selected("torch.argmax", arguments, source, torch.tensor([index])).tolist() == [[5.0]]
    assert selected("torch.argmax", arguments, source, torch.tensor([0])).tolist() == [[1.0]]
    with pytest.raises(ImpossibleSelectionError, match="outside of 0 to 2"):
        selected("torch.argmax", arguments, source, torch.tensor([3]))
    with pytest.raises(ImpossibleSelectionError, match="twice"):
        selected("torch.argsort", arguments, source, torch.tensor([[1, 1, 0]]))


def test_an_unsorted_topk_has_no_order() -> None:
    values = torch.tensor([3.0, 1.0, 2.0])
    unsorted = {"args": [{"$tensor": "args.0"}, 3], "kwargs": {"sorted": False}}
    assert ordered("torch.topk", unsorted, values).tolist() == [1.0, 2.0, 3.0]
    assert ordered("torch.topk", {"args": [{"$tensor": "args.0"}, 3]}, values) is values


def test_an_index_that_is_wrong_is_a_violation(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 5.0, 2.0])
    executed = replay(tmp_path, lambda: torch.argmax(x), "argmax")
    assert executed.precise is not None
    comparer = Comparer(executed.recipe, executed.feed)
    far = replace(executed.ran, outputs={"output.0": torch.tensor(7)})
    assert "outside" in str(comparer.compare(far, executed.precise)[0].violation)
    near = replace(executed.ran, outputs={"output.0": torch.tensor(2)})
    wrong = comparer.compare(near, executed.precise)[0]
    assert (wrong.rule, wrong.computed.tolist(), wrong.exact.tolist()) == (Rule.EXACT, [2.0], [5.0])


MATRIX = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("torch.linalg.svd", torch.linalg.svd),
        ("torch.svd", torch.svd),
        ("torch.linalg.qr", torch.linalg.qr),
        ("torch.linalg.eigh", torch.linalg.eigh),
        ("torch.linalg.eig", torch.linalg.eig),
        ("torch.linalg.lu", torch.linalg.lu),
        ("torch.linalg.lu_factor", torch.linalg.lu_factor),
        ("torch.linalg.ldl_factor", torch.linalg.ldl_factor),
    ],
)
def test_factors_are_held_to_their_invariants(op: str, function: object) -> None:
    factors = {f"output.{n}": each for n, each in enumerate(function(MATRIX))}  # type: ignore[operator]

    def worst(given: dict[str, torch.Tensor]) -> float:
        held = invariants(op, {"args": []}, MATRIX, given)
        assert held
        return max(float((each.computed - each.exact).abs().max()) / each.scale for each in held)

    assert worst(factors) < 1e-13
    spoilt = next(place for place, factor in factors.items() if factor.is_floating_point() or factor.is_complex())
    assert worst({**factors, spoilt: factors[spoilt] * 1.001}) > 1e-5


def test_only_the_triangle_that_is_read_counts() -> None:
    upper = MATRIX.triu() + torch.full((3, 3), 9.0, dtype=torch.float64).tril(-1)
    values, vectors = torch.linalg.eigh(upper, "U")
    held = invariants("torch.linalg.eigh", {"args": [{}, "U"]}, upper, {"output.0": values, "output.1": vectors})
    assert held
    torch.testing.assert_close(held[0].computed, held[0].exact)


def test_gradients_follow_the_signs_of_the_factors() -> None:
    values, vectors = torch.linalg.eigh(MATRIX)
    signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    computed = {"output.0": values, "output.1": vectors * signs}
    precise = {"output.0": values, "output.1": vectors}
    sent = {"output.1": torch.ones(3, 3, dtype=torch.float64)}
    aligned = with_signs_of("torch.linalg.eigh", computed, precise, sent)
    assert torch.equal(aligned["output.1"], torch.ones(3, 3, dtype=torch.float64) * signs)


def test_factorisations_have_gradients_too(tmp_path: Path) -> None:
    x = MATRIX.float().requires_grad_()
    found = outputs(replay(tmp_path, lambda: torch.linalg.svdvals(x).sum().backward(), "svdvals"))
    assert found["grad.args.0"].direction is Direction.BACKWARD
    told = outputs(replay(tmp_path / "2", lambda: torch.linalg.eigh(x)[0].sum().backward(), "eigh"))
    # The gradient of the trace.
    np.testing.assert_allclose(told["grad.args.0"].exact, np.eye(3), atol=1e-12)


def test_gradients_that_are_only_passed_on_are_exact(tmp_path: Path) -> None:
    x = torch.tensor([1.0, -1.0], requires_grad=True)
    assert outputs(replay(tmp_path, lambda: torch.relu(x).sum().backward(), "relu"))["grad.args.0"].rule is Rule.EXACT
    broadcast = outputs(replay(tmp_path / "2", lambda: x.expand(3, 2).clone().sum().backward(), "expand"))
    assert broadcast["grad.args.0"].rule is Rule.ROUNDED


def test_an_exact_call_that_computes_is_rounded(tmp_path: Path) -> None:
    x, index = torch.tensor([0.1, 0.2]), torch.tensor([0, 0])
    added = replay(tmp_path, lambda: torch.scatter(x, 0, index, x, reduce="add"), "scatter")
    assert outputs(added)["output.0"].rule is Rule.ROUNDED
    assert (
        outputs(replay(tmp_path / "2", lambda: torch.scatter(x, 0, index, x), "scatter"))["output.0"].rule is Rule.EXACT
    )


def test_sums_are_counted_and_conditions_measured(tmp_path: Path) -> None:
    a, b = torch.ones(4, 30), torch.ones(30, 5)
    executed = replay(tmp_path, lambda: torch.mm(a, b), "mm")
    executed.refine()
    found = outputs(executed)["output.0"]
    assert found.reduction == 30
    assert found.sensitivity is not None
    # 60 independent relative changes of 1 each: sqrt(60), measured by six runs.
    assert 0.5 * 60**0.5 < float(np.sqrt(np.mean(found.sensitivity**2))) < 1.5 * 60**0.5


def test_what_takes_no_tensor_is_sensitive_to_itself(tmp_path: Path) -> None:
    executed = replay(tmp_path, lambda: torch.linspace(1, 2, 5), "linspace")
    executed.refine()
    sensitivity = outputs(executed)["output.0"].sensitivity
    assert sensitivity is not None
    np.testing.assert_allclose(sensitivity, [1, 1.25, 1.5, 1.75, 2])


def ideal(function: object, *arguments: torch.Tensor) -> torch.Tensor:
    with IdealKernels():
        return function(*arguments)  # type: ignore[no-any-return,operator]


def test_ideal_kernels_round_each_result_once() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 64).to(BF16), torch.randn(64, 64).to(BF16)
    exact = (x.double() @ y.double()).to(BF16)
    assert torch.equal(ideal(torch.mm, x, y), exact)
    # Two kernels: the product is rounded before it is added to.
    composed = ideal(lambda a, b: torch.mm(a, b) + a, x, y)
    assert torch.equal(composed, (exact.double() + x.double()).to(BF16))


def test_ideal_kernels_are_better_than_torchs_own() -> None:
    """torch rounds both products of a cross product to bfloat16 before it subtracts them."""
    torch.manual_seed(0)
    x, y = torch.randn(500, 3).to(BF16), torch.randn(500, 3).to(BF16)
    exact = torch.linalg.cross(x.double(), y.double()).to(BF16)
    assert not torch.equal(torch.linalg.cross(x, y), exact)
    assert torch.equal(ideal(torch.linalg.cross, x, y), exact)


def test_ideal_kernels_write_in_place_and_through_views() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        whole = x.clone()
        whole[1:].mul_(1 / 3).exp_()
        return whole

    x = torch.tensor([1.0, 2.0, 5.0], dtype=BF16)
    third = (x[1:].double() * (1 / 3)).to(BF16)
    expected = torch.cat([x[:1], torch.exp(third.double()).to(BF16)])
    assert torch.equal(ideal(work, x), expected)


def test_ideal_kernels_keep_dtypes_and_complex_numbers() -> None:
    x = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float16)
    assert ideal(lambda a: a.sum(dtype=torch.float32), x).dtype is torch.float32
    z = torch.tensor([1.1 + 2.2j, 0.3 - 0.7j], dtype=torch.complex64)
    assert torch.equal(ideal(torch.sin, z), torch.sin(z.to(torch.complex128)).to(torch.complex64))


def test_the_truth_is_that_of_contiguous_copies(tmp_path: Path) -> None:
    """A recorded layout reaches the kernel under test, and not the reference."""
    x = torch.arange(6.0).reshape(2, 3).t()
    recorded, rank = record(tmp_path, lambda: torch.sin(x), "sin")
    from replayed import case_of

    from ulpscope.records.checks import DataSource
    from ulpscope.replay.torch.tensors import case_tensor

    tensor = case_tensor(
        case_of(recorded, rank, DataSource.REAL),
        "args.0",
        recorded.inputs["args.0"],
        rank=rank,
        seed=0,
        variant=case_of(recorded, rank, DataSource.REAL).variant,
    )
    assert tensor.stride() == (1, 3)
    feed = Feed({"args.0": tensor}, {})
    recipe = make_recipe(recorded, feed, device="cpu")
    assert run(recipe, feed, device="cpu").leaves["args.0"].stride() == (1, 3)
    assert run_precise(recipe, feed).leaves["args.0"].stride() == (2, 1)


@pytest.mark.parametrize(
    ("op", "work"),
    [
        ("torch.Tensor.max", lambda ids: ids.max()),
        ("torch.max", lambda ids: torch.max(ids, ids + 1)),
        ("torch.sort", lambda ids: torch.sort(ids)),
        ("torch.Tensor.median", lambda ids: ids.median()),
    ],
)
def test_integers_that_are_chosen_are_no_places(tmp_path: Path, op: str, work: Callable[[Any], Any]) -> None:
    ids = torch.randint(100, 1000, (8, 5), generator=torch.Generator().manual_seed(0))
    executed = replay(tmp_path, lambda: work(ids), op)
    assert executed.evidence
    assert all(judge_output(each).verdict is Verdict.PASS for each in outputs(executed).values())


def test_a_random_call_is_known_as_one_although_its_dump_does_not_say_so(tmp_path: Path) -> None:
    shares = torch.full((4000,), 0.3)
    executed = replay(tmp_path, lambda: torch.bernoulli(shares), "torch.bernoulli", random=False)
    assert share(executed).trials >= 4000
