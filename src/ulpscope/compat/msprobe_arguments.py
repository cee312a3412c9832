"""What PrecisionDebugger is given, in the order of whichever version the script was written for.

26.x            (config_path, task, dump_path, level, step)
1.0 to 8.x      (config_path, task, dump_path, level, model, step)
ptdbg_ascend    (dump_path, hook_name, rank, step, enable_dataloader, model)
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    if "hook_name" in kwargs or (len(args) > 1 and args[1] in HOOKS) or _is_directory(args):
        return FIRST
    return OLDER if len(args) > 5 or (len(args) == 5 and not _are_steps(args[4])) else NEW


def _is_directory(args: tuple[Any, ...]) -> bool:
    """A first argument that is no file of options: where the first versions wrote to."""
    return bool(args) and isinstance(args[0], str | Path) and Path(args[0]).suffix != ".json"


def _are_steps(given: Any) -> bool:
    items = given if isinstance(given, list | tuple) else [given]
    return given is None or all(isinstance(item, int | str) for item in items)
