"""The tensor files beside a dump: found by plain names, read one at a time and only when asked for."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.dialects.msprobe.json_files import bad_field, bad_file
from ulpscope.dialects.tensor_files import load_tensor_file
from ulpscope.records.errors import TraceError
from ulpscope.records.values import Value
from ulpscope.trace.data import element_type

DATA_FOLDER = "dump_tensor_data"


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Where the tensor files of one step lie."""

    path: Path | None

    @classmethod
    def find(cls, directory: Path, stated: Iterable[Any]) -> "DataFolder":
        """Beside the dump, wherever that was moved to; the place that the dump states is a last resort."""
        beside = directory / DATA_FOLDER
        elsewhere = [Path(place) for place in stated if isinstance(place, str) and "\0" not in place]
        return cls(next((folder for folder in (beside, *elsewhere) if folder.is_dir()), None))

    def absent(self, dump: Path, names: Iterable[str | None]) -> set[str]:
        """Files that the dump names and that are not there."""
        there = set(os.listdir(self.path)) if self.path is not None else set()
        absent = {name for name in names if name is not None and name not in there}
        for name in absent:
            if not is_plain(name):
                raise bad_field(dump, "data_name", name, f"the name of a file in {DATA_FOLDER}")
        return absent

    def file(self, name: str) -> Path:
        """The file of this name; a link that leads out of the folder is refused."""
        if self.path is None or not is_plain(name):
            raise bad_file(Path(name), "is not a file of this dump")
        path = self.path / name
        if path.resolve().parent != self.path.resolve():
            raise bad_file(path, f"is a link to {path.resolve()}, outside of the dump")
        return path


def is_plain(name: object) -> bool:
    """Whether this is a file name and nothing more."""
    return isinstance(name, str) and name not in ("", ".", "..") and not any(character in name for character in "/\\\0")


def read_elements(folder: DataFolder, name: str, value: Value) -> NDArray[Any]:
    """The elements of a value, in its own dtype."""
    return read_file(folder.file(name), value)


def read_file(path: Path, value: Value) -> NDArray[Any]:
    """The elements of a value that this file is said to hold."""
    stored = load_tensor_file(path).get("")
    if stored is None:
        raise _unexpected(path, "holds several tensors", value)
    if stored.shape != value.shape:
        raise _unexpected(path, f"holds a tensor of shape {list(stored.shape)}", value)
    array = stored.array()
    wanted = element_type(value.dtype)
    # MindSpore's dumps write bfloat16 as float32, in which every such number is exact.
    return array if array.dtype == wanted else np.asarray(array).astype(wanted)


def _unexpected(path: Path, seen: str, value: Value) -> TraceError:
    return TraceError(
        f"{path} {seen}",
        expected=f"one tensor of shape {list(value.shape)}, as the dump says",
        next_step="copy the dump again or dump again",
    )
