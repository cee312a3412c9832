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

import functools
import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ulpscope.capture.processes import refuse_old_version
from ulpscope.compat.msprobe_config import DebuggerConfig, read_arguments, read_config
from ulpscope.compat.recording import Recording, watch_batches
from ulpscope.compat.telling import NAMES, PAGE, Fate, Old, by_name, problem_of, stand_in, tell
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.workflows.compare.command import CompareResult

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
            before = functools.partial(self._do, "step", Recording.before_batch)
            after = functools.partial(self._do, "start", Recording.after_batch)
            self._do("enable_dataloader", lambda _: watch_batches(before=before, after=after))

    @classmethod
    def start(cls, model: Any = None, token_range: Any = None, rank_id: Any = None, *args: Any, **kwargs: Any) -> None:
        """Capture from here on; `model` (a module or a list of them) gives module paths their root."""
        if token_range is not None or rank_id is not None or args or kwargs:
            tell("PrecisionDebugger.start: token_range, rank_id and scheduled_tokens are ignored, all is captured")
        cls._do("start", lambda recording: recording.start(model))

    @classmethod
    def stop(cls) -> None:
        """Capture nothing until the next start."""
        cls._do("stop", Recording.stop)

    @classmethod
    def forward_backward_dump_end(cls) -> None:
        """Capture nothing until the next start."""
        cls._do("forward_backward_dump_end", Recording.stop)

    @classmethod
    def step(cls) -> None:
        """An iteration has ended."""
        cls._do("step", Recording.step)

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Put a variable (a tensor, lists and dictionaries of them) into the trace, and later its gradients."""
        cls._do("save", lambda recording: recording.save(variable, str(name), gradients=save_backward))

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """The running iteration has this number."""
        cls._do("set_init_step", lambda recording: recording.begin_at(int(step)))

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


# Of all versions, the newest first: dumps as JSON, and those of ptdbg_ascend.
TARGETS = ("target_path", "npu_path", "npu_json_path", "npu_pkl_path")
REFERENCES = ("golden_path", "bench_path", "bench_json_path", "bench_pkl_path")
# Whatever they say, stacks and all columns are there and the answer explains itself.
_QUIET = frozenset({"stack_mode", "auto_analyze", "xlsx", "summary_compare", "md5_compare", "suffix"})


def compare(input_param: Mapping[str, Any], output_path: str, **options: Any) -> "CompareResult":
    """Compare the dumps that input_param names; print the answer, and write it below output_path."""
    reference, target = (_path(input_param, names) for names in (REFERENCES, TARGETS))
    return _compare(reference, target, Path(output_path), options)


pt_compare = compare


def compare_distributed(npu_dump_dir: str, bench_dump_dir: str, output_path: str, **options: Any) -> "CompareResult":
    """Compare all ranks of two dumps; print the answer, and write it below output_path."""
    return _compare(Path(bench_dump_dir), Path(npu_dump_dir), Path(output_path), options)


def _compare(reference: Path, target: Path, out: Path, options: Mapping[str, Any]) -> "CompareResult":
    from ulpscope.workflows.compare.command import CompareOptions
    from ulpscope.workflows.compare.command import compare as compare_runs
    from ulpscope.workflows.results import prepare_result

    ignored = sorted(name for name, value in options.items() if value and name not in _QUIET)
    if ignored:
        tell(f"compare: {', '.join(ignored)} has no effect: calls are aligned by their order and shapes ({PAGE})")
    result = compare_runs(reference, target, CompareOptions())
    folder = out / f"compare_result_{time.strftime('%Y%m%d%H%M%S')}"
    prepare_result(folder, overwrite=True)
    page = result.write(folder, xlsx=bool(options.get("xlsx")))
    print(result.text(), end="")
    tell(f"compare: the tables are in {folder}, the page is {page}")
    return result


def _path(given: Mapping[str, Any], names: tuple[str, ...]) -> Path:
    stated = next((given[name] for name in names if isinstance(given.get(name), str) and given[name]), None)
    if stated is None:
        raise UlpscopeError(
            f"compare: input_param has {', '.join(map(str, given)) or 'nothing'}",
            expected=f"a dump.json or a directory of dumps as one of {', '.join(names)}",
            next_step=f"add it, or ulpscope compare REFERENCE TARGET; see {PAGE}",
        )
    return Path(stated)


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
