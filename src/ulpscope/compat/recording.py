"""How the older tools' Python names capture: begin and end, iterations counted by DataLoaders, msprobe's debugger.

The capture behind a PrecisionDebugger begins with the first start, and ends with the process.
"""

import atexit
import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulpscope.compat.msprobe_config import SAVE_OP, DebuggerConfig
from ulpscope.compat.telling import problem_of, tell

if TYPE_CHECKING:
    from ulpscope.trace.reader import RankTrace
    from ulpscope.workflows.run.python_capture import Capture

# By name, because other ranks may be about to write theirs.
_OWN_NAME = re.compile(r"rank\d+(-p\d+)?$|\.ulpscope-")


class Recording:
    """One capture of one process."""

    def __init__(self, config: DebuggerConfig, model: Any = None) -> None:
        self.config = config
        self._model = model
        """Named where start is given none."""
        self._capture: Capture | None = None
        self._off = not config.enabled
        self._step = 0
        self._has_batch = False
        self._named: set[tuple[str, int]] = set()

    def start(self, model: Any) -> None:
        """Capture from here on; where DataLoaders count, only remember the model."""
        if model is not None:
            self._model = model
        if not self.config.counts_batches:
            self._go_on()

    def stop(self) -> None:
        if not self.config.counts_batches:
            self._pause()

    def step(self) -> None:
        if not self.config.counts_batches:
            self._end_step()

    def before_batch(self) -> None:
        """A DataLoader is asked for a batch: the iteration of the one before is over."""
        if self._has_batch:
            self._has_batch = False
            self._pause()
            self._end_step()

    def after_batch(self) -> None:
        """A DataLoader gave a batch: an iteration begins."""
        self._has_batch = True
        self._go_on()

    def begin_at(self, step: int) -> None:
        self._step = step
        if self._capture is not None:
            self._capture.begin_at(step)

    def save(self, variable: Any, name: str, *, gradients: bool) -> None:
        if self.config.debug and self._capture is None:
            self._go_on()
        if self._capture is not None:
            self._capture.record(SAVE_OP, name, variable, gradients=gradients)

    def close(self) -> None:
        capture, self._capture, self._off = self._capture, None, True
        if capture is not None:
            end_capture(capture)
            names = [name for name in self.config.only if name != SAVE_OP]
            if capture.is_empty and names:
                tell(
                    f"PrecisionDebugger: list: no call between start and stop is {' or '.join(names)}, "
                    "as a trace names it; without list all calls are captured, and ulpscope show tells their names"
                )
            elif self.config.own_layout and not capture.is_empty:
                _write_own_layout(capture.path, self.config.out)

    def fail(self, where: str, error: Exception) -> None:
        """Something of ours went wrong: say so, capture no more, and let the run go on."""
        tell(f"{where}: {problem_of(error)} (the run goes on, without this capture)")
        with contextlib.suppress(Exception):
            self.close()
        self._off = True

    def _go_on(self) -> None:
        if self._off or self._is_over():
            return
        if self._capture is None:
            self._begin()
        elif not self.config.debug:
            self._capture.resume(self._new_models())

    def _pause(self) -> None:
        if self._capture is not None and not self.config.debug:
            self._capture.pause()

    def _end_step(self) -> None:
        self._step += 1
        if self._capture is not None:
            self._capture.step()
            if self._is_over():
                self.close()

    def _begin(self) -> None:
        config = self.config
        self._capture = new = begin_capture(
            _beside(config.out) if config.own_layout else _free_directory(config.out),
            step=self._step,
            at_exit=self._close_at_exit,
            level=config.level,
            save=config.save,
            model=self._new_models(),
            steps=config.steps,
            ranks=config.ranks,
            only=config.only,
        )
        tell(f"PrecisionDebugger captures into {new.path} (next: ulpscope show {new.path})")

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except Exception as error:
            self.fail("PrecisionDebugger", error)

    def _new_models(self) -> Mapping[str, Any] | None:
        """Modules by the names of their paths, without those that have been named before."""
        from ulpscope.workflows.run.python_capture import named_models

        named = named_models(self._model).items()
        fresh = {name: root for name, root in named if (name, id(root)) not in self._named}
        self._named.update((name, id(root)) for name, root in fresh.items())
        return fresh or None

    def _is_over(self) -> bool:
        from ulpscope.capture.settings import parse_ranges

        steps = self.config.steps
        return steps is not None and self._step > parse_ranges(steps, option="step").last


def _write_own_layout(path: Path, out: Path) -> None:
    """The rank of this process as msprobe dumps it; other ranks write their own."""
    from ulpscope.dialects.msprobe.writing import write_msprobe
    from ulpscope.trace.reader import Trace

    write_msprobe(Trace(path, own_ranks(path), missing_ranks=[]), out)
    tell(f"PrecisionDebugger wrote msprobe's own layout into {out}, too")


def _free_directory(out: Path) -> Path:
    """dump_path, or one beside it if other files are there: they are not ours to replace."""
    others = [entry.name for entry in out.iterdir() if not _OWN_NAME.match(entry.name)] if out.is_dir() else []
    if not others:
        return out
    tell(f"{out} holds files that are no trace ({others[0]}): PrecisionDebugger captures into {_beside(out)}")
    return _beside(out)


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.name}-trace")


def begin_capture(out: Path, *, step: int, at_exit: Callable[[], None], **options: Any) -> "Capture":
    """Begin a capture with this step; what is left to do when the process ends is done then."""
    from ulpscope.workflows.run.python_capture import capture

    new = capture(out, overwrite=True, **options)
    new.__enter__()
    new.begin_at(step)
    owner = os.getpid()
    # A forked child that ends by sys.exit runs the handlers it inherited.
    atexit.register(lambda: at_exit() if os.getpid() == owner else None)
    return new


def end_capture(capture: "Capture") -> None:
    """End it, with the error that ends the process, if one does."""
    error = getattr(sys, "last_value", None)
    capture.__exit__(type(error) if error is not None else None, error, None)


def own_ranks(path: Path) -> "list[RankTrace]":
    """What this process captured; other ranks write their own."""
    from ulpscope.trace.reader import open_trace

    return [rank for rank in open_trace(path).ranks if rank.info.process.get("pid") == os.getpid()]


def watch_batches(*, before: Callable[[], None], after: Callable[[], None]) -> None:
    """From now on call these before a DataLoader fetches a batch, and after it has got one: an iteration begins."""
    from torch.utils.data import dataloader

    fetch = dataloader._BaseDataLoaderIter.__next__

    @functools.wraps(fetch)
    def fetch_and_tell(batches: Any) -> Any:
        before()
        batch = fetch(batches)
        after()
        return batch

    dataloader._BaseDataLoaderIter.__next__ = fetch_and_tell  # type: ignore[assignment,method-assign]
