"""Healthy calls that amplify what came in, and faults at the same calls: only the faults are found."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.records.findings import Outcome
from ulpscope.records.pairs import Judgement
from ulpscope.workflows.compare.command import CompareResult, compare

Array = np.ndarray[Any, Any]
ADAM = "torch.optim.adam.Adam"
LINEAR, LAYER_NORM = "torch.nn.functional.linear", "torch.nn.functional.layer_norm"
SCALE = 4096.0
INSIDE = {"module": "model", "module_class": "Net"}
BACK: dict[str, Any] = {"kind": "backward", "phase": "backward", "role": "grad_output", "made_role": "grad_input"}


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compared(folder: Path, reference: HandmadeRun, target: HandmadeRun) -> CompareResult:
    return compare(reference.write(folder / "ref"), target.write(folder / "target"))


def blamed(result: CompareResult) -> set[tuple[str, str]]:
    """Operations and places of results that were judged to be made wrong by their own call."""
    made = pl.col("role").is_in(["output", "grad_input", "parameter_after"])
    rows = result.pairs.filter(made & (pl.col("judgement") == Judgement.MADE_HERE.value))
    return set(rows.select("op", "place").iter_rows())


def normed(x: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return (centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)).astype(np.float32)


PADDED = numbers(40, 32) * np.where(np.arange(40) % 5 == 0, 0.1, 8.0)[:, None].astype(np.float32)


def norm_run(*, noise: float = 0.0, factor: float = 1.0, bias: Array | None = None) -> HandmadeRun:
    """A layer norm over rows of which some are padding, behind a linear that one run does in bfloat16."""
    run = HandmadeRun()
    x = (PADDED + noise * numbers(40, 32, seed=3)).astype(np.float32)
    added = np.zeros(32, dtype=np.float32) if bias is None else bias
    call = run.call(LINEAR, reads={"args.0": run.value(numbers(40, 16, seed=4))}, **INSIDE)
    run.use(call, "output", "output.0", run.value(x, producer=call))
    rounded = run.value(np.float16(numbers(4)), dtype="float16" if noise else "float32")
    run.use(call, "input", "args.1", rounded)
    reads = {"args.0": run.output(call), "kwargs.weight": run.value(np.ones(32)), "kwargs.bias": run.value(added)}
    run.call(LAYER_NORM, reads=reads, makes={"output.0": factor * normed(x) + added}, **INSIDE)
    return run


def test_a_norm_may_amplify_the_error_of_rows_of_small_norm(tmp_path: Path) -> None:
    """Each row is divided by its own size: what is nothing beside the other rows is much beside the padding."""
    result = compared(tmp_path, norm_run(), norm_run(noise=1e-4))
    moved = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in (
        (PADDED + 1e-4 * numbers(40, 32, seed=3), PADDED),
        (normed(PADDED + 1e-4 * numbers(40, 32, seed=3)), normed(PADDED)),
    )]  # fmt: skip
    assert moved[1] > 20 * moved[0]
    assert (LAYER_NORM, "output.0") not in blamed(result)


def test_a_norm_with_a_wrong_factor_is_blamed(tmp_path: Path) -> None:
    result = compared(tmp_path, norm_run(), norm_run(noise=1e-4, factor=1.02))
    assert (LAYER_NORM, "output.0") in blamed(result)


def test_a_bias_that_differs_does_not_excuse_its_norm(tmp_path: Path) -> None:
    """One that began at zero differs by as much as it is, and moves the result by a thousandth."""
    biases = 1e-3 * numbers(32, seed=5), 1e-3 * numbers(32, seed=6)
    result = compared(tmp_path, norm_run(bias=biases[0]), norm_run(bias=biases[1], factor=1.05))
    assert (LAYER_NORM, "output.0") in blamed(result)
    healthy = compared(tmp_path / "healthy", norm_run(bias=biases[0]), norm_run(bias=biases[1]))
    assert (LAYER_NORM, "output.0") not in blamed(healthy)


def scaled_run(scale: float = 1.0, *, noise: float = 1e-10, factor: float = 1.0) -> HandmadeRun:
    """A backward whose gradient of the bias is noise and nothing else; a GradScaler unscales before the optimizer."""
    run = HandmadeRun()
    x, weight, bias = numbers(30, 40), numbers(20, 40, seed=1), numbers(20, seed=2)
    reads = {"args.0": run.value(x), "args.1": run.value(weight), "args.2": run.value(bias)}
    forward = run.call(LINEAR, reads=reads, makes={"output.0": (x @ weight.T + bias).astype(np.float32)}, **INSIDE)
    gradient = numbers(30, 20, seed=7)
    gradient = (gradient - gradient.mean(axis=0)) * np.float32(1e-3)
    nothing = np.float32(noise) * numbers(20, seed=8 if scale == 1.0 else 9)
    made = {
        "args.0": np.float32(scale * factor) * (gradient @ weight),
        "args.1": np.float32(scale) * (gradient.T @ x),
        "args.2": np.float32(scale) * nothing,
    }
    given = run.value(np.float32(scale) * gradient)
    run.call(LINEAR, forward=forward, reads={"output.0": given}, makes=made, **BACK, **INSIDE)
    if scale != 1.0:
        run.call("torch._amp_update_scale_", phase="update")
    update = run.call("torch.optim.sgd.SGD", kind="optimizer", phase="update")
    run.use(update, "gradient", "model.weight", run.value(gradient.T @ x))
    return run


@pytest.mark.parametrize("noise", [1e-10, 1e-9, 1e-8])
def test_a_loss_scale_is_taken_out_of_noise(tmp_path: Path, noise: float) -> None:
    result = compared(tmp_path, scaled_run(), scaled_run(SCALE, noise=noise))
    assert not blamed(result)


def test_a_fault_under_a_loss_scale_is_blamed(tmp_path: Path) -> None:
    result = compared(tmp_path, scaled_run(), scaled_run(SCALE, factor=1.5))
    assert blamed(result) == {(LINEAR, "args.0")}


def divided_run(count: float = 1.0, *, undone: bool = True) -> HandmadeRun:
    """A loss that is divided by a number of micro-steps, or gradients that are; or neither."""
    run = HandmadeRun()
    x, weight, gradient = numbers(30, 40), numbers(20, 40, seed=1), numbers(30, 20, seed=7)
    reads = {"args.0": run.value(x), "args.1": run.value(weight)}
    forward = run.call(LINEAR, reads=reads, makes={"output.0": (x @ weight.T).astype(np.float32)}, **INSIDE)
    made = {"args.0": gradient @ weight / np.float32(count), "args.1": gradient.T @ x / np.float32(count)}
    given = run.value(gradient / np.float32(count))
    run.call(LINEAR, forward=forward, reads={"output.0": given}, makes=made, **BACK, **INSIDE)
    update = run.call("torch.optim.sgd.SGD", kind="optimizer", phase="update")
    run.use(update, "gradient", "model.weight", run.value(gradient.T @ x / np.float32(1.0 if undone else count)))
    return run


@pytest.mark.parametrize("count", [2.0, 3.0, 1.0 / 5.0])
def test_a_loss_may_be_divided_instead_of_its_gradients(tmp_path: Path, count: float) -> None:
    assert not compared(tmp_path, divided_run(), divided_run(count)).comparison.findings


def test_a_loss_that_is_divided_by_too_much_is_told(tmp_path: Path) -> None:
    assert compared(tmp_path, divided_run(), divided_run(3.0, undone=False)).comparison.findings


GRADIENT = numbers(32, seed=31) * np.float32(1e-3)
GRADIENT[3] = 2e-6
NOISE = 0.004 * np.float32(1e-3) * numbers(32, seed=13)
NOISE[3] = -5e-6


def adam_run(*, noise: float = 0.0, rate: float = 1e-3, parameter: Array | None = None) -> HandmadeRun:
    """The first update by Adam, which follows signs; one element of the gradient is as small as its noise."""
    run = HandmadeRun()
    gradient = (GRADIENT + noise * NOISE).astype(np.float32)
    before = np.zeros(32, dtype=np.float32) if parameter is None else parameter
    after = (before - rate * gradient / (np.abs(gradient) + 1e-8)).astype(np.float32)
    forward = run.call(
        LINEAR, reads={"args.0": run.value(numbers(8, 16))}, makes={"output.0": numbers(8, 32)}, **INSIDE
    )
    given = run.value(
        (numbers(8, 32, seed=14) * 1e-3 * (1 + noise * 0.004 * numbers(8, 32, seed=15))).astype(np.float32)
    )
    back = run.call(
        LINEAR, forward=forward, reads={"output.0": given}, makes={"args.2": gradient}, autocast="bfloat16",
        **BACK, **INSIDE,
    )  # fmt: skip
    update = run.call(ADAM, kind="optimizer", phase="update")
    run.use(update, "gradient", "model.bias", run.output(back, "args.2"))
    run.use(update, "parameter", "model.bias", run.value(before))
    run.use(update, "parameter_after", "model.bias", run.value(after, producer=update))
    return run


@pytest.mark.parametrize("parameter", [None, numbers(32, seed=16)])
def test_an_update_may_follow_the_sign_of_noise(tmp_path: Path, parameter: Array | None) -> None:
    result = compared(tmp_path, adam_run(parameter=parameter), adam_run(noise=1.0, parameter=parameter))
    assert (ADAM, "model.bias") not in blamed(result)


@pytest.mark.parametrize("parameter", [None, numbers(32, seed=16)])
def test_an_update_of_another_rate_is_blamed(tmp_path: Path, parameter: Array | None) -> None:
    result = compared(tmp_path, adam_run(parameter=parameter), adam_run(noise=1.0, rate=2e-3, parameter=parameter))
    assert (ADAM, "model.bias") in blamed(result)


def summed_run(*, noise: float = 0.0, factor: float = 1.0) -> HandmadeRun:
    """A gradient of a bias: the sum over 1,024 rows, whose errors have something in common."""
    run = HandmadeRun()
    forward = run.call(
        LINEAR, reads={"args.0": run.value(numbers(1024, 8))}, makes={"output.0": numbers(1024, 8)}, **INSIDE
    )
    common, own = numbers(1, 8, seed=17), numbers(1024, 8, seed=18)
    gradient = (numbers(1024, 8, seed=19) + noise * (0.3 * common + own)).astype(np.float32)
    made = {"args.2": (factor * gradient.sum(axis=0)).astype(np.float32)}
    run.call(LINEAR, forward=forward, reads={"output.0": run.value(gradient)}, makes=made, **BACK, **INSIDE)
    return run


def test_a_sum_over_rows_keeps_what_their_errors_have_in_common(tmp_path: Path) -> None:
    result = compared(tmp_path, summed_run(), summed_run(noise=0.004))
    assert (LINEAR, "args.2") not in blamed(result)


def test_a_sum_over_rows_with_a_wrong_factor_is_blamed(tmp_path: Path) -> None:
    result = compared(tmp_path, summed_run(), summed_run(noise=0.004, factor=1.5))
    assert (LINEAR, "args.2") in blamed(result)


def penalty_run(*, noise: float = 0.0) -> HandmadeRun:
    """A weight's gradient that comes from a double backward: of the gradient that came in only zeros were seen.

    The module shows it, in the noisy run as a copy of its own.
    """
    run = HandmadeRun()
    x = numbers(12, 16)
    given = run.value(x)
    outer = run.call("Net", kind="module", reads={"args.0": given}, **INSIDE)
    inner = run.call(LINEAR, reads={"args.0": given}, makes={"output.0": numbers(12, 8)}, parent=outer, **INSIDE)
    run.call("torch.mul", reads={"args.0": given}, makes={"output.0": x + noise * numbers(12, 16, seed=2)})
    gradient = (numbers(8, 16, seed=3) * (1 + noise * numbers(8, 16, seed=4))).astype(np.float32)
    zeros = {"output.0": run.value(np.zeros((12, 8)))}
    back = run.call(LINEAR, forward=inner, reads=zeros, makes={"args.1": gradient}, **BACK, **INSIDE)
    late = {"kind": "module_backward", "phase": "backward", "forward": outer, **INSIDE}
    shown = run.call("Net", reads=zeros, role="grad_output", **late)
    made = run.value(gradient, producer=shown) if noise else run.output(back, "args.1")
    run.use(shown, "grad_input", "weight", made)
    return run


def test_what_is_made_of_gradients_that_were_not_seen_is_not_blamed(tmp_path: Path) -> None:
    assert (LINEAR, "args.1") not in blamed(compared(tmp_path, penalty_run(), penalty_run(noise=0.02)))


def test_a_copy_is_what_its_original_is(tmp_path: Path) -> None:
    assert ("Net", "weight") not in blamed(compared(tmp_path, penalty_run(), penalty_run(noise=0.02)))


RELU = "torch.nn.functional.relu"


def kinked_run(*, moved: bool = False, factor: float = 1.0) -> HandmadeRun:
    """The backward of a relu where the element with by far the largest gradient lies next to the kink."""
    run = HandmadeRun()
    x, gradient = numbers(40, 40), numbers(40, 40, seed=1)
    x[0, 0], gradient[0, 0] = (-1e-4 if moved else 1e-4), 20.0
    x = (x * (1 + (2e-3 if moved else 0.0) * numbers(40, 40, seed=2))).astype(np.float32)
    forward = run.call(RELU, reads={"args.0": run.value(x)}, makes={"output.0": np.maximum(x, 0)}, **INSIDE)
    made = {"args.0": (factor * gradient * (x > 0)).astype(np.float32)}
    run.call(RELU, forward=forward, reads={"output.0": run.value(gradient)}, makes=made, **BACK, **INSIDE)
    return run


def test_the_largest_gradient_may_move_across_a_kink(tmp_path: Path) -> None:
    assert (RELU, "args.0") not in blamed(compared(tmp_path, kinked_run(), kinked_run(moved=True)))


def test_all_gradients_of_a_kink_do_not_grow(tmp_path: Path) -> None:
    assert (RELU, "args.0") in blamed(compared(tmp_path, kinked_run(), kinked_run(moved=True, factor=2.0)))


MUL, SUM, SQUARES = "tf.raw_ops.Mul", "tf.raw_ops.AddN", "tf.raw_ops.L2Loss"


def summing_run(*, shown: bool = True, noise: float = 0.0, factor: float = 1.0) -> HandmadeRun:
    """Two products are added up and squared; of a sum that a run rewrites only its operands are known."""
    run = HandmadeRun()
    x, products = run.value(numbers(40, 40)), []
    for seed in (1, 2):
        made = (numbers(40, 40, seed=seed) * (1 + noise * numbers(40, 40, seed=seed + 2))).astype(np.float32)
        products.append((run.call(MUL, reads={"args.0": x}, makes={"output.0": made}, **INSIDE), made))
    values = {f"args.0.{place}": run.output(call, "output.0") for place, (call, _) in enumerate(products)}
    total = products[0][1] + products[1][1]
    if shown:
        made_here = run.call(SUM, reads=values, makes={"output.0": total}, **INSIDE)
        values = {"args.0": run.output(made_here, "output.0")}
    run.call(SQUARES, reads=values, makes={"output.0": factor * np.square(total)}, **INSIDE)
    return run


def test_an_operand_that_one_run_rewrites_is_known_by_what_it_is_made_of(tmp_path: Path) -> None:
    result = compared(tmp_path, summing_run(), summing_run(shown=False, noise=2e-3))
    assert (SQUARES, "output.0") not in blamed(result)


def test_what_is_made_of_a_rewritten_operand_is_judged(tmp_path: Path) -> None:
    result = compared(tmp_path, summing_run(), summing_run(shown=False, factor=1.5))
    assert (SQUARES, "output.0") in blamed(result)


POOLED = "tf.raw_ops.MaxPoolGrad"


def pooled_run(*, noise: float = 0.0, factor: float = 1.0) -> HandmadeRun:
    """The gradient of a pooling as a call of its own, of numbers that are rounded otherwise in pairs of near equals."""
    run = HandmadeRun()
    x = np.repeat(numbers(40, 40), 2, axis=1).reshape(40, 40, 2) * (1 + 1e-4 * numbers(40, 40, 2, seed=2))
    x = (x * (1 + noise * numbers(40, 40, 2, seed=3))).astype(np.float32)
    gradient = (numbers(40, 40, seed=1) * (1 + noise * numbers(40, 40, seed=4))).astype(np.float32)
    chosen = x == x.max(axis=2, keepdims=True)
    rare = np.arange(1600).reshape(40, 40, 1) % 80 == 0
    chosen = np.where(rare, chosen, np.arange(2) == 0)
    given = {"args.0": run.value(x), "args.1": run.value(x.max(axis=2)), "args.2": run.value(gradient)}
    made = (factor * chosen * gradient[..., None]).astype(np.float32)
    run.call(POOLED, reads=given, makes={"output.0": made}, phase="backward", **INSIDE)
    return run


def test_a_pooling_s_gradient_may_choose_another_of_near_equals(tmp_path: Path) -> None:
    assert (POOLED, "output.0") not in blamed(compared(tmp_path, pooled_run(), pooled_run(noise=5e-4)))


def test_a_pooling_s_gradient_does_not_grow(tmp_path: Path) -> None:
    assert (POOLED, "output.0") in blamed(compared(tmp_path, pooled_run(), pooled_run(noise=5e-4, factor=1.5)))


def updated_run(*, update: float = 0.0, factor: float = 1.0) -> HandmadeRun:
    """A linear whose weight was updated otherwise, along the inputs that all of its rows have in common."""
    run = HandmadeRun()
    common = numbers(1, 64)
    x = (common + 0.1 * numbers(30, 64, seed=1)).astype(np.float32)
    weight = (numbers(20, 64, seed=2) + update * np.sign(numbers(20, 1, seed=3) * common)).astype(np.float32)
    parameter = run.value(weight, storage=7)
    outer = run.call("Net", kind="module", reads={"args.0": run.value(x)}, **INSIDE)
    run.use(outer, "parameter", "weight", parameter)
    made = {"output.0": (factor * (x @ weight.T)).astype(np.float32)}
    reads = {"args.0": run.uses[0]["value"], "args.1": parameter}
    run.call(LINEAR, reads=reads, makes=made, parent=outer, **INSIDE)
    return run


def test_a_weight_that_was_updated_otherwise_may_lie_along_its_inputs(tmp_path: Path) -> None:
    assert (LINEAR, "output.0") not in blamed(compared(tmp_path, updated_run(), updated_run(update=0.01)))


def test_a_linear_does_not_grow_by_an_update(tmp_path: Path) -> None:
    assert (LINEAR, "output.0") in blamed(compared(tmp_path, updated_run(), updated_run(update=0.01, factor=1.5)))


def kept_run(*, noise: float = 0.0, factor: float = 1.0) -> HandmadeRun:
    """Two steps whose gradients are never zeroed, as those of a GAN's other half: the first one is large and noisy."""
    run = HandmadeRun()
    total = np.zeros((20, 16), dtype=np.float32)
    for run.step, size in ((0, 10.0), (1, 1.0)):
        x, weight = run.value(numbers(12, 16)), run.value(numbers(20, 16, seed=1), storage=7)
        outer = run.call("Net", kind="module", reads={"args.0": x}, **INSIDE)
        run.use(outer, "parameter", "weight", weight)
        made = {"output.0": numbers(12, 20, seed=2)}
        inner = run.call(LINEAR, reads={"args.0": x, "args.1": weight}, makes=made, parent=outer, **INSIDE)
        own = size * numbers(20, 16, seed=3 + run.step)
        own = (own * (1 + noise * (1 - run.step) * numbers(20, 16, seed=5))).astype(np.float32)
        total = (total + (factor if run.step else 1.0) * own).astype(np.float32)
        given = {"output.0": run.value(size * numbers(12, 20, seed=6 + run.step))}
        run.call(LINEAR, forward=inner, reads=given, makes={"args.1": own}, **BACK, **INSIDE)
        late = {"kind": "module_backward", "phase": "backward", "forward": outer, **INSIDE}
        run.use(run.call("Net", **late), "gradient", "weight", run.value(total, storage=9))
    return run


def judged_at_step_1(result: CompareResult) -> list[str]:
    rows = result.pairs.filter((pl.col("role") == "gradient") & (pl.col("step") == 1))
    return rows["judgement"].to_list()


def test_a_gradient_that_is_not_zeroed_keeps_its_error(tmp_path: Path) -> None:
    assert judged_at_step_1(compared(tmp_path, kept_run(), kept_run(noise=0.01))) == [Judgement.INHERITED.value]


def test_a_gradient_that_is_added_up_wrongly_is_found(tmp_path: Path) -> None:
    found = judged_at_step_1(compared(tmp_path, kept_run(), kept_run(noise=1e-4, factor=2.0)))
    assert found == [Judgement.MADE_HERE.value]


def unseen_update_run(*, dtype: str = "float32", bias: float = 0.0) -> HandmadeRun:
    """Two steps, as a tool records them that knows no optimizer: a bias that began at zero is all update then.

    Its gradient is a sum that cancels, and what is added up was rounded.
    """
    run = HandmadeRun()
    given = numbers(200, 20, seed=5)
    given = (given - given.mean(axis=0) + 2e-4 * numbers(20, seed=1)).astype(dtype)
    gradient = given.astype(np.float64).sum(axis=0)
    for run.step, own in ((0, np.zeros(20)), (1, -gradient + bias * numbers(20, seed=3))):
        x, made = run.value(numbers(200, 16)), {"output.0": numbers(200, 20, seed=4)}
        outer = run.call("Net", kind="module", reads={"args.0": x}, makes=made, **INSIDE)
        run.use(outer, "parameter", "bias", run.value(own))
        late = {"kind": "module_backward", "phase": "backward", "forward": outer, **INSIDE}
        back = run.call("Net", reads={"output.0": run.value(given, dtype=dtype)}, role="grad_output", **late)
        run.use(back, "gradient", "bias", run.value(gradient))
    return run


def judged_bias(folder: Path, target: HandmadeRun) -> list[str]:
    foreign = {"capture": {"level": "api", "save": "stats", "tool": "another"}}
    result = compare(unseen_update_run().write(folder / "ref", **foreign), target.write(folder / "target", **foreign))
    return result.pairs.filter(pl.col("role") == "parameter").sort("step")["judgement"].to_list()


def test_an_update_that_nobody_recorded_may_keep_its_gradients_error(tmp_path: Path) -> None:
    assert judged_bias(tmp_path, unseen_update_run(dtype="float16"))[1] == Judgement.ROUNDING.value


def test_a_parameter_that_its_gradient_does_not_explain_is_found(tmp_path: Path) -> None:
    assert judged_bias(tmp_path, unseen_update_run(bias=0.01))[1] == Judgement.MADE_HERE.value


class Counted(list[Slot]):
    """Counts how many of its items are looked at."""

    seen = 0

    def __iter__(self) -> Iterator[Slot]:
        for slot in super().__iter__():
            Counted.seen += 1
            yield slot


def looked_at(folder: Path, parameters: int) -> int:
    """How many tensors are looked at where one call updates so many parameters."""
    for name, noise in (("ref", 0.0), ("target", 1.0)):
        run = HandmadeRun()
        update = run.call(ADAM, kind="optimizer", phase="update")
        for number in range(parameters):
            place, before = f"model.{number}.bias", numbers(8, seed=number)
            gradient = numbers(8, seed=1000 + number) * (1 + 1e-5 * noise * numbers(8, seed=number))
            run.use(update, "gradient", place, run.value(gradient))
            run.use(update, "parameter", place, run.value(before))
            run.use(update, "parameter_after", place, run.value(before - 1e-3 * gradient, producer=update))
            run.use(update, "state_after", f"{place}.exp_avg", run.value(0.1 * gradient, producer=update))
        run.write(folder / name)
    Counted.seen = 0
    compare(folder / "ref", folder / "target")
    return Counted.seen


def test_the_tensors_of_a_call_are_not_looked_through_for_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RankEvidence.__dict__["slots_of"].func
    counted = cached_property(lambda evidence: [Counted(slots) for slots in plain(evidence)])
    counted.__set_name__(RankEvidence, "slots_of")
    monkeypatch.setattr(RankEvidence, "slots_of", counted)
    few = looked_at(tmp_path / "few", 10)
    assert few > 0
    assert looked_at(tmp_path / "many", 40) <= 4.5 * few


def test_a_gradient_of_unseen_summands_is_judged_as_unknown(tmp_path: Path) -> None:
    """Of what was sent to a value only zeros were seen; what it got is more than that, and nobody knows from where."""

    def run(dtype: str, error: float) -> HandmadeRun:
        made = HandmadeRun()
        linear = made.call(LINEAR, reads={"args.0": made.value(numbers(64, 16))}, **INSIDE)
        result = made.value(numbers(64, 32, seed=1), dtype=dtype, producer=linear)
        made.use(linear, "output", "output.0", result)
        relu = made.call("torch.relu", reads={"args.0": result}, makes={"output.0": numbers(64, 32, seed=2)}, **INSIDE)
        nothing = made.value(np.zeros((64, 32)), dtype=dtype)
        made.call("torch.relu", makes={"args.0": nothing}, forward=relu, **INSIDE, **BACK)
        got = made.value(numbers(64, 32, seed=3) + error * numbers(64, 32, seed=4), dtype=dtype)
        made.call(LINEAR, reads={"output.0": got}, forward=linear, **INSIDE, **BACK)
        return made

    assert compared(tmp_path, run("float32", 0.0), run("float16", 1.6e-3)).comparison.outcome is Outcome.AGREE


def test_what_cancels_to_zero_in_one_run_is_measured_by_what_went_in(tmp_path: Path) -> None:
    """A bias that softmax does not feel: its gradients add up to nothing, or to what rounding left of them."""

    def run(dtype: str, left: float) -> HandmadeRun:
        made = HandmadeRun()
        linear = made.call(
            LINEAR, reads={"args.2": made.value(np.ones(1))}, makes={"output.0": numbers(90, 1)}, **INSIDE
        )
        sent = made.value(numbers(90, 1, seed=1), dtype=dtype)
        back = made.call(LINEAR, reads={"output.0": sent}, makes={"args.2": [left]}, forward=linear, **INSIDE, **BACK)
        assert back > linear
        return made

    result = compared(tmp_path, run("float32", 0.0), run("float16", 1e-3))
    assert (LINEAR, "args.2") not in blamed(result)
