"""Functions of the user's own that recorded calls are executed with.

    import ulpscope

    @ulpscope.reference_for("my_library.fused_gelu")
    def gelu(x):
        return torch.nn.functional.gelu(x)

A reference is called with the arguments of the recorded call, its tensors raised to float64 on the CPU. `function`
says what is under test where the recorded name does not lead there.
"""

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ulpscope.records.errors import UlpscopeError

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Registered:
    """What stands for an operation."""

    reference: Callable[..., Any]
    function: Callable[..., Any] | None


_registered: dict[str, Registered] = {}


def reference_for(op: str, *, function: Callable[..., Any] | None = None) -> Callable[[Function], Function]:
    """Say how an operation is computed in plain torch; `op` is its recorded name or the end of it."""

    def register(reference: Function) -> Function:
        _registered[op] = Registered(reference, function)
        return reference

    return register


def registered(op: str) -> Registered | None:
    """What was registered for this operation."""
    if op in _registered:
        return _registered[op]
    return next((found for name, found in _registered.items() if op.endswith(f".{name}")), None)


def load_references(file: Path) -> None:
    """Run a file of the user's that registers functions with `ulpscope.reference_for`."""
    try:
        runpy.run_path(str(file))
    except Exception as error:
        raise UlpscopeError(
            f"{file} cannot be loaded: {type(error).__name__}: {error}",
            expected="a Python file that registers functions with ulpscope.reference_for",
            next_step=f"run it alone: python {file}",
        ) from error
