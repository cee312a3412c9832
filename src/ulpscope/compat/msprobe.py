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

from collections.abc import Callable
from typing import Any, ClassVar

from ulpscope.capture.processes import refuse_old_version
from ulpscope.compat.msprobe_compare import compare, compare_distributed, pt_compare
from ulpscope.compat.msprobe_config import DebuggerConfig, read_arguments, read_config
from ulpscope.compat.msprobe_recording import Recording
from ulpscope.compat.msprobe_seeds import seed_all, set_reproducibility
from ulpscope.compat.msprobe_table import NAMES, Fate, by_name
from ulpscope.compat.telling import problem_of, stand_in, tell

__all__ = [
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
_ABSENT = {name: row for name, row in by_name(NAMES).items() if row.fate is Fate.TOLD}


class PrecisionDebugger:
    """msprobe's debugger: one a process, start and stop around what is captured, step at the end of an iteration."""

    _instance: ClassVar["PrecisionDebugger | None"] = None
    _recording: Recording

    def __new__(cls, *args: Any, **kwargs: Any) -> "PrecisionDebugger":
        if cls._instance is None:
            new = super().__new__(cls)
            new._recording = _recording(args, kwargs)
            cls._instance = new
            new._prepare()
        return cls._instance

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """(config_path, task, dump_path, level, step), or what older versions took."""

    def _prepare(self) -> None:
        config = self._recording.config
        if config.seeding is not None:
            seeding = config.seeding
            self._do("seed", lambda _: seed_all(seeding.seed, mode=seeding.deterministic))
        if config.enabled and config.counts_batches:
            self._do("enable_dataloader", lambda _: self._count_batches())

    def _count_batches(self) -> None:
        from ulpscope.compat.capturing import watch_batches

        watch_batches(
            before=lambda: self._do("step", lambda recording: recording.before_batch()),
            after=lambda: self._do("start", lambda recording: recording.after_batch()),
        )

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
    def forward_backward_dump_end(cls) -> None:
        """Capture nothing until the next start."""
        cls._do("forward_backward_dump_end", lambda recording: recording.stop())

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
    def register_custom_api(cls, *args: Any, **kwargs: Any) -> None:
        cls._tell("register_custom_api")

    @classmethod
    def restore_custom_api(cls, *args: Any, **kwargs: Any) -> None:
        cls._tell("restore_custom_api")

    @classmethod
    def monitor(cls, *args: Any, **kwargs: Any) -> None:
        cls._tell("monitor")

    @classmethod
    def configure_hook(cls, *args: Any, **kwargs: Any) -> None:
        cls._tell("configure_hook")

    @classmethod
    def _tell(cls, word: str) -> None:
        row = _ABSENT[f"PrecisionDebugger.{word}"]
        tell(f"{row.name} does nothing: {row.here}")

    @classmethod
    def _do(cls, word: str, action: Callable[[Recording], None]) -> None:
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


def acl_save(x: Any, path: str) -> Any:
    """Put a tensor into the trace under this name, and give it back."""
    PrecisionDebugger.save(x, path, save_backward=False)
    return x


def _recording(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording:
    """What was asked for; a debugger that captures nothing where that cannot be told."""
    try:
        refuse_old_version("torch")
        asked = read_arguments(args, kwargs)
        config = read_config(asked.config_path, asked.options)
        remarks = (*asked.remarks, *config.remarks)
    except Exception as error:
        asked, config = None, DebuggerConfig(enabled=False)
        remarks = (f"{problem_of(error)} (the run goes on, without this capture)",)
    for remark in remarks:
        tell(f"PrecisionDebugger: {remark}")
    return Recording(config, None if asked is None else asked.model)


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        return stand_in(_ABSENT[name])
    raise AttributeError(f"module 'ulpscope.compat.msprobe' has no attribute {name!r}")


if __name__ == "__main__":
    import sys

    from ulpscope.compat.msprobe_commands import main

    sys.exit(main(sys.argv[1:]))
