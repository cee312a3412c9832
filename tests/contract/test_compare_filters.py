"""Runs that were captured with other filters: what one trace leaves out is no call that only the other run makes."""

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest
import torch
from torch import nn

import ulpscope
from ulpscope.records.findings import FindingKind, Outcome
from ulpscope.workflows.compare.command import compare

torch.set_num_threads(1)
FILTERS: dict[str, dict[str, Sequence[str]]] = {
    "all": {},
    "only_linear": {"only": ["*linear*"]},
    "only_first": {"only": ["model.0*"]},
    "skip_gelu": {"skip": ["*gelu*"]},
    "skip_norm": {"skip": ["*layer_norm*", "*LayerNorm*"]},
    "skip_loss": {"skip": ["*loss*"]},
    "skip_optimizer": {"skip": ["*optim*"]},
}


def train(trace: Path, filters: dict[str, Sequence[str]], *, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ulpscope.capture(trace, model=model, **filters):
        for step in range(2):
            inputs = torch.randn(12, 8, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs) * factor, torch.ones(12, 4))
            loss.backward()
            optimizer.step()
    return trace


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("filtered")
    return {name: train(folder / name, filters) for name, filters in FILTERS.items()}


@pytest.mark.parametrize("names", list(permutations(FILTERS, 2)), ids="-".join)
def test_what_a_filter_leaves_out_is_no_difference(traces: dict[str, Path], names: tuple[str, str]) -> None:
    comparison = compare(*(traces[name] for name in names)).comparison
    assert comparison.outcome in (Outcome.AGREE, Outcome.NOTHING_COMPARED)
    assert comparison.scope.filters is not None
    assert not [note for note in comparison.notes if note.kind is FindingKind.STRUCTURE]


def test_a_fault_is_found_beside_other_filters(traces: dict[str, Path], tmp_path: Path) -> None:
    wrong = train(tmp_path / "wrong", FILTERS["skip_gelu"], factor=1.5)
    assert compare(traces["all"], wrong).comparison.outcome is Outcome.DIVERGED
