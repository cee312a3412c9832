"""Attention masks of -10000: a fault of the softmax behind them is seen, where tensors were saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.saved_runs import SavedRun

from ulpscope.judge.masks import attention_mask
from ulpscope.records.ledger import Replay
from ulpscope.workflows.compare import CompareOptions, compare

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)
SCORES = 3 * RANDOM.standard_normal((4, 64, 64))
MASK = np.broadcast_to(np.where(RANDOM.random((4, 1, 64)) < 0.4, -10000.0, 0.0), SCORES.shape)


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def attention(dtype: str, *, temperature: float = 1.0) -> SavedRun:
    run = SavedRun()
    added = SCORES.astype(dtype) + MASK.astype(dtype)
    given = {"args.0": run.value(SCORES, dtype=dtype), "args.1": run.value(MASK, dtype=dtype)}
    add = run.call("torch.add", reads=given, makes={"output.0": added}, module="model")
    made = softmax(added.astype(np.float64) / temperature).astype(dtype)
    run.call("torch.softmax", reads={"args.0": run.output(add)}, makes={"output.0": made}, module="model")
    return run


@pytest.mark.parametrize(("temperature", "verdict"), [(1.0, "agree"), (1.1, "diverged"), (2.0, "diverged")])
def test_a_softmax_behind_a_mask_is_judged_by_its_scores(tmp_path: Path, temperature: float, verdict: str) -> None:
    saved = {"level": "api", "save": "tensors"}
    reference = attention("float32").write(tmp_path / "reference", capture=saved)
    target = attention("float16", temperature=temperature).write(tmp_path / "target", capture=saved)
    result = compare(reference, target, CompareOptions(replay=Replay.OFF))
    assert result.verdict == verdict
    assert [finding.op for finding in result.findings] == (["torch.softmax"] if temperature != 1.0 else [])


def test_what_is_no_mask_is_not_set_aside() -> None:
    scores, whole_row, far = np.array([[1.0, -10000], [2, 3]]), np.full((2, 2), -10000.0), np.array([[-1e4, 1000]])
    found = attention_mask(scores, scores + 0.5)
    assert found is not None
    assert found.tolist() == [[False, True], [False, False]]
    assert attention_mask(scores, np.array([[1.0, -1], [2, 3]])) is None
    assert attention_mask(whole_row, whole_row) is None
    assert attention_mask(np.vstack([scores, whole_row]), np.vstack([scores, whole_row])) is None
    assert attention_mask(far, far) is None
    assert attention_mask(np.array(-1e4), np.array(-1e4)) is None
