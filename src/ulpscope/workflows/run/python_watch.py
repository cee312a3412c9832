"""`ulpscope.watch(...)`: record gradients, or steps in which numbers overflow, or modules and updates, of a training.

watch = ulpscope.watch(model, optimizer, out="runs/ref")
for batch in data:
    train_step(batch)
watch.close()
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ulpscope.records.anomalies import Anomaly
from ulpscope.records.enums import Level, Watch
from ulpscope.records.runs import CaptureSettings, GradientWatch, OverflowWatch, TrainingWatch
from ulpscope.workflows.run.earlier import earlier_training
from ulpscope.workflows.run.python_capture import Capture, named_models, options_of


class Watching(Capture):
    """Goes on until it is closed, its `with` ends, or the process does."""

    anomalies: list[Anomaly]
    """Of a watched training, those that were found so far."""

    def begin(self, optimizers: Sequence[Any]) -> None:
        """Watch from now on; these optimizers alone, if there are any."""
        self.anomalies = []
        super().__enter__()
        assert self._session is not None
        self._session.hear_by(self._hear)
        if optimizers:
            self._session.watch_only(optimizers)
        self._owner = os.getpid()
        atexit.register(self.close)

    def say_by(self, say: Callable[[str], None]) -> None:
        """What an overflow is told by, in the place of stderr."""
        if self._session is not None:
            self._session.say_by(say)

    def _hear(self, found: Mapping[str, Any]) -> None:
        from ulpscope.report.terminal.anomalies import anomaly_text
        from ulpscope.trace.trainings.written import anomaly_from

        self.anomalies.append(anomaly_from(dict(found)))
        print(f"ulpscope: {anomaly_text(self.anomalies[-1])}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Write what is left, and watch no longer."""
        atexit.unregister(self.close)
        if os.getpid() == self._owner:  # a forked process has inherited it
            self.__exit__(None, None, None)

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *error: Any) -> None:
        atexit.unregister(self.close)
        super().__exit__(*error)
        self._session = None


def watch(
    model: Any = None,
    optimizer: Any = None,
    *,
    out: str | Path,
    what: str = "gradients",
    level: str = "api",
    steps: str | Sequence[int] | None = None,
    ranks: str | Sequence[int] | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    bounds: Sequence[float] = (),
    signs: bool = False,
    overflows: int = 1,
    stop_on_overflow: bool = False,
    ring: int = 0,
    every: int = 1,
    control: str | Path | None = None,
    like: str | Path | None = None,
    max_disk: int | None = None,
    overwrite: bool = False,
) -> Watching:
    """Watch gradients (or `what="overflow"`, `what="training"`) from now on; `model` and `optimizer` may be several.

    Both may be left out. `bounds` and `signs` are of gradients; `level`, `overflows`, `stop_on_overflow` and `ring`
    (bytes) of overflows; `every`, `control` and `like` of trainings, whose anomalies are told on stderr and kept in
    `.anomalies`.
    """
    is_training = what == Watch.TRAINING.value
    settings = options_of(
        CaptureSettings,
        next_step="ulpscope.watch(..., {}=...)",
        out=out,
        steps=steps,
        ranks=ranks,
        only=only,
        skip=skip,
        max_disk=max_disk,
        watch=what,
        level=Level.MODULE if is_training else level,
        gradients=GradientWatch(tuple(bounds), signs),
        overflow=OverflowWatch(overflows, stop_on_overflow, ring),
        training=TrainingWatch(max(1, every), _absolute(control), earlier_training(_absolute(like))),
    )
    watching = Watching(settings, models=named_models(model), overwrite=overwrite)
    watching.begin(_several(optimizer))
    return watching


def _absolute(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path).absolute()


def _several(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    if isinstance(optimizer, Mapping):
        return list(optimizer.values())
    return list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
