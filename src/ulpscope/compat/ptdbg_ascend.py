"""ptdbg_ascend's Python names, msprobe's forerunner: a script changes by one import.

    set_dump_path("./dump")
    register_hook(model, acc_cmp_dump)
    set_dump_switch("ON", mode="list", scope=["Functional_conv2d_0_forward"])
    train_step(batch)
    set_dump_switch("OFF")

The path becomes a trace; each stretch from "ON" to "OFF" is a step of it.
"""

from typing import Any

from ulpscope.compat.msprobe import (
    PrecisionDebugger,
    compare,
    compare_distributed,
    seed_all,
)
from ulpscope.compat.telling import PAGE, tell

__all__ = [
    "PrecisionDebugger",
    "acc_cmp_dump",
    "compare",
    "compare_distributed",
    "overflow_check",
    "parse",
    "register_hook",
    "seed_all",
    "set_backward_input",
    "set_dump_path",
    "set_dump_switch",
    "set_overflow_check_switch",
]

acc_cmp_dump = "tensor"
overflow_check = "overflow_check"
"""The two hooks, by the tasks that they are."""
_CHOOSING = ("list", "api_list", "acl")
"""Modes in which names choose calls."""


class _Switch:
    """What was asked for before the first "ON"."""

    def __init__(self) -> None:
        self.path: str | None = None
        self.task = acc_cmp_dump
        self.model: Any = None
        self.is_on = False
        self.was_on = False

    def on(self, options: dict[str, Any]) -> None:
        if self.is_on:
            return
        if self.was_on:
            PrecisionDebugger.step()
        else:
            PrecisionDebugger(dump_path=self.path, **options)
        self.is_on = self.was_on = True
        PrecisionDebugger.start(model=self.model)

    def off(self) -> None:
        if self.is_on:
            self.is_on = False
            PrecisionDebugger.stop()


_switch = _Switch()


def register_hook(model: Any, hook: Any = acc_cmp_dump, **options: Any) -> None:
    """This model is captured, and gives module paths their root."""
    _switch.model = model
    _switch.task = hook if hook in (acc_cmp_dump, overflow_check) else acc_cmp_dump
    for name in options:
        tell(f"register_hook: {name} has no effect ({PAGE})")


def set_dump_path(fpath: str | None = None, dump_tag: str = "", *_: Any, **__: Any) -> None:
    """Where the trace goes; a file that was to be written stands for the directory of its name."""
    _switch.path = None if fpath is None else str(fpath).removesuffix(".pkl")


def set_dump_switch(
    switch: str,
    mode: str = "all",
    scope: Any = (),
    api_list: Any = (),
    filter_switch: str = "OFF",
    dump_mode: Any = ("all",),
    summary_only: bool = False,
    summary_mode: str = "all",
    **others: Any,
) -> None:
    """Capture from here on ("ON"), or no more until the next "ON" ("OFF")."""
    if switch == "OFF":
        _switch.off()
        return
    if switch != "ON":
        tell(f'set_dump_switch({switch!r}) has no effect: it takes "ON" or "OFF"')
        return
    if mode in ("range", "stack") and scope:
        tell(f"set_dump_switch: mode {mode} is not applied: all calls from ON to OFF are captured; mode list chooses")
    if mode == "acl":
        tell("set_dump_switch: mode acl: there is no dump by the device; kernels are recorded as torch dispatches them")
    if [*dump_mode] != ["all"]:
        tell("set_dump_switch: dump_mode is ignored: inputs, outputs and gradients are always recorded")
    for name in others:
        tell(f"set_dump_switch: {name} has no effect ({PAGE})")
    stats_only = summary_only or summary_mode != "all" or mode == "api_stack"
    names = [*scope, *api_list] if mode in _CHOOSING else []
    _switch.on(
        {
            "task": "statistics" if stats_only and _switch.task == acc_cmp_dump else _switch.task,
            "level": "L2" if mode == "acl" else "mix",
            "list": names,
        }
    )


def set_overflow_check_switch(switch: str, *_: Any, **__: Any) -> None:
    """The trace counts nan and inf of every value from here on; `ulpscope overflow` tells where they began."""
    _switch.task = overflow_check
    set_dump_switch(switch)


def set_backward_input(backward_input: Any) -> None:
    tell("set_backward_input has no effect: kernels of the backward are recorded with mode acl")


def parse(*_: Any, **__: Any) -> None:
    tell("parse has no effect: ulpscope show TRACE CALL tells a call's stack and values")
