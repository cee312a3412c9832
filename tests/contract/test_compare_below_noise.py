"""bfloat16 beside float32: what is told although no number stands out of the noise, and what is left alone.

Each pair of runs trains a network of four equal layers, of which one or all are changed in the second run.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from ulpscope.records.findings import Comparison, Finding, FindingKind, Outcome
from ulpscope.workflows.compare.command import compare

WIDTH, LAYERS = 32, 4
Change = Callable[["Layer", Tensor], Tensor]


class Layer(nn.Module):
    """A residual layer: `change` is what it has instead of its activation."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.down(self.change(self, self.up(self.norm(x))))
        return x + changed


class Net(nn.Module):
    def __init__(self, changes: Sequence[Change]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(change) for change in changes])
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        found: Tensor = self.head(x)
        return found


def usual(_layer: Layer, x: Tensor) -> Tensor:
    return functional.gelu(x)


def train(trace: Path, changes: Sequence[Change], *, cast: bool) -> Path:
    torch.manual_seed(0)
    model = Net(changes)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ulpscope.capture(trace, model=model):
        for _ in range(2):
            inputs, labels = torch.randn(48, WIDTH), torch.randint(0, 10, (48,))
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                logits = model(inputs)
            functional.cross_entropy(logits.float(), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            optimizer.zero_grad()
    return trace


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("reference") / "t", [usual] * LAYERS, cast=False)


@pytest.fixture(scope="module")
def cast_reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("cast") / "t", [usual] * LAYERS, cast=True)


def in_noise(reference: Path, folder: Path, changes: Sequence[Change]) -> Comparison:
    return compare(reference, train(folder / "target", changes, cast=True)).comparison


def in_one_layer(change: Change) -> list[Change]:
    return [usual, change, usual, usual]


def first(comparison: Comparison) -> Finding:
    assert comparison.outcome is Outcome.DIVERGED
    return comparison.findings[0]


def by_tanh(_layer: Layer, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def stated(_layer: Layer, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="none")


def quick(_layer: Layer, x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def centred(_layer: Layer, x: Tensor) -> Tensor:
    """What one layer makes of its rows' means is no operation on single elements."""
    y = functional.gelu(x)
    return y - 0.01 * y.mean(-1, keepdim=True)


def written_out(_layer: Layer, x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def sharp(_layer: Layer, x: Tensor) -> Tensor:
    return functional.softplus(x, 2.0)


def sharp_written_out(_layer: Layer, x: Tensor) -> Tensor:
    return torch.log1p(torch.exp(2.0 * x)) / 2.0


def in_many_steps(_layer: Layer, x: Tensor) -> Tensor:
    for _ in range(250):
        x = x + 0.001
    return x


def in_one_step(_layer: Layer, x: Tensor) -> Tensor:
    return torch.sub(x, -0.25)


def partly_detached(_layer: Layer, x: Tensor) -> Tensor:
    y = functional.gelu(x)
    return y * 0.7 + y.detach() * 0.3


def through_numpy(_layer: Layer, x: Tensor) -> Tensor:
    y = functional.gelu(x)
    return y + torch.from_numpy(0.01 * y.detach().float().numpy()).to(y.dtype)


def test_a_word_that_only_one_run_states_is_told(reference: Path, tmp_path: Path) -> None:
    told = first(in_noise(reference, tmp_path, in_one_layer(by_tanh)))
    assert told.place.module == "model.layers.1"
    assert [each.place for each in told.evidence.unlike.arguments] == ["kwargs.approximate"]


def test_a_word_that_means_what_is_unstated_is_none(reference: Path, tmp_path: Path) -> None:
    assert in_noise(reference, tmp_path, in_one_layer(stated)).outcome is Outcome.AGREE


def test_a_layer_that_makes_other_calls_than_its_siblings_is_told(reference: Path, tmp_path: Path) -> None:
    told = first(in_noise(reference, tmp_path, in_one_layer(centred)))
    assert (told.kind, told.place.module) == (FindingKind.STRUCTURE, "model.layers.1")
    assert any("mean" in name for name in told.evidence.one_run.only_target)


def test_another_formula_is_told_though_all_layers_have_it(reference: Path, tmp_path: Path) -> None:
    """Tried on the same numbers, the two differ by a hundredth: bfloat16 makes as much of what goes in."""
    told = first(in_noise(reference, tmp_path, [quick] * LAYERS))
    assert (told.kind, told.place.module) == (FindingKind.COMPUTATION, "model.layers.0")


def test_layers_that_are_all_written_otherwise_agree(reference: Path, tmp_path: Path) -> None:
    assert in_noise(reference, tmp_path, [written_out] * LAYERS).outcome is Outcome.AGREE


def test_an_argument_without_its_name_is_part_of_a_formula(tmp_path: Path) -> None:
    reference = train(tmp_path / "reference", [sharp] * LAYERS, cast=False)
    assert in_noise(reference, tmp_path, [sharp_written_out] * LAYERS).outcome is Outcome.AGREE


def test_a_formula_of_very_many_calls_is_not_followed(tmp_path: Path) -> None:
    reference = train(tmp_path / "reference", [in_many_steps], cast=False)
    assert in_noise(reference, tmp_path, [in_one_step]).outcome is Outcome.AGREE


@pytest.mark.parametrize("cast", [False, True])
def test_a_gradient_that_is_partly_stopped_is_told(reference: Path, tmp_path: Path, cast: bool) -> None:
    target = train(tmp_path / "target", in_one_layer(partly_detached), cast=cast)
    told = first(compare(reference, target).comparison)
    assert told.place.module == "model.layers.1"
    assert told.evidence.numbers.factor == pytest.approx(0.7, abs=0.01)


def test_a_factor_behind_calls_of_one_run_is_told(reference: Path, tmp_path: Path) -> None:
    told = first(in_noise(reference, tmp_path, [through_numpy] * LAYERS))
    assert told.place.module == "model.layers.0"
    assert told.evidence.numbers.factor == pytest.approx(1.01, abs=0.001)
