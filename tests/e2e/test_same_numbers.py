"""A captured run computes what the plain one does: a quick sample of benchmarks/same_numbers.py."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SAMPLE = (
    "gpt",
    "gpt_inference",
    "cnn",
    "lstm",
    "encoder_no_grad",
    "encoder_inference",
    "attention_training",
    "attention_eval",
    "mixture_of_experts",
    "checkpoint_reentrant",
    "checkpoint_saved_hooks",
    "autocast",
    "grad_scaler",
    "custom_function",
    "in_place",
    "stale_views",
    "adamw_fused",
    "lbfgs",
    "tensor_hooks",
    "dropout",
    "embedding_max_norm",
    "parametrized",
    "packed_sequences",
    "upsampler",
    "masked_attention",
    "averaged_weights",
    "optimizer_in_backward",
    "every_hook",
    "caught_exceptions",
    "residual_in_place",
    "returned_inputs",
    "written_views_of_modules",
    "sparse_gradients",
    "functional_weights",
    "scripted",
    "sgd_by_hand",
    "default_device",
    "vmap_in_forward",
)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    torch.set_num_threads(1)
    return importlib.import_module("same_numbers")


@pytest.mark.parametrize("model", SAMPLE)
def test_numbers_are_the_same(benchmark: ModuleType, model: str) -> None:
    setting = benchmark.Setting(steps=2)
    for outcome in benchmark.check(model, setting, benchmark.QUICK):
        assert outcome.passed, "\n".join([outcome.row(), *outcome.details()])


@pytest.mark.parametrize("model", ["gpt", "lstm", "in_place"])
def test_numbers_are_the_same_at_kernel_level_with_data(benchmark: ModuleType, model: str) -> None:
    (outcome,) = benchmark.check(model, benchmark.Setting(steps=1), [benchmark.Variant("kernel", "tensors")])
    assert outcome.passed, "\n".join([outcome.row(), *outcome.details()])


def test_a_changed_bit_is_seen(benchmark: ModuleType, tmp_path: Path) -> None:
    plain = {"zero": torch.tensor([0.0]), "nan": torch.tensor([float("nan")])}
    changed = {"zero": torch.tensor([-0.0]), "nan": plain["nan"].clone()}
    outcome = benchmark.compare("made up", benchmark.QUICK[0], plain, changed, tmp_path)
    assert outcome.different == ["zero"]
    assert not outcome.passed


def test_a_run_that_left_no_trace_does_not_pass(benchmark: ModuleType, tmp_path: Path) -> None:
    same = {"zero": torch.tensor([0.0])}
    assert not benchmark.compare("made up", benchmark.QUICK[0], same, same, tmp_path).passed
