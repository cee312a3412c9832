"""acl.json: what an Ascend device dumps while it infers, read by aclInit and aclmdlSetDump.

{"dump": {"dump_path": "/data/dump", "dump_mode": "all", "dump_list": [{"model_name": "resnet50", "layer": ["fc"]}]}}
{"dump": {"dump_path": "/data/overflow", "dump_debug": "on"}}
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.dialects.ascend.settings_file import read_settings
from ulpscope.records.errors import UlpscopeError

CHOICES = {
    "dump_mode": ("input", "output", "all"),
    "dump_op_switch": ("on", "off"),
    "dump_data": ("tensor", "stats"),
    "dump_level": ("op", "kernel", "all"),
    "dump_debug": ("on", "off"),
}
KEYS = ("dump_path", "dump_list", "dump_step", *CHOICES)
_STEPS = re.compile(r"\d+(-\d+)?(\|\d+(-\d+)?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class DumpedModel:
    """Operators of one model."""

    name: str
    layers: tuple[str, ...] = ()
    """Empty for all."""


@dataclass(frozen=True, slots=True)
class AclDump:
    """The object `dump` of the file."""

    path: str
    models: tuple[DumpedModel, ...] | None = None
    """None where the file has no list of them."""
    others: Mapping[str, str] | None = None
    """Keys with one value."""

    @property
    def detects_overflow(self) -> bool:
        return (self.others or {}).get("dump_debug") == "on"

    def text(self) -> str:
        content: dict[str, Any] = {"dump_path": self.path, **(self.others or {})}
        if self.models is not None:
            content["dump_list"] = [
                {"model_name": model.name, **({"layer": list(model.layers)} if model.layers else {})}
                for model in self.models
            ]
        return json.dumps({"dump": content}, indent=2) + "\n"


def are_steps(text: str) -> bool:
    """`0|3-5|10`."""
    return _STEPS.fullmatch(text) is not None


def read_acl(path: Path) -> AclDump:
    """The file, every key and value of its dump checked; UlpscopeError if the device would refuse or ignore it."""
    content = read_settings(path, _bad)
    dump = content.get("dump") if isinstance(content, dict) else None
    if not isinstance(dump, dict):
        raise _bad(path, "has no object dump")
    for key, value in dump.items():
        if key not in KEYS:
            raise _bad(path, f"has the unknown key {str(key)[:40]!r}", expected=f"keys: {', '.join(KEYS)}")
        _CHECKS.get(key, _check_choice)(path, key, value)
    if "dump_path" not in dump:
        raise _bad(path, "has no dump_path", expected="dump_path: a directory that exists on the device's host")
    models = dump.get("dump_list")
    others = {key: dump[key] for key in ("dump_step", *CHOICES) if key in dump}
    found = AclDump(dump["dump_path"], None if models is None else tuple(map(_model, models)), others)
    _check_together(path, found)
    return found


def _check_together(path: Path, dump: AclDump) -> None:
    others = dump.others or {}
    if dump.detects_overflow and dump.models is not None:
        raise _bad(path, "has dump_debug on and a dump_list", expected="either: overflow detection dumps by itself")
    if not dump.detects_overflow and dump.models is None and others.get("dump_op_switch") != "on":
        raise _bad(path, "dumps nothing", expected="a dump_list, or dump_op_switch or dump_debug on")
    names = [model.name for model in dump.models or ()]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _bad(path, f"has the model {twice!r} twice in dump_list", expected="one object a model")


def _model(entry: Mapping[str, Any]) -> DumpedModel:
    return DumpedModel(entry["model_name"], tuple(entry.get("layer", ())))


def _check_path(path: Path, key: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise _bad(path, f"has {key} {_shown(value)}", expected=f"{key}: a directory, as a text")


def _check_steps(path: Path, key: str, value: Any) -> None:
    if not isinstance(value, str) or not are_steps(value):
        raise _bad(path, f"has {key} {_shown(value)}", expected=f'{key}: steps such as "0|3-5|10", as a text')


def _check_choice(path: Path, key: str, value: Any) -> None:
    if value not in CHOICES[key] or not isinstance(value, str):
        expected = " or ".join(f'"{choice}"' for choice in CHOICES[key])
        raise _bad(path, f"has {key} {_shown(value)}", expected=f"{key}: {expected}; a text, also for on and off")


def _check_models(path: Path, key: str, value: Any) -> None:
    if not isinstance(value, list):
        raise _bad(path, f"has {key} {_shown(value)}", expected=f"{key}: a list of objects with model_name")
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("model_name"), str):
            raise _bad(path, f"has {_shown(entry)} in {key}", expected='{"model_name": NAME, "layer": [NAME, ...]}')
        if unknown := sorted(set(entry) - {"model_name", "layer"}):
            raise _bad(path, f"has the unknown key {unknown[0]!r} in {key}", expected="model_name and layer")
        layers = entry.get("layer", [])
        if not isinstance(layers, list) or not all(isinstance(name, str) for name in layers):
            raise _bad(path, f"has layer {_shown(layers)} in {key}", expected="a list of names of operators")


_CHECKS: dict[str, Callable[[Path, str, Any], None]] = {
    "dump_path": _check_path,
    "dump_list": _check_models,
    "dump_step": _check_steps,
}


def _shown(value: Any) -> str:
    return json.dumps(value)[:60]


def _bad(path: Path, problem: str, *, expected: str = '{"dump": {"dump_path": ..., ...}}') -> UlpscopeError:
    return UlpscopeError(
        f"{path} {problem}",
        expected=expected,
        next_step=f"correct it, or write a new one: ulpscope npu-dump --acl {path} --model NAME --overwrite",
    )
