"""A sample of the scan of small faults; `python benchmarks/ledger_scan.py` does all of it."""

import contextlib
from pathlib import Path

import pytest
import torch

from ledger_scan import CLOSURE, Site, judge, train
from ulpscope.records.evidence import Replay


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scan")
    train(folder / "reference", torch.float32, contextlib.nullcontext())
    return folder


@pytest.mark.parametrize(
    ("fault", "site"),
    [
        ("scale", Site(5, "gelu")),
        ("column", Site(2, "ln")),
        ("element", Site(9, "fc1")),
        ("element", Site(0, "fc2")),
        ("none", None),
    ],
    ids=str,
)
def test_a_fault_below_the_noise_is_named_and_the_parts_add_up(work: Path, fault: str, site: Site | None) -> None:
    found = judge(work, fault, site, Replay.ON)
    assert found.named == found.call
    assert found.closure is not None
    assert abs(found.closure - 1) < CLOSURE
