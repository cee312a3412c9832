"""Which of torch's functions asks the function mode.

Torch hands a mode what stands under a function's public name at that moment. Where a script has put a wrapper of its
own there, that wrapper is running already, or was never called: what asks is torch's own function, which is to be run.
"""

import gc
from collections.abc import Callable, Iterable
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch.overrides import handle_torch_function

from ulpscope.capture.torch.stacks import is_of_the_user

HANDLER = handle_torch_function.__code__
_BASE = torch._C.TensorBase
_DESCRIPTORS = (MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType)
ACCESSORS = ("__get__", "__set__", "__delete__")


def asking_frame(caller: FrameType | None) -> FrameType | None:
    """The frame of the Python function that asks a mode, by who has called the mode; None if compiled code asks."""
    return caller.f_back if caller is not None and caller.f_code is HANDLER else None


def torchs_own(function: Callable[..., Any], asker: FrameType | None) -> Callable[..., Any]:
    """The function to run where `function` was handed to the mode."""
    if asker is None:
        return _own_method(function)
    code = asker.f_code
    if type(function) is FunctionType and function.__code__ is code:
        return function
    names = _names_in(code, function, asker.f_globals)
    if not names or (_is_torchs(function) and getattr(function, "__name__", None) in names):
        return function
    return _find_own(code, names, asker.f_globals) or function


def _names_in(code: CodeType, function: Callable[..., Any], namespace: dict[str, Any]) -> set[str]:
    """Names that the code uses, under which this function stands now."""
    methods = vars(torch.Tensor)
    return {name for name in code.co_names if namespace.get(name) is function or methods.get(name) is function}


def _is_torchs(function: Callable[..., Any]) -> bool:
    """By its type: an object may claim the name, the code and the class of what it wraps."""
    if type(function) is FunctionType:
        return not is_of_the_user(function.__code__)
    return type(function) in (BuiltinFunctionType, *_DESCRIPTORS)


def _find_own(code: CodeType, names: Iterable[str], namespace: dict[str, Any]) -> Callable[..., Any] | None:
    """The function that runs this code, if one of the names is its own; else torch's function of such a name.

    Nothing of torch's leads to a function whose place is taken, but it is alive: it is running.
    """
    asks_for_itself, module = code.co_name in names, namespace["__name__"]

    def is_named(one: FunctionType) -> bool:
        return one.__name__ in names and one.__module__ == module and _is_torchs(one)

    for thing in gc.get_objects():
        if type(thing) is FunctionType and (thing.__code__ is code if asks_for_itself else is_named(thing)):
            return thing
    return None


def _own_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method or accessor of Tensor that compiled code asks for; functions of namespaces stay as they are."""
    accessor: str = getattr(function, "__name__", "")
    is_accessor = accessor in ACCESSORS
    held: Any = getattr(function, "__self__", None) if is_accessor else function
    if _is_torchs(held):
        return function
    names = [name for name, value in vars(torch.Tensor).items() if value is held and hasattr(_BASE, name)]
    if not names:
        return function
    plain = getattr(held, "__name__", None)
    own: Any = getattr(_BASE, plain if plain in names else names[0])
    found: Callable[..., Any] = getattr(own, accessor) if is_accessor else own
    return found
