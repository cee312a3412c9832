"""Dumps of msprobe compared: the planted fault is named, the healthy bf16 run agrees."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.msprobe_dumps import forward, tensor, unpack, write_dump

from ulpscope.records.enums import ExitCode
from ulpscope.workflows.compare.command import CompareResult, compare

FAULTS = {
    "lm_mix_statistics": ("torch.nn.functional.layer_norm.3", "model.blocks.1.ln2"),
    "lm_L1_tensor": ("torch.nn.functional.layer_norm.3", None),
    "cnn_L0_statistics": ("BatchNorm2d.1", "model.bn2"),
    "cnn_L1_md5": ("torch.nn.functional.batch_norm.1", None),
}
HEALTHY = ("lm_mix_statistics", "cnn_L1_md5")


def compared(name: str, target: str, directory: Path) -> CompareResult:
    return compare(unpack(f"{name}_ref", directory), unpack(f"{name}_{target}", directory))


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_the_planted_fault_is_named(tmp_path: Path, name: str) -> None:
    result = compared(name, "bug", tmp_path)
    call, module = FAULTS[name]
    first = result.findings[0]
    assert (first.kind, first.phase, first.step) == ("computation", "forward", 0)
    assert (first.call, first.module) == (call, module)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_in_bf16_agrees(tmp_path: Path, name: str) -> None:
    result = compared(name, "bf16", tmp_path)
    assert result.findings == ()
    assert result.comparison.counts.tensors_compared > 100


def test_every_tensor_is_judged_or_has_a_reason(tmp_path: Path) -> None:
    result = compared("lm_mix_statistics", "bug", tmp_path)
    judged = result.pairs["judgement"].is_not_null()
    assert (judged | result.pairs["reason"].is_not_null()).all()
    left_out = sum(number for _, number in result.comparison.scope.not_compared)
    assert (judged.sum(), (~judged).sum()) == (result.comparison.counts.tensors_compared, left_out)


def test_saved_tensors_are_compared_as_data(tmp_path: Path) -> None:
    result = compared("lm_L1_tensor", "bug", tmp_path)
    assert result.findings[0].evidence["measured"] == "data"


def test_a_fault_in_two_processes(tmp_path: Path) -> None:
    result = compare(unpack("ddp_ref", tmp_path), unpack("ddp_bug", tmp_path))
    assert (result.findings[0].call, result.findings[0].module) == FAULTS["lm_mix_statistics"]
    assert result.comparison.scope.ranks == (0, 1)


def test_names_without_tensors_are_nothing_compared(tmp_path: Path) -> None:
    structure = unpack("structure", tmp_path)
    result = compare(structure, structure)
    assert (result.verdict, result.code) == ("nothing_compared", ExitCode.NOTHING)


def reserving_dump(directory: Path, reserved: float, *, read: str = "result", result: float = 2.5) -> Path:
    """A norm that returns its result and memory that it reserves for a backward; one of the two is read."""
    outputs = {"result": tensor(result), "reserved": tensor(reserved, shape=(4,))}
    data = {
        "Torch.norm.0.forward": forward([tensor(1.5)], list(outputs.values())),
        "Torch.relu.0.forward": forward([outputs[read]], [tensor(3.5)]),
    }
    write_dump(directory, data, level="L1")
    return directory


def test_an_output_that_nothing_reads_is_not_blamed(tmp_path: Path) -> None:
    result = compare(reserving_dump(tmp_path / "ref", 7.5), reserving_dump(tmp_path / "target", 0.0625))
    assert result.findings == ()
    assert result.comparison.scope.not_compared == (("outputs that nothing reads, beside one that agrees", 1),)


@pytest.mark.parametrize("wrong", [{"read": "reserved"}, {"result": 9.5}])
def test_an_output_that_is_read_is_blamed(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """Be it that it is read itself, or that what is read of its call does not agree either."""
    reference = reserving_dump(tmp_path / "ref", 7.5, read=wrong.get("read", "result"))
    result = compare(reference, reserving_dump(tmp_path / "target", 0.0625, **wrong))
    assert result.findings[0].call == "torch.norm.0"
