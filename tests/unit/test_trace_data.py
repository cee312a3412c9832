"""Saved data: packed, each content once, and never read outside of what was stored."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from ulpscope.records.calls import DataPlace
from ulpscope.records.errors import TraceError
from ulpscope.trace import data
from ulpscope.trace.data import DataPacker, read_value

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
FILE = "step0/data-000.safetensors"


def raw_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.frombuffer(array.tobytes(), np.uint8)


def add(packer: DataPacker, array: NDArray[Any], *, step: int = 0, digest: int | None = None) -> tuple[str, str]:
    return packer.add(step, raw=raw_of(array), dtype=array.dtype.name, shape=array.shape, digest=digest)


def numpy_type(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_every_dtype_comes_back(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(np.float32).astype(numpy_type(name))
    packer = DataPacker(tmp_path)
    add(packer, np.ones(3, np.uint8))
    file, key = add(packer, array)
    packer.flush(0)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    found = read_value(tmp_path, DataPlace(file, key, 0, strides), name, shape)
    assert found.dtype == array.dtype
    assert found.shape == shape
    assert found.tobytes() == array.tobytes()


def test_other_libraries_read_the_files(tmp_path: Path) -> None:
    packer = DataPacker(tmp_path)
    _, key = add(packer, np.eye(3, dtype=np.float32))
    packer.flush(0)
    assert np.array_equal(load_file(tmp_path / FILE)[key], np.eye(3, dtype=np.float32))


def test_half_complex_is_kept_as_bytes(tmp_path: Path) -> None:
    packer = DataPacker(tmp_path)
    raw = raw_of(np.array([1, 2, 3, 4], np.float16))
    file, key = packer.add(0, raw=raw, dtype="complex32", shape=(2,), digest=None)
    packer.flush(0)
    found = read_value(tmp_path, DataPlace(file, key, 0, (1,)), "complex32", (2,))
    assert found["imag"].tolist() == [2.0, 4.0]


def test_equal_contents_are_kept_once(tmp_path: Path) -> None:
    packer = DataPacker(tmp_path)
    array = np.arange(9, dtype=np.float32)
    place = add(packer, array, digest=5)
    assert add(packer, array.copy(), digest=5) == place
    packer.flush(0)
    assert add(packer, array.copy(), digest=5, step=1) == place
    packer.flush(1)
    assert not (tmp_path / "step1").exists()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_digest_is_not_trusted(tmp_path: Path, flushed: bool) -> None:
    packer = DataPacker(tmp_path)
    one, other = np.arange(9, dtype=np.uint8), np.arange(9, dtype=np.uint8)
    other[8] += 1
    places = [add(packer, one, digest=5)]
    if flushed:
        packer.flush(0)
    places.append(add(packer, other, digest=5))
    packer.flush(0)
    found = [read_value(tmp_path, DataPlace(*place, 0, (1,)), "uint8", (9,)) for place in places]
    assert [array.tolist() for array in found] == [one.tolist(), other.tolist()]


def test_contents_without_digest_or_of_other_dtype_are_all_kept(tmp_path: Path) -> None:
    packer = DataPacker(tmp_path)
    array = np.zeros(4, np.int32)
    places = {add(packer, array), add(packer, array), add(packer, array, digest=1)}
    places.add(add(packer, array.view(np.float32), digest=1))
    assert len(places) == 4


def test_full_packs_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PACK_BYTES", 100)
    packer = DataPacker(tmp_path)
    places = [add(packer, np.full(60, number, np.uint8)) for number in range(5)]
    assert [file for file, _ in places] == [f"step0/data-{pack:03d}.safetensors" for pack in (0, 0, 1, 1, 2)]
    assert len(list(tmp_path.glob("step0/data-*"))) == 2
    packer.flush(0)
    packer.flush(0)
    assert len(list(tmp_path.glob("step0/data-*"))) == 3
    assert packer.bytes_written == sum(file.stat().st_size for file in tmp_path.glob("step0/*"))


def test_packs_of_many_tensors_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PACK_TENSORS", 2)
    packer = DataPacker(tmp_path)
    places = [add(packer, np.full(3, number, np.int16), digest=number) for number in range(5)]
    assert [add(packer, np.full(3, number, np.int16), digest=number) for number in range(5)] == places
    assert packer.has_pending
    packer.flush(0)
    assert not packer.has_pending
    found = [read_value(tmp_path, DataPlace(*place, 0, (1,)), "int16", (3,)) for place in places]
    assert [array.tolist() for array in found] == [[number] * 3 for number in range(5)]


def test_what_was_forgotten_is_kept_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "SEEN_CONTENTS", 3)
    packer = DataPacker(tmp_path)
    places = [add(packer, np.full(3, number, np.int16), digest=number) for number in range(5)]
    assert [add(packer, np.full(3, number, np.int16), digest=number) == places[number] for number in (4, 3, 2)] == [
        True
    ] * 3
    again = add(packer, np.full(3, 0, np.int16), digest=0)
    packer.flush(0)
    assert again not in places
    assert read_value(tmp_path, DataPlace(*again, 0, (1,)), "int16", (3,)).tolist() == [0] * 3


@pytest.mark.parametrize("length", [3, 1001, 2**18 + 5])
@pytest.mark.parametrize("flushed", [False, True])
def test_contents_of_any_length_are_compared_to_their_end(tmp_path: Path, length: int, *, flushed: bool) -> None:
    (rank := tmp_path / "rank0").mkdir()
    packer = DataPacker(rank)
    array = np.arange(length, dtype=np.uint32).astype(np.uint8)
    places = [add(packer, array + np.uint8(digest), digest=digest) for digest in range(3)]
    if flushed:
        packer.flush(0)
        packer.move(rank.rename(tmp_path / "rank1"))
    assert [add(packer, array + np.uint8(digest), digest=digest) for digest in range(3)] == places
    for digest, index in enumerate((0, length // 2, length - 1)):
        other = array + np.uint8(digest)
        other[index] ^= 1
        assert add(packer, other, digest=digest) not in places


def test_a_system_without_advice_for_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(data.os, "posix_fadvise", raising=False)
    packer = DataPacker(tmp_path)
    file, key = add(packer, np.arange(3))
    packer.flush(0)
    assert read_value(tmp_path, DataPlace(file, key, 0, (1,)), "int64", (3,)).tolist() == [0, 1, 2]


def test_a_new_step_begins_a_new_file(tmp_path: Path) -> None:
    packer = DataPacker(tmp_path)
    assert add(packer, np.zeros(3)) == (FILE, "0")
    assert packer.bytes_written == 24
    assert add(packer, np.ones(3), step=1) == ("step1/data-000.safetensors", "0")
    assert (tmp_path / FILE).exists()
    assert not list(tmp_path.glob("**/.*"))


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    strides=st.lists(st.integers(-6, 6), min_size=3, max_size=3),
    offset=st.integers(-3, 30),
)
def test_a_view_is_what_numpy_sees_or_is_refused(shape: list[int], strides: list[int], offset: int) -> None:
    import tempfile

    base, strides = np.arange(24, dtype=np.int16), strides[: len(shape)]
    with tempfile.TemporaryDirectory() as directory:
        packer = DataPacker(Path(directory))
        file, key = add(packer, base)
        packer.flush(0)
        indices = np.full(shape, offset)
        for axis, stride in enumerate(strides):
            steps = np.arange(shape[axis]) * stride
            indices = indices + steps.reshape([-1 if place == axis else 1 for place in range(len(shape))])
        place = DataPlace(file, key, offset, tuple(strides))
        if indices.size and (indices.min() < 0 or indices.max() >= 24):
            with pytest.raises(TraceError, match="reaches elements"):
                read_value(Path(directory), place, "int16", tuple(shape))
        else:
            found = read_value(Path(directory), place, "int16", tuple(shape))
            assert np.array_equal(found, base[indices] if indices.size else np.empty(shape))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    packer = DataPacker(tmp_path)
    add(packer, np.arange(6, dtype=np.float32))
    packer.flush(0)
    return tmp_path


@pytest.mark.parametrize(
    "file",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "step0/../../x",
        "step0/data-000.safetensors\n",
        "rank.json",
        "step0/data-.x",
        "",
    ],
)
def test_only_data_files_of_the_rank_are_opened(saved: Path, file: str) -> None:
    with pytest.raises(TraceError, match="field data_file"):
        read_value(saved, DataPlace(file, "0", 0, (1,)), "float32", (6,))


@pytest.mark.parametrize(
    ("dtype", "shape", "place", "problem"),
    [
        ("object", (6,), DataPlace(FILE, "0", 0, (1,)), "field dtype"),
        ("finfo", (6,), DataPlace(FILE, "0", 0, (1,)), "field dtype"),
        ("float32", (7,), DataPlace(FILE, "0", 0, (1,)), "reaches elements 0 to 6"),
        ("float64", (6,), DataPlace(FILE, "0", 0, (1,)), "which has 3"),
        ("float32", (6,), DataPlace(FILE, "0", 0, ()), "differ in length"),
        ("float32", (-1,), DataPlace(FILE, "0", 0, (1,)), "is negative"),
        ("float32", (6,), DataPlace(FILE, "no", 0, (1,)), "no tensor 'no'"),
        ("float32", (2**62, 2**62), DataPlace(FILE, "0", 0, (0, 0)), "cannot be seen as"),
        ("float32", (6,), DataPlace("step7/data-000.safetensors", "0", 0, (1,)), "No such file"),
    ],
)
def test_what_does_not_fit_is_refused(
    saved: Path, dtype: str, shape: tuple[int, ...], place: DataPlace, problem: str
) -> None:
    with pytest.raises(TraceError, match=problem):
        read_value(saved, place, dtype, shape)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "claims 0 bytes"),
        (b"\xff" * 40, "claims"),
        (b"\x04" + bytes(7) + b"null", "cannot be read"),
        (b"\x02" + bytes(7) + b"{]", "cannot be read"),
    ],
)
def test_a_broken_file_is_named(saved: Path, content: bytes, problem: str) -> None:
    (saved / FILE).write_bytes(content)
    with pytest.raises(TraceError, match=rf"data-000\.safetensors: .*{problem}"):
        read_value(saved, DataPlace(FILE, "0", 0, (1,)), "float32", (6,))


def test_a_truncated_file_is_refused(saved: Path) -> None:
    content = (saved / FILE).read_bytes()
    (saved / FILE).write_bytes(content[:-1])
    with pytest.raises(TraceError, match="reaches from byte"):
        read_value(saved, DataPlace(FILE, "0", 0, (1,)), "float32", (6,))


def test_a_tensor_that_claims_the_header_is_refused(saved: Path) -> None:
    header = json.dumps({"0": {"dtype": "F32", "shape": [6], "data_offsets": [-8, 16]}}).encode()
    (saved / FILE).write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
    with pytest.raises(TraceError, match="reaches from byte"):
        read_value(saved, DataPlace(FILE, "0", 0, (1,)), "float32", (6,))
