"""Files of tensors, whoever wrote them: .npy, .npz, safetensors, torch.save, dumps of an NPU, directories of shards.

tensors = load_tensor_file(Path("model.safetensors"))
tensors["model.embed.weight"].dtype                      'bfloat16'
tensors["model.embed.weight"].array()                    mapped, read when it is looked at
"""

import zipfile
from collections.abc import Callable
from pathlib import Path

from ulpscope.dialects.files.checkpoints import is_distributed, megatron_ranks, read_distributed
from ulpscope.dialects.files.stored import (
    PartlyRead,
    StoredTensor,
    TensorFile,
    read_npy,
    read_npz,
    read_safetensors,
    refused_of,
    unreadable,
)
from ulpscope.dialects.files.torch_files import read_pt
from ulpscope.dialects.registry import known_dialects
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import open_file, read_json

__all__ = ["StoredTensor", "TensorFile", "load_tensor_file"]

Reader = Callable[[Path], dict[str, StoredTensor]]

READERS: dict[str, Reader] = {
    ".npy": read_npy,
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".pt": read_pt,
    ".pth": read_pt,
    ".bin": read_pt,
    ".ckpt": read_pt,
}
KINDS = ".npy, .npz, .safetensors, .pt, .pth or .bin"
_SHARDS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.npy", "*.npz")
_NPY_MAGIC = b"\x93NUMPY"
_ZIP_MAGIC = b"PK\x03\x04"
# What torch.save without an archive begins with: a pickle of protocol 2.
_PICKLE_MAGIC = b"\x80\x02"


def load_tensor_file(path: Path) -> TensorFile:
    """The tensors of a file, or of a directory of shards, by name; the one tensor of a nameless file has the key ''."""
    read = _dialects_reader(path)
    if read is not None:
        return read(path)
    if path.is_dir():
        return _load_checkpoint(path) or _load_directory(path)
    try:
        reader = READERS.get(path.suffix.lower()) or _recognise(path)
        return reader(path)
    except OSError as error:
        raise unreadable(
            path, error.strerror or str(error), expected=f"a file of tensors: {KINDS}", next_step="check the path"
        ) from error


def holds_tensors(path: Path) -> bool:
    """Whether this is a file of tensors, or a directory with some, as far as names and first bytes tell."""
    if _dialects_reader(path) is not None:
        return True
    if path.is_dir():
        shards = any(any(path.glob(pattern)) for pattern in _SHARDS)
        return shards or is_distributed(path) or bool(megatron_ranks(path))
    return path.is_file() and (path.suffix.lower() in READERS or _reader_by_content(path) is not None)


def _dialects_reader(path: Path) -> Callable[[Path], TensorFile] | None:
    """What reads the tensors of another tool's dump; none if it is none, or has no tensors that have names."""
    return next((each.tensors for each in known_dialects() if each.tensors and each.recognises(path)), None)


def _reader_by_content(path: Path) -> Reader | None:
    with open_file(path) as file:
        start = file.read(len(_NPY_MAGIC))
    if start == _NPY_MAGIC:
        return read_npy
    if start.startswith(_ZIP_MAGIC):
        return read_npz if _holds_npy(path) else read_pt
    return read_pt if start.startswith(_PICKLE_MAGIC) else None


def _recognise(path: Path) -> Reader:
    reader = _reader_by_content(path)
    if reader is not None:
        return reader
    from ulpscope.dialects.recognising import wrong_kind

    raise wrong_kind(path, f"a file of tensors ({KINDS})") or UlpscopeError(
        f"{path} is of no kind that is known by its name or its first bytes",
        expected=f"a file of tensors: {KINDS}",
        next_step="give it the ending of what it is, or convert it",
    )


def _holds_npy(path: Path) -> bool:
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def _load_checkpoint(path: Path) -> TensorFile | None:
    """What several ranks wrote; none if it is no such directory."""
    if is_distributed(path):
        return read_distributed(path)
    files = {rank: load_tensor_file(file) for rank, file in megatron_ranks(path).items()}
    if not files:
        return None
    tensors = {f"{rank}.{key}": tensor for rank, held in files.items() for key, tensor in held.items()}
    refused = {f"{rank}.{place}": name for rank, held in files.items() for place, name in refused_of(held).items()}
    return PartlyRead(tensors, refused)


def _load_directory(path: Path) -> TensorFile:
    tensors: dict[str, StoredTensor] = {}
    refused: dict[str, str] = {}
    origin: dict[str, str] = {}
    shards = _shards(path)
    for shard in shards:
        held = load_tensor_file(shard)
        refused |= refused_of(held)
        for own, tensor in held.items():
            # Of many files with one tensor each, the files bear the names.
            key = own or ("" if len(shards) == 1 else shard.stem)
            if key in tensors:
                problem = f"tensor {key!r} is in {origin[key]} and in {shard.name}"
                raise unreadable(
                    path, problem, expected="each tensor in one shard", next_step="compare the files one by one"
                )
            tensors[key], origin[key] = tensor, shard.name
    return PartlyRead(tensors, refused)


def _shards(path: Path) -> list[Path]:
    indices = sorted(path.glob("*.index.json"))
    if indices:
        return _indexed(path, indices[0])
    for pattern in _SHARDS:
        found = sorted(path.glob(pattern))
        if found:
            return found
    raise UlpscopeError(
        f"the directory {path} holds no file of tensors",
        expected="*.safetensors or *.bin, with or without an index, *.pt, *.npy or *.npz",
        next_step="name the file itself",
    )


def _indexed(path: Path, index: Path) -> list[Path]:
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        shards = [path / name for name in names if Path(name).name == name]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(index, f"not an index of shards ({error})", expected='{"weight_map": {...}}') from error
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing or len(shards) != len(names):
        problem = f"shards that are not there: {', '.join(missing or names)}"
        raise unreadable(index, problem, expected="every shard beside its index", next_step="copy the missing shards")
    return shards
