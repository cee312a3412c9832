"""Long reads in the background: done once, told to all who ask, given up when nobody does."""

import threading
from typing import Any

import pytest

from ulpscope.workflows.report import tensor_answers as tensor_jobs
from ulpscope.workflows.report.tensor_answers import Done, Running, TensorJobs


def test_long_work_tells_how_far_it_is_and_is_done_once() -> None:
    jobs, told, go_on, times = TensorJobs(), threading.Event(), threading.Event(), []

    def work(advance: Any) -> str:
        times.append(1)
        advance(0.5)
        told.set()
        go_on.wait(60)
        return "done"

    first = jobs.ask("key", work, patience=0.0)
    assert isinstance(first, Running)
    assert told.wait(60)
    assert jobs.ask("key", work, patience=0.0) == Running(0.5)
    go_on.set()
    assert jobs.ask("key", work, patience=60) == Done("done")
    assert jobs.ask("key", work, patience=60) == Done("done")
    assert len(times) == 1
    jobs.close()


def test_work_that_failed_is_tried_again() -> None:
    jobs, outcomes = TensorJobs(), [ValueError("broken"), None]

    def work(advance: Any) -> str:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return "done"

    with pytest.raises(ValueError, match="broken"):
        jobs.ask("key", work, patience=60)
    assert jobs.ask("key", work, patience=60) == Done("done")
    jobs.close()


def test_work_that_nobody_asks_for_is_given_up_and_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, go_on, given_up = TensorJobs(), threading.Event(), threading.Event()

    def work(advance: Any) -> str:
        go_on.wait(60)
        try:
            advance(0.5)
        except Exception:
            given_up.set()
            raise
        return "done"

    monkeypatch.setattr(tensor_jobs, "FORGOTTEN_AFTER", -1.0)
    assert jobs.ask("key", work, patience=0.0) == Running(0.0)
    go_on.set()
    assert given_up.wait(60)
    # Whether this request meets the work that is just being given up, or begins it anew: it is no error.
    assert jobs.ask("key", work, patience=60) == Running(0.0)
    monkeypatch.setattr(tensor_jobs, "FORGOTTEN_AFTER", 60.0)
    while not isinstance(answer := jobs.ask("key", work, patience=60), Done):
        pass
    assert answer == Done("done")
    jobs.close()


def test_closing_stops_work_at_its_next_step() -> None:
    jobs, begun, closed, stopped = TensorJobs(), threading.Event(), threading.Event(), threading.Event()

    def work(advance: Any) -> None:
        begun.set()
        closed.wait(60)
        try:
            advance(0.5)
        except Exception:
            stopped.set()
            raise

    jobs.ask("key", work, patience=0.0)
    assert begun.wait(60)
    jobs.close()
    closed.set()
    assert stopped.wait(60)
