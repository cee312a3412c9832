"""Compiles the kernels with NVRTC, which torch brings along, once for each kind of device."""

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import torch

from ulpscope.numerics.machine_code import NotCompiledError, cache_directory, identity_of, made_whole

_SOURCES = Path(__file__).parent / "cuda"
_OPTIONS = ("-std=c++17",)


def compiled(source: str, numbers: str, capability: tuple[int, int]) -> bytes:
    """The machine code of a source file, with these numbers as its numbers.h."""
    nvrtc = _nvrtc()
    headers = {path.name: path.read_text() for path in sorted(_SOURCES.glob("*.h"))} | {"numbers.h": numbers}
    text = (_SOURCES / source).read_text()
    options = (*_OPTIONS, f"--gpu-architecture=sm_{capability[0]}{capability[1]}")
    words = (text, *headers.values(), *options, _version(nvrtc))
    identity = identity_of(*(word.encode() for word in words))
    kept = cache_directory() / f"{Path(source).stem}-{identity}.cubin"
    try:
        return kept.read_bytes()
    except OSError:
        image = _compile(nvrtc, text, headers, options)
    with contextlib.suppress(OSError), made_whole(kept) as made:  # where nothing can be kept, later runs compile again
        made.write_bytes(image)
    return image


def _compile(nvrtc: ctypes.CDLL, text: str, headers: dict[str, str], options: tuple[str, ...]) -> bytes:
    program = ctypes.c_void_p()
    names, texts = (_strings(words) for words in (headers.keys(), headers.values()))
    _check(
        nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", len(headers), texts, names)
    )
    try:
        code = nvrtc.nvrtcCompileProgram(program, len(options), _strings(options))
        if code:
            raise NotCompiledError(f"NVRTC: {_name(nvrtc, code)}: {_text(nvrtc, 'ProgramLog', program).decode()[:400]}")
        return _text(nvrtc, "CUBIN", program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, room))
    return room.raw


def _strings(words: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [word.encode() for word in words]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _check(nvrtc: ctypes.CDLL, code: int) -> None:
    if code:
        raise NotCompiledError(f"NVRTC: {_name(nvrtc, code)}")


def _name(nvrtc: ctypes.CDLL, code: int) -> str:
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return str(nvrtc.nvrtcGetErrorString(code).decode())


def _version(nvrtc: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


@cache
def _nvrtc() -> ctypes.CDLL:
    tried = []
    for candidate in _candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            tried.append(str(error))
    raise NotCompiledError(f"NVRTC, which comes with torch for CUDA, was not found ({'; '.join(tried)})")


def _candidates() -> Iterator[str]:
    """First what the system finds, then where torch's packages put it."""
    name = f"libnvrtc.so.{str(torch.version.cuda).split('.', maxsplit=1)[0]}"
    yield name
    folder = Path(torch.__file__).parent
    for found in (*sorted(folder.parent.glob(f"nvidia/*/lib/{name}")), *sorted(folder.glob("lib/libnvrtc*.so*"))):
        yield str(found)
