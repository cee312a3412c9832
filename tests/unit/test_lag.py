"""A run waits for its trace where that is cheap, and is never far ahead of it."""

import threading
import time

import pytest

from ulpscope.capture.recording import limits as module
from ulpscope.capture.recording.limits import Lag


def written_later(lag: Lag) -> threading.Timer:
    timer = threading.Timer(0.02, lag.wrote)
    timer.start()
    return timer


def test_the_first_piece_is_waited_for_however_long_it_takes() -> None:
    lag = Lag()
    lag.add(on_device=False)
    timer = written_later(lag)
    lag.keep_up()
    assert timer.finished.is_set()


def test_waiting_ends_with_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    lag = Lag()
    lag.add(on_device=False)
    lag.wrote()
    lag.keep_up()
    lag._waited = module.FREE_SECONDS
    assert not lag.affordable
    lag.add(on_device=False)
    lag.keep_up()  # nobody writes: it would wait for ever
    now = 1.0
    assert lag.affordable


@pytest.mark.parametrize(("on_device", "ahead"), [(False, module.AHEAD), (True, module.AHEAD_ON_DEVICE)])
def test_a_run_is_never_further_ahead_than_this_even_where_nothing_is_affordable(on_device: bool, ahead: int) -> None:
    lag = Lag()
    lag.add(on_device=on_device)
    lag.wrote()
    lag._waited = 1e9
    for _ in range(ahead):
        lag.add(on_device=on_device)
        lag.keep_up()  # nobody writes: it would wait for ever
    lag.add(on_device=on_device)
    timer = written_later(lag)
    lag.keep_up()
    assert timer.finished.is_set()


def test_a_device_is_not_waited_for() -> None:
    lag = Lag()
    lag.add(on_device=True)
    began = time.monotonic()
    lag.keep_up()
    assert time.monotonic() - began < module.FREE_SECONDS
    assert not lag.affordable


def test_a_run_on_a_device_stays_one() -> None:
    lag = Lag()
    lag.add(on_device=True)
    lag.wrote()
    lag.add(on_device=False)  # the end of a step whose update was flushed has nothing of its own
    lag.wrote()
    assert not lag.affordable
