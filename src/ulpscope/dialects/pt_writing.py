"""Writes arrays as .pt files, one tensor a file, with the element type they had in torch."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.data import BIT_DTYPES

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
