"""Summaries of tensors: plain torch operations for any device, numba's kernels for the CPU.

Nothing here waits for a device: no item(), no branching on what a tensor holds, no copies from the host once a device's
constants are made (where() gets its scalars as tensors: it would copy numbers). Callers see to it that no function or
dispatch mode watches (quiet.py).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from ulpscope.capture.torch.constants import CHUNK_BLOCKS, Codes, Constants, constants_of, mix
from ulpscope.capture.torch.double_bits import row_bits
from ulpscope.numerics.compiled import summarize_into
from ulpscope.numerics.constants import BLOCK_ELEMENTS, BLOCK_ROWS, SKETCH_LENGTH
from ulpscope.numerics.digest import words_per_block
from ulpscope.numerics.dtypes import DTYPES, DtypeKind, numpy_dtype

_CHUNK = CHUNK_BLOCKS * BLOCK_ELEMENTS
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NAMES = {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}
_KINDS = {dtype: DTYPES[name].kind for dtype, name in _NAMES.items()}
# numpy has no such elements: it gets their bits.
_AS_BITS = {
    dtype: _CARRIERS[DTYPES[name].item_size]
    for dtype, name in _NAMES.items()
    if name == "bfloat16" or name.startswith("float8")
}
_TYPES = {
    dtype: numpy_dtype(name).str for dtype, name in _NAMES.items() if dtype not in _AS_BITS and not dtype.is_complex
}
_ORDINARY = frozenset({Tensor, torch.nn.Parameter})
_SUBCLASS_REASONS: dict[type, str | None] = {}


def unsummarizable_reason(tensor: Tensor) -> str | None:
    """One word for why this tensor's content cannot be read here; none if it can."""
    kind = type(tensor)
    if kind not in _ORDINARY and (reason := _subclass_reason(kind)) is not None:
        return reason
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return "sparse"
    if tensor.is_meta:
        return "meta"
    if tensor.dtype not in _NAMES:
        return "quantized" if tensor.is_quantized else "dtype"
    return _memory_reason(tensor)


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


def _memory_reason(tensor: Tensor) -> str | None:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "functorch"
    try:
        # FSDP frees a parameter's memory under the tensor, which keeps its shape.
        return "freed" if tensor.data_ptr() == 0 and tensor.numel() else None
    except RuntimeError:
        return "storage"


def summarize_cpu_into(tensor: Tensor, row: NDArray[np.float64]) -> bool:
    """Writes a CPU tensor's row; gives False, and writes nothing, if its content cannot be read."""
    if unsummarizable_reason(tensor) is not None:
        return False
    name = _NAMES[tensor.dtype]
    elements = _readable(tensor).contiguous()
    carrier = _AS_BITS.get(elements.dtype)
    if carrier is not None:
        elements = elements.view(carrier)
    summarize_into(_as_array(elements), name, row)
    return True


class _Memory:
    """A tensor's memory for numpy. Tensor.numpy() would forbid the user to resize the storage ever after."""

    def __init__(self, tensor: Tensor) -> None:
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), True),
            "shape": (tensor.numel(),),
            "typestr": _TYPES[tensor.dtype],
            "version": 3,
        }


def _as_array(tensor: Tensor) -> NDArray[np.generic]:
    if tensor.numel() == 0:
        return np.empty(0, _TYPES[tensor.dtype])
    return np.asarray(_Memory(tensor))


def _readable(tensor: Tensor) -> Tensor:
    """The tensor without autograd and lazy conjugation or negation; a complex one as its real view."""
    if type(tensor) is not Tensor or tensor.requires_grad:
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.detach()
    if tensor.is_complex():
        return _real_view(tensor)
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _real_view(tensor: Tensor) -> Tensor:
    if not tensor.is_conj():
        return torch.view_as_real(tensor.resolve_neg() if tensor.is_neg() else tensor)
    # Not resolve_conj: complex32 has no kernel for it.
    parts = torch.view_as_real(tensor.conj()).clone()
    parts[..., 1].neg_()
    return parts


class _Part(NamedTuple):
    """The summary of one chunk, on its device. Sums of parts are sums; `norm` adds up by hypot."""

    range: Tensor
    """The lowest number, and the highest."""
    total: Tensor
    norm: Tensor
    abs_sum: Tensor
    counts: Tensor
    sketch: Tensor
    digest: Tensor


def summarize_tensor_into(tensor: Tensor, row: Tensor) -> bool:
    """Writes a tensor's row on its device; gives False, and writes nothing, if its content cannot be read.

    The row is float64, or int64 that receives the same bits (the only choice where a device lacks float64).
    """
    if unsummarizable_reason(tensor) is not None:
        return False
    with torch.inference_mode():  # the only mode in which ordinary and inference tensors may both be written
        constants = constants_of(tensor.device)
        flat = _readable(tensor).contiguous().view(-1)
        total = _empty(constants)
        for start in range(0, flat.numel(), _CHUNK):
            part = _summarize_chunk(flat[start : start + _CHUNK], start // BLOCK_ELEMENTS, constants)
            total = _joined(total, part) if start else part
        _write_row(total, row)
    return True


def _empty(constants: Constants) -> _Part:
    zero = constants.sketch_zero[:1]
    return _Part(
        range=constants.no_range,
        total=zero,
        norm=zero,
        abs_sum=zero,
        counts=constants.no_counts,
        sketch=constants.sketch_zero,
        digest=constants.no_digest,
    )


def _joined(one: _Part, other: _Part) -> _Part:
    low = torch.minimum(one.range[:1], other.range[:1])
    return _Part(
        range=torch.cat([low, torch.maximum(one.range[1:], other.range[1:])]),
        total=one.total + other.total,
        norm=torch.hypot(one.norm, other.norm),
        abs_sum=one.abs_sum + other.abs_sum,
        counts=one.counts + other.counts,
        sketch=one.sketch + other.sketch,
        digest=one.digest + other.digest,
    )


def _write_row(part: _Part, row: Tensor) -> None:
    if part.sketch.dtype == torch.float32:
        sums = torch.cat([part.range, part.total, part.norm, part.abs_sum])
        row.copy_(row_bits(sums, part.counts, part.sketch, part.digest))
        return
    squares = part.norm.square()
    digest = part.digest.view(torch.float64)
    pieces = [part.range, part.total, squares, part.abs_sum, part.counts, part.sketch, digest]
    torch.cat(pieces, out=row.view(torch.float64))


def _summarize_chunk(elements: Tensor, first_block: int, constants: Constants) -> _Part:
    padded = _whole_blocks(elements)
    digest = _digest(padded, first_block, constants)
    if _KINDS[elements.dtype] is DtypeKind.FLOAT:
        # Padding bytes need not stand for 0: in float8_e8m0fnu they are 2**-127.
        is_byte = elements.element_size() == 1
        numbers = _whole_blocks(elements.float()).view(torch.float32) if is_byte else padded.view(elements.dtype)
        return _summarize_floats(numbers, elements, first_block, constants)._replace(digest=digest)
    return _summarize_integers(elements, constants)._replace(digest=digest)


def _whole_blocks(elements: Tensor) -> Tensor:
    """The elements' bits, padded with zeros; copied if they could not be read as 32-bit words where they lie."""
    bits = elements.view(_CARRIERS[elements.element_size()])
    padding = -bits.numel() % BLOCK_ELEMENTS
    if padding:
        return torch.nn.functional.pad(bits, (0, padding))
    return bits.clone() if bits.storage_offset() * bits.element_size() % 4 else bits


def _digest(bits: Tensor, first_block: int, constants: Constants) -> Tensor:
    words = bits.view(torch.int32).view(-1, words_per_block(bits.element_size()))
    sums = (words * constants.digest_keys[: words.shape[1]]).sum(1)
    return mix(sums + constants.weyl(first_block, len(words))).sum(0, keepdim=True)


def _summarize_integers(elements: Tensor, constants: Constants) -> _Part:
    numbers = elements.to(constants.dtype)
    bits = elements.view(_CARRIERS[elements.element_size()])
    zeros = _count(torch.eq, bits[None], constants.integer_zero[bits.dtype])
    return _empty(constants)._replace(
        range=torch.stack([numbers.amin(), numbers.amax()]),
        total=numbers.sum(0, keepdim=True),
        counts=(constants.zero_count * zeros).to(constants.no_counts.dtype),
    )


def _summarize_floats(padded: Tensor, elements: Tensor, first_block: int, constants: Constants) -> _Part:
    numbers = padded if padded.element_size() >= 4 else padded.float()
    count = elements.numel()
    codes = constants.codes(elements.dtype)
    bits = numbers.view(codes.integer)
    sizes = bits & codes.size_mask
    kept = torch.where(sizes < codes.set_aside, numbers, codes.zero).to(constants.dtype)
    norm, abs_sum = _norms(kept)
    return _Part(
        range=_range(numbers[:count], sizes[:count], codes).to(constants.dtype),
        total=kept.sum(0, keepdim=True),
        norm=norm,
        abs_sum=abs_sum,
        counts=_counts(bits[:count], sizes[:count], codes, constants),
        sketch=_sketch(kept, first_block, constants),
        digest=constants.no_digest,
    )


def _range(numbers: Tensor, sizes: Tensor, codes: Codes) -> Tensor:
    finite = sizes < codes.infinity
    low = torch.where(finite, numbers, codes.highest).amin()
    high = torch.where(finite, numbers, codes.lowest).amax()
    return torch.stack([low, high]) + 0.0


def _norms(kept: Tensor) -> tuple[Tensor, Tensor]:
    """L2 and L1 norm."""
    if kept.dtype == torch.float64:
        norm, abs_sum = (torch.linalg.vector_norm(kept, order, dim=0, keepdim=True) for order in (2, 1))
        return norm, abs_sum
    # In float32 squares of 1e-25 are 0, so scale by the largest; and vector_norm is off by 1e-5 after 3000 elements.
    sizes = kept.abs()
    scale = sizes.amax(0, keepdim=True)
    scale = scale.masked_fill(scale == 0.0, 1.0)
    return (sizes / scale).square().sum(0, keepdim=True).sqrt() * scale, sizes.sum(0, keepdim=True)


def _count(compare: Callable[..., Tensor], bits: Tensor, borders: Tensor) -> Tensor:
    """For how many bits the comparison with each border holds, as float32: exact, a chunk is shorter than 2**24.

    The comparison writes float16, because torch would copy a bool tensor to int64 to sum it: eight times the memory.
    """
    held = torch.empty((len(borders), bits.shape[-1]), dtype=torch.float16, device=bits.device)
    compare(bits, borders, out=held)
    return held.sum(1, dtype=torch.float32)


def _counts(bits: Tensor, sizes: Tensor, codes: Codes, constants: Constants) -> Tensor:
    """Counts from NAN on, in the row's order, as differences of how many sizes reach each of the borders."""
    reached = _count(torch.ge, sizes, codes.borders)
    infinite = _count(torch.eq, bits, codes.infinities)
    counts = (constants.differences * torch.cat([reached, infinite])).sum(1)
    return counts.to(constants.no_counts.dtype)


def _sketch(kept: Tensor, first_block: int, constants: Constants) -> Tensor:
    rows = kept.view(-1, BLOCK_ROWS, SKETCH_LENGTH)
    signs, sources = constants.signs(first_block, len(rows))
    return (rows * signs).sum(1).gather(1, sources).sum(0)
