"""Reads msprobe's config.json as options of a capture, and says what of it has no meaning here and why."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.records.errors import UlpscopeError

SAVE_OP = "msprobe.save"
PAGE = "docs/compat-msprobe.md"

LEVELS = {"L0": "module", "L1": "api", "mix": "api", "L2": "kernel", "debug": "module"}
SAVES = {"statistics": "stats", "tensor": "tensors"}
OTHER_TASKS = {
    "structure": "a trace always holds the structure",
    "acc_check": "the checker reads any trace",
    "run_ut": "the checker reads any trace",
    "nan_check": "a trace counts nan and inf of every value",
    "overflow_check": "a trace counts nan and inf of every value",
    "diff_check": "traces are compared after the run: ulpscope compare",
    "free_benchmark": "there is no such task here",
    "grad_probe": "a trace holds the gradients of every step",
}
PREFIXES = {
    "Functional": "torch.nn.functional",
    "Tensor": "torch.Tensor",
    "Torch": "torch",
    "Distributed": "torch.distributed",
    "VF": "torch._VF",
    "NPU": "npu",
    "Aten": "aten",
}

IGNORED = {
    "scope": "there are no ranges of calls; `list` chooses calls",
    "data_mode": "inputs, outputs and gradients are always recorded",
    "tensor_list": 'data is saved of all recorded calls or of none; use task "tensor" with `list`',
    "extra_info": "call stacks and the module tree are always recorded",
    "async_dump": "a capture never waits for the device inside a step",
    "precision": "statistics are always computed in float64",
    "risk_level": "all operations are recorded; `list` chooses",
    "custom_op_namespaces": "custom operators of every namespace are recorded",
    "load": "inputs of modules are NOT replaced: the run computes with its own",
    "slice": "whole tensors are recorded",
    "request_id": "all requests are recorded",
    "bench_path": "traces are compared after the run: ulpscope compare",
    "diff_nums": "traces are compared after the run: ulpscope compare",
    "file_format": "data is kept as safetensors",
    "device": "statistics are computed where the tensor is",
    "white_list": "use `list`",
    "black_list": "all operations are recorded; `list` chooses",
    "error_data_path": "there is no such task here",
    "enable_dataloader": "steps are those of start, stop and step",
    "rank_id": "there is no such option",
    "summary_mode": "every value has statistics, a sketch and a digest",
}
# What these values ask for happens anyway.
SILENT: dict[str, tuple[Any, ...]] = {
    "scope": ([],),
    "data_mode": (["all"], []),
    "tensor_list": ([],),
    "extra_info": (True,),
    "async_dump": (True, False),
    "precision": ("low", "high"),
    "risk_level": ("ALL",),
    "custom_op_namespaces": (["_C_ascend"], []),
    "summary_mode": ("statistics",),
    "slice": ([],),
    "white_list": ([],),
    "black_list": ([],),
}
UNDERSTOOD = frozenset({"task", "dump_path", "rank", "step", "level", "list", "dump_enable"})


@dataclass(frozen=True, slots=True)
class DebuggerConfig:
    """What PrecisionDebugger was asked to do, in the words of a capture."""

    out: Path
    level: str = "api"
    save: str = "stats"
    steps: str | None = None
    ranks: str | None = None
    only: tuple[str, ...] = ()
    enabled: bool = True
    debug: bool = False
    """Only what is handed to save() is recorded."""
    remarks: tuple[str, ...] = ()
    """What is not done, or done otherwise: one sentence each."""


def read_config(config_path: str | None, arguments: Mapping[str, Any]) -> DebuggerConfig:
    """The file's options, with those that were given to PrecisionDebugger itself before them."""
    content = {} if config_path is None else _read_json(Path(config_path))
    given = {key: item for key, item in arguments.items() if item is not None}
    common = {**content, **given}
    task = common.get("task") or "statistics"
    level = _known(LEVELS, common.get("level") or "L1", option="level")
    options = {key: item for key, item in common.items() if not isinstance(item, dict) or key == "load"}
    own = content.get(task)
    options |= own if isinstance(own, dict) else {}
    debug = common.get("level") == "debug"
    only = tuple(pattern_of(name) for name in options.get("list") or [])
    return DebuggerConfig(
        out=_dump_path(common),
        level=level,
        save=SAVES.get(task, "stats"),
        steps=_numbers(common.get("step"), option="step"),
        ranks=_numbers(common.get("rank"), option="rank"),
        only=(SAVE_OP,) if debug else (*only, SAVE_OP) if only else (),
        enabled=options.get("dump_enable", True) is not False,
        debug=debug,
        remarks=tuple(_remarks(task, common.get("level"), options)),
    )


def pattern_of(name: str) -> str:
    """A name of `list` as a pattern of a capture: the call, the module with everything in it, or a part of a name."""
    parts = name.split(".")
    if parts[0] in ("Module", "Cell") and len(parts) > 4:
        return ".".join(parts[1:-3])
    api = re.fullmatch(r"(\w+)\.([\w.]+)\.(\d+)\.(?:forward|backward)", name)
    if api is not None and api[1] in PREFIXES:
        return f"{PREFIXES[api[1]]}.{api[2]}.{api[3]}"
    return f"*{name}*"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _bad(f"{path} cannot be read: {error}", "the JSON file of options that msprobe takes") from error
    if not isinstance(content, dict):
        raise _bad(f"{path} holds a {type(content).__name__}", "a JSON object of options")
    return content


def _dump_path(options: Mapping[str, Any]) -> Path:
    path = options.get("dump_path")
    if not isinstance(path, str) or not path:
        raise _bad(f"dump_path is {path!r}", "a directory, in config.json or as dump_path=")
    return Path(path)


def _known(words: Mapping[str, str], given: Any, *, option: str) -> str:
    if given not in words:
        raise _bad(f"{option} is {given!r}", f"one of {', '.join(words)}")
    return words[given]


def _numbers(given: Any, *, option: str) -> str | None:
    """`[0, "2-4"]` as `0,2-4`; None for all."""
    if given is None or given == [] or given == "":
        return None
    items: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    texts = [str(item).replace(" ", "") for item in items]
    if any(isinstance(item, bool) for item in items) or not all(re.fullmatch(r"\d+(-\d+)?", text) for text in texts):
        raise _bad(f"{option} is {given!r}", 'a list of numbers and ranges such as [0, "2-4"]')
    return ",".join(texts)


def _remarks(task: str, level: str | None, options: Mapping[str, Any]) -> Iterator[str]:
    if task not in SAVES:
        why = OTHER_TASKS.get(task, "there is no such task here")
        yield f'task "{task}" is captured as statistics: {why}'
    if level == "L2":
        yield "level L2 is captured as kernels that torch dispatches, on any device; there is no device dump"
    for key, item in options.items():
        if key in UNDERSTOOD or item is None or item in SILENT.get(key, ()):
            continue
        yield f"{key} is ignored: {IGNORED.get(key, 'it is not known here')}"
    if options.get("dump_enable") is False:
        yield "dump_enable is false: nothing is captured (it is read once, when PrecisionDebugger is made)"


def _bad(seen: str, expected: str) -> UlpscopeError:
    return UlpscopeError(f"PrecisionDebugger: {seen}", expected=expected, next_step=f"see {PAGE}")
