"""What is compiled here: made once, whole, and beside a run without holding it up."""

import os
import shutil
import time
from pathlib import Path

import pytest

from ulpscope.numerics import machine_code
from ulpscope.numerics.machine_code import NotCompiledError, compile_beside, compile_library
from ulpscope.numerics.summaries import compiled
from ulpscope.numerics.summaries.compiled import Found, find_compiled

SHARED = ["-shared", "-fPIC", "-x", "c++"]
PATIENCE_SECONDS = 120.0
LOAD = compiled.load.__wrapped__


def source(folder: Path, text: str) -> Path:
    path = folder / "source.cpp"
    path.write_text(text)
    return path


def wait_until_gone(path: Path) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while path.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_compiler_at_work_beside_the_run_leaves_a_library(tmp_path: Path) -> None:
    library = tmp_path / "cache" / "one.so"
    text = source(tmp_path, 'extern "C" int one() { return 1; }')
    assert compile_beside(library, [*SHARED, str(text)])
    wait_until_gone(machine_code._begun(library))
    assert os.listdir(library.parent) == [library.name]


def test_what_cannot_be_compiled_is_not_tried_again_soon(tmp_path: Path) -> None:
    library = tmp_path / "none.so"
    arguments = [*SHARED, str(source(tmp_path, "no C++"))]
    assert compile_beside(library, arguments)
    assert not compile_beside(library, arguments)
    long_ago = time.time() - 2 * machine_code.RETRY_SECONDS
    os.utime(machine_code._begun(library), (long_ago, long_ago))
    assert compile_beside(library, arguments)
    assert not library.exists()


def test_without_a_compiler_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not compile_beside(tmp_path / "none.so", [])
    with pytest.raises(NotCompiledError, match="no C\\+\\+ compiler was found"):
        compile_library(tmp_path / "none.so", [])
    assert os.listdir(tmp_path) == []


def test_a_second_run_finds_what_the_first_has_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_anew(monkeypatch) is Found.COMPILED
    assert find_anew(monkeypatch) is Found.KEPT


def test_where_nothing_can_be_kept_it_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_directory = tmp_path / "file"
    no_directory.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(no_directory))
    assert find_anew(monkeypatch) is Found.COMPILED


def test_a_compiler_that_does_not_know_our_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "TUNED", ("-fno-such-flag",))
    assert find_anew(monkeypatch) is Found.COMPILED


def test_processors_that_can_do_other_things_have_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    here = compiled._library()
    monkeypatch.setattr(compiled, "_instructions", lambda: "flags: other")
    assert compiled._library() != here


def find_anew(monkeypatch: pytest.MonkeyPatch) -> Found:
    """As a process does that has just begun."""
    monkeypatch.setattr(compiled, "load", LOAD)
    return find_compiled()
