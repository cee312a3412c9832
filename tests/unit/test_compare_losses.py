"""A first loss that is off by more than noise is never in agreement, whatever is known of what it was made of."""

from pathlib import Path

import numpy as np
import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.records.findings import Outcome
from ulpscope.workflows.compare.command import compare


def run(loss: float) -> HandmadeRun:
    """The loss is made of something that was lost with a part of the trace."""
    made, logits = HandmadeRun(), 999
    made.call("torch.nn.Linear", kind="module", module="model", makes={"output.0": np.ones((4, 8))})
    call = made.call(
        "torch.nn.functional.cross_entropy", reads={"args.0": logits}, makes={"output.0": np.float32(loss)}
    )
    made.call("torch.Tensor.backward", reads={"args.0": made.output(call)}, role="loss", phase="backward")
    return made


@pytest.mark.parametrize(("loss", "outcome"), [(2.0 + 2e-7, Outcome.AGREE), (2.2, Outcome.DIVERGED)])
def test_a_loss_beyond_noise_is_told(tmp_path: Path, loss: float, outcome: Outcome) -> None:
    comparison = compare(run(2.0).write(tmp_path / "r"), run(loss).write(tmp_path / "t")).comparison
    assert comparison.outcome is outcome
    assert [found.place.op for found in comparison.findings] == ["torch.nn.functional.cross_entropy"] * len(
        comparison.findings
    )
