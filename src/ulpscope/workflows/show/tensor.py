"""One tensor: its first elements, its numbers, and all of it as text."""

from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects.ascend.array_files import FileKind, write_array
from ulpscope.dialects.stored import COMPLEX32, AnyArray
from ulpscope.dialects.summaries import stats_of
from ulpscope.records.values import Stats
from ulpscope.workflows.diff.tensor_lookup import FoundTensor

MOST_AS_TEXT = 1 << 22
"""Elements; more take minutes to write, and nobody reads them."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """What is told of a tensor."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    stats: Stats
    first: AnyArray
    text: Path | None = None
    """All elements, if they were written."""
    problem: str | None = None
    """Why they were not."""


def view_tensor(found: FoundTensor, *, count: int, text: Path | None = None) -> TensorView:
    """Look at a tensor, and write its elements to `text` if they are not too many."""
    array = found.stored.array()
    written, problem = (None, None) if text is None else _write(array, found.stored.dtype, text)
    return TensorView(
        name=found.name,
        path=found.path,
        dtype=found.stored.dtype,
        shape=found.stored.shape,
        stats=stats_of(array, found.stored.dtype),
        first=array.flat[:count],
        text=written,
        problem=problem,
    )


def _write(array: AnyArray, dtype: str, path: Path) -> tuple[Path | None, str | None]:
    if array.size > MOST_AS_TEXT or array.dtype == COMPLEX32:
        return None, f"{array.size:,} elements of {dtype}: ulpscope convert --to bin has them"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_array(path, array, dtype, FileKind.TXT)
    except OSError as error:
        return None, error.strerror or str(error)
    return path, None
