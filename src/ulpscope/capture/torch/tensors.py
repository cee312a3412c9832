"""Which tensors can be read here, at which version they are, how their elements lie; and how to look at them unseen."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.utils._python_dispatch import _disable_current_modes

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.numerics.dtypes import DTYPES

READABLE_DTYPES = frozenset(getattr(torch, name) for name in DTYPES if hasattr(torch, name))
_ORDINARY = frozenset({Tensor, torch.nn.Parameter})
_STRIDED = torch.strided
_is_transformed = torch._C._functorch.is_functorch_wrapped_tensor
_SUBCLASS_REASONS: dict[type, str | None] = {}


def unsummarizable_reason(tensor: Tensor) -> str | None:
    """One word for why this tensor's content cannot be read here; none if it can."""
    kind = type(tensor)
    if kind not in _ORDINARY and (reason := _subclass_reason(kind)) is not None:
        return reason
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not _STRIDED:
        return "sparse"
    if tensor.is_meta:
        return "meta"
    if tensor.dtype not in READABLE_DTYPES:
        return "quantized" if tensor.is_quantized else "dtype"
    if _is_transformed(tensor):
        return "functorch"
    try:
        # FSDP frees a parameter's memory under the tensor, which keeps its shape.
        return None if tensor.data_ptr() or not tensor.numel() else "freed"
    except RuntimeError as error:
        pass_on_interruption(error)
        return "storage"


def _subclass_reason(kind: type) -> str | None:
    if kind not in _SUBCLASS_REASONS:
        _SUBCLASS_REASONS[kind] = _look_at_subclass(kind)
    return _SUBCLASS_REASONS[kind]


def _look_at_subclass(kind: type) -> str | None:
    if issubclass(kind, UninitializedTensorMixin):
        return "uninitialized"
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:  # type: ignore[attr-defined]
        return "subclass"
    return None


def version_of(tensor: Tensor) -> int | None:
    """How often a tensor's storage was written; None for inference tensors, which do not count."""
    # Outside of inference mode, is_inference() is not asked: it lets other threads run, which costs the run its turn.
    if torch.is_inference_mode_enabled() and tensor.is_inference():
        return None
    try:
        return tensor._version
    except RuntimeError as error:
        pass_on_interruption(error)
        return None


def versions_of(tensors: list[tuple[str, Tensor]]) -> list[int | None]:
    if not torch.is_inference_mode_enabled():
        try:
            return [tensor._version for _, tensor in tensors]
        except RuntimeError as error:
            pass_on_interruption(error)
    return [version_of(tensor) for _, tensor in tensors]


@lru_cache(maxsize=4096)
def merged_dimensions(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Sizes and strides, innermost first, without dimensions of one element, those joined that continue each other.

    Views of one storage for which this is equal tell the same elements in the same order, if they begin at the same.
    """
    merged: list[tuple[int, int]] = []
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if merged and stride == merged[-1][0] * merged[-1][1]:
            inner, inner_stride = merged[-1]
            merged[-1] = inner * size, inner_stride
        else:
            merged.append((size, stride))
    return tuple(merged)


def quiet() -> AbstractContextManager[Any]:
    """Run torch calls past every function and dispatch mode, and outside of every function transform."""
    if torch._C._functorch.peek_interpreter_stack() is None and torch._C._len_torch_dispatch_stack() == 0:
        return torch._C.DisableTorchFunction()
    return _quiet_everywhere()


@contextlib.contextmanager
def _quiet_everywhere() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), contextlib.ExitStack() as others:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            others.enter_context(temporarily_clear_interpreter_stack())
        if torch._C._len_torch_dispatch_stack() > 0:
            others.enter_context(_disable_current_modes())
        yield
