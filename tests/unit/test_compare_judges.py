"""Whole comparisons of traces written by hand: what is wrong, what is rounding, what follows."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.judge.rounding.measuring import LOST
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import FindingKind, Outcome
from ulpscope.workflows.compare.command import CompareOptions, CompareResult, compare

Array = np.ndarray[Any, Any]
LINEAR = "torch.nn.functional.linear"
UNIT = 2.0**-24


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def disturbed(array: Array, relative: float, seed: int = 9) -> Array:
    """The same with an error in every element."""
    return (array * (1 + relative * np.random.default_rng(seed).standard_normal(array.shape))).astype(np.float32)


def compared(folder: Path, reference: HandmadeRun, target: HandmadeRun) -> CompareResult:
    return compare(reference.write(folder / "ref"), target.write(folder / "target"))


X, WEIGHT = numbers(50, 40), numbers(30, 40, seed=1)
OUT = (X @ WEIGHT.T).astype(np.float32)


def linear_run(*, x: Array = X, weight: Array = WEIGHT, out: Array | None = None, owned: bool = True) -> HandmadeRun:
    """A module around one linear; `owned`: whether the module shows the weight as its own."""
    run = HandmadeRun()
    inside = {"module": "model", "module_class": "Net"}
    given, parameter = run.value(x), run.value(weight)
    outer = run.call("Net", kind="module", reads={"args.0": given}, **inside)
    if owned:
        run.use(outer, "parameter", "weight", parameter)
    made = {"output.0": (x @ weight.T).astype(np.float32) if out is None else out}
    inner = run.call(LINEAR, reads={"args.0": given, "args.1": parameter}, makes=made, parent=outer, **inside)
    run.use(outer, "output", "output.0", run.output(inner))
    if not owned:
        owner = run.call("Tied", kind="module", module="tied", module_class="Tied")
        run.use(owner, "parameter", "weight", parameter)
    return run


def test_rounding_is_no_finding(tmp_path: Path) -> None:
    result = compared(tmp_path, linear_run(), linear_run(out=disturbed(OUT, UNIT)))
    assert result.comparison.outcome is Outcome.AGREE
    assert result.comparison.counts.rounding > 0


def test_more_than_rounding_is_made_here(tmp_path: Path) -> None:
    result = compared(tmp_path, linear_run(), linear_run(out=disturbed(OUT, 1e-3)))
    (finding,) = result.comparison.findings
    assert (finding.kind, finding.place.op, finding.place.tensor) == (FindingKind.COMPUTATION, LINEAR, "output.0")
    assert result.comparison.counts.made_here == 1


def test_another_input_explains_what_follows(tmp_path: Path) -> None:
    result = compared(tmp_path, linear_run(), linear_run(x=disturbed(X, 0.1)))
    (finding,) = result.comparison.findings
    assert finding.kind is FindingKind.INPUT
    outputs = result.pairs.filter(pl.col("role") == "output")
    assert set(outputs["judgement"]) == {"inherited"}


def test_a_parameter_is_not_explained_by_what_is_made_of_it(tmp_path: Path) -> None:
    for number, size in enumerate((1e-3, 0.2, 3.0)):
        wrong = disturbed(WEIGHT, size)
        for owned in (True, False):
            folder = tmp_path / f"{number}{owned}"
            result = compared(folder, linear_run(owned=owned), linear_run(weight=wrong, owned=owned))
            (finding,) = result.comparison.findings
            assert finding.kind is FindingKind.PARAMETER


def loss_run(*, factor: float = 1.0) -> HandmadeRun:
    """What a capture of modules alone sees of a training step: a module, and the loss that backward starts from."""
    run = HandmadeRun()
    given = run.value(X)
    run.call(
        "Net",
        kind="module",
        module="model",
        module_class="Net",
        reads={"args.0": given},
        makes={"output.0": disturbed(OUT, 1e-4) if factor != 1.0 else OUT},
        autocast="bfloat16",
    )
    run.call(
        "torch.Tensor.backward", phase="backward", role="loss", reads={"args.0": run.value(np.float32(3.0 * factor))}
    )
    return run


def choice_run(scores: Array, *, spread: float = 0.0) -> HandmadeRun:
    """Scores from outside of the trace, an argmax of them, and rows that it selects."""
    run = HandmadeRun()
    inside = {"module": "model", "module_class": "Router"}
    table = numbers(scores.shape[1], 20, seed=5)
    given = run.value(scores)
    outer = run.call("Router", kind="module", reads={"args.0": given}, **inside)
    doubled = disturbed(2 * scores, spread) if spread else 2 * scores
    scaled = run.call("torch.mul", reads={"args.0": given}, makes={"output.0": doubled}, parent=outer, **inside)
    chosen = doubled.argmax(axis=1)
    picked = run.call(
        "torch.argmax", reads={"args.0": run.output(scaled)}, makes={"output.0": chosen}, parent=outer, **inside
    )
    run.call(
        "torch.nn.functional.embedding",
        reads={"args.0": run.output(picked), "args.1": run.value(table)},
        makes={"output.0": table[chosen]},
        parent=outer,
        **inside,
    )
    return run


def close_scores() -> Array:
    """Rows whose two largest entries differ by less than their rounding."""
    scores = numbers(200, 8)
    scores[:, 0] = np.float32(5.0)
    scores[:, 1] = np.nextafter(np.float32(5.0), np.float32(0.0))
    return scores


def test_a_choice_that_rounding_flipped_is_a_note(tmp_path: Path) -> None:
    scores = close_scores()
    result = compared(tmp_path, choice_run(scores), choice_run(scores, spread=UNIT))
    assert result.comparison.outcome is Outcome.AGREE
    assert [note.kind for note in result.comparison.notes] == [FindingKind.CHOICE]
    assert result.comparison.notes[0].place.op == "torch.argmax"
    embedded = result.pairs.filter(pl.col("op").str.ends_with("embedding"), pl.col("role") == "output")
    assert embedded["judgement"].to_list() == ["after_choice"]
    assert result.comparison.counts.after_choice >= 2


def test_a_choice_among_identical_scores_cannot_flip(tmp_path: Path) -> None:
    scores = numbers(200, 8)
    target = choice_run(scores)
    moved = choice_run(np.roll(scores, 1, axis=1))
    for row, other in zip(target.values.values(), moved.values.values(), strict=True):
        if row["dtype"] == "int64":
            row.update({name: other[name] for name in ("digest", "mean", "min", "max")})
    result = compared(tmp_path, choice_run(scores), target)
    assert result.comparison.outcome is Outcome.DIVERGED
    assert result.comparison.findings[0].place.op == "torch.argmax"


def custom_backward(gradient: Array) -> HandmadeRun:
    """A function of the user's whose backward is written in torch calls: they get what it was given."""
    run = HandmadeRun()
    inside = {"module": "model", "module_class": "Act"}
    forward = run.call("mylib.Act", reads={"args.0": run.value(X)}, makes={"output.0": X}, **inside)
    given = run.value(gradient)
    late = {"phase": "backward", **inside}
    back = run.call(
        "mylib.Act", kind="backward", forward=forward, role="grad_output", reads={"output.0": given}, **late
    )
    inner = run.call("torch.mul", reads={"args.0": given}, makes={"output.0": 2 * gradient}, parent=back, **late)
    run.use(back, "grad_input", "args.0", run.output(inner))
    return run


def test_a_gradient_is_not_explained_by_what_is_made_of_it(tmp_path: Path) -> None:
    """Nothing else in the trace differs: it must show, wherever it came from."""
    result = compared(tmp_path, custom_backward(X), custom_backward(disturbed(X, 0.3)))
    assert result.comparison.outcome is Outcome.DIVERGED
    assert result.comparison.findings[0].place.phase.value == "backward"


def test_a_loss_that_only_backward_shows_comes_from_the_model(tmp_path: Path) -> None:
    result = compared(tmp_path, loss_run(), loss_run(factor=1.0 + 5e-5))
    kinds = {finding.place.op for finding in result.comparison.findings}
    assert "torch.Tensor.backward" not in kinds
    wrong = compared(tmp_path / "wrong", loss_run(), loss_run(factor=1.5))
    assert "torch.Tensor.backward" in {finding.place.op for finding in wrong.comparison.findings}


def test_a_metric_that_no_tensor_has_is_nothing_compared(tmp_path: Path) -> None:
    runs = linear_run().write(tmp_path / "ref"), linear_run(out=disturbed(OUT, 1e-3)).write(tmp_path / "target")
    with pytest.raises(UlpscopeError, match="no pair of tensors has max_abs") as raised:
        compare(*runs, CompareOptions(standard="max_abs:0.1"))
    assert raised.value.code is ExitCode.NOTHING
    assert compare(*runs, CompareOptions(standard="relative_distance:0.1")).comparison.outcome is Outcome.AGREE
    assert compare(*runs, CompareOptions(standard="relative_distance:1e-5")).comparison.outcome is Outcome.DIVERGED


def test_a_mapping_pairs_tensors_of_calls_without_partners(tmp_path: Path) -> None:
    reference, target = HandmadeRun(), HandmadeRun()
    reference.call("lib.first", makes={"output.0": X})
    target.call("other.second", makes={"output.0": disturbed(X, 1e-2), "output.1": X})
    runs = reference.write(tmp_path / "ref"), target.write(tmp_path / "target")
    assert compare(*runs).comparison.outcome is Outcome.NOTHING_COMPARED
    mapping = tmp_path / "map.yaml"
    mapping.write_text("tensors:\n  lib.first.0 output.0: other.second.0 output.0\n  a.0 x: b.0 x\n", encoding="utf-8")
    comparison = compare(*runs, CompareOptions(mapping=mapping)).comparison
    assert comparison.outcome is Outcome.DIVERGED
    assert [sentence for sentence in comparison.missing if "'b.0'" in sentence]


def test_values_that_a_trace_has_lost_are_not_blamed(tmp_path: Path) -> None:
    runs = linear_run().write(tmp_path / "ref"), linear_run(out=disturbed(OUT, 1e-3)).write(tmp_path / "target")
    (values,) = runs[1].glob("rank0/step0/values-*.parquet")
    kept = pl.read_parquet(values)
    weight = kept.filter(pl.col("shape") == [30, 40])["id"][0]
    kept.filter(pl.col("id") != weight).write_parquet(values)
    comparison = compare(*runs).comparison
    assert comparison.findings == ()
    assert dict(comparison.scope.not_compared)[LOST] > 0


def test_nan_that_only_one_run_has_is_an_overflow(tmp_path: Path) -> None:
    broken = OUT.copy()
    broken[3, 4] = np.nan
    (finding,) = compared(tmp_path, linear_run(), linear_run(out=broken)).comparison.findings
    assert finding.kind is FindingKind.OVERFLOW
    assert finding.evidence.overflow.not_finite == (0, 1)


def test_an_underflowing_dtype_rounds_coarsely(tmp_path: Path) -> None:
    """Elements near float16's smallest numbers have only a few bits: what that loses is rounding."""
    small = (numbers(60, 60) * 3e-7).astype(np.float32)
    reference, target = HandmadeRun(), HandmadeRun()
    for run, made, dtype in ((reference, small, "float32"), (target, small.astype(np.float16), "float16")):
        given = run.value(X)
        call = run.call("lib.cast", reads={"args.0": given})
        run.use(call, "output", "output.0", run.value(made, dtype=dtype, producer=call))
    assert compared(tmp_path, reference, target).comparison.outcome is Outcome.AGREE


@pytest.mark.parametrize("op", ["torch.Tensor.__rtruediv__", "torch.full"])
def test_a_limit_that_is_inf_is_no_overflow(tmp_path: Path, op: str) -> None:
    """clip_grad_norm_ with max_norm inf divides inf by the norm: what it was asked for."""

    def run(limit: float, made: float) -> HandmadeRun:
        clipping = HandmadeRun()
        stated: Any = limit if math.isfinite(limit) else {"$float": str(limit)}
        norm = clipping.value(np.array([4.0], dtype=np.float32))
        result = {"output.0": np.array([made], dtype=np.float32)}
        clipping.call(op, reads={"args.0": norm}, makes=result, arguments={"args": [{"$tensor": "args.0"}, stated]})
        return clipping

    asked = compared(tmp_path, run(1.0, 0.25), run(math.inf, math.inf))
    assert [finding.kind.value for finding in asked.comparison.findings] == ["computation"]
    overflowed = compared(tmp_path / "finite", run(1.0, 0.25), run(2.0, math.inf))
    assert [finding.kind.value for finding in overflowed.comparison.findings] == ["overflow"]
