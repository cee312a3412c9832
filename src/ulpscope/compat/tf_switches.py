"""What the names of precision_tool.tf_config switch on: an action taken apart, and the options that the NPU reads."""

import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ulpscope.compat.telling import tell
from ulpscope.workflows.tf_runs.settings import (
    DUMP_FLAG,
    OVERFLOW_FLAG,
    SWITCHED_VARIABLE,
    Settings,
    graph_variables,
    read_settings,
)

PAGE = "docs/compat-tf-config.md"
WORDS = ("dump", "overflow", "fusion_off", "fusion_switch", "prof")
NPU_PACKAGES = ("npu_bridge", "npu_device")
_FOLDERS = ("DEFAULT_OP_DEBUG_DIR", "NPU_OVERFLOW_DUMP_DIR", "DEFAULT_NPU_DUMP_DIR", "DEFAULT_NPU_GRAPH_DIR")
_PROFILED = {
    "storage_limit": "1000MB",
    "training_trace": "on",
    "l2": "on",
    "hccl": "on",
    "task_trace": "on",
    "aicpu": "on",
    "fp_point": "",
    "bp_point": "",
    "aic_metrics": "PipeUtilization",
    "msproftx": "on",
}
FUSION_OFF_FILE = str(Path(str(resources.files("ulpscope.compat"))) / "fusion_off.cfg")


@dataclass(frozen=True, slots=True)
class Asked:
    """What an action names; several words may stand in one, however they are parted."""

    dump: bool = False
    overflow: bool = False
    fusion_off: bool = False
    fusion_switch: bool = False
    prof: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(word for word in WORDS if getattr(self, word))


def asked(action: Any, *, caller: str) -> Asked:
    """What an action asks for; without one, what the environment's flags ask for."""
    if action is None:
        return Asked(dump=os.environ.get(DUMP_FLAG) == "True", overflow=os.environ.get(OVERFLOW_FLAG) == "True")
    text = action if isinstance(action, str) else "|".join(map(str, action)) if _is_several(action) else ""
    unknown = [part for part in re.split(r"[^\w]+", text) if part and not any(word in part for word in WORDS)]
    if unknown or not text:
        tell(
            f"{caller}: action {action!r}: {unknown[0] if unknown else 'nothing'!r} is no action, and has no effect; "
            f"expected: {', '.join(WORDS)}, or several joined by |; next: correct the action ({PAGE})"
        )
    return Asked(**{word: word in text for word in WORDS})


def _is_several(action: Any) -> bool:
    return isinstance(action, (list, tuple, set, frozenset))


def prepare() -> Settings:
    """Read the settings, say what is wrong with them, make the folders, and have the compiler write its graphs."""
    settings = read_settings(os.environ)
    for problem in settings.problems:
        tell(f"tf_config: {problem} ({PAGE})")
    for key in _FOLDERS:
        make_folder(settings.folder(key))
    os.environ.update(graph_variables(settings))
    return settings


def make_folder(folder: Path) -> bool:
    """Whether it is there now; the device cannot write into one that is not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        tell(f"{folder} cannot be made ({error.strerror}): what would go there is lost; make it, and run again")
        return False
    return True


def missing_npu(what: str) -> bool:
    """Say so if this machine has no package of the NPU; the script then runs on the CPU or GPU."""
    if any(name in sys.modules or importlib.util.find_spec(name) is not None for name in NPU_PACKAGES):
        return False
    tell(
        f"{what}: neither npu_bridge nor npu_device is installed here, so nothing is dumped by an NPU, and the script "
        f"runs on without one; for a reference dump of this machine: sess_dump or estimator_dump ({PAGE})"
    )
    return True


def switched_on(names: tuple[str, ...]) -> None:
    """Tell the command that started this script what it has switched on."""
    file = os.environ.get(SWITCHED_VARIABLE)
    if file and names:
        try:
            with open(file, "a", encoding="utf-8") as lines:
                lines.writelines(f"{name}\n" for name in names)
        except OSError:
            # The command then knows only what it finds.
            return


def custom_op_values(wanted: Asked, settings: Settings) -> Iterator[tuple[str, str | int | bool]]:
    """The parameters of a NpuOptimizer, in order; an overflow is looked for rather than a dump made."""
    yield "debug_dir", settings.path("DEFAULT_OP_DEBUG_DIR")
    if wanted.overflow:
        yield "enable_dump_debug", True
        yield "dump_debug_mode", "all"
        yield "dump_path", settings.path("NPU_OVERFLOW_DUMP_DIR")
        yield "op_debug_level", settings.numbers["OP_DEBUG_LEVEL"]
    elif wanted.dump:
        yield "enable_dump", True
        yield "dump_mode", "all"
        yield "dump_path", settings.path("DEFAULT_NPU_DUMP_DIR")
        yield "op_debug_level", settings.numbers["OP_DEBUG_LEVEL"]
        yield "dump_step", settings.dump_step
    if wanted.fusion_off or wanted.fusion_switch:
        yield "fusion_switch_file", FUSION_OFF_FILE if wanted.fusion_off else fusion_switch_file(settings)
    if wanted.prof:
        make_folder(settings.folder("PROFILING_DIR"))
        yield "profiling_mode", True
        yield "profiling_options", json.dumps({"output": settings.path("PROFILING_DIR"), **_PROFILED})


def set_parameters(custom_op: Any, values: Iterator[tuple[str, str | int | bool]]) -> None:
    """Each into the field of its type: b of truth values, i of whole numbers, s of bytes."""
    for name, value in values:
        parameter = custom_op.parameter_map[name]
        if isinstance(value, bool):
            parameter.b = value
        elif isinstance(value, int):
            parameter.i = value
        else:
            parameter.s = os.fsencode(value)


def dump_config_arguments(wanted: Asked, settings: Settings) -> dict[str, Any]:
    """What npu_bridge's DumpConfig is made of."""
    if wanted.overflow:
        path = settings.path("NPU_OVERFLOW_DUMP_DIR")
        return {"enable_dump_debug": True, "dump_path": path, "dump_mode": "all"}
    if wanted.dump:
        path = settings.path("DEFAULT_NPU_DUMP_DIR")
        return {"enable_dump": True, "dump_path": path, "dump_step": settings.dump_step, "dump_mode": "all"}
    return {}


def set_global_options(options: Any, wanted: Asked, settings: Settings) -> None:
    """The options of npu_device. Both of dump and overflow are set if both are asked for."""
    dump = options.dump_config
    if wanted.overflow:
        dump.enable_dump_debug = True
        dump.dump_path = settings.path("NPU_OVERFLOW_DUMP_DIR")
    if wanted.dump:
        dump.enable_dump = True
        dump.dump_path = settings.path("DEFAULT_NPU_DUMP_DIR")
        dump.dump_mode = "all"
        dump.dump_step = settings.dump_step
    if wanted.overflow or wanted.dump:
        dump.dump_debug_mode = "all"
        options.op_debug_level = settings.numbers["OP_DEBUG_LEVEL"]
    if wanted.fusion_switch:
        options.fusion_switch_file = fusion_switch_file(settings)
    elif wanted.fusion_off:
        options.fusion_switch_file = FUSION_OFF_FILE


def fusion_switch_file(settings: Settings) -> str:
    """The switches that the user fills in; an empty file of them is put there once, and never replaced."""
    file = settings.folder("FUSION_SWITCH_FILE").absolute()
    if not file.exists() and make_folder(file.parent):
        try:
            empty = resources.files("ulpscope.compat").joinpath("fusion_switch.cfg")
            file.write_text(empty.read_text(encoding="utf-8"), encoding="utf-8")
            tell(f"{file} switches nothing off yet; ulpscope fusion fusion_result.json --switch-off writes another")
        except OSError as error:
            tell(f"{file} cannot be written: {error.strerror}")
    return str(file)
