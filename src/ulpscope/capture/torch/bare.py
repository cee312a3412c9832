"""Modules of torch's own in which nothing is to be seen at level module: they run without the mode.

It would cost each of their calls, and these write into nothing and hand no memory out.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode


class _Known(NamedTuple):
    """What a class did when torch was imported: its forward, and the one function that this calls."""

    forward: Callable[..., Any]
    name: str
    function: Callable[..., Any]


_FUNCTIONS: Mapping[str, str] = {
    "Linear": "linear",
    "LayerNorm": "layer_norm",
    "RMSNorm": "rms_norm",
    "GroupNorm": "group_norm",
    "Embedding": "embedding",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "GELU": "gelu",
    "SiLU": "silu",
    "ReLU": "relu",
    "Dropout": "dropout",
}
_KNOWN = {
    getattr(nn, kind): _Known(getattr(nn, kind).forward, name, getattr(functional, name))
    for kind, name in _FUNCTIONS.items()
}


def is_bare(module: nn.Module) -> bool:
    """Whether this is such a module, and nothing of the run's own happens in it."""
    kind = type(module)
    known = _KNOWN.get(kind)
    if known is None or kind.forward is not known.forward or "forward" in module.__dict__:
        return False
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    if getattr(functional, known.name) is not known.function or _has_any_global_hook():
        return False
    return not torch._C._len_torch_dispatch_stack() and _top_saved_tensors_default_hooks(True) is None


def run_without(
    mode: TorchFunctionMode, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: Any
) -> Any:
    """Run a module with a mode off the stack, if it is the innermost one."""
    depth = torch._C._len_torch_function_stack()
    if not depth or torch._C._get_function_stack_at(depth - 1) is not mode:
        return original(module, *args, **kwargs)
    _pop_mode()
    try:
        return original(module, *args, **kwargs)
    finally:
        _push_mode(mode)
