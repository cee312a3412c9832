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


def trained(dtype: str, loss: float) -> HandmadeRun:
    """A loss of 64 rows of logits that one run stores in float16, with the gradients of both."""
    random, made = np.random.default_rng(0), HandmadeRun()
    exact = random.standard_normal((64, 64))
    likely = np.exp(exact) / np.exp(exact).sum(axis=1, keepdims=True)
    gradient = ((likely - np.eye(64)) / 64).astype(np.float32)
    given = made.value(random.standard_normal((64, 16)))
    linear = made.call("torch.nn.functional.linear", reads={"args.0": given}, module="model")
    logits = made.value(exact, dtype=dtype, producer=linear)
    made.use(linear, "output", "output.0", logits)
    entropy = made.call(
        "torch.nn.functional.cross_entropy", reads={"args.0": logits}, makes={"output.0": np.float32(loss)}
    )
    made.call("torch.Tensor.backward", reads={"args.0": made.output(entropy)}, role="loss", phase="backward")
    back = {"kind": "backward", "phase": "backward"}
    sent = made.call(
        "torch.nn.functional.cross_entropy", makes={"args.0": gradient}, made_role="grad_input", forward=entropy, **back
    )
    made.call(
        "torch.nn.functional.linear",
        reads={"output.0": made.output(sent, "args.0")},
        role="grad_output",
        forward=linear,
        **back,
    )
    return made


@pytest.mark.parametrize(("loss", "outcome"), [(4.0002, Outcome.AGREE), (4.003, Outcome.DIVERGED)])
def test_what_rounding_makes_of_a_loss_is_told_from_gradients(tmp_path: Path, loss: float, outcome: Outcome) -> None:
    """Two roundoffs of float16 may be beyond all noise: the errors of 4096 logits are not all of one sign."""
    folders = trained("float32", 4.0).write(tmp_path / "r"), trained("float16", loss).write(tmp_path / "t")
    comparison = compare(*folders).comparison
    assert comparison.outcome is outcome
    assert 4.003 / 4.0 - 1.0 < 2 * 2.0**-11
    assert [found.place.op for found in comparison.findings] == ["torch.nn.functional.cross_entropy"] * len(
        comparison.findings
    )
