"""`ulpscope.watch(...)`: record only gradients, or steps in which numbers overflow, of a training that may be long.

watch = ulpscope.watch(model, optimizer, out="runs/ref")
for batch in data:
    train_step(batch)
watch.close()
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ulpscope.records.runs import CaptureSettings, GradientWatch, OverflowWatch
from ulpscope.workflows.run.python_capture import Capture, named_models, options_of


class Watching(Capture):
    """Goes on until it is closed, its `with` ends, or the process does."""

    def begin(self, optimizers: Sequence[Any]) -> None:
        """Watch from now on; these optimizers alone, if there are any."""
        super().__enter__()
        assert self._session is not None
        if optimizers:
            self._session.watch_only(optimizers)
        self._owner = os.getpid()
        atexit.register(self.close)

    def say_by(self, say: Callable[[str], None]) -> None:
        """What an overflow is told by, in the place of stderr."""
        if self._session is not None:
            self._session.say_by(say)

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
    max_disk: int | None = None,
    overwrite: bool = False,
) -> Watching:
    """Watch gradients (or `what="overflow"`) from now on; `model` and `optimizer` may be several, or left out.

    `bounds` and `signs` are of gradients; `level`, `overflows`, `stop_on_overflow` and `ring` (bytes) of overflows.
    """
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
        level=level,
        gradients=GradientWatch(tuple(bounds), signs),
        overflow=OverflowWatch(overflows, stop_on_overflow, ring),
    )
    watching = Watching(settings, models=named_models(model), overwrite=overwrite)
    watching.begin(_several(optimizer))
    return watching


def _several(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    if isinstance(optimizer, Mapping):
        return list(optimizer.values())
    return list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
