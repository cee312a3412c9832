"""msprobe's Python names, so that a script changes by one import.

    debugger = PrecisionDebugger(config_path="config.json")
    for batch in data:
        debugger.start(model)
        loss = train(batch)
        debugger.stop()
        debugger.step()

dump_path of config.json becomes a trace, which every ulpscope command reads. Importing this imports no framework.
`python -m ulpscope.compat.msprobe -f pytorch run_ut ...` takes msprobe's commands.
"""

import atexit
import contextlib
import functools
import os
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ulpscope.capture.processes import refuse_old_version
from ulpscope.compat.msprobe_commands import compare, compare_distributed, pt_compare
from ulpscope.compat.msprobe_config import SAVE_OP, DebuggerConfig, read_arguments, read_config
from ulpscope.compat.recording import begin_capture, end_capture, own_ranks, watch_batches
from ulpscope.compat.telling import NAMES, Fate, Old, by_name, problem_of, stand_in, tell

if TYPE_CHECKING:
    from ulpscope.records.runs import GradientWatch
    from ulpscope.workflows.run.python_capture import Capture

__all__ = [
    "GradComparator",
    "PrecisionDebugger",
    "acl_save",
    "compare",
    "compare_distributed",
    "module_dump",
    "module_dump_end",
    "pt_compare",
    "seed_all",
    "set_reproducibility",
]
# By name, because other ranks may be about to write theirs.
_OWN_NAME = re.compile(r"rank\d+(-p\d+)?$|\.ulpscope-")
_ABSENT = {name: row for name, row in by_name(NAMES).items() if row.fate is Fate.TOLD}


def _of_the_one(method: Callable[..., None]) -> Any:
    """A method that is called on the class: the one debugger of the process does it."""

    @functools.wraps(method)
    def call(cls: type["PrecisionDebugger"], *args: Any, **kwargs: Any) -> None:
        cls._do(method.__name__, method, *args, **kwargs)

    return classmethod(call)


class PrecisionDebugger:
    """msprobe's debugger: one a process, start and stop around what is captured, step at the end of an iteration.

    The capture begins with the first start, and ends with the process.
    """

    _instance: ClassVar["PrecisionDebugger | None"] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "PrecisionDebugger":
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance._set_up(args, kwargs)
        return cls._instance

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """(config_path, task, dump_path, level, step), or what older versions took."""

    def _set_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take over what was asked for; a debugger captures nothing where that cannot be told."""
        self._model: Any = None
        """Named where start is given none."""
        try:
            refuse_old_version("torch")
            asked = read_arguments(args, kwargs)
            self._config = config = read_config(asked.config_path, asked.options)
            remarks, self._model = (*asked.remarks, *config.remarks), asked.model
        except Exception as error:
            self._config = config = DebuggerConfig(enabled=False)
            remarks = (f"{problem_of(error)} (the run goes on, without this capture)",)
        for remark in remarks:
            tell(f"PrecisionDebugger: {remark}")
        self._capture: Capture | None = None
        self._off = not config.enabled
        self._step = 0
        self._has_batch = False
        self._named: set[tuple[str, int]] = set()
        if (seeding := config.seeding) is not None:
            self._do("seed", lambda _: seed_all(seeding.seed, mode=seeding.deterministic))
        if config.enabled and config.counts_batches:
            before = functools.partial(self._do, "step", PrecisionDebugger._before_batch)
            after = functools.partial(self._do, "start", PrecisionDebugger._after_batch)
            self._do("enable_dataloader", lambda _: watch_batches(before=before, after=after))

    @_of_the_one
    def start(self, model: Any = None, token_range: Any = None, rank_id: Any = None, *args: Any, **kwargs: Any) -> None:
        """Capture from here on; `model` (a module or a list of them) gives module paths their root."""
        if token_range is not None or rank_id is not None or args or kwargs:
            tell("PrecisionDebugger.start: token_range, rank_id and scheduled_tokens are ignored, all is captured")
        self._start(model)

    @_of_the_one
    def stop(self) -> None:
        """Capture nothing until the next start."""
        if not self._config.counts_batches:
            self._pause()

    @_of_the_one
    def forward_backward_dump_end(self) -> None:
        """Capture nothing until the next start."""
        if not self._config.counts_batches:
            self._pause()

    @_of_the_one
    def step(self) -> None:
        """An iteration has ended."""
        if not self._config.counts_batches:
            self._end_step()

    @_of_the_one
    def monitor(self, model: Any, optimizer: Any = None) -> None:
        """Task grad_probe begins: gradients of this model are recorded at every update."""
        if self._config.gradients is None:
            tell("PrecisionDebugger.monitor does nothing: the task of config.json is not grad_probe")
        elif not self._off and self._capture is None:
            self._model = model
            self._watch_gradients(self._config.gradients, optimizer)

    @_of_the_one
    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Put a variable (a tensor, lists and dictionaries of them) into the trace, and later its gradients."""
        if self._config.debug and self._capture is None:
            self._go_on()
        if self._capture is not None:
            self._capture.record(SAVE_OP, str(name), variable, gradients=save_backward)

    @_of_the_one
    def set_init_step(self, step: int) -> None:
        """The running iteration has this number."""
        self._step = int(step)
        if self._capture is not None:
            self._capture.begin_at(self._step)

    @classmethod
    def _do(cls, word: str, action: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if cls._instance is None:
            tell(f"PrecisionDebugger.{word} before any PrecisionDebugger was made: nothing is captured")
            return
        try:
            action(cls._instance, *args, **kwargs)
        except Exception as error:
            cls._instance._fail(f"PrecisionDebugger.{word}", error)

    def _start(self, model: Any) -> None:
        """Capture from here on; where DataLoaders count, only remember the model."""
        if model is not None:
            self._model = model
        if not self._config.counts_batches:
            self._go_on()

    def _before_batch(self) -> None:
        """A DataLoader is asked for a batch: the iteration of the one before is over."""
        if self._has_batch:
            self._has_batch = False
            self._pause()
            self._end_step()

    def _after_batch(self) -> None:
        """A DataLoader gave a batch: an iteration begins."""
        self._has_batch = True
        self._go_on()

    def _close(self) -> None:
        capture, self._capture, self._off = self._capture, None, True
        if capture is not None:
            end_capture(capture)
            if self._config.gradients is not None:
                _write_gradient_tables(capture.path, self._config.out)
                return
            names = [name for name in self._config.only if name != SAVE_OP]
            if capture.is_empty and names:
                tell(
                    f"PrecisionDebugger: list: no call between start and stop is {' or '.join(names)}, "
                    "as a trace names it; without list all calls are captured, and ulpscope show tells their names"
                )
            elif self._config.own_layout and not capture.is_empty:
                _write_own_layout(capture.path, self._config.out)

    def _fail(self, where: str, error: Exception) -> None:
        """Something of ours went wrong: say so, capture no more, and let the run go on."""
        tell(f"{where}: {problem_of(error)} (the run goes on, without this capture)")
        with contextlib.suppress(Exception):
            self._close()
        self._off = True

    def _watch_gradients(self, wanted: "GradientWatch", optimizer: Any) -> None:
        from ulpscope.workflows.run.python_watch import watch

        config = self._config
        self._capture = new = watch(
            self._model,
            optimizer,
            out=_beside(config.out),
            steps=config.steps,
            ranks=config.ranks,
            only=config.only,
            bounds=wanted.bounds,
            signs=wanted.signs,
            overwrite=True,
        )
        atexit.unregister(new.close)
        atexit.register(self._close_at_exit)
        tell(f"PrecisionDebugger watches gradients into {new.path} (next: ulpscope compare {new.path} OTHER)")

    def _go_on(self) -> None:
        if self._off or self._config.gradients is not None or self._is_over():
            return
        if self._capture is None:
            self._begin()
        elif not self._config.debug:
            self._capture.resume(self._new_models())

    def _pause(self) -> None:
        if self._capture is not None and not self._config.debug and self._config.gradients is None:
            self._capture.pause()

    def _end_step(self) -> None:
        self._step += 1
        if self._capture is not None and self._config.gradients is None:
            self._capture.step()
            if self._is_over():
                self._close()

    def _begin(self) -> None:
        config = self._config
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
            overflow=config.overflow,
        )
        tell(f"PrecisionDebugger captures into {new.path} (next: ulpscope show {new.path})")

    def _close_at_exit(self) -> None:
        try:
            self._close()
        except Exception as error:
            self._fail("PrecisionDebugger", error)

    def _new_models(self) -> Mapping[str, Any] | None:
        """Modules by the names of their paths, without those that have been named before."""
        from ulpscope.workflows.run.python_capture import named_models

        named = named_models(self._model).items()
        fresh = {name: root for name, root in named if (name, id(root)) not in self._named}
        self._named.update((name, id(root)) for name, root in fresh.items())
        return fresh or None

    def _is_over(self) -> bool:
        from ulpscope.capture.settings import parse_ranges

        steps = self._config.steps
        return steps is not None and self._step > parse_ranges(steps, option="step").last


def _write_own_layout(path: Path, out: Path) -> None:
    """The rank of this process as msprobe dumps it; other ranks write their own."""
    from ulpscope.dialects.msprobe.writing import write_msprobe
    from ulpscope.trace.reader import Trace

    write_msprobe(Trace(path, own_ranks(path), missing_ranks=[]), out)
    tell(f"PrecisionDebugger wrote msprobe's own layout into {out}, too")


def _write_gradient_tables(path: Path, out: Path) -> None:
    """As task grad_probe writes them, of this process; other ranks write their own."""
    from ulpscope.dialects.msprobe.gradients import write_gradients
    from ulpscope.trace.reader import Trace

    written = write_gradients(Trace(path, own_ranks(path), missing_ranks=[]), out)
    tell(f"PrecisionDebugger wrote gradients of {len(written.steps)} steps into {out}")


def _free_directory(out: Path) -> Path:
    """dump_path, or one beside it if other files are there: they are not ours to replace."""
    others = [entry.name for entry in out.iterdir() if not _OWN_NAME.match(entry.name)] if out.is_dir() else []
    if not others:
        return out
    tell(f"{out} holds files that are no trace ({others[0]}): PrecisionDebugger captures into {_beside(out)}")
    return _beside(out)


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.name}-trace")


def _without_effect(row: Old) -> Any:
    """A method that takes every call, and says what to use instead."""

    def told(*args: Any, **kwargs: Any) -> None:
        tell(f"{row.name} does nothing: {row.here}")

    return staticmethod(told)


for _name, _row in _ABSENT.items():
    if _name.startswith("PrecisionDebugger."):
        setattr(PrecisionDebugger, _name.partition(".")[2], _without_effect(_row))


def module_dump(module: Any, dump_name: str) -> None:
    """From now on the paths of this module and what is in it begin with this name."""
    tell("module_dump names a module; what is inside it is captured, too")
    PrecisionDebugger._do("module_dump", PrecisionDebugger._start, {dump_name: module})


def module_dump_end() -> None:
    """The capture goes on until PrecisionDebugger.stop."""


class GradComparator:
    """Compares signs of gradients that two runs left."""

    @staticmethod
    def compare_distributed(path1: str, path2: str, output_dir: str) -> None:
        """Write similarities.csv of each rank."""
        from ulpscope.dialects.msprobe.gradients import write_similarities

        files = write_similarities(Path(path1), Path(path2), Path(output_dir))
        tell(f"GradComparator wrote {', '.join(map(str, files))}")


def acl_save(x: Any, path: str) -> Any:
    """Put a tensor into the trace under this name, and give it back."""
    PrecisionDebugger.save(x, path, save_backward=False)
    return x


DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
# HCCL and LCCL sum in another order each time unless told otherwise; both read this when a group is made.
DEVICE_SWITCHES = {
    "npu": {"HCCL_DETERMINISTIC": "True", "LCCL_DETERMINISTIC": "1"},
    "cuda": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
}


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False) -> None:
    """Seed Python, numpy and torch on all devices; `mode` asks torch for deterministic algorithms."""
    import numpy as np
    import torch

    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(mode)
    _switch_devices(seed)
    if rm_dropout:
        remove_dropout()
    if is_enhanced:
        tell("seed_all: is_enhanced is ignored, random state is seeded but not fixed before every random call")


def set_reproducibility(seed: int = 1234, is_deterministic: bool = False, is_enhanced: bool = False) -> None:
    """seed_all by its newer name."""
    seed_all(seed, mode=is_deterministic, is_enhanced=is_enhanced)


def remove_dropout() -> None:
    """Every dropout of torch.nn.functional keeps all elements from now on."""
    from torch.nn import functional

    for name in DROPOUTS:
        original = getattr(functional, name)
        if not hasattr(original, "_ulpscope_keeps_all"):
            setattr(functional, name, _keeping_all(original))


def _keeping_all(original: Any) -> Any:
    @functools.wraps(original)
    def dropout(input: Any, p: float = 0.0, training: bool = True, inplace: bool = False) -> Any:
        return original(input, 0.0, training, inplace)

    dropout._ulpscope_keeps_all = True  # type: ignore[attr-defined]
    return dropout


def _switch_devices(seed: int) -> None:
    import torch

    for name, switches in DEVICE_SWITCHES.items():
        device = getattr(torch, name, None)
        if device is not None and device.is_available():
            os.environ.update(switches)
            device.manual_seed_all(seed)
    if torch.cuda.is_available():
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        return stand_in(_ABSENT[name])
    raise AttributeError(f"module 'ulpscope.compat.msprobe' has no attribute {name!r}")


if __name__ == "__main__":
    import sys

    from ulpscope.compat.msprobe_commands import main

    sys.exit(main(sys.argv[1:]))
