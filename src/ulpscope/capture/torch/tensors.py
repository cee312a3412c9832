"""torch's tensors: which can be read here, at which version they are, how to look at them unseen; its arguments."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.arguments import Arguments
from ulpscope.capture.recording.environment import state_digest
from ulpscope.capture.recording.tensors import Described, Placed, Shard
from ulpscope.numerics.dtypes import DTYPES

READABLE_DTYPES = frozenset(getattr(torch, name) for name in DTYPES if hasattr(torch, name))
ORDINARY = frozenset({Tensor, torch.nn.Parameter})
COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})
_STRIDED = torch.strided
is_transformed = torch._C._functorch.is_functorch_wrapped_tensor


def unsummarizable_reason(tensor: Tensor) -> str | None:
    """One word for why this tensor's content cannot be read here; none if it can."""
    kind = type(tensor)
    if kind not in ORDINARY and (reason := _why_class_unreadable(kind)) is not None:
        return reason
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not _STRIDED:
        return "sparse"
    if tensor.is_meta:
        return "meta"
    if tensor.dtype not in READABLE_DTYPES:
        return "quantized" if tensor.is_quantized else "dtype"
    if is_transformed(tensor):
        return "functorch"
    try:
        # FSDP frees a parameter's memory under the tensor, which keeps its shape.
        return None if tensor.data_ptr() or not tensor.numel() else "freed"
    except RuntimeError as error:
        pass_on_interruption(error)
        return "storage"


@cache
def _why_class_unreadable(kind: type) -> str | None:
    if issubclass(kind, UninitializedTensorMixin):
        return "uninitialized"
    return "subclass" if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ else None  # type: ignore[attr-defined]


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


def may_be_stale(tensor: Tensor) -> bool:
    """Whether asking a tensor for its node may make one."""
    # Not is_leaf: to answer that, torch makes the node.
    return tensor._is_view() and tensor._version > 0


def versions_of(tensors: list[tuple[str, Tensor]]) -> list[int | None]:
    if not torch.is_inference_mode_enabled():
        try:
            return [tensor._version for _, tensor in tensors]
        except RuntimeError as error:
            pass_on_interruption(error)
    return [version_of(tensor) for _, tensor in tensors]


def describe_opaque(tensor: Tensor) -> Described:
    return Described(
        dtype=word_of(tensor.dtype),
        shape=_plain(lambda: tensor.shape),
        strides=_plain(tensor.stride) if tensor.layout == torch.strided else (),
        device=word_of(tensor.device),
        layout=word_of(tensor.layout),
        requires_grad=tensor.requires_grad,
    )


@lru_cache(maxsize=1024)
def word_of(thing: torch.dtype | torch.device | torch.layout) -> str:
    return str(thing).removeprefix("torch.")


def _plain(sizes: Callable[[], Any]) -> tuple[int, ...]:
    """Sizes as numbers; (-1,) where a tensor has none that are numbers (nested, symbolic)."""
    try:
        return tuple(int(size) for size in sizes())
    except Exception as error:
        pass_on_interruption(error)
        return (-1,)


def shard_of(tensor: Tensor) -> Shard | None:
    """Global shape and mesh of a distributed tensor, None for any other."""
    distributed: Any = tensor
    if type(tensor) in ORDINARY or not hasattr(tensor, "_local_tensor"):
        return None
    return _plain(lambda: tensor.shape), f"{distributed.device_mesh} {distributed.placements}"


def local_tensor(tensor: Tensor) -> Tensor:
    """What this process holds of a distributed tensor; of another class, a plain tensor whose methods are torch's."""
    kind = type(tensor)
    if kind in ORDINARY:
        return tensor
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, Tensor):
        return local
    overrides_dispatch = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    return tensor if overrides_dispatch else torch._C.TensorBase.as_subclass(tensor, Tensor)


class LowestMode(TorchDispatchMode):
    """A dispatch mode of ours, below all that is recorded: our own torch calls pass it by."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]


def quiet() -> AbstractContextManager[Any]:
    """Run torch calls past every function and dispatch mode, and outside of every function transform."""
    modes = torch._C._len_torch_dispatch_stack()
    if torch._C._functorch.peek_interpreter_stack() is None:
        if modes == 0:
            return torch._C.DisableTorchFunction()
        if modes == 1 and isinstance(torch._C._get_dispatch_stack_at(0), LowestMode):
            return _QuietBelow()
    return _quiet_everywhere()


class _QuietBelow:
    """Past function modes and the dispatch key of modes: taking a mode off its stack costs far more."""

    def __enter__(self) -> None:
        self._functions, self._operators = torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch()
        self._functions.__enter__()
        self._operators.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._operators.__exit__(*raised)
        self._functions.__exit__(*raised)


@contextlib.contextmanager
def _quiet_everywhere() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), contextlib.ExitStack() as others:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            others.enter_context(temporarily_clear_interpreter_stack())
        if torch._C._len_torch_dispatch_stack() > 0:
            others.enter_context(_disable_current_modes())
        yield


_WORDS: dict[type, str] = {
    torch.dtype: "$dtype",
    torch.layout: "$layout",
    torch.memory_format: "$memory_format",
    torch.device: "$device",
}


def _word(item: Any) -> dict[str, str] | None:
    for kind, word in _WORDS.items():
        if isinstance(item, kind):
            return {word: str(item).removeprefix("torch.")}
    if isinstance(item, torch.Generator):
        return {"$generator": str(item.device)}
    if isinstance(item, torch.SymInt | torch.SymFloat | torch.SymBool):
        return {"$object": str(item)}
    return None


ARGUMENTS = Arguments(
    torch.Tensor,
    words=_word,
    hashed=frozenset(_WORDS),
    sequences={torch.Size: "$size"},
    opaque=(torch.nn.Module,),
)
encode_call = ARGUMENTS.encode_call
find_tensors = ARGUMENTS.find_tensors
encode_scalar = ARGUMENTS.encode_scalar


def generator_digest(tensors: Placed, kwargs: Mapping[str, Any]) -> str | None:
    """Digest of the state of the generator this call would use; None if that cannot be told."""
    generator = _generator_of(tensors, kwargs)
    return None if generator is None else state_digest(generator.get_state().numpy().tobytes())


def _generator_of(tensors: Placed, kwargs: Mapping[str, Any]) -> torch.Generator | None:
    given = kwargs.get("generator")
    if isinstance(given, torch.Generator):
        return given
    device = kwargs.get("device")
    if device is not None:
        device = torch.device(device)
    else:
        device = tensors[0][1].device if tensors else torch.get_default_device()
    if device.type == "cpu":
        return torch.default_generator
    generators = getattr(getattr(torch, device.type, None), "default_generators", ())
    index = device.index or 0
    return generators[index] if index < len(generators) else None
