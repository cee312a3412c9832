"""Tensors that torch.save wrote, read by torch.load(weights_only=True) or a reader of our own: neither executes them.

Arrays are written as .pt files, too, one tensor a file, with the element type they had in torch. torch is imported only
when such a file is read or written.
"""

import pickle
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.dialects.files.pickles import PickleError, leaves
from ulpscope.dialects.files.stored import COMPLEX32, AnyArray, StoredTensor, unreadable, unsupported
from ulpscope.dialects.files.torch_archives import Part, is_archive, read_archive
from ulpscope.numerics.dtypes import DTYPES, numpy_dtype
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.data import BIT_DTYPES
from ulpscope.trace.files import open_file

if TYPE_CHECKING:
    import torch


EXPECTED = "tensors in dicts and lists, written by torch.save"
_NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def read_pt(path: Path) -> dict[str, StoredTensor]:
    """Tensors and numbers by their place, e.g. `model.layers.0.weight`; a file that is one tensor has the key ''.

    torch reads what it holds to be safe, in every form that it ever wrote; an archive that it refuses, or is not there
    to read, is read without it.
    """
    try:
        content = _load(path)
    except _NotLoadedError as not_loaded:
        return _read_without_torch(path, not_loaded.told)
    import torch

    try:
        return {
            key: _number(path, key, leaf) if type(leaf) in _NUMBERS else _tensor(path, key, leaf)
            for key, leaf in leaves(content)
            if isinstance(leaf, torch.Tensor) or type(leaf) in _NUMBERS
        }
    except PickleError as error:
        raise unreadable(path, f"it cannot be read ({error})", expected=EXPECTED) from error


class _NotLoadedError(Exception):
    """torch is not there, or refuses a file for what it names; `told` says so to who asked for it."""

    def __init__(self, told: UlpscopeError) -> None:
        self.told = told


def _read_without_torch(path: Path, told: UlpscopeError) -> dict[str, StoredTensor]:
    """What an archive has beside what torch refuses; what torch says, if that is nothing or it is no archive."""
    if not is_archive(path):
        raise told
    found = read_archive(Part(path))
    if not found:
        raise told
    return found


def _load(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        absent = UlpscopeError(
            f"{path} was written by torch.save, and torch is not here ({error})",
            expected="torch, to read its files",
            next_step="pip install torch, or save the tensors as .npy or .safetensors",
        )
        raise _NotLoadedError(absent) from error
    try:
        with warnings.catch_warnings(), open_file(path) as file:
            warnings.simplefilter("ignore")
            # The form that torch wrote before 1.6, and still writes on request, cannot be mapped.
            archive = file.read(4) == b"PK\x03\x04"
            return torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except pickle.UnpicklingError as error:
        raise _NotLoadedError(_refused(path, error)) from error
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise unreadable(path, error.strerror or str(error), expected=EXPECTED) from error
    except Exception as error:  # of a damaged file torch raises what its parsers happen to raise
        first_sentence = str(error).strip().partition("\n")[0].partition(". ")[0] or type(error).__name__
        raise unreadable(path, f"torch cannot read it ({first_sentence})", expected=EXPECTED) from error


def _refused(path: Path, error: Exception) -> UlpscopeError:
    # torch's own text advises to load such a file without protection.
    named = re.search(r"GLOBAL (\S+)", str(error))
    problem = (
        f"it would call {named[1]}, and is not loaded" if named else "it is no file of tensors that torch.save wrote"
    )
    return unreadable(
        path, problem, expected=EXPECTED, next_step="save the tensors alone, e.g. torch.save(model.state_dict(), ...)"
    )


def _number(path: Path, key: str, number: Any) -> StoredTensor:
    dtype = _NUMBERS[type(number)]
    if type(number) is int and not -(2**63) <= number < 2**63:
        return unsupported(path, key, dtype="an integer of more than 64 bits", shape=())
    return StoredTensor(dtype, (), lambda: np.array(number, dtype=dtype))


def _tensor(path: Path, key: str, tensor: "torch.Tensor") -> StoredTensor:
    import torch

    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if tensor.layout is not torch.strided:
        return unsupported(path, key, dtype=f"a {tensor.layout} tensor".replace("torch.", ""), shape=shape)
    if dtype not in DTYPES or tensor.is_quantized or tensor.device.type != "cpu":
        return unsupported(path, key, dtype=dtype if tensor.device.type == "cpu" else tensor.device.type, shape=shape)
    return StoredTensor(dtype, shape, lambda: _array(tensor.detach(), dtype))


def _array(tensor: "torch.Tensor", dtype: str) -> AnyArray:
    """The same memory as a numpy array."""
    import torch

    settled = tensor.resolve_conj().resolve_neg()
    if dtype == "complex32":
        return np.asarray(settled.view(torch.int32).numpy()).view(COMPLEX32)
    if dtype == "bfloat16" or dtype.startswith("float8"):
        bits = torch.uint8 if settled.element_size() == 1 else torch.int16
        return np.asarray(settled.view(bits).numpy()).view(numpy_dtype(dtype))
    return np.asarray(settled.numpy())


# numpy knows no name for the elements; torch takes the bits and looks at them anew.
_BITS = {1: np.int8, 2: np.int16, 4: np.int32}


def require_torch() -> None:
    """Say what to do if torch, which alone writes .pt files, is not here."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UlpscopeError(
            f"saved data can be written as .pt files only with torch ({error})",
            expected="an environment with torch",
            next_step="pip install torch",
        ) from error


def save_pt(path: Path, array: NDArray[Any], dtype: str) -> None:
    """Write an array as torch.save would write the tensor it was."""
    import torch

    whole = np.array(array, order="C", copy=True)
    if whole.dtype.isbuiltin != 1:  # numpy itself does not know it, nor does torch
        whole = whole.reshape(-1).view(_BITS[whole.dtype.itemsize]).reshape(whole.shape)
    tensor, kind = torch.from_numpy(whole), getattr(torch, dtype)
    if tensor.dtype != kind and dtype not in BIT_DTYPES:
        tensor = tensor.view(kind)
    torch.save(tensor, path)
