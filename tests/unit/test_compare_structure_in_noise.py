"""What noise between two runs does not hide: a change that one run lacks, a type that one run loses; and what is no
difference at all: memory before it is written, seeds that nobody uses, whole numbers in another type."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.records.findings import Finding, Outcome
from ulpscope.workflows.compare.command import compare

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((64, 48))
LINEAR = "torch.nn.functional.linear"
INSIDE: dict[str, Any] = {"module": "model", "module_class": "Net"}


def findings(folder: Path, reference: HandmadeRun, target: HandmadeRun) -> tuple[Finding, ...]:
    return compare(reference.write(folder / "r"), target.write(folder / "t")).comparison.findings


def capped(*, noise: float = 0.0, cap: bool = True, elsewhere: bool = False) -> HandmadeRun:
    """A result that is capped, x - x^3 / 150, and used; without the cap it differs by less than the noise."""
    run = HandmadeRun()
    dtype, size = ("bfloat16", np.float32) if noise else ("float32", np.float32)
    made = X * (1.0 + noise * RANDOM.standard_normal(X.shape))
    changed = made - made**3 / 150.0
    first = run.call(LINEAR, reads={"args.0": run.value(X)}, makes={"output.0": made.astype(size)}, **INSIDE)
    run.values[run.output(first)]["dtype"] = dtype
    last = run.output(first)
    if cap and not elsewhere:
        call = run.call("torch.tanh", reads={"args.0": last}, makes={"output.0": changed.astype(size)}, **INSIDE)
        last = run.output(call)
    elif elsewhere:
        last = run.value(changed.astype(size), producer=first)
    run.call("torch.nn.functional.gelu", reads={"args.0": last}, makes={"output.0": changed.astype(size)}, **INSIDE)
    return run


def test_a_change_that_one_run_lacks_is_told_below_the_noise(tmp_path: Path) -> None:
    found = findings(tmp_path, capped(), capped(noise=0.01, cap=False))
    assert [each.place.op for each in found] == ["torch.tanh"]


def test_a_change_that_the_other_run_makes_inside_is_not_told(tmp_path: Path) -> None:
    assert not findings(tmp_path, capped(), capped(noise=0.01, elsewhere=True))


def cast(dtype: str, *, weights: str = "float32", casts: int = 1) -> HandmadeRun:
    """A weight, and casts of what is made with it."""
    run = HandmadeRun()
    module = run.call("Net", kind="module", module="model", module_class="Net", reads={"args.0": run.value(X)})
    run.use(module, "parameter", "weight", run.value(X, dtype=weights))
    call = run.call(
        LINEAR, reads={"args.0": run.value(X)}, makes={"output.0": X.astype(np.float32)}, parent=module, **INSIDE
    )
    rounded = np.float32(X).view(np.uint32) & (0xFFFF0000 if dtype == "bfloat16" else 0xFFFFFFFF)
    for _ in range(casts):
        made = run.value(rounded.view(np.float32), dtype="float32")
        run.values[made]["dtype"] = dtype
        to = run.call("torch.Tensor.to", reads={"args.0": run.output(call)}, makes={"output.0": made}, **INSIDE)
        run.values[made]["producer"] = to
    return run


def test_a_type_that_only_one_run_loses_is_told(tmp_path: Path) -> None:
    found = findings(tmp_path, cast("float32"), cast("bfloat16"))
    assert [(each.place.op, each.evidence.unlike.dtypes) for each in found] == [
        ("torch.Tensor.to", ("float32", "bfloat16"))
    ]


@pytest.mark.parametrize(("weights", "casts"), [("float16", 1), ("float32", 9)])
def test_a_run_in_another_precision_loses_no_type(tmp_path: Path, weights: str, casts: int) -> None:
    """Told by its parameters, or by types that differ nearly everywhere."""
    assert not findings(tmp_path, cast("float32", casts=casts), cast("bfloat16", weights=weights, casts=casts))


def initialised(before: float, after: float) -> HandmadeRun:
    """Memory that nobody has written is filled and used."""
    run = HandmadeRun()
    call = run.call(
        "torch.Tensor.uniform_",
        reads={"args.0": run.value(np.full(16, before))},
        makes={"output.0": np.full(16, after, np.float32)},
        phase="setup",
    )
    run.call(LINEAR, reads={"args.0": run.output(call)}, makes={"output.0": np.full(4, after, np.float32)}, **INSIDE)
    return run


@pytest.mark.parametrize(("after", "outcome"), [(0.5, Outcome.AGREE), (0.6, Outcome.DIVERGED)])
def test_what_an_initialiser_finds_does_not_count_and_what_it_leaves_does(
    tmp_path: Path, after: float, outcome: Outcome
) -> None:
    runs = initialised(1e30, 0.5).write(tmp_path / "r"), initialised(-3.0, after).write(tmp_path / "t")
    assert compare(*runs).comparison.outcome is outcome


def seeded(seed: int, *, used: bool) -> HandmadeRun:
    """A seed is drawn; something is made of it or not."""
    run = HandmadeRun()
    drawn = run.call(
        "torch.Tensor.random_", makes={"output.0": np.array(seed)}, phase="setup", random=True, generator=str(seed)
    )
    run.call("torch.Tensor.item", reads={"args.0": run.output(drawn)}, phase="setup")
    if used:
        run.call("torch.Tensor.mul", reads={"args.0": run.output(drawn)}, makes={"output.0": np.array(2 * seed)})
    run.call(LINEAR, reads={"args.0": run.value(X)}, makes={"output.0": X.astype(np.float32)}, **INSIDE)
    return run


@pytest.mark.parametrize("used", [False, True])
def test_a_seed_is_told_if_something_is_made_of_it(tmp_path: Path, *, used: bool) -> None:
    assert bool(findings(tmp_path, seeded(3, used=used), seeded(4, used=used))) is used


def hashed(dtype: str, made: int) -> HandmadeRun:
    """Whole numbers in a type of their own, and what is made of them."""
    run = HandmadeRun()
    ids = run.value(np.arange(9), dtype=dtype)
    call = run.call(
        "torch.Tensor.mul", reads={"args.0": ids}, makes={"output.0": (np.arange(9) * made).astype(dtype)}, **INSIDE
    )
    run.call("torch.Tensor.float", reads={"args.0": run.output(call)}, makes={"output.0": np.float32(made)}, **INSIDE)
    return run


@pytest.mark.parametrize(("made", "outcome"), [(7, Outcome.AGREE), (8, Outcome.DIVERGED)])
def test_whole_numbers_of_another_type_are_no_noise(tmp_path: Path, made: int, outcome: Outcome) -> None:
    runs = hashed("int64", 7).write(tmp_path / "r"), hashed("int32", made).write(tmp_path / "t")
    assert compare(*runs).comparison.outcome is outcome


def clamped(least: float, dtype: str) -> HandmadeRun:
    """A clamp at a number that may be asked of an element type, on results of that type."""
    run = HandmadeRun()
    noise = 2e-3 * RANDOM.standard_normal(X.shape) if dtype == "bfloat16" else 0.0
    given = run.value(np.float32(np.abs(X) + 1.0))
    made = np.float32((np.abs(X) + 1.0) * (1.0 + noise))
    call = run.call(LINEAR, reads={"args.0": given}, makes={"output.0": made}, **INSIDE)
    run.values[run.output(call)]["dtype"] = dtype
    last = run.call(
        "torch.Tensor.clamp_min",
        reads={"args.0": run.output(call)},
        makes={"output.0": made},
        arguments={"args": [{"$tensor": "args.0"}, least]},
        **INSIDE,
    )
    run.values[run.output(last)]["dtype"] = dtype
    return run


@pytest.mark.parametrize(("least", "outcome"), [(2.0**-7, Outcome.AGREE), (1e-2, Outcome.DIVERGED)])
def test_a_number_asked_of_the_element_type_is_the_same_argument(
    tmp_path: Path, least: float, outcome: Outcome
) -> None:
    runs = clamped(2.0**-23, "float32").write(tmp_path / "r"), clamped(least, "bfloat16").write(tmp_path / "t")
    assert compare(*runs).comparison.outcome is outcome


def printed(*, extra: bool, loss: float = 0.5) -> HandmadeRun:
    """A loss is printed, and in one run a share of hits before it."""
    run = HandmadeRun()
    made = run.call(LINEAR, reads={"args.0": run.value(X)}, makes={"output.0": np.float32(loss)}, **INSIDE)
    if extra:
        hits = run.call("torch.Tensor.mean", reads={"args.0": run.value(X)}, makes={"output.0": np.float32(0.9)})
        run.call("torch.Tensor.__float__", reads={"args.0": run.output(hits)}, phase="other")
    run.call("torch.Tensor.__float__", reads={"args.0": run.output(made)}, phase="other")
    return run


@pytest.mark.parametrize(("loss", "outcome"), [(0.5, Outcome.AGREE), (0.6, Outcome.DIVERGED)])
def test_what_is_only_looked_at_is_judged_where_it_was_made(tmp_path: Path, loss: float, outcome: Outcome) -> None:
    runs = printed(extra=False).write(tmp_path / "r"), printed(extra=True, loss=loss).write(tmp_path / "t")
    assert compare(*runs).comparison.outcome is outcome


def accumulated(parts: int, *, gradient: float = 1.0) -> HandmadeRun:
    """A step whose batch is taken in so many parts; the gradients add up to the same."""
    run, rows = HandmadeRun(), len(X) // parts
    for part in range(parts):
        given = np.float32(X[part * rows : (part + 1) * rows])
        call = run.call(LINEAR, reads={"args.0": run.value(given)}, makes={"output.0": np.tanh(given)}, **INSIDE)
        loss = run.call("torch.sum", reads={"args.0": run.output(call)}, makes={"output.0": np.float32(given.sum())})
        run.call("torch.Tensor.backward", reads={"args.0": run.output(loss)}, role="loss", phase="backward")
    update = run.call("torch.optim.sgd.SGD", kind="optimizer", phase="update")
    run.use(update, "gradient", "model.weight", run.value(np.float32(gradient * X.sum(axis=0))))
    return run


@pytest.mark.parametrize(("gradient", "outcome"), [(1.0 + 1e-7, Outcome.AGREE), (1.01, Outcome.DIVERGED)])
def test_a_batch_in_other_parts_agrees_if_its_gradients_do(tmp_path: Path, gradient: float, outcome: Outcome) -> None:
    runs = accumulated(1).write(tmp_path / "r"), accumulated(2, gradient=gradient).write(tmp_path / "t")
    assert compare(*runs).comparison.outcome is outcome
