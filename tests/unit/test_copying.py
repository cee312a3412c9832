"""Copies of memory: every byte, no other one, and past the caches where that is meant."""

import ctypes
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ulpscope.numerics.machine_code import NotCompiledError, compile_library
from ulpscope.numerics.summaries import compiled
from ulpscope.numerics.summaries.compiled import ALIGNMENT, STREAMED_BYTES, copy_memory

Bytes = NDArray[np.uint8]


def aligned(nbytes: int, *, off: int = 0) -> Bytes:
    """Memory that begins so many bytes behind a multiple of the alignment."""
    memory = np.full(nbytes + 2 * ALIGNMENT, 0xEE, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT + off
    return memory[start : start + nbytes]


def content(nbytes: int) -> Bytes:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("off", [0, 1, 32], ids="target {} off".format)
@pytest.mark.parametrize("source_off", [0, 1, 8], ids="source {} off".format)
@pytest.mark.parametrize("extra", [-STREAMED_BYTES, -STREAMED_BYTES + 5, -1, 0, 1, 63, 64, 65])
def test_every_byte_and_no_other(extra: int, source_off: int, off: int) -> None:
    size = STREAMED_BYTES + extra
    source = content(size + source_off)[source_off:]
    target = aligned(size + ALIGNMENT, off=off)
    copy_memory(target.ctypes.data, source.ctypes.data, size)
    assert target[:size].tobytes() == source.tobytes()
    assert set(target[size:].tolist()) == {0xEE}


def test_the_compiled_copy_works_here() -> None:
    assert compiled._streamer() is not ctypes.memmove
    assert compiled._copies(compiled.streamer())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="others have no such instruction here")
def test_it_goes_past_the_caches(tmp_path: Path) -> None:
    assembly = tmp_path / "kernels.s"
    arguments = [*compiled.TUNED, *compiled.FLAGS, f"-I{compiled._SOURCES}", "-S", "-x", "c++", "-"]
    compile_library(assembly, arguments, compiled._text())
    code = assembly.read_text()
    copy = code[code.index("stream:") : code.index(".size\tstream")]
    assert "movnti" in copy
    assert "sfence" in copy


def drops_the_tail(target: int, source: int, nbytes: int) -> None:
    ctypes.memmove(target, source, nbytes // ALIGNMENT * ALIGNMENT)


def writes_on(target: int, source: int, nbytes: int) -> None:
    ctypes.memmove(target, source, nbytes)
    ctypes.memset(target + nbytes, 1, 1)


def not_compiled() -> None:
    raise NotCompiledError("no C++ compiler was found")


def test_without_a_compiler_the_library_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "streamer", not_compiled)
    assert compiled._streamer.__wrapped__() is ctypes.memmove


@pytest.mark.parametrize("broken", [drops_the_tail, writes_on])
def test_a_kernel_that_copies_wrongly_is_not_used(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "streamer", lambda: broken)
    assert compiled._streamer.__wrapped__() is ctypes.memmove


def test_only_large_copies_to_whole_lines_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    streamed: list[int] = []
    monkeypatch.setattr(compiled, "_streamer", lambda: lambda target, source, nbytes: streamed.append(nbytes))
    source = content(STREAMED_BYTES)
    for size, off in ((STREAMED_BYTES, 0), (STREAMED_BYTES - 1, 0), (STREAMED_BYTES, 16)):
        target = aligned(size, off=off)
        copy_memory(target.ctypes.data, source.ctypes.data, size)
    assert streamed == [STREAMED_BYTES]
