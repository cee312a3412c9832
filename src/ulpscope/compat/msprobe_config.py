"""Reads msprobe's config.json as options of a capture, and says what of it has no meaning here and why.

A script that was started is not ended by its config: what cannot be read is said, and nothing is captured.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ulpscope.compat.msprobe_names import wanted_by
from ulpscope.compat.telling import KEYS, PAGE, TASKS, Fate, by_name
from ulpscope.records.runs import GradientWatch, OverflowWatch

SAVE_OP = "msprobe.save"
DEFAULT_PATH = "./dump_path"
"""Of the config.json that msprobe brings along, which holds where no other is named."""
OWN_LAYOUT = "msprobe"
"""The file_format that leaves dumps as msprobe writes them."""

LEVELS = {"L0": "module", "L1": "api", "mix": "api", "L2": "kernel", "debug": "module"}
GRAD_PROBE, OVERFLOW_CHECK = "grad_probe", "overflow_check"
ALL_OVERFLOWS = -1
GRAD_LEVELS = ("L0", "L1", "L2")
DEFAULT_BOUNDS = (-1.0, 0.0, 1.0)
SAVES = {"statistics": "stats", "tensor": "tensors"}
_KEYS, _TASKS = by_name(KEYS), by_name(TASKS)


@dataclass(frozen=True, slots=True)
class Seeding:
    """What `seed` and `is_deterministic` ask for."""

    seed: int
    deterministic: bool


@dataclass(frozen=True, slots=True)
class DebuggerConfig:
    """What PrecisionDebugger was asked to do, in the words of a capture."""

    out: Path = Path(DEFAULT_PATH)
    level: str = "api"
    save: str = "stats"
    steps: str | None = None
    ranks: str | None = None
    only: tuple[str, ...] = ()
    enabled: bool = True
    debug: bool = False
    """Only what is handed to save() is recorded."""
    counts_batches: bool = False
    """DataLoaders begin steps, not start, stop and step."""
    own_layout: bool = False
    """When the capture ends, dumps are written as msprobe has them."""
    seeding: Seeding | None = None
    gradients: GradientWatch | None = None
    """What task grad_probe asks for; `only` names parameters then."""
    overflow: OverflowWatch | None = None
    """What task overflow_check asks for."""
    remarks: tuple[str, ...] = ()
    """What is not done, or done otherwise: one sentence each."""


@dataclass(slots=True)
class _Reading:
    """What is found while options are read."""

    remarks: list[str] = field(default_factory=list)
    refused: bool = False
    """Nothing is captured: what was asked for cannot be told."""

    def refuse(self, seen: str, expected: str) -> None:
        self.refused = True
        self.remarks.append(f"{seen}, not {expected}: nothing is captured, the run goes on ({PAGE})")


def read_config(config_path: str | None, arguments: Mapping[str, Any]) -> DebuggerConfig:
    """The file's options, with those that were given to PrecisionDebugger itself before them."""
    reading = _Reading()
    content = {} if config_path is None else _read_json(config_path, reading)
    given = {key: item for key, item in arguments.items() if item is not None}
    if reading.refused:
        return DebuggerConfig(enabled=False, remarks=tuple(reading.remarks))
    config = _interpreted(content, given, reading)
    return replace(config, enabled=config.enabled and not reading.refused, remarks=tuple(reading.remarks))


def _interpreted(content: Mapping[str, Any], given: Mapping[str, Any], reading: _Reading) -> DebuggerConfig:
    common = {**content, **given}
    task = common.get("task") or "statistics"
    # A section holds options of a task, which count only if it is the task.
    options = {key: item for key, item in common.items() if not (isinstance(item, dict) and key in _TASKS)}
    own = content.get(task) if isinstance(task, str) else None
    options |= own if isinstance(own, dict) else {}
    reading.remarks += _remarks(task, options)
    stated = options.get("level") or "L1"
    debug = stated == "debug"
    gradients = _gradients(options, reading) if task == GRAD_PROBE else None
    only = _only(options.get("list"), reading) if gradients is None else _parameters(options.get("param_list"), reading)
    return DebuggerConfig(
        out=_dump_path(common, reading, required="dump_path" not in given and bool(content)),
        level=_level(stated, reading),
        save=SAVES.get(task, "stats") if isinstance(task, str) else "stats",
        steps=_numbers(common.get("step"), reading, option="step"),
        ranks=_numbers(common.get("rank"), reading, option="rank"),
        only=only if gradients else (SAVE_OP,) if debug else (*only, SAVE_OP) if only else (),
        enabled=options.get("dump_enable", True) is not False,
        debug=debug,
        counts_batches=options.get("enable_dataloader") is True,
        own_layout=options.get("file_format") == OWN_LAYOUT,
        seeding=_seeding(options, reading),
        gradients=gradients,
        overflow=_overflow(options, reading) if task == OVERFLOW_CHECK else None,
    )


def _overflow(options: Mapping[str, Any], reading: _Reading) -> OverflowWatch:
    most = options.get("overflow_nums", 1)
    if type(most) is not int or (most < 1 and most != ALL_OVERFLOWS):
        reading.remarks.append(f"overflow_nums is {most!r}, not a number from 1 up or {ALL_OVERFLOWS}: 1 is kept")
        most = 1
    return OverflowWatch(sys.maxsize if most == ALL_OVERFLOWS else most)


def _gradients(options: Mapping[str, Any], reading: _Reading) -> GradientWatch:
    level, bounds = options.get("grad_level") or "L1", options.get("bounds") or DEFAULT_BOUNDS
    if level not in GRAD_LEVELS:
        reading.remarks.append(f"grad_level is {level!r}, not one of {', '.join(GRAD_LEVELS)}: L1 is kept")
        level = "L1"
    are_numbers = isinstance(bounds, list | tuple) and all(type(bound) in (int, float) for bound in bounds)
    if not are_numbers or sorted(set(bounds)) != list(bounds):
        reading.remarks.append(f"bounds is {bounds!r}, not a list of numbers that rise: -1, 0 and 1 are taken")
        bounds = DEFAULT_BOUNDS
    return GradientWatch(tuple(map(float, bounds)) if level == "L2" else (), signs=level != "L0")


def _read_json(path: str, reading: _Reading) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, TypeError) as error:
        reading.refuse(f"config_path {path!r} cannot be read ({error})", "the JSON file of options that msprobe takes")
        return {}
    if not isinstance(content, dict):
        reading.refuse(f"{path} holds a {type(content).__name__}", "a JSON object of options")
        return {}
    return content


def _dump_path(options: Mapping[str, Any], reading: _Reading, *, required: bool) -> Path:
    path = options.get("dump_path")
    if path is None and not required:
        return Path(DEFAULT_PATH)
    if not isinstance(path, str | Path) or not str(path):
        reading.refuse(f"dump_path is {path!r}", "a directory, in config.json or as dump_path=")
        return Path(DEFAULT_PATH)
    return Path(path)


def _level(stated: Any, reading: _Reading) -> str:
    if isinstance(stated, str) and stated in LEVELS:
        return LEVELS[stated]
    reading.remarks.append(f"level is {stated!r}, not one of {', '.join(LEVELS)}: L1 is captured")
    return LEVELS["L1"]


def _parameters(names: Any, reading: _Reading) -> tuple[str, ...]:
    if names and not (isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)):
        reading.refuse(f"param_list is {names!r}", "a list of names of parameters")
        return ()
    return tuple(names or ())


def _only(names: Any, reading: _Reading) -> tuple[str, ...]:
    if not names:
        return ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        reading.refuse(f"list is {names!r}", "a list of names")
        return ()
    wanted = wanted_by(names)
    if wanted.wider:
        reading.remarks.append(
            f"list: of {', '.join(wanted.wider)} all calls are captured: operators are counted otherwise here"
        )
    return wanted.patterns


def _numbers(given: Any, reading: _Reading, *, option: str) -> str | None:
    """`[0, "2-4"]` as `0,2-4`; None for all."""
    if given is None or given == [] or given == "":
        return None
    items: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    texts = [str(item).replace(" ", "") for item in items]
    numbers = [re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text, re.ASCII) for text in texts]
    ordered = all(found and int(found[1]) <= int(found[2] or found[1]) for found in numbers)
    if any(isinstance(item, bool) for item in items) or not ordered:
        reading.refuse(f"{option} is {given!r}", 'a list of numbers and ranges such as [0, "2-4"]')
        return None
    return ",".join(texts)


def _seeding(options: Mapping[str, Any], reading: _Reading) -> Seeding | None:
    seed, deterministic = options.get("seed"), options.get("is_deterministic")
    if seed is None and not deterministic:
        return None
    if type(seed) not in (int, type(None)) or type(deterministic) not in (bool, type(None)):
        reading.remarks.append(
            f"seed is {seed!r} and is_deterministic {deterministic!r}: a number, and true or false; nothing is seeded"
        )
        return None
    return Seeding(1234 if seed is None else seed, bool(deterministic))


def _remarks(task: Any, options: Mapping[str, Any]) -> Iterator[str]:
    known = _TASKS.get(task) if isinstance(task, str) else None
    if known is None:
        yield f'task "{task}" is captured as statistics: there is no such task here'
    elif known.fate is not Fate.KEPT:
        yield f'task "{task}" is {known.here}'
    for key, item in options.items():
        yield from _remark(key, item)


def _remark(key: str, item: Any) -> Iterator[str]:
    row = _KEYS.get(key)
    if row is None:
        yield f"{key} is not known here and has no effect"
    elif row.fate is Fate.TOLD and item not in row.quiet:
        yield f"{key} is ignored: {row.here}"
    elif key == "level" and item == "L2":
        yield "level L2 is captured as kernels that torch dispatches, on any device; there is no device dump"
    elif key == "dump_enable" and item is not None:
        said = "nothing is captured" if item is False else "it is captured"
        yield f"dump_enable is {json.dumps(item)}: {said} (it is read once, when PrecisionDebugger is made)"
    elif key == "file_format" and item not in (None, OWN_LAYOUT):
        yield f"file_format {item!r}: data is kept as safetensors; {OWN_LAYOUT!r} leaves msprobe's own layout"
    elif key == "enable_dataloader" and item is True:
        yield "enable_dataloader: batches are steps; start, stop and step do nothing, and the training is not ended"


NEW = ("config_path", "task", "dump_path", "level", "step")
OLDER = ("config_path", "task", "dump_path", "level", "model", "step")
FIRST = ("dump_path", "hook_name", "rank", "step", "enable_dataloader", "model")
HOOKS = {"dump": "tensor", "overflow_check": "overflow_check"}
"""Tasks of the first versions, whose dumps were data."""
OPTIONS = ("task", "dump_path", "level", "step", "rank", "enable_dataloader", "list")


@dataclass(frozen=True, slots=True)
class Asked:
    """Arguments by name."""

    config_path: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Those that config.json has, too."""
    model: Any = None
    remarks: tuple[str, ...] = ()


def read_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked:
    """Tell them apart by what they are."""
    names = _names(args, kwargs)
    given = dict(zip(names, args, strict=False)) | kwargs
    remarks = [f"{len(args) - len(names)} arguments too many have no effect"] if len(args) > len(names) else []
    if "hook_name" in given:
        given["task"] = HOOKS.get(given.pop("hook_name"), "tensor")
    config_path, model = given.pop("config_path", None), given.pop("model", None)
    options = {name: given.pop(name) for name in OPTIONS if name in given}
    remarks += [f"argument {name} has no effect" for name in given]
    return Asked(None if config_path is None else str(config_path), options, model, tuple(remarks))


def _names(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
    # A first argument that is no file of options: where the first versions wrote to.
    is_directory = bool(args) and isinstance(args[0], str | Path) and Path(args[0]).suffix != ".json"
    if "hook_name" in kwargs or (len(args) > 1 and args[1] in HOOKS) or is_directory:
        return FIRST
    return OLDER if len(args) > 5 or (len(args) == 5 and not _are_steps(args[4])) else NEW


def _are_steps(given: Any) -> bool:
    items = given if isinstance(given, list | tuple) else [given]
    return given is None or all(isinstance(item, int | str) for item in items)
