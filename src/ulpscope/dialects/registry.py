"""The dialects that are known: how a dump of each tool is recognised, opened as a trace, and called.

Ours are asked first, in this order. Others register themselves by an entry point of the group `ulpscope.dialects`
that leads to a Dialect; docs/extending.md has a recipe.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.reader import Trace, has_rank_file

if TYPE_CHECKING:
    from ulpscope.dialects.files.stored import TensorFile
    from ulpscope.dialects.reference import ReferenceTensor

GROUP = "ulpscope.dialects"
Given = TypeVar("Given")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One tool's way to write a run down."""

    what: str
    """What such a path is, as a clause behind `is`: a dump of msprobe."""
    next_step: str
    """Which command takes it; {path} stands for its path."""
    recognises: Callable[[Path], bool]
    """Whether a path is such a dump, as far as a short look at names and first bytes tells."""
    open: Callable[[Path], Trace]
    tensors: "Callable[[Path], TensorFile] | None" = None
    """Its tensors by name, where files of tensors are taken."""
    reference: "Callable[[Path], list[ReferenceTensor]] | None" = None
    """Its tensors by operator, where it may be what a network on a device is compared with."""


def known_dialects() -> Iterator[Dialect]:
    """Ours, and only if none of them was taken those of others: these are loaded when it comes to them."""
    yield from _ours()
    yield from _others()


def dialect_of(path: Path) -> Dialect | None:
    """Whose dump a path is."""
    return next((dialect for dialect in known_dialects() if dialect.recognises(path)), None)


def is_trace(path: Path) -> bool:
    """Whether this is a trace of our own."""
    try:
        return path.is_dir() and (has_rank_file(path) or any(map(has_rank_file, path.iterdir())))
    except OSError:
        return False


@cache
def _ours() -> tuple[Dialect, ...]:
    # They take 40 ms to import, which a look into a trace need not wait for.
    from ulpscope.dialects.api_checker import API_CHECKER
    from ulpscope.dialects.ascend.opening import NPU
    from ulpscope.dialects.msprobe.layout import MSPROBE
    from ulpscope.dialects.reference import NPY_FOLDER
    from ulpscope.dialects.tfdbg import TFDBG_DUMP
    from ulpscope.dialects.tfdbg2 import TFDBG2_DUMP

    return API_CHECKER, MSPROBE, NPU, TFDBG_DUMP, TFDBG2_DUMP, NPY_FOLDER


@cache
def _others() -> tuple[Dialect, ...]:
    return tuple(_loaded(entry.name, entry.load) for entry in entry_points(group=GROUP))


def _loaded(name: str, load: Callable[[], object]) -> Dialect:
    try:
        found = load()
    except Exception as error:  # whatever another's package raises is told as what it is
        raise _bad_dialect(name, f"cannot be loaded ({type(error).__name__}: {error})") from error
    if not isinstance(found, Dialect):
        raise _bad_dialect(name, f"is of the type {type(found).__name__}")
    return replace(found, recognises=_guarded(name, found.recognises), open=_guarded(name, found.open))


def _guarded(name: str, work: Callable[[Path], Given]) -> Callable[[Path], Given]:
    """The same; an error in it is the other package's, and told so."""

    def guarded(path: Path) -> Given:
        try:
            return work(path)
        except UlpscopeError:
            raise
        except Exception as error:
            raise _bad_dialect(name, f"fails with {path} ({type(error).__name__}: {error})") from error

    return guarded


def _bad_dialect(name: str, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"the dialect {name} of another package {problem}",
        expected=f"an entry point of the group {GROUP} that leads to an ulpscope.dialects.registry.Dialect",
        next_step="mend or uninstall the package that brings it: pip list names those that are installed",
    )
