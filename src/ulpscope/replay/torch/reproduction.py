"""Takes a recorded call apart for a script of its own: its tensors for a file, the rest for the text."""

import keyword
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from ulpscope.operations.registry import LIBRARIES, Family, is_torchs_own, operation
from ulpscope.records.checks import CaseId, OutputEvidence, Reproduction, Rule
from ulpscope.replay.recorded import CannotReplayError, RecordedCall
from ulpscope.replay.registry import registered
from ulpscope.replay.torch.engine import Engine, Executed
from ulpscope.replay.torch.evidence import selects
from ulpscope.replay.torch.functions import find_function
from ulpscope.replay.torch.running import scalar_dtype
from ulpscope.replay.torch.tensors import dtype_name
from ulpscope.trace.reader import RankTrace

GRAD_OUTPUT = "grad_output."
EXPECTED = "expected."
# What a safetensors file calls the dtypes that it can hold.
STORED = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.bool: "BOOL", torch.uint8: "U8",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
}  # fmt: skip


def reproduce(case: CaseId, recorded: RecordedCall, rank: RankTrace, *, seed: int = 0) -> "Reproduced":
    """Execute one call on the CPU, and tell all that a script needs."""
    engine = Engine("cpu", seed=seed)
    _check_can_be_told(recorded)
    executed = engine.execute(case, recorded, rank)
    executed.refine()
    return Reproduced(recorded, executed)


class Reproduced:
    """A call that was executed."""

    def __init__(self, recorded: RecordedCall, executed: Executed) -> None:
        self._recorded = recorded
        self._executed = executed
        self.evidence = _judgeable(executed)

    def reproduction(self, name: str, *, device: str) -> Reproduction:
        executed, call = self._executed, self._recorded.call
        recipe, feed = executed.recipe, executed.feed
        inputs = {place: value for place, value in self._recorded.inputs.items() if place in feed.tensors}
        cast = any(feed.tensors[place].dtype != _dtype(value.dtype) for place, value in inputs.items())
        tensors = [*feed.tensors.values(), *feed.grad_outputs.values()]
        return Reproduction(
            name=name,
            function=_expression(call.op),
            arguments=_rounded(call.arguments, scalar_dtype(recipe, feed)),
            firsts=recipe.firsts,
            differentiated=tuple(place for place in recipe.differentiated if feed.grad_outputs),
            sent=tuple(feed.grad_outputs),
            places=tuple(each.place for each in self.evidence),
            dtypes=tuple(each.dtype for each in self.evidence),
            # None where the call returned nothing: its first argument, which it wrote, stands for that.
            outputs=0 if operation(call.op).name == "setitem" else len(executed.ran.outputs),
            # Whether it changed what it was given, which may be what it returned.
            writes=bool(executed.ran.written) or any(each._version for each in executed.ran.outputs.values()),
            stored={STORED[each]: dtype_name(each) for each in {*(tensor.dtype for tensor in tensors), torch.float64}},
            axes={place: axes for place, tensor in feed.tensors.items() if (axes := _axes(tensor)) is not None},
            # What autocast has cast is saved as it was cast to.
            autocast=None if cast or recipe.autocast is None else dtype_name(recipe.autocast),
            device=device,
            full_float32=operation(call.op).family in (Family.CONTRACTION, Family.CONVOLUTION)
            and torch.float32 in {each.dtype for each in tensors},
            imports=("torch_npu",) if call.op.startswith("torch_npu.") else (),
        )

    def write_data(self, path: Path, expected: Mapping[str, NDArray[Any]]) -> None:
        """Inputs, the gradients that are sent back, and the errors that are expected."""
        feed = self._executed.feed
        tensors = {
            place: _own(tensor if _axes(tensor) is None else tensor.permute(_memory_order(tensor)))
            for place, tensor in feed.tensors.items()
        }
        tensors |= {f"{GRAD_OUTPUT}{place}": _own(tensor) for place, tensor in feed.grad_outputs.items()}
        tensors |= {f"{EXPECTED}{place}": torch.from_numpy(array.copy()) for place, array in expected.items()}
        save_file(tensors, path)


def _check_can_be_told(recorded: RecordedCall) -> None:
    op = recorded.call.op
    if registered(op) is not None:
        raise CannotReplayError(f"{op} is a function of your own (ulpscope.reference_for); a script has only torch")
    find_function(op)
    if not is_torchs_own(op):
        raise CannotReplayError(f"{op} needs the library {op.partition('.')[0]}; a script has only torch")
    if recorded.call.random:
        raise CannotReplayError("random: what it draws has no exact result")
    for value in (*recorded.inputs.values(), *recorded.grad_outputs.values()):
        if _dtype(value.dtype) not in STORED:
            raise CannotReplayError(f"safetensors cannot hold {value.dtype}")
        if 0 in value.shape:
            raise CannotReplayError("an input is empty")


def _judgeable(executed: Executed) -> list[OutputEvidence]:
    """What a comparison of elements can judge: no choices among equals, no factors that may differ in sign."""
    found = [each for each in executed.evidence if isinstance(each, OutputEvidence)]
    outputs = executed.ran.outputs
    kept = [
        each
        for each in found
        if each.rule is not Rule.NORMWISE
        and each.violation is None
        and each.exact.size
        and not (each.place in outputs and selects(executed.recipe.op, each.place, outputs[each.place]))
    ]
    if not kept:
        raise CannotReplayError("it gives nothing that can be judged element by element")
    if any(not place.startswith("output.") or place.count(".") != 1 for place in outputs):
        raise CannotReplayError("it returns something else than tensors")
    return kept


def _expression(op: str) -> str:
    """The recorded name, which led to a function of torch, as Python."""
    parts = op.split(".")
    if not all(part.isidentifier() and part.isascii() and not keyword.iskeyword(part) for part in parts):
        raise CannotReplayError(f"{op} is not a name")
    if parts[0] in LIBRARIES:
        return f"torch.ops.{op}"
    # A property of tensors: its getter is what find_function gives.
    getter = op.startswith("torch.Tensor.") and not callable(getattr(torch.Tensor, parts[-1], None))
    return f"{op}.__get__" if getter else op


def _rounded(encoded: Any, dtype: torch.dtype | None) -> Any:
    """Plain numbers as kernels get them, so that the exact run gets the same."""
    if dtype is None:
        return encoded
    if isinstance(encoded, float):
        return float(torch.tensor(encoded, dtype=dtype))
    if isinstance(encoded, list):
        return [_rounded(item, dtype) for item in encoded]
    if isinstance(encoded, dict):
        return {key: _rounded(item, dtype) for key, item in encoded.items()}
    return encoded


def _axes(tensor: Tensor) -> tuple[int, ...] | None:
    """How the axes of the stored, contiguous tensor must be put to lie as these do; none where they lie so already."""
    if tensor.is_contiguous():
        return None
    order = _memory_order(tensor)
    if not tensor.permute(order).is_contiguous():
        return None
    return tuple(order.index(axis) for axis in range(tensor.dim()))


def _memory_order(tensor: Tensor) -> list[int]:
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], axis))


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _dtype(name: str) -> torch.dtype | None:
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None
