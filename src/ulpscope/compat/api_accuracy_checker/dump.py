"""The first API accuracy checker's capture, so that a script changes by one import.

    import ulpscope.compat.api_accuracy_checker.dump        # was: import api_accuracy_checker.dump

From here on DataLoaders count iterations. The second one is captured, then the training stops. To choose another one,
or where there is no DataLoader:

    msCheckerConfig.update_config(dump_path="dump", real_data=True, enable_dataloader=False)
    set_dump_switch("ON")
    train_step(batch)
    set_dump_switch("OFF")

dump_path gets a trace, forward_info, backward_info and stack_info files; `ulpscope check dump_path` takes either.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ulpscope.compat.api_accuracy_checker.common.config import PAGE, CheckerConfig, msCheckerConfig
from ulpscope.compat.recording import begin_capture, end_capture, own_ranks, watch_batches
from ulpscope.compat.telling import problem_of, tell
from ulpscope.dialects.api_checker import TRACE_FOLDER

if TYPE_CHECKING:
    from ulpscope.workflows.run.python_capture import Capture

__all__ = ["TrainingStoppedAfterCapture", "dump", "msCheckerConfig", "set_dump_switch"]


def set_dump_switch(switch: str) -> None:
    """Capture from here on ("ON"), or no more until the next "ON" ("OFF")."""
    if switch == "ON":
        _recording.switch_on()
    elif switch == "OFF":
        _recording.switch_off()
    else:
        tell(f'set_dump_switch({switch!r}) has no effect: it takes "ON" or "OFF" ({PAGE})')


class TrainingStoppedAfterCapture(SystemExit):
    """The iteration that was asked for is captured; nothing else is wanted of this run."""


class _Recording:
    """A trace, and the files that users know: from the first "ON" to the captured iteration's or the process's end."""

    def __init__(self, config: CheckerConfig) -> None:
        self._config = config
        self._capture: Capture | None = None
        self._is_on = False
        self._over = False
        self._has_failed = False
        self._iteration = 0

    def switch_on(self) -> None:
        if not self._over and not self._is_on:
            self._is_on = True
            self._guarded("ON", self._go_on)

    def switch_off(self) -> None:
        """What follows until the next "ON" is not captured, and belongs to no step."""
        if self._is_on:
            self._is_on = False
            if self._capture is not None:
                self._guarded("OFF", self._capture.pause)

    def before_batch(self) -> None:
        """A DataLoader is asked for a batch: if one was being captured, that iteration is over."""
        if self._config.enable_dataloader and self._is_on:
            self.close()
            if self._has_failed:
                return
            tell(f"iteration {self._config.target_iter} is captured, and the training stops here")
            raise TrainingStoppedAfterCapture(0)

    def after_batch(self) -> None:
        """A DataLoader gave a batch: an iteration begins."""
        if self._config.enable_dataloader and self._iteration == self._config.target_iter:
            self.switch_on()
        self._iteration += 1

    def close(self) -> None:
        capture, self._capture, self._over, self._is_on = self._capture, None, True, False
        if capture is not None:
            self._guarded("end", lambda: self._finish(capture))

    def _go_on(self) -> None:
        if self._capture is not None:
            self._capture.step()
            self._capture.resume()
            return
        config = self._config
        self._capture = begin_capture(
            config.dump_path / TRACE_FOLDER,
            step=config.target_iter if config.enable_dataloader else 0,
            at_exit=self.close,
            level="api",
            save="tensors" if config.real_data else "stats",
        )

    def _finish(self, capture: "Capture") -> None:
        from ulpscope.dialects.api_checker import write_info_files

        end_capture(capture)
        for rank in own_ranks(capture.path):
            write_info_files(rank, self._config.dump_path, number=os.getpid())
        tell(f"captured into {self._config.dump_path} (next: ulpscope check {self._config.dump_path} --device npu)")

    def _guarded(self, where: str, action: Callable[[], object]) -> None:
        """Something of ours went wrong: say so, capture no more, and let the run go on."""
        try:
            action()
        except Exception as error:
            tell(f"api_accuracy_checker, {where}: {problem_of(error)} (the run goes on, without this capture)")
            self._over = self._has_failed = True
            self._is_on = False


_recording = _Recording(msCheckerConfig)
# Scripts have DP.dump.set_dump_switch, too: there, this was a package with a module of its own name.
dump = sys.modules[__name__]

watch_batches(before=_recording.before_batch, after=_recording.after_batch)
