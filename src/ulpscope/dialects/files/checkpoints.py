"""Checkpoints that several ranks wrote: torch's distributed ones (.metadata with .distcp files), and Megatron's (a
directory a rank, mp_rank_XX/model_optim_rng.pt).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ulpscope.dialects.files.pickles import Made, PickleError, opened, read_pickle
from ulpscope.dialects.files.stored import AnyArray, PartlyRead, StoredTensor, unreadable
from ulpscope.dialects.files.torch_archives import Part, read_archive, sizes_of
from ulpscope.numerics.dtypes import DTYPES, numpy_dtype
from ulpscope.trace.files import read_bytes

METADATA = ".metadata"
LARGEST_METADATA = 2**30
EXPECTED = "a checkpoint that torch.distributed.checkpoint wrote to its end"
_MODULE = "torch.distributed.checkpoint."
_RANK = re.compile(r"mp_rank_\d+(_\d+)*")
_ITERATION = re.compile(r"iter_\d+|release")
LATEST = "latest_checkpointed_iteration.txt"
_LONGEST_WORD = 1000


def is_distributed(path: Path) -> bool:
    return (path / METADATA).is_file()


def read_distributed(path: Path) -> PartlyRead:
    """Each tensor as a whole, put together of the pieces that ranks wrote; what lies beside them by its place."""
    try:
        metadata = _fields(read_pickle(read_bytes(path / METADATA, limit=LARGEST_METADATA)))
        pieces = [_piece(path, index, where) for index, where in opened(metadata["storage_data"]).items()]
        sizes = {
            _text(name): sizes_of(_fields(about)["size"])
            for name, about in opened(metadata["state_dict_metadata"]).items()
            if "size" in _fields(about)
        }
    except (PickleError, KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise unreadable(path / METADATA, f"it cannot be read ({error})", expected=EXPECTED) from error
    return _assembled(path, pieces, sizes)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one rank wrote of one tensor, or an object of its own."""

    name: str
    offset: tuple[int, ...]
    part: Part


def _piece(path: Path, index: Any, where: Any) -> _Piece:
    told, place = _fields(index), _fields(where)
    file = _text(place["relative_path"])
    if Path(file).name != file:
        raise PickleError(f"it names a file elsewhere, {file!r}")
    if place.get("transform_descriptors"):
        raise PickleError("its data is transformed")
    offset = sizes_of(told.get("offset") or ())
    if not all(number >= 0 for number in offset):
        raise PickleError("an offset is no number")
    return _Piece(
        _text(told["fqn"]),
        offset,
        Part(path / file, int(place["offset"]), int(place["length"])),
    )


def _fields(made: Any) -> Mapping[str, Any]:
    """The fields of a dataclass that was pickled; it is not made."""
    if not isinstance(made, Made) or not made.name.startswith(_MODULE):
        raise PickleError(f"it has {getattr(made, 'name', type(made).__name__)} where its own records should be")
    return made.state if isinstance(made.state, dict) else {}


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise PickleError(f"it has a {type(content).__name__} where a name should be")
    return content


def _assembled(path: Path, pieces: list[_Piece], sizes: Mapping[str, tuple[int, ...]]) -> PartlyRead:
    read: dict[str, StoredTensor] = {}
    refused: dict[str, str] = {}
    written: dict[str, list[tuple[_Piece, StoredTensor]]] = {}
    for piece in pieces:
        content = read_archive(piece.part)
        refused |= {_below(piece.name, place): name for place, name in content.refused.items()}
        for place, tensor in content.items():
            if piece.name in sizes:
                written.setdefault(piece.name, []).append((piece, tensor))
            else:
                read[_below(piece.name, place)] = tensor
    for name, parts in written.items():
        read[name] = _whole(path, name, sizes[name], parts)
    return PartlyRead(dict(sorted(read.items())), refused)


def _below(name: str, place: str) -> str:
    return f"{name}.{place}" if place else name


def _whole(path: Path, name: str, shape: tuple[int, ...], parts: list[tuple[_Piece, StoredTensor]]) -> StoredTensor:
    dtype = parts[0][1].dtype
    for piece, tensor in parts:
        # Elements that share memory would let a small file claim any size.
        if dtype not in DTYPES or math.prod(tensor.shape) * DTYPES[dtype].item_size > (piece.part.length or 0):
            raise unreadable(path, f"a piece of tensor {name!r} is larger than its data", expected=EXPECTED)
        ends = [begin + length for begin, length in zip(piece.offset, tensor.shape, strict=False)]
        if len(piece.offset) != len(shape) or len(ends) != len(shape) or any(map(int.__gt__, ends, shape)):
            raise unreadable(path, f"a piece of tensor {name!r} lies outside of it", expected=EXPECTED)
    if sum(math.prod(tensor.shape) for _, tensor in parts) != math.prod(shape):
        raise unreadable(path, f"pieces of tensor {name!r} are missing", expected=EXPECTED)
    if len(parts) == 1:
        return StoredTensor(dtype, shape, parts[0][1].read)

    def read() -> AnyArray:
        whole = np.empty(shape, numpy_dtype(dtype))
        for piece, tensor in parts:
            box = tuple(slice(begin, begin + length) for begin, length in zip(piece.offset, tensor.shape, strict=True))
            whole[box] = tensor.array()
        return whole

    return StoredTensor(dtype, shape, read)


def megatron_ranks(path: Path) -> dict[str, Path]:
    """By directory of a rank, its file of a Megatron checkpoint; none if it is no such checkpoint."""
    found = _ranks(path)
    if found or not path.is_dir():
        return found
    return _ranks(path / folder) if (folder := _latest(path)) else {}


def _ranks(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        return {}
    folders = sorted(folder for folder in path.iterdir() if _RANK.fullmatch(folder.name))
    files = {folder.name: sorted(folder.glob("*.pt")) for folder in folders}
    return {name if len(held) == 1 else f"{name}.{file.stem}": file for name, held in files.items() for file in held}


def _latest(path: Path) -> str | None:
    """The folder of the iteration that was written last."""
    if not (path / LATEST).is_file():
        return None
    word = read_bytes(path / LATEST, limit=_LONGEST_WORD).decode(errors="replace").strip()
    folder = f"iter_{int(word):07d}" if word.isascii() and word.isdigit() else word
    return folder if _ITERATION.fullmatch(folder) else None
