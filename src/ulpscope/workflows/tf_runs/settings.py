"""The keys of precision_tool's config.py: where data goes, which steps are dumped. From the environment or a YAML file.

precision_data/
  npu/debug_0/{dump,graph,prof}     overflow/dump     tf/{tf_debug,dump,checkpoints/input}     fusion

A number or a list of steps is read from the variable of its own name (TF_DUMP_STEP=0|5), a folder from
PRECISION_TOOL_<KEY>, because variables such as ROOT_DIR may mean something else. PRECISION_TOOL_CONFIG names a YAML
file of keys; a variable wins over it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DUMP_FLAG, OVERFLOW_FLAG = "PRECISION_TOOL_DUMP", "PRECISION_TOOL_OVERFLOW"
"""What a script asks that names no action; `True` switches on."""
CONFIG_VARIABLE = "PRECISION_TOOL_CONFIG"
PREFIX = "PRECISION_TOOL_"
SWITCHED_VARIABLE = "ULPSCOPE_SWITCHED"
"""Names a file into which a script that our names configure writes what it has switched on, a word a line."""

NUMBERS = {"OP_DEBUG_LEVEL": 4, "DUMP_GE_GRAPH_VALUE": 2, "DUMP_GRAPH_LEVEL_VALUE": 3, "DUMP_SEED": 2022}
TEXTS = {"TF_DUMP_STEP": "0", "ASCEND_LOG_PATH": "~/ascend/log", "ROOT_DIR": ""}
FOLDERS = {
    "DATA_ROOT_DIR": ("ROOT_DIR", "precision_data"),
    "FUSION_DIR": ("DATA_ROOT_DIR", "fusion"),
    "NPU_DIR": ("DATA_ROOT_DIR", "npu"),
    "DEFAULT_NPU_DIR": ("NPU_DIR", "debug_0"),
    "DEFAULT_NPU_DUMP_DIR": ("DEFAULT_NPU_DIR", "dump"),
    "DEFAULT_NPU_GRAPH_DIR": ("DEFAULT_NPU_DIR", "graph"),
    "PROFILING_DIR": ("DEFAULT_NPU_DIR", "prof"),
    "DEFAULT_OP_DEBUG_DIR": ("DEFAULT_NPU_DIR", ""),
    "OVERFLOW_DIR": ("DATA_ROOT_DIR", "overflow"),
    "NPU_OVERFLOW_DUMP_DIR": ("OVERFLOW_DIR", "dump"),
    "TF_DIR": ("DATA_ROOT_DIR", "tf"),
    "TF_DEBUG_DUMP_DIR": ("TF_DIR", "tf_debug"),
    "TF_DUMP_DIR": ("TF_DIR", "dump"),
    "TF_CKPT_ROOT": ("TF_DIR", "checkpoints"),
    "TF_CKPT_FILE": ("TF_CKPT_ROOT", "ckpt"),
    "TF_CKPT_INPUT_DIR": ("TF_CKPT_ROOT", "input"),
    "FUSION_SWITCH_FILE": ("FUSION_DIR", "fusion_switch.cfg"),
}
"""Each below another key's."""
WITHOUT_EFFECT = {
    "CMD_ROOT_PATH": "neither atc nor msaccucmp is needed",
    "ASCEND_SET_ENV": "source it before the command",
    "LOG_LEVEL": "there is no log; progress goes to stderr",
    "NET_TYPE": "dumps and graphs are matched by what they hold",
    "TF_DEBUG_TIMEOUT": "dumps are read without tfdbg's prompt",
    "BUILD_JSON_GRAPH_NAME": "graphs of the last stage are found",
    "MS_ACCU_CMP": "msaccucmp is not needed",
}
"""Keys of which a file may still speak."""

_STEPS = re.compile(r"(\d+(-\d+)?(\|\d+(-\d+)?)*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Settings:
    """All keys with their values, and what was wrong with what was asked for."""

    numbers: Mapping[str, int]
    texts: Mapping[str, str]
    problems: tuple[str, ...] = ()

    @property
    def dump_step(self) -> str:
        """`0|5|10`; empty for every step."""
        return self.texts["TF_DUMP_STEP"]

    def path(self, key: str) -> str:
        """A folder, as the user wrote it: relative to where the script runs."""
        if key in self.texts:
            return self.texts[key]
        parent, name = FOLDERS[key]
        return os.path.join(self.path(parent), name) if name else self.path(parent)

    def folder(self, key: str) -> Path:
        return Path(self.path(key))


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Never fails: what cannot be used is a problem, and its key keeps what it has by default."""
    problems: list[str] = []
    given = {**_from_file(environ, problems), **dict(_from_environment(environ))}
    numbers, texts = dict(NUMBERS), dict(TEXTS)
    for key, (value, where) in given.items():
        if key in NUMBERS:
            number = _number(value)
            if number is None:
                problems.append(f"{where} is {value!r}, not a whole number: {NUMBERS[key]} is used")
            else:
                numbers[key] = number
        elif isinstance(value, bool) or not isinstance(value, (str, int)):
            problems.append(f"{where} is {value!r}, not a text; it is left as it was")
        elif key == "TF_DUMP_STEP" and not _STEPS.fullmatch(str(value)):
            problems.append(f"{where} is {value!r}, not steps such as 0|5|10 or 0|3-5: step {TEXTS[key]} is used")
        else:
            texts[key] = str(value)
    return Settings(numbers, texts, tuple(problems))


def graph_variables(settings: Settings) -> dict[str, str]:
    """What makes the device's compiler write its graphs."""
    return {
        "DUMP_GE_GRAPH": str(settings.numbers["DUMP_GE_GRAPH_VALUE"]),
        "DUMP_GRAPH_LEVEL": str(settings.numbers["DUMP_GRAPH_LEVEL_VALUE"]),
        "DUMP_GRAPH_PATH": settings.path("DEFAULT_NPU_GRAPH_DIR"),
        "NPU_DUMP_GRAPH": "true",
    }


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[Any, str]]]:
    own = [key for key in (*NUMBERS, *TEXTS) if key != "ROOT_DIR"]
    for key in (*NUMBERS, *TEXTS, *FOLDERS):
        for name in (f"{PREFIX}{key}", key if key in own else ""):
            if name and name in environ:
                yield key, (environ[name], f"the variable {name}")
                break


def _from_file(environ: Mapping[str, str], problems: list[str]) -> dict[str, tuple[Any, str]]:
    name = environ.get(CONFIG_VARIABLE)
    if not name:
        return {}
    import yaml

    try:
        content = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        problems.append(f"{name} ({CONFIG_VARIABLE}) cannot be read: {' '.join(str(error).split())[:200]}")
        return {}
    if content is None:
        return {}
    if not isinstance(content, dict):
        problems.append(f"{name} ({CONFIG_VARIABLE}) holds a {type(content).__name__}, not keys with values")
        return {}
    known = {*NUMBERS, *TEXTS, *FOLDERS}
    for key in content:
        if key in WITHOUT_EFFECT:
            problems.append(f"{key} in {name} has no effect: {WITHOUT_EFFECT[key]}")
        elif key not in known:
            problems.append(f"{key!r} in {name} is not known; keys are {', '.join(sorted(known))}")
    return {key: (value, f"{key} in {name}") for key, value in content.items() if key in known}


def _number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
