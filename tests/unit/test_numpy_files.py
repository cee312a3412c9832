"""Headers of .npy files that are not what numpy.save writes: one clear error, and nothing large is read."""

import struct
from pathlib import Path

import numpy as np
import pytest

from ulpscope.dialects.files.stored import read_npy
from ulpscope.records.errors import UlpscopeError

MAGIC = b"\x93NUMPY"


def header(text: bytes, *, length: int | None = None) -> bytes:
    return MAGIC + b"\x02\x00" + struct.pack("<I", len(text) if length is None else length) + text


@pytest.mark.parametrize(
    "content",
    [
        header(b"", length=2**32 - 1),
        header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)", length=54),
        header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,}}"),
        header(b"(" * 5000),
        header(b"{'descr': '<f4', 'fortran_order': False, 'shape': 'x'}"),
        header(b"{'descr': [3], 'fortran_order': False, 'shape': (3,)}"),
        header(b'"""'),
        MAGIC,
        b"",
    ],
    ids=lambda content: f"{len(content)} bytes",
)
def test_a_header_that_is_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(UlpscopeError) as caught:
        read_npy(path)
    assert str(path) in caught.value.seen
    assert "its header cannot be read" in caught.value.seen


@pytest.mark.parametrize("shape", ["(-4,)", "(0, -4)", "(-2, -2)", f"(0, {2**70})", f"({2**40}, {2**40})"])
def test_a_shape_that_no_array_has(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".encode()) + bytes(64))
    with pytest.raises(UlpscopeError, match="which no array has"):
        read_npy(path)


def test_a_length_that_is_claimed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(header(b"", length=2**32 - 1))
    with pytest.raises(UlpscopeError, match="it claims 4,294,967,295 bytes"):
        read_npy(path)


def test_a_long_header_that_numpy_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(6.0).reshape(2, 3))
    assert read_npy(path)[""].shape == (2, 3)
