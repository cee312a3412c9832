"""What `compare` finds between two captured runs of which one has a fault, or none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn
from trained import (
    inf_in_output,
    other_eps,
    scaled_output,
    view,
    with_checkpoints,
    write,
    wrong_weight,
)

import ulpscope
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Finding, FindingKind, Outcome
from ulpscope.records.pairs import Measured
from ulpscope.workflows.compare.command import CompareResult, compare

Train = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def writer(folder: Path) -> Path:
    return write(folder / "writer")


@pytest.fixture(scope="module")
def viewer(folder: Path) -> Path:
    return view(folder / "viewer")


def answer(reference: Path, target: Path) -> Finding:
    """The first finding of a pair that must have some."""
    result = compare(reference, target)
    assert result.comparison.outcome is Outcome.DIVERGED
    assert result.code is ExitCode.DIFFERENCE
    return result.comparison.findings[0]


def check_agreement(result: CompareResult) -> None:
    assert result.comparison.findings == ()
    assert result.comparison.outcome is Outcome.AGREE
    assert result.code is ExitCode.OK
    assert result.comparison.counts.made_here == result.comparison.counts.inherited == 0
    assert result.comparison.counts.tensors_compared > 100


@pytest.mark.parametrize("train", [write, view])
def test_the_same_run_again_agrees_to_the_bit(train: Train, writer: Path, viewer: Path, tmp_path: Path) -> None:
    result = compare(writer if train is write else viewer, train(tmp_path / "again"))
    check_agreement(result)
    counts = result.comparison.counts
    assert counts.identical == counts.tensors_compared
    assert counts.calls_reference == counts.calls_target == counts.matched
    assert result.comparison.notes == ()


def test_another_eps_is_named_with_its_argument(writer: Path, tmp_path: Path) -> None:
    found = answer(writer, write(tmp_path / "t", other_eps))
    assert found.kind is FindingKind.COMPUTATION
    assert (found.place.step, found.place.phase.value, found.place.module) == (0, "forward", "model.blocks.1.norm2")
    assert found.place.op == "torch.nn.functional.layer_norm"
    (argument,) = found.evidence.unlike.arguments
    assert (float(argument.reference), float(argument.target)) == (1e-5, 0.1)
    assert found.evidence.numbers.error_in == 0.0
    assert found.evidence.numbers.measured is Measured.SKETCH


def test_another_eps_of_a_batch_norm_is_named(viewer: Path, tmp_path: Path) -> None:
    found = answer(viewer, view(tmp_path / "t", lambda model: setattr(model.bn2, "eps", 0.1)))
    assert (found.kind, found.place.module) == (FindingKind.COMPUTATION, "model.bn2")
    assert found.place.phase.value == "forward"
    assert [float(argument.target) for argument in found.evidence.unlike.arguments] == [0.1]


def test_an_output_that_a_hook_scales_is_named(writer: Path, tmp_path: Path) -> None:
    found = answer(writer, write(tmp_path / "t", scaled_output))
    assert found.kind is FindingKind.COMPUTATION
    assert (found.place.step, found.place.phase.value, found.place.module) == (0, "forward", "model.blocks.0.up")
    assert found.place.op is not None
    assert found.place.op.endswith(".mul")
    assert found.place.source is not None
    assert "trained.py:" in found.place.source


def test_a_wrong_weight_is_a_parameter(writer: Path, tmp_path: Path) -> None:
    found = answer(writer, write(tmp_path / "t", wrong_weight))
    assert found.kind is FindingKind.PARAMETER
    assert (found.place.module, found.place.tensor, found.place.step) == ("model.blocks.1.down", "weight", 0)
    assert found.evidence.history.parameters == ("model.blocks.1.down.weight",)


def test_another_batch_is_an_input(writer: Path, tmp_path: Path) -> None:
    found = answer(writer, write(tmp_path / "t", data=9))
    assert found.kind is FindingKind.INPUT
    assert found.place.step == 0


def test_another_seed_is_randomness(tmp_path: Path) -> None:
    runs = [write(tmp_path / f"seed {seed}", seed=seed, dropout=0.3) for seed in (1, 2)]
    found = answer(*runs)
    assert found.kind is FindingKind.RANDOMNESS
    assert (found.place.module, found.place.step) == ("model.blocks.0.drop", 0)
    assert found.evidence.unlike.generators is not None
    assert len(set(found.evidence.unlike.generators)) == 2


def test_another_learning_rate_is_the_optimizers(writer: Path, tmp_path: Path) -> None:
    found = answer(writer, write(tmp_path / "t", lr=0.07))
    assert (found.kind, found.place.step, found.place.phase.value) == (FindingKind.OPTIMIZER, 0, "update")
    (argument,) = [argument for argument in found.evidence.unlike.arguments if argument.place.endswith("lr")]
    assert (float(argument.reference), float(argument.target)) == (0.05, 0.07)


def test_a_planted_inf_is_an_overflow(writer: Path, tmp_path: Path) -> None:
    found = answer(writer, write(tmp_path / "t", inf_in_output))
    assert (found.kind, found.place.module) == (FindingKind.OVERFLOW, "model.blocks.1.up")
    assert (found.place.step, found.place.phase.value) == (0, "forward")
    assert found.evidence.overflow.not_finite == (0, 18)


def test_bfloat16_autocast_agrees_with_float32(writer: Path, tmp_path: Path) -> None:
    result = compare(writer, write(tmp_path / "t", autocast=True))
    check_agreement(result)
    assert result.comparison.counts.identical < result.comparison.counts.tensors_compared
    dtypes = [note.evidence.unlike.dtypes for note in result.comparison.notes if note.kind is FindingKind.DTYPE]
    assert ("float32", "bfloat16") in dtypes


def test_a_fault_is_found_under_autocast(writer: Path, tmp_path: Path) -> None:
    found = answer(writer, write(tmp_path / "t", scaled_output, autocast=True))
    assert (found.kind, found.place.module) == (FindingKind.COMPUTATION, "model.blocks.0.up")


@pytest.mark.parametrize("checkpointed_first", [False, True])
def test_checkpointing_changes_nothing(writer: Path, tmp_path: Path, checkpointed_first: bool) -> None:
    runs = [writer, write(tmp_path / "t", with_checkpoints)]
    result = compare(*reversed(runs)) if checkpointed_first else compare(*runs)
    check_agreement(result)
    side = "reference" if checkpointed_first else "target"
    (rank,) = result.plan.ranks
    assert getattr(rank.calls, side)["recompute"].any()
    backwards = result.pairs.filter(pl.col("kind") == "backward")
    assert backwards.filter(pl.col("module").str.starts_with("model.blocks")).height > 20


def test_a_fault_is_found_with_checkpointing_on_one_side(writer: Path, tmp_path: Path) -> None:
    def both(model: nn.Module) -> None:
        with_checkpoints(model)
        other_eps(model)

    found = answer(writer, write(tmp_path / "t", both))
    assert (found.kind, found.place.module) == (FindingKind.COMPUTATION, "model.blocks.1.norm2")
    assert found.place.phase.value == "forward"


def test_another_memory_format_agrees(viewer: Path, tmp_path: Path) -> None:
    check_agreement(compare(viewer, view(tmp_path / "t", channels_last=True)))


@pytest.mark.parametrize(
    ("fault", "module"), [(other_eps, "model.blocks.1.norm2"), (scaled_output, "model.blocks.0.up")]
)
def test_traces_of_modules_find_the_module(tmp_path: Path, fault: Any, module: str) -> None:
    runs = [write(tmp_path / "r", level="module"), write(tmp_path / "t", fault, level="module")]
    found = answer(*runs)
    assert (found.kind, found.place.module, found.place.step) == (FindingKind.COMPUTATION, module, 0)
    assert found.place.phase.value == "forward"


def test_traces_of_modules_agree(tmp_path: Path) -> None:
    result = compare(write(tmp_path / "r", level="module"), write(tmp_path / "t", autocast=True, level="module"))
    assert result.comparison.findings == ()
    assert result.comparison.counts.tensors_compared > 50


def test_saved_tensors_are_measured(tmp_path: Path) -> None:
    runs = [write(tmp_path / "r", save="tensors", steps=1), write(tmp_path / "t", other_eps, save="tensors", steps=1)]
    result = compare(*runs)
    found = result.comparison.findings[0]
    assert (found.place.module, found.evidence.numbers.measured) == ("model.blocks.1.norm2", Measured.DATA)
    measured = dict(result.comparison.scope.measured)
    assert measured[Measured.DATA] > 20
    assert Measured.SKETCH not in measured
    shape = (3, 6, 16)
    assert found.evidence.numbers.worst is not None
    assert all(0 <= place < size for place, size in zip(found.evidence.numbers.worst, shape, strict=True))
    row = result.pairs.filter(pl.col("judgement") == "made_here").row(0, named=True)
    assert row["error"] == pytest.approx(row["relative_distance"])
    assert row["max_abs"] > 0


def test_an_estimate_is_near_what_the_data_says(tmp_path: Path, writer: Path) -> None:
    saved = [
        write(tmp_path / "r", save="tensors", steps=1),
        write(tmp_path / "t", scaled_output, save="tensors", steps=1),
    ]
    exact = answer(*saved).evidence
    estimated = answer(writer, saved[1]).evidence
    assert exact.numbers.error_out == pytest.approx(0.1, rel=1e-3)
    assert estimated.numbers.error_out == pytest.approx(0.1, rel=4 * 0.09)


def test_nothing_in_common_is_an_error_of_its_own(tmp_path: Path) -> None:
    runs = [write(tmp_path / step, steps=3, level="module", only_steps=step) for step in ("0", "2")]
    with pytest.raises(UlpscopeError, match="no common step") as raised:
        compare(*runs)
    assert raised.value.code is ExitCode.NOTHING


def test_a_later_step_is_found_too(writer: Path, tmp_path: Path) -> None:
    """The fault begins with the second forward."""

    def late(model: nn.Module) -> None:
        seen: list[int] = []

        def hook(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor | None:
            seen.append(1)
            return output * 1.2 if len(seen) == 2 else None

        model.blocks[1].proj.register_forward_hook(hook)  # type: ignore[index, union-attr]

    found = answer(writer, write(tmp_path / "t", late))
    assert (found.place.step, found.place.module) == (1, "model.blocks.1.proj")


def test_another_slice_of_the_data_is_another_input(tmp_path: Path) -> None:
    def run(name: str, first: int) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(64, 8)
        with ulpscope.capture(tmp_path / name, model=model):
            for start in range(first, first + 24, 8):
                optimizer.zero_grad()
                model(data[start : start + 8]).square().mean().backward()
                optimizer.step()
        return tmp_path / name

    found = answer(run("r", 0), run("t", 8))
    assert (found.kind, found.place.op) == (FindingKind.INPUT, "torch.Tensor.__getitem__")


def test_kernels_that_were_captured_alone_are_compared(tmp_path: Path) -> None:
    def run(name: str, factor: float) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        with ulpscope.capture(tmp_path / name, model=model, level="kernel", only=["aten.addmm*", "aten.mm*"]):
            (model(torch.ones(4, 8)) * factor).square().mean().backward()
        return tmp_path / name

    reference = run("r", 1.0)
    same = compare(reference, run("same", 1.0)).comparison
    assert (same.outcome, same.counts.matched) == (Outcome.AGREE, 5)
    assert answer(reference, run("t", 1.5)).place.op == "aten.mm.default"


def test_errors_that_nobody_made_began_where_the_runs_cannot_be_followed(tmp_path: Path) -> None:
    def train(out: Path, *, shifted: bool) -> Path:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 50))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        words = torch.randint(0, 50, (4, 16), generator=torch.Generator().manual_seed(1))
        with ulpscope.capture(out, model=net):
            for _ in range(2):
                logits = net(words)
                scores, wanted = (logits[:, :-1], words[:, 1:]) if shifted else (logits, words)
                loss = nn.functional.cross_entropy(scores.reshape(-1, 50), wanted.reshape(-1), reduction="sum") / 60
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return out

    found = answer(train(tmp_path / "reference", shifted=True), train(tmp_path / "target", shifted=False))
    assert found.place.phase.value == "forward"
    assert found.evidence.unlike.shapes == ((60, 50), (64, 50))
    assert any("__getitem__" in name for name in found.evidence.one_run.only_reference)


def test_what_a_closure_runs_comes_before_the_update(tmp_path: Path) -> None:
    def train(out: Path, *, autocast: bool, eps: float = 1e-5) -> Path:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64, eps=eps), nn.Linear(64, 50))
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        data = torch.Generator().manual_seed(1)
        with ulpscope.capture(out, model=net):
            for _ in range(3):
                given, wanted = torch.randn(8, 32, generator=data), torch.randint(0, 50, (8,), generator=data)

                def closure(given: torch.Tensor = given, wanted: torch.Tensor = wanted) -> torch.Tensor:
                    optimizer.zero_grad()
                    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                        made = net(given)
                    loss = nn.functional.cross_entropy(made.float(), wanted)
                    loss.backward()
                    return loss

                optimizer.step(closure)  # type: ignore[arg-type]
        return out

    reference = train(tmp_path / "reference", autocast=False)
    assert compare(reference, train(tmp_path / "target", autocast=True)).comparison.outcome is Outcome.AGREE
    found = answer(reference, train(tmp_path / "wrong", autocast=True, eps=1e-2))
    assert (found.place.module, found.place.op) == ("model.2", "torch.nn.functional.layer_norm")
