"""Summaries of tensors: plain torch operations for any device, compiled kernels for the CPU.

Nothing here waits for a device: no item(), no branching on what a tensor holds, no copies from the host once a device's
constants are made. What a user's switches could change is not used: matrix products (TF32 rounds them) and scattering
(deterministic algorithms forbid it). A device takes longer to start an operation than to read most values, so there are
few operations. Callers see to it that no function or dispatch mode watches (tensors.quiet).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ulpscope.capture.torch.summaries.constants import (
    CARRIERS,
    SPAN_CHUNKS,
    Codes,
    Constants,
    Span,
    constants_of,
    mix,
    row_bits,
)
from ulpscope.capture.torch.tensors import unsummarizable_reason
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.numerics.summaries.compiled import summarizer_of
from ulpscope.numerics.summaries.constants import (
    BLOCK_ELEMENTS,
    BLOCK_ROWS,
    DIGEST,
    MAX,
    MIN,
    NAN,
    ROW_LENGTH,
    SKETCH,
    SKETCH_LENGTH,
    SUM,
    SUM_SQUARES,
    ZERO,
)
from ulpscope.numerics.summaries.summary import words_per_pair

# The rows of a comparison by which elements are not summed, not in the minimum, not in the maximum: see Codes.borders.
_ASIDE = slice(-6, -3)
_LENGTHS = [NAN, SKETCH - NAN, DIGEST - SKETCH, ROW_LENGTH - DIGEST]
_NAMES = {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}
_KINDS = {dtype: DTYPES[name].kind for dtype, name in _NAMES.items()}


def summarize_cpu_into(tensor: Tensor, row: int) -> bool:
    """Writes a CPU tensor's row to that address; gives False, and writes nothing, if its content cannot be read."""
    if unsummarizable_reason(tensor) is not None:
        return False
    elements = _readable(tensor).contiguous()
    summarizer_of(_NAMES[tensor.dtype])(elements.data_ptr(), elements.numel(), row)
    return True


def _readable(tensor: Tensor) -> Tensor:
    """The tensor without autograd and lazy conjugation or negation; a complex one as its real view."""
    if type(tensor) is not Tensor or tensor.requires_grad:
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.detach()
    if tensor.is_complex() and tensor.is_conj():
        # Not resolve_conj: complex32 has no kernel for it.
        parts = torch.view_as_real(tensor.conj()).clone()
        parts[..., 1].neg_()
        return parts
    plain = tensor.resolve_neg() if tensor.is_neg() else tensor
    return torch.view_as_real(plain) if plain.is_complex() else plain


class _Total(NamedTuple):
    """The numbers of a value's row, each where it is to be written."""

    moments: Tensor
    """Minimum, maximum, sum, sum of squares (in float32, which could not hold it: its root), sum of sizes."""
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
        bits = row.view(torch.int64)
        if flat.numel() == 0 or _KINDS[flat.dtype] is not DtypeKind.FLOAT:
            bits.copy_(constants.empty_row)
        if flat.numel():
            _summarize_into(bits, flat, constants)
    return True


def _summarize_into(row: Tensor, flat: Tensor, constants: Constants) -> None:
    if constants.dtype == torch.float64:
        moments, counts, sketch, _ = row.view(torch.float64).split(_LENGTHS)
        _summarize(flat, _Total(moments, counts, sketch, row[DIGEST:]), constants)
    else:
        moments, _, sketch, _ = torch.zeros_like(row, dtype=constants.dtype).split(_LENGTHS)
        _, counts, _, digest = torch.zeros_like(row).split(_LENGTHS)
        _summarize(flat, _Total(moments, counts, sketch, digest), constants)
        row.copy_(row_bits(moments, counts, sketch, digest))


def _summarize(flat: Tensor, total: _Total, constants: Constants) -> None:
    bits = flat.view(CARRIERS[flat.element_size()])
    if bits.storage_offset() % 2:  # words must be readable of it
        bits = bits.clone()
    *whole, last = _pieces(bits, constants.chunk_blocks * BLOCK_ELEMENTS)
    chunks = [*whole, _whole_blocks(last, constants)]
    _digest(chunks, total.digest, constants)
    if _KINDS[flat.dtype] is DtypeKind.FLOAT:
        _summarize_floats(chunks, flat, total, constants)
    else:
        _summarize_integers(flat, total, constants)


def _pieces(tensor: Tensor, length: int) -> Sequence[Tensor]:
    return tensor.split(length) if len(tensor) > length else [tensor]


def _whole_blocks(elements: Tensor, constants: Constants) -> Tensor:
    padding = -elements.numel() % BLOCK_ELEMENTS
    if not padding:
        return elements
    return torch.cat([elements, constants.zeros[elements.dtype][:padding]])


def _parts(total: Tensor, count: int) -> Tensor:
    """Places for the parts of a total; a single one's is the total itself."""
    return total[None] if count == 1 else torch.empty((count, *total.shape), dtype=total.dtype, device=total.device)


def _add_up(parts: Tensor, total: Tensor) -> None:
    if len(parts) > 1:
        torch.sum(parts, 0, out=total)


def _digest(chunks: list[Tensor], total: Tensor, constants: Constants) -> None:
    starts = range(0, len(chunks), SPAN_CHUNKS)
    parts = _parts(total, len(starts))
    for number, start in enumerate(starts):
        sums = _digest_sums(chunks[start : start + SPAN_CHUNKS], constants)
        first_sum = start * constants.chunk_blocks * SKETCH_LENGTH
        mixed = mix(sums.add_(constants.weyl(first_sum, len(sums))))
        torch.sum(mixed, 0, keepdim=True, out=parts[number])
    _add_up(parts, total)


def _digest_sums(chunks: list[Tensor], constants: Constants) -> Tensor:
    """One sum a block and column."""
    item_size = chunks[0].element_size()
    word = torch.int16 if item_size == 1 else torch.int32
    shape = (-1, BLOCK_ROWS, SKETCH_LENGTH, words_per_pair(item_size))
    blocks = sum(chunk.numel() for chunk in chunks) // BLOCK_ELEMENTS
    sums = torch.empty((blocks, SKETCH_LENGTH), dtype=torch.int64, device=constants.device)
    for chunk, chunk_sums in zip(chunks, _pieces(sums, constants.chunk_blocks), strict=True):
        torch.sum(chunk.view(word).view(shape) * constants.digest_keys[item_size], (1, 3), out=chunk_sums)
    return sums.view(-1)


def _summarize_integers(flat: Tensor, total: _Total, constants: Constants) -> None:
    chunks = _pieces(flat, constants.chunk_blocks * BLOCK_ELEMENTS)
    moments = _parts(total.moments[:SUM_SQUARES], len(chunks))
    zeros = _parts(total.counts[ZERO - NAN], len(chunks))
    for number, chunk in enumerate(chunks):
        numbers = chunk.to(constants.dtype)
        torch.amin(numbers, 0, out=moments[number][MIN])
        torch.amax(numbers, 0, out=moments[number][MAX])
        torch.sum(numbers, 0, out=moments[number][SUM])
        zeros[number].copy_(numbers.eq_(0.0).sum())
    _add_up_moments(moments, total.moments[:SUM_SQUARES])
    _add_up(zeros, total.counts[ZERO - NAN])


def _add_up_moments(parts: Tensor, total: Tensor) -> None:
    if len(parts) == 1:
        return
    torch.sum(parts, 0, out=total)
    torch.amin(parts[:, MIN], 0, out=total[MIN])
    torch.amax(parts[:, MAX], 0, out=total[MAX])
    if len(total) > SUM_SQUARES and total.dtype == torch.float32:
        total[SUM_SQUARES].copy_(_norm(parts[:, SUM_SQUARES]))


def _summarize_floats(chunks: list[Tensor], flat: Tensor, total: _Total, constants: Constants) -> None:
    codes = constants.codes(flat.dtype)
    elements = _pieces(flat, constants.chunk_blocks * BLOCK_ELEMENTS)
    moments = _parts(total.moments, len(chunks))
    reached = torch.empty((len(chunks), codes.differences.shape[2]), dtype=torch.int64, device=constants.device)
    read = (_read_floats(*each, codes, constants) for each in zip(chunks, elements, moments, reached, strict=True))
    _sketch(read, sum(chunk.numel() for chunk in chunks) // BLOCK_ELEMENTS, total.sketch, constants)
    _add_up_moments(moments, total.moments)
    counts = (codes.differences * reached).sum((1, 2))
    torch.sub(counts, constants.zero_count, alpha=-flat.numel() % BLOCK_ELEMENTS, out=total.counts)


def _read_floats(
    bits: Tensor, elements: Tensor, moments: Tensor, reached: Tensor, codes: Codes, constants: Constants
) -> Tensor:
    """Counts numbers and writes their moments; gives those that are summed, with 0 instead of the others."""
    count = elements.numel()
    if elements.element_size() == 1:
        # Padding bytes need not stand for 0: in float8_e8m0fnu they are 2**-127.
        bits = _whole_blocks(elements.float().view(torch.int32), constants)
        elements = bits.view(torch.float32)
    held = _compare(bits, codes)
    # Eight bools are added at once, as the bytes of a word: a block has but 244 words, so that no byte overflows. torch
    # would make an int64 of each bool to sum it.
    words = held.view(torch.int64).view(len(held), -1, BLOCK_ELEMENTS // 8)
    torch.sum(words.sum(2).view(torch.uint8), 1, out=reached)
    # This addition widens the numbers, and makes 0.0 of -0.0: which zero comes first is no property of a value.
    numbers = bits.view(elements.dtype) + constants.plus_zero
    kept, low, high = torch.where(held[_ASIDE], constants.neutral, numbers).unbind()
    lowest, highest, *sums = moments.unbind()
    torch.amin(low[:count], 0, out=lowest)
    torch.amax(high[:count], 0, out=highest)
    _write_sums(kept, *sums)
    return kept


def _compare(bits: Tensor, codes: Codes) -> Tensor:
    """For each border and element: does its size reach it? Then: is it inf, is it -inf?"""
    borders, rows = len(codes.borders), codes.differences.shape[2]
    held = torch.empty((rows, bits.numel()), dtype=torch.bool, device=bits.device)
    torch.ge(bits & codes.size_mask, codes.borders, out=held[:borders])
    torch.eq(bits, codes.infinities, out=held[borders:])
    return held


def _write_sums(kept: Tensor, total: Tensor, squares: Tensor, sizes: Tensor) -> None:
    torch.sum(kept, 0, out=total)
    if kept.dtype == torch.float64:
        torch.square(torch.linalg.vector_norm(kept, 2), out=squares)
        torch.linalg.vector_norm(kept, 1, out=sizes)
    else:
        squares.copy_(_norm(kept))
        torch.sum(kept.abs(), 0, out=sizes)


def _norm(numbers: Tensor) -> Tensor:
    # In float32 squares of 1e-25 are 0, so scale by the largest; and vector_norm is off by 1e-5 after 3000 elements.
    largest = numbers.abs().amax()
    scale = largest.masked_fill(largest == 0.0, 1.0)
    return (numbers / scale).square().sum().sqrt() * scale


def _sketch(chunks: Iterator[Tensor], blocks: int, total: Tensor, constants: Constants) -> None:
    span_blocks = SPAN_CHUNKS * constants.chunk_blocks
    starts = range(0, blocks, span_blocks)
    parts = _parts(total, len(starts))
    for number, start in enumerate(starts):
        count = min(span_blocks, blocks - start)
        span = constants.span(start, count)
        sums = _column_sums(chunks, count, span, constants)
        torch.sum(sums.gather(1, span.sources[:count].expand(sums.shape)), (0, 2), out=parts[number])
    _add_up(parts, total)


def _column_sums(chunks: Iterator[Tensor], blocks: int, span: Span, constants: Constants) -> Tensor:
    """One signed sum a block, column and half, of all chunks of a span."""
    sums = torch.empty((blocks, SKETCH_LENGTH, 2), dtype=constants.dtype, device=constants.device)
    start = 0
    for chunk_sums in _pieces(sums, constants.chunk_blocks):
        signs = constants.signs(span, start, len(chunk_sums))
        torch.sum(next(chunks).view(signs.shape) * signs, 1, out=chunk_sums)
        start += len(chunk_sums)
    return sums
