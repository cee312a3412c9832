"""A capture changes no bit of what TensorFlow computes, and records every loop without an error of its own."""

from pathlib import Path

import pytest

import tensorflow_loops as loops
import ulpscope
from ulpscope.trace.reader import open_trace

IN_GRAPHS = {
    "fit_graph",
    "fit_of_pipeline",
    "fit_mixed_bfloat16",
    "fit_recurrent",
    "function_step",
    "function_of_rows",
    "function_gan",
    "session_run",
    "session_with_references",
    "monitored_session",
}


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    loops.prepare()


@pytest.mark.parametrize("name", loops.LOOPS)
def test_a_capture_changes_no_bit(name: str, tmp_path: Path) -> None:
    plain = loops.run(name)
    with ulpscope.capture(tmp_path / "trace"):
        captured = loops.run(name)
    assert plain == loops.run(name)  # else there is nothing to compare with
    assert captured == plain
    (trace,) = open_trace(tmp_path / "trace").ranks
    assert trace.info.errors == ()
    assert trace.calls().collect()["step"].n_unique() >= loops.STEPS
    kinds = set(trace.calls().collect()["kind"])
    assert kinds >= ({"compiled"} if name in IN_GRAPHS else {"backward", "optimizer"})


@pytest.mark.parametrize("level", ["module", "kernel"])
@pytest.mark.parametrize("save", ["stats", "tensors"])
def test_nor_at_another_level_or_with_data(level: str, save: str, tmp_path: Path) -> None:
    plain = loops.run("eager")
    with ulpscope.capture(tmp_path / "trace", level=level, save=save, verify=True):
        assert loops.run("eager") == plain
    (trace,) = open_trace(tmp_path / "trace").ranks
    assert trace.info.errors == ()
    assert trace.info.coverage.summaries_wrong == 0
