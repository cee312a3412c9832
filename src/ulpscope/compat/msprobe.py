"""msprobe's Python names, so that a script changes by one import.

    from ulpscope.compat.msprobe import PrecisionDebugger, seed_all     # was: from msprobe.pytorch import ...

    debugger = PrecisionDebugger(config_path="config.json")
    for batch in data:
        debugger.start(model)
        loss = train(batch)
        debugger.stop()
        debugger.step()

dump_path of config.json becomes a trace, which every ulpscope command reads. Importing this imports no framework.
"""

import atexit
import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ulpscope.compat.msprobe_config import PAGE, SAVE_OP, DebuggerConfig, read_config
from ulpscope.compat.msprobe_seeds import seed_all
from ulpscope.compat.telling import tell
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.workflows.capture import Capture

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "seed_all"]

# Names of msprobe.pytorch that have no place here, and where to go instead.
ABSENT = {
    "TrainerMon": "a trace of every step: PrecisionDebugger without `step`, then ulpscope compare",
    "TrainerMonitorV2": "a trace of every step: PrecisionDebugger without `step`, then ulpscope compare",
    "monitor": "a trace of every step: PrecisionDebugger without `step`, then ulpscope compare",
    "random_save": "random calls of a trace: ulpscope show TRACE --json",
    "SingleSave": "PrecisionDebugger.save(variable, name) with level debug",
    "set_ge_dump_config": "ulpscope run, which needs no call in the script",
    "set_fx_dump_config": "ulpscope run, which needs no call in the script",
    "acl_save": "PrecisionDebugger.save(variable, name) with level debug",
    "AclGraphDumper": "ulpscope run, which needs no call in the script",
}

# By name, because other ranks may be about to write theirs.
_OWN_NAME = re.compile(r"rank\d+(-p\d+)?$|\.ulpscope-")


class _Recording:
    """The capture behind a PrecisionDebugger: begins with the first start, ends with the process."""

    def __init__(self, config: DebuggerConfig) -> None:
        self.config = config
        self._capture: Capture | None = None
        self._off = not config.enabled
        self._step = 0
        self._named: set[tuple[str, int]] = set()

    def start(self, model: Any) -> None:
        if self._off or self._is_over():
            return
        if self._capture is None:
            self._begin(model)
        elif not self.config.debug:
            self._capture.resume(self._new(model))

    def stop(self) -> None:
        if self._capture is not None and not self.config.debug:
            self._capture.pause()

    def step(self) -> None:
        self._step += 1
        if self._capture is not None:
            self._capture.step()
            if self._is_over():
                self.close()

    def begin_at(self, step: int) -> None:
        self._step = step
        if self._capture is not None:
            self._capture.begin_at(step)

    def save(self, variable: Any, name: str, *, gradients: bool) -> None:
        if self.config.debug and self._capture is None:
            self.start(None)
        if self._capture is not None:
            self._capture.record(SAVE_OP, name, variable, gradients=gradients)

    def close(self) -> None:
        capture, self._capture, self._off = self._capture, None, True
        if capture is not None:
            error = getattr(sys, "last_value", None)
            capture.__exit__(type(error) if error is not None else None, error, None)

    def fail(self, where: str, error: Exception) -> None:
        """Something of ours went wrong: say so, capture no more, and let the run go on."""
        problem = error.seen if isinstance(error, UlpscopeError) else f"{type(error).__name__}: {error}"
        tell(f"{where}: {problem} (the run goes on, without this capture)")
        with contextlib.suppress(Exception):
            self.close()
        self._off = True

    def _begin(self, model: Any) -> None:
        from ulpscope.workflows.capture import capture

        config = self.config
        new = capture(
            _free_directory(config.out),
            level=config.level,
            save=config.save,
            model=self._new(model),
            steps=config.steps,
            ranks=config.ranks,
            only=config.only,
            overwrite=True,
        )
        new.__enter__()
        new.begin_at(self._step)
        self._capture = new
        owner = os.getpid()
        # A forked child that ends by sys.exit runs the handlers it inherited.
        atexit.register(lambda: self.close() if os.getpid() == owner else None)
        tell(f"PrecisionDebugger captures into {new.path} (next: ulpscope show {new.path})")

    def _new(self, model: Any) -> Mapping[str, Any] | None:
        """Modules by the names of their paths, without those that have been named before."""
        from ulpscope.workflows.capture import named_models

        named = named_models(model)
        fresh = {name: root for name, root in named.items() if (name, id(root)) not in self._named}
        self._named.update((name, id(root)) for name, root in fresh.items())
        return fresh or None

    def _is_over(self) -> bool:
        from ulpscope.capture.settings import parse_ranges

        steps = self.config.steps
        return steps is not None and self._step > parse_ranges(steps, option="step").last


class PrecisionDebugger:
    """msprobe's debugger: one a process, start and stop around what is captured, step at the end of an iteration."""

    _instance: ClassVar["PrecisionDebugger | None"] = None
    _recording: _Recording

    def __new__(cls, *args: Any, **kwargs: Any) -> "PrecisionDebugger":
        if cls._instance is None:
            new = super().__new__(cls)
            new._recording = _Recording(_config(*args, **kwargs))
            cls._instance = new
        return cls._instance

    def __init__(
        self,
        config_path: str | None = None,
        task: str | None = None,
        dump_path: str | None = None,
        level: str | None = None,
        step: list[int | str] | None = None,
    ) -> None:
        pass

    @classmethod
    def start(cls, model: Any = None, token_range: Any = None, rank_id: Any = None, *args: Any, **kwargs: Any) -> None:
        """Capture from here on; `model` (a module or a list of them) gives module paths their root."""
        if token_range is not None or rank_id is not None or args or kwargs:
            tell("PrecisionDebugger.start: token_range, rank_id and scheduled_tokens are ignored, all is captured")
        cls._do("start", lambda recording: recording.start(model))

    @classmethod
    def stop(cls) -> None:
        """Capture nothing until the next start."""
        cls._do("stop", lambda recording: recording.stop())

    @classmethod
    def step(cls) -> None:
        """An iteration has ended."""
        cls._do("step", lambda recording: recording.step())

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Put a variable (a tensor, lists and dictionaries of them) into the trace, and later its gradients."""
        cls._do("save", lambda recording: recording.save(variable, str(name), gradients=save_backward))

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """The running iteration has this number."""
        cls._do("set_init_step", lambda recording: recording.begin_at(int(step)))

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: str | None = None) -> None:
        tell("PrecisionDebugger.register_custom_api does nothing: torch calls inside custom functions are seen anyway")

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Nothing was registered."""

    @classmethod
    def monitor(cls, *args: Any, **kwargs: Any) -> None:
        raise _absent("monitor")

    @classmethod
    def _do(cls, word: str, action: Callable[[_Recording], None]) -> None:
        if cls._instance is None:
            tell(f"PrecisionDebugger.{word} before any PrecisionDebugger was made: nothing is captured")
            return
        recording = cls._instance._recording
        try:
            action(recording)
        except Exception as error:
            recording.fail(f"PrecisionDebugger.{word}", error)


def module_dump(module: Any, dump_name: str) -> None:
    """From now on the paths of this module and what is in it begin with this name."""
    tell("module_dump names a module; what is inside it is captured, too")
    PrecisionDebugger._do("module_dump", lambda recording: recording.start({dump_name: module}))


def module_dump_end() -> None:
    """The capture goes on until PrecisionDebugger.stop."""


def _config(
    config_path: str | None = None,
    task: str | None = None,
    dump_path: str | None = None,
    level: str | None = None,
    step: list[int | str] | None = None,
) -> DebuggerConfig:
    given = {"task": task, "dump_path": dump_path, "level": level, "step": step}
    config = read_config(config_path, given)
    for remark in config.remarks:
        tell(f"PrecisionDebugger: {remark}")
    return config


def _free_directory(out: Path) -> Path:
    """dump_path, or one beside it if other files are there: they are not ours to replace."""
    others = [entry.name for entry in out.iterdir() if not _OWN_NAME.match(entry.name)] if out.is_dir() else []
    if not others:
        return out
    beside = out.with_name(f"{out.name}-trace")
    tell(f"{out} holds files that are no trace ({others[0]}): PrecisionDebugger captures into {beside}")
    return beside


def _absent(name: str) -> UlpscopeError:
    return UlpscopeError(
        f"msprobe's {name} has no counterpart in ulpscope.compat.msprobe",
        expected=f"one of {', '.join(__all__)}",
        next_step=f"use {ABSENT[name]}; {PAGE} tells the rest",
    )


def __getattr__(name: str) -> Any:
    if name in ABSENT:
        raise _absent(name)
    raise AttributeError(f"module 'ulpscope.compat.msprobe' has no attribute {name!r}")
