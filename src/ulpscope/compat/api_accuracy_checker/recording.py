"""The capture behind the first API accuracy checker's names: a trace, and the files that its users know."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ulpscope.compat.api_accuracy_checker.config import CheckerConfig
from ulpscope.compat.capturing import begin_capture, end_capture, own_ranks
from ulpscope.compat.telling import problem_of, tell
from ulpscope.dialects.api_checker.files import TRACE_FOLDER

if TYPE_CHECKING:
    from ulpscope.workflows.run.python_capture import Capture


class TrainingStoppedAfterCapture(SystemExit):
    """The iteration that was asked for is captured; nothing else is wanted of this run."""


class Recording:
    """Begins with the first "ON", ends with the captured iteration or with the process."""

    def __init__(self, config: CheckerConfig) -> None:
        self._config = config
        self._capture: Capture | None = None
        self._is_on = False
        self._over = False
        self._has_failed = False
        self._iteration = 0

    def switch_on(self) -> None:
        if self._over or self._is_on:
            return
        self._is_on = True
        if self._capture is None:
            self._guarded("ON", self._begin)
        else:
            self._guarded("ON", self._go_on)

    def switch_off(self) -> None:
        """What follows until the next "ON" is not captured, and belongs to no step."""
        if self._is_on:
            self._is_on = False
            self._guarded("OFF", self._pause)

    def before_batch(self) -> None:
        """A DataLoader is asked for a batch: if one was being captured, that iteration is over."""
        if self._config.enable_dataloader and self._is_on:
            self.close()
            if self._has_failed:
                return
            last = self._config.target_iter
            tell(f"iteration {last} is captured, and the training stops here")
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

    def _begin(self) -> None:
        config = self._config
        self._capture = begin_capture(
            config.dump_path / TRACE_FOLDER,
            step=config.target_iter if config.enable_dataloader else 0,
            at_exit=self.close,
            level="api",
            save="tensors" if config.real_data else "stats",
        )

    def _go_on(self) -> None:
        if self._capture is not None:
            self._capture.step()
            self._capture.resume()

    def _pause(self) -> None:
        if self._capture is not None:
            self._capture.pause()

    def _finish(self, capture: "Capture") -> None:
        from ulpscope.dialects.api_checker.writing import write_info_files

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
