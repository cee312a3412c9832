"""Numbers of 2**29 and more, which summaries set aside, and doubles: what is known is compared, the rest told."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.handmade import HandmadeRun
from tests.unit.saved_runs import SavedRun

from ulpscope.records.enums import ExitCode
from ulpscope.records.evidence import Replay
from ulpscope.report.words.language import Language
from ulpscope.workflows.compare.command import CompareOptions, CompareResult, compare

MUL, MATMUL, SUB = "torch.mul", "torch.matmul", "torch.sub"
Array = NDArray[Any]
NORMAL = np.random.default_rng(7).normal(size=4096)
PLAIN = np.random.default_rng(8).normal(size=4096)


def one_call(
    tmp_path: Path, read: Array, made: tuple[Array, Array], *, op: str = MUL, saved: bool = False, **options: Any
) -> CompareResult:
    """Two runs of one call, which read the same; what each of them made of it."""
    for name, content in zip(("reference", "target"), made, strict=True):
        run = SavedRun() if saved else HandmadeRun()
        given = run.value(read, dtype=str(read.dtype))
        run.call(op, reads={"args.0": given}, makes={"output.0": content}, module="model")
        run.write(tmp_path / name, capture={"level": "api", "save": "tensors" if saved else "stats"})
    return compare(tmp_path / "reference", tmp_path / "target", CompareOptions(**options))


def is_found(result: CompareResult) -> bool:
    return result.verdict == "diverged" and result.findings[0].call == f"{MUL}.0"


@pytest.mark.parametrize("factor", [100.0, 1.5, 2.0, -1.0])
@pytest.mark.parametrize(
    "values",
    [
        NORMAL.clip(0.6, 4) * 1e9,
        NORMAL.clip(0.6, 4) * 1e10,
        NORMAL * 1e9,
        np.where(np.arange(4096) % 7 == 0, NORMAL * 1e10, PLAIN),
        NORMAL * 2e8,
    ],
    ids=["large", "larger", "both-signs", "among-small", "across"],
)
def test_a_factor_on_large_numbers_is_found(tmp_path: Path, values: Array, factor: float) -> None:
    values = values.astype(np.float32)
    assert is_found(one_call(tmp_path, values, (values, (values * factor).astype(np.float32))))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [2.0**29, 1e10, 1e30])
def test_rounding_of_large_numbers_agrees(tmp_path: Path, size: float, dtype: str) -> None:
    """Also where it moves a number across 2**29."""
    values = (NORMAL * size).astype(dtype)
    values[:100] = np.nextafter(np.asarray(2.0**29, dtype=dtype), 0)
    other = np.nextafter(values, np.where(np.arange(4096) % 2, np.inf, -np.inf).astype(dtype))
    assert (other >= 2.0**29).sum() > (values >= 2.0**29).sum()
    assert one_call(tmp_path, values, (values, other)).verdict == "agree"


def between(values: Array) -> Array:
    """The same with some numbers exchanged that are neither the least nor the largest."""
    inner = np.argsort(values)[len(values) // 4 : -len(values) // 4]
    other = values.copy()
    other[inner] = values[inner[::-1]]
    return other


def test_what_lies_between_the_extremes_is_unresolved(tmp_path: Path) -> None:
    values = (NORMAL.clip(0.6, 4) * 1e9).astype(np.float32)
    result = one_call(tmp_path, values, (values, between(values)))
    counts = result.comparison.counts
    assert (result.verdict, counts.unresolved, counts.rounding) == ("agree", 1, 0)
    assert result.json()["scope"]["unresolved"][0]["tensors"] == 1
    first, *rest = result.text(width=200).splitlines()
    assert "1 of 2 tensors" in first
    assert any("2^29" in line and "not known" in line for line in rest)
    assert "2^29" in result.text(width=200, language=Language.ZH)
    required = one_call(tmp_path / "all", values, (values, between(values)), require_all=True)
    assert (required.verdict, required.code) == ("incomplete", ExitCode.DIFFERENCE)


def test_saved_data_decides_what_lies_between(tmp_path: Path) -> None:
    values = (NORMAL.clip(0.6, 4) * 1e9).astype(np.float32)
    result = one_call(tmp_path, values, (values, between(values)), saved=True, replay=Replay.OFF)
    assert is_found(result)
    assert result.comparison.counts.unresolved == 0


def test_what_cannot_be_told_carries_the_error_of_what_it_was_made_of(tmp_path: Path) -> None:
    """The input is noisy, what is made of it cannot be told, and what follows is as noisy as the input."""
    noise = 1e-3 * np.random.default_rng(9).normal(size=4096)
    large = (NORMAL.clip(0.6, 4) * 1e9).astype(np.float32)
    for name, moved, made in (("reference", 0.0, large), ("target", 1.0, between(large))):
        run = HandmadeRun()
        given = run.value(PLAIN.astype(np.float32))
        noisy = run.call(
            "torch.relu", reads={"args.0": given}, makes={"output.0": (PLAIN * (1 + moved * noise)).astype(np.float32)}
        )
        product = run.call(MUL, reads={"args.0": run.output(noisy)}, makes={"output.0": made})
        last = (NORMAL * (1 + moved * noise[::-1])).astype(np.float32)
        run.call("torch.tanh", reads={"args.0": run.output(product)}, makes={"output.0": last})
        run.write(tmp_path / name)
    result = compare(tmp_path / "reference", tmp_path / "target")
    assert [finding.call for finding in result.findings] == ["torch.relu.0"]
    judged = dict(result.pairs.filter(role="output").select("call_target", "judgement").iter_rows())
    assert judged == {"torch.relu.0": "made_here", f"{MUL}.0": "inherited", "torch.tanh.0": "inherited"}


@pytest.mark.parametrize(("mask", "other"), [(-1e9, -1e9), (-3.4e38, -3.389e38), (-1e9, -9.99e8)])
def test_of_masks_only_the_scores_count(tmp_path: Path, mask: float, other: float) -> None:
    where = np.arange(4096) % 5 == 0
    scores, masked = PLAIN.astype(np.float32), np.where(where, mask, PLAIN).astype(np.float32)
    target = np.where(where, other, PLAIN * (1 + 1e-8 * NORMAL)).astype(np.float32)
    assert one_call(tmp_path / "sound", scores, (masked, target)).verdict == "agree"
    wrong = np.where(where, other, PLAIN * 1.5).astype(np.float32)
    assert is_found(one_call(tmp_path / "wrong", scores, (masked, wrong)))


def scaled_run(scale: float, *, factor: float = 1.0) -> HandmadeRun:
    """A backward under a loss scale, which is undone before the optimizer reads the gradients."""
    run = HandmadeRun()
    gradients = [(3000.0 * np.random.default_rng(seed).normal(size=512)).astype(np.float32) for seed in range(4)]
    net = run.call("Net", kind="module", module="model", module_class="Net")
    weight = run.value(PLAIN[:512].astype(np.float32))
    run.use(net, "parameter", "weight", weight)
    forwards = [
        run.call(MUL, reads={"args.0": weight}, makes={"output.0": PLAIN[:512].astype(np.float32)}, parent=net)
        for _ in gradients
    ]
    for place, (forward, gradient) in enumerate(zip(forwards, gradients, strict=True)):
        backward = run.call(MUL, kind="backward", phase="backward", forward=forward)
        wrong = factor if place == 2 else 1.0
        came, went = gradient * np.float32(scale), gradient * np.float32(scale * wrong)
        run.use(backward, "grad_output", "grad_output.0", run.value(came))
        run.use(backward, "grad_input", "args.0", run.value(went, producer=backward))
    update = run.call("SGD", kind="optimizer", phase="update")
    run.use(update, "gradient", "weight", run.value(gradients[0]))
    return run


@pytest.mark.parametrize("scale", [2.0**16, 2.0**20, 2.0**24])
def test_a_loss_scale_that_makes_gradients_large_is_taken_out(tmp_path: Path, scale: float) -> None:
    scaled_run(1.0).write(tmp_path / "plain")
    scaled_run(scale).write(tmp_path / "scaled")
    assert compare(tmp_path / "plain", tmp_path / "scaled").verdict == "agree"
    scaled_run(scale, factor=1.5).write(tmp_path / "wrong")
    assert compare(tmp_path / "plain", tmp_path / "wrong").verdict == "diverged"
    assert compare(tmp_path / "scaled", tmp_path / "wrong").verdict == "diverged"


def test_doubles_are_told_apart_by_a_part_in_a_thousand_million(tmp_path: Path) -> None:
    assert is_found(one_call(tmp_path, NORMAL, (NORMAL, NORMAL * (1 + 1e-9))))
    assert is_found(one_call(tmp_path / "less", NORMAL, (NORMAL, NORMAL * (1 + 1e-13))))


def test_doubles_added_up_in_another_order_agree(tmp_path: Path) -> None:
    left, right = NORMAL.reshape(16, 256), np.random.default_rng(3).normal(size=(256, 300))
    product, other = left @ right, left[:, ::-1] @ right[::-1]
    assert not np.array_equal(product, other)
    for name, content in (("reference", product), ("target", other)):
        run = HandmadeRun()
        reads = {"args.0": run.value(left, dtype="float64"), "args.1": run.value(right, dtype="float64")}
        made = run.call(MATMUL, reads=reads, makes={"output.0": content})
        run.call(
            "torch.sum", reads={"args.0": run.output(made)}, makes={"output.0": np.array([math.fsum(content.flat)])}
        )
        run.write(tmp_path / name)
    result = compare(tmp_path / "reference", tmp_path / "target")
    assert (result.verdict, result.comparison.counts.unresolved) == ("agree", 0)


def test_doubles_of_an_older_trace_are_unresolved_and_told(tmp_path: Path) -> None:
    """Its sketches are float32: neither rounding nor a fault of 1e-9 is seen in them."""
    for name, content in (("reference", NORMAL), ("target", NORMAL * (1 + 1e-9))):
        run = HandmadeRun()
        run.call(MUL, reads={"args.0": run.value(NORMAL, dtype="float64")}, makes={"output.0": content})
        for row in run.values.values():
            row["sketch_rest"] = None
        run.write(tmp_path / name)
    result = compare(tmp_path / "reference", tmp_path / "target")
    assert (result.verdict, result.comparison.counts.unresolved) == ("agree", 1)
    assert "less than the sketch resolves" in result.text(width=200)
