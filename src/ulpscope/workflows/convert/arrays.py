"""`ulpscope convert` for what is no dump of an NPU: files of tensors, folders of them, dumps of tfdbg."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ulpscope.dialects.ascend.array_files import FileKind, write_array
from ulpscope.dialects.ascend.converting import Wanted, Written, save_whole
from ulpscope.dialects.ascend.stored_tensors import holds_dumps
from ulpscope.dialects.reference import ReferenceTensor, reference_tensors
from ulpscope.dialects.stored import StoredTensor
from ulpscope.dialects.tensor_files import holds_tensors, load_tensor_file
from ulpscope.graph.names import sanitised
from ulpscope.records.errors import UlpscopeError


@dataclass(frozen=True, slots=True)
class ArrayJob:
    """One file or folder of arrays."""

    source: Path
    size: int


def plan_arrays(sources: Sequence[Path], wanted: Wanted) -> list[ArrayJob]:
    """Those of the sources that hold arrays."""
    found = [source for source in sources if not holds_dumps(source) and holds_tensors(source)]
    if found and (wanted.layout is not None or wanted.side is not None):
        option = "--layout" if wanted.side is None else f"--{wanted.side.value}"
        raise UlpscopeError(
            f"{option} with {found[0]}, which is no dump of an NPU",
            expected="a dump file: arrays of other files have neither a device's layout nor inputs and outputs",
            next_step=f"leave {option} out",
        )
    return [ArrayJob(source, _size(source)) for source in found]


def convert_arrays(job: ArrayJob, kind: FileKind, out: Path) -> Written:
    """Write every array of a source; a name that is there already is a failure."""
    written = Written()
    for name, found in _named(job.source):
        file = f"{name.replace('/', '_')}.{kind.value}"
        try:
            if os.path.lexists(out / file):
                raise UlpscopeError(
                    f"{file} would be written twice", expected="names of their own", next_step="convert one by one"
                )
            tensor = found.stored() if isinstance(found, ReferenceTensor) else found
            array = tensor.array()
            save_whole(out, file, partial(write_array, array=array, kind=tensor.dtype, file_kind=kind), written)
        except (UlpscopeError, OSError, ValueError, MemoryError) as error:
            problem = error.seen if isinstance(error, UlpscopeError) else str(error)
            written.failures.append(f"{job.source}: {problem}")
    return written


def _named(source: Path) -> Iterator[tuple[str, StoredTensor | ReferenceTensor]]:
    """Arrays by the names of their files: those of operators as reference data is named, with output and time."""
    operators = reference_tensors(source)
    if operators is not None:
        for tensor in operators:
            yield f"{sanitised(tensor.op)}.{tensor.index}.{tensor.timestamp}", tensor
        return
    stem = "" if source.is_dir() else source.stem
    for key, stored in load_tensor_file(source).items():
        yield ".".join(part for part in (stem, key) if part), stored


def _size(source: Path) -> int:
    files = source.rglob("*") if source.is_dir() else [source]
    return sum(file.stat().st_size for file in files if file.is_file())
