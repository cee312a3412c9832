"""Each backward belongs to its forward: a quick sample of benchmarks/pairing.py."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ulpscope.capture.torch.watching.pairing import Pairing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SAMPLE = (
    "gpt",
    "cnn",
    "lstm",
    "encoder_training",
    "attention_training",
    "mixture_of_experts",
    "checkpoint_reentrant",
    "checkpoint_saved_hooks",
    "autocast",
    "grad_scaler",
    "custom_function",
    "in_place",
    "tied_weights",
    "structured",
    "double_backward",
    "tensor_hooks",
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
)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    torch.set_num_threads(1)
    return importlib.import_module("pairing")


@pytest.mark.parametrize("model", SAMPLE)
def test_every_call_replayed_alone_has_the_captured_gradients(benchmark: ModuleType, model: str) -> None:
    result = benchmark.score(benchmark.SCENARIOS[model], benchmark.Setting(steps=1))
    assert result.passed, "\n".join([result.row(), *result.details()])


def test_a_wrong_gradient_is_seen(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Pairing._use_gradient

    def doubled(self: Pairing, run: Any, places: list[str], gradient: torch.Tensor) -> None:
        original(self, run, places, gradient * 2)

    monkeypatch.setattr(Pairing, "_use_gradient", doubled)
    result = benchmark.score(benchmark.SCENARIOS["sgd_clipped"], benchmark.Setting(steps=1))
    assert result.bad
    assert not result.passed


def test_a_backward_that_was_missed_is_seen(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Pairing.attach

    def attach(self: Pairing, forward: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [] if forward.op == "torch.tanh" else original(self, forward, *args, **kwargs)

    monkeypatch.setattr(Pairing, "attach", attach)
    result = benchmark.score(benchmark.SCENARIOS["sgd_clipped"], benchmark.Setting(steps=1))
    assert ["torch.tanh" in line for line in result.unpaired] == [True]


@pytest.mark.parametrize("name", ["torch.os.system", "torch.nothing.here", "torch.nn.Module"])
def test_a_trace_cannot_name_other_functions(benchmark: ModuleType, name: str) -> None:
    with pytest.raises(benchmark.CannotReplayError):
        importlib.import_module("replaying").resolve(name, {})
