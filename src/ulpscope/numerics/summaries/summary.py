"""The summary of a value in plain numpy: the reference that every compiled or device path must equal.

A row of at.ROW_LENGTH float64 holds it while it travels; rows.py turns rows into what is stored.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, Dtype, float8_values
from ulpscope.numerics.summaries import constants as at
from ulpscope.numerics.summaries.digest import digest_blocks, word_type, words_per_pair
from ulpscope.numerics.summaries.sketch import sketch_blocks

AnyArray = NDArray[np.generic]
Floats = NDArray[np.float64]

CHUNK = 128 * at.BLOCK_ELEMENTS
_SET_ASIDE_FROM = 2.0**at.SET_ASIDE_EXPONENT


def empty_row() -> Floats:
    """The summary of no elements, to which parts are added."""
    row = np.zeros(at.ROW_LENGTH)
    reset_row(row)
    return row


def reset_row(row: Floats) -> None:
    row.fill(0.0)
    row[at.MIN] = np.inf
    row[at.MAX] = -np.inf


def summarize(array: AnyArray, dtype_name: str) -> Floats:
    """A value's row. The array may hold the elements as such, or their bits as integers of the same size."""
    row = empty_row()
    summarize_into(array, dtype_name, row)
    return row


def summarize_into(array: AnyArray, dtype_name: str, row: Floats) -> None:
    """Writes a value's row in pieces, so that memory stays bounded."""
    dtype = DTYPES[dtype_name]
    elements = flat_elements(array, dtype)
    real = DTYPES[dtype.real] if dtype.real else dtype
    reset_row(row)
    digest = 0
    for start in range(0, len(elements), CHUNK):
        part = elements[start : start + CHUNK]
        first_block = start // at.BLOCK_ELEMENTS
        digest += digest_blocks(_words(part), first_block)
        if dtype.has_sketch:
            _add_floats(row, decode(part, real), real, first_block)
        else:
            add_integers(row, part)
    row.view(np.uint64)[at.DIGEST] = digest % 2**64


def flat_elements(array: AnyArray, dtype: Dtype) -> AnyArray:
    """Elements in logical row-major order, contiguous; a complex one as its two parts."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.real and flat.dtype.kind in "cV":
        # numpy has no complex number of two halves: such elements are pairs of fields.
        return flat.view(dtype.real)
    return flat


def decode(elements: AnyArray, dtype: Dtype) -> Floats:
    """The numbers as float64, which holds every float type exactly."""
    narrow: NDArray[np.floating[Any]]
    if dtype.name == "bfloat16":
        narrow = (elements.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype.name.startswith("float8"):
        narrow = float8_values(dtype.name)[elements.view(np.uint8)]
    else:
        narrow = elements.view(dtype.name)
    with np.errstate(invalid="ignore"):  # a signalling nan warns when it is converted
        return narrow.astype(np.float64)


def _words(part: AnyArray) -> NDArray[np.signedinteger]:
    blocks = -(-len(part) // at.BLOCK_ELEMENTS)
    data = np.zeros(blocks * at.BLOCK_ELEMENTS, dtype=part.dtype)
    data[: len(part)] = part
    words = data.view(word_type(part.itemsize))
    return words.reshape(blocks, at.BLOCK_ROWS, at.SKETCH_LENGTH, words_per_pair(part.itemsize))


def _blocks(numbers: Floats) -> Floats:
    padding = -len(numbers) % at.BLOCK_ELEMENTS
    return np.pad(numbers, (0, padding)).reshape(-1, at.BLOCK_ELEMENTS)


def add_integers(row: Floats, part: AnyArray) -> None:
    """Adds some integers to a row, but for their digest."""
    numbers: NDArray[np.integer] = part.view(np.uint8) if part.dtype == np.bool_ else part  # type: ignore[assignment]
    row[at.MIN] = min(row[at.MIN], float(numbers.min()))
    row[at.MAX] = max(row[at.MAX], float(numbers.max()))
    row[at.SUM] += float(numbers.astype(np.float64).sum())
    row[at.ZERO] += np.count_nonzero(numbers == 0)


def _add_floats(row: Floats, numbers: Floats, dtype: Dtype, first_block: int) -> None:
    sizes = np.abs(numbers)
    kept = sizes < _SET_ASIDE_FROM
    finite = sizes < np.inf
    _add_range(row, numbers[finite])
    _add_counts(row, numbers, sizes, dtype)
    row[at.SET_ASIDE] += len(numbers) - np.count_nonzero(kept)
    row[at.EXPONENTS : at.EXPONENTS + at.EXPONENT_BINS] += exponent_counts(sizes[finite])
    summed = np.where(kept, numbers, 0.0)
    row[at.SUM] += summed.sum()
    row[at.SUM_SQUARES] += np.square(summed).sum()
    row[at.ABS_SUM] += np.abs(summed).sum()
    row[at.SKETCH : at.SKETCH + at.SKETCH_LENGTH] += sketch_blocks(_blocks(summed), first_block)


def _add_range(row: Floats, finite: Floats) -> None:
    if len(finite):
        # Adding 0.0 turns -0.0 into 0.0: which of the two zeros comes first is no property of a value.
        row[at.MIN] = min(row[at.MIN], float(finite.min())) + 0.0
        row[at.MAX] = max(row[at.MAX], float(finite.max())) + 0.0


def _add_counts(row: Floats, numbers: Floats, sizes: Floats, dtype: Dtype) -> None:
    row[at.NAN] += np.count_nonzero(np.isnan(numbers))
    row[at.POS_INF] += np.count_nonzero(numbers == np.inf)
    row[at.NEG_INF] += np.count_nonzero(numbers == -np.inf)
    row[at.ZERO] += np.count_nonzero(numbers == 0.0)
    row[at.SUBNORMAL] += np.count_nonzero((sizes > 0.0) & (sizes < dtype.smallest_normal))


def exponent_counts(sizes: Floats) -> NDArray[np.int64]:
    """How many of the nonzero |x| lie in each of 32 bins of 8 binary exponents."""
    exponents = np.frexp(sizes[sizes > 0.0])[1] - 1
    bins = np.clip((exponents + at.EXPONENT_BIAS) >> at.EXPONENT_BIN_SHIFT, 0, at.EXPONENT_BINS - 1)
    return np.bincount(bins, minlength=at.EXPONENT_BINS).astype(np.int64)
