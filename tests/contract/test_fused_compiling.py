"""The fused kernels are compiled once for each source and device; what is told if that fails. NVRTC is a stand-in."""
# ruff: noqa: N802, the names are NVRTC's

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ulpscope.capture.torch.summaries import kernels as compiling
from ulpscope.capture.torch.summaries.kernels import compiled
from ulpscope.numerics.machine_code import NotCompiledError

NUMBERS = "constexpr int KIND = 0;\n"


class Nvrtc:
    """Gives its options as machine code."""

    def __init__(self, *, complaint: str = "") -> None:
        self._complaint = complaint
        self._image = b""
        self.compiled: list[tuple[bytes, dict[bytes, bytes]]] = []
        self.nvrtcGetErrorString = lambda code: f"error {code}".encode()

    def nvrtcVersion(self, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 13, 0
        return 0

    def nvrtcCreateProgram(
        self, _program: Any, text: bytes, _name: bytes, count: int, texts: Sequence[bytes], names: Sequence[bytes]
    ) -> int:
        self.compiled.append((text, dict(zip(list(names)[:count], list(texts)[:count], strict=True))))
        return 0

    def nvrtcCompileProgram(self, _program: Any, count: int, options: Sequence[bytes]) -> int:
        self._image = b" ".join(list(options)[:count])
        return 6 if self._complaint else 0

    def nvrtcGetProgramLogSize(self, _program: Any, size: Any) -> int:
        size._obj.value = len(self._complaint)
        return 0

    def nvrtcGetProgramLog(self, _program: Any, room: Any) -> int:
        room.raw = self._complaint.encode()
        return 0

    def nvrtcGetCUBINSize(self, _program: Any, size: Any) -> int:
        size._obj.value = len(self._image)
        return 0

    def nvrtcGetCUBIN(self, _program: Any, room: Any) -> int:
        room.raw = self._image
        return 0

    def nvrtcDestroyProgram(self, _program: Any) -> int:
        return 0


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Nvrtc:
    library = Nvrtc()
    monkeypatch.setattr(compiling, "_nvrtc", lambda: library)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return library


def test_a_kernel_is_compiled_once_for_each_device_and_kind(nvrtc: Nvrtc) -> None:
    for _ in range(2):
        assert b"sm_90" in compiled("summarize.cu", NUMBERS, (9, 0))
    assert len(nvrtc.compiled) == 1
    assert b"sm_80" in compiled("summarize.cu", NUMBERS, (8, 0))
    compiled("summarize.cu", NUMBERS + "\n", (9, 0))
    compiled("join.cu", NUMBERS, (9, 0))
    assert len(nvrtc.compiled) == 4


def test_it_gets_every_header_it_includes(nvrtc: Nvrtc) -> None:
    compiled("summarize.cu", NUMBERS, (9, 0))
    ((text, headers),) = nvrtc.compiled
    for source in (text, *headers.values()):
        for line in source.decode().splitlines():
            if line.startswith('#include "'):
                assert line.split('"')[1].encode() in headers
    assert headers[b"numbers.h"] == NUMBERS.encode()


def test_where_nothing_can_be_kept_it_is_compiled_each_time(
    nvrtc: Nvrtc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert b"sm_90" in compiled("summarize.cu", NUMBERS, (9, 0))
    assert len(nvrtc.compiled) == 2


@pytest.mark.usefixtures("nvrtc")
def test_what_the_compiler_says_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_nvrtc", lambda: Nvrtc(complaint="line 3: no such thing"))
    with pytest.raises(NotCompiledError, match="error 6: line 3: no such thing"):
        compiled("summarize.cu", NUMBERS, (9, 0))


def test_a_missing_library_is_told_with_all_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_candidates", lambda: iter(("libnvrtc-of-nobody.so.1", "/nowhere/libnvrtc.so.2")))
    compiling._nvrtc.cache_clear()
    with pytest.raises(NotCompiledError, match=r"NVRTC.*libnvrtc-of-nobody\.so\.1.*/nowhere/libnvrtc\.so\.2"):
        compiling._nvrtc()
