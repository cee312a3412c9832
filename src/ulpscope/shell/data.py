"""Finds the data that the shell is about: the directories of precision_tool, of both eras, or a trace.

precision_data/npu/debug_0/{dump,graph}, tf/{dump,tf_debug}, overflow/dump, fusion, temp         since May 2021
precision_data/graph/{all,json}, dump/{npu,overflow,cpu,cpu_debug,temp}                          before
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects import npy_folder
from ulpscope.dialects.ascend.tree import has_dumps
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.tfdbg import opening as tfdbg
from ulpscope.records.errors import UlpscopeError
from ulpscope.shell.graph_files import graph_files

DATA = "precision_data"
FUSION_RESULT = "fusion_result.json"

_DEBUG = re.compile(r"debug_\d+", re.ASCII)
_TIME = re.compile(r"\d{14}", re.ASCII)


@dataclass(frozen=True, slots=True)
class DebugData:
    """What one run on an NPU left."""

    name: str
    """`debug_0`."""
    graphs: tuple[Path, ...]
    dumps: Path | None


@dataclass(frozen=True, slots=True)
class OwnFolders:
    """Where the shell writes."""

    drawings: Path
    texts: Path
    converted: Path
    results: Path


@dataclass(frozen=True, slots=True)
class ShellData:
    """Everything that was found."""

    root: Path
    own: OwnFolders
    debugs: tuple[DebugData, ...] = ()
    reference: Path | None = None
    overflow: Path | None = None
    fusion: tuple[Path, ...] = ()
    trace: Path | None = None
    """Set if the root is a trace, or what else opens as one; then there is no graph."""

    @property
    def dumps(self) -> tuple[Path, ...]:
        return tuple(debug.dumps for debug in self.debugs if debug.dumps is not None)

    @property
    def graphs(self) -> tuple[Path, ...]:
        return tuple(graph for debug in self.debugs for graph in debug.graphs)


def find_data(start: Path) -> ShellData | None:
    """The data of a directory, or of the `precision_data` in it; none if there is none."""
    try:
        for root in (start, start / DATA):
            for holds, read in _LAYOUTS:
                if holds(root):
                    return read(root)
        return _trace(start)
    except OSError as error:
        raise UlpscopeError(
            f"{error.filename or start} cannot be read: {error.strerror}",
            expected="directories that may be read",
            next_step="check who may read them",
        ) from error


def no_data(start: Path) -> ShellData:
    """The shell without data: its commands take paths."""
    return ShellData(root=start, own=_own(start / "temp"))


def newest_result(data: ShellData) -> Path | None:
    """The directory of the last comparison."""
    return _newest(data.own.results)


def _trace(start: Path) -> ShellData | None:
    try:
        open_run(start)
    except UlpscopeError:
        return None
    return ShellData(
        root=start,
        own=_own(Path("temp")),
        debugs=(DebugData(start.name, (), start),) if start.is_dir() and has_dumps(start) else (),
        reference=start if _is_reference(start) else None,
        trace=start,
    )


def _is_newer(root: Path) -> bool:
    places = ("npu/debug_*", "tf/dump", "tf/tf_debug", "overflow/dump")
    return any(path.is_dir() for place in places for path in root.glob(place))


def _newer(root: Path) -> ShellData:
    return ShellData(
        root=root,
        own=_own(root / "temp"),
        debugs=tuple(_debugs(root / "npu")),
        reference=_first([root / "tf" / "dump", root / "tf" / "tf_debug"], _is_reference),
        overflow=_overflow(root / "overflow" / "dump"),
        fusion=_fusion(root),
    )


def _debugs(folder: Path) -> Iterator[DebugData]:
    names = sorted(path.name for path in folder.iterdir() if _DEBUG.fullmatch(path.name)) if folder.is_dir() else []
    for name in names:
        yield DebugData(name, graph_files(folder / name / "graph"), _first([folder / name / "dump"], has_dumps))


def _is_older(root: Path) -> bool:
    return any(
        (root / place).is_dir() for place in ("dump/npu", "dump/overflow", "dump/cpu", "graph/all", "graph/json")
    )


def _older(root: Path) -> ShellData:
    dump, temp = root / "dump", root / "dump" / "temp"
    graphs = graph_files(root / "graph" / "all") or graph_files(root / "graph" / "json")
    return ShellData(
        root=root,
        own=OwnFolders(temp / "op_graph", temp / "decode", temp / "convert", temp / "vector_compare"),
        debugs=(DebugData("debug_0", graphs, _first([dump / "npu"], has_dumps)),),
        reference=_first([dump / "cpu", dump / "cpu_debug"], _is_reference),
        overflow=_overflow(dump / "overflow"),
        fusion=_fusion(root),
    )


_LAYOUTS: tuple[tuple[Callable[[Path], bool], Callable[[Path], ShellData]], ...] = (
    (_is_newer, _newer),
    (_is_older, _older),
)


def _own(temp: Path) -> OwnFolders:
    decode = temp / "decode"
    return OwnFolders(temp / "op_graph", decode / "dump_decode", decode / "dump_convert", temp / "vector_compare")


def _fusion(root: Path) -> tuple[Path, ...]:
    """Results that a user put there, and the one that the compiler left where it ran."""
    places = [*sorted((root / "fusion").glob("fusion_result*.json")), Path(FUSION_RESULT)]
    return tuple(path for path in places if path.is_file())


def _overflow(folder: Path) -> Path | None:
    return _newest(folder) or _first([folder], has_dumps)


def _newest(folder: Path) -> Path | None:
    times = [path for path in folder.iterdir() if _TIME.match(path.name)] if folder.is_dir() else []
    return max(times, key=lambda path: path.name, default=None)


def _first(places: Iterable[Path], holds: Callable[[Path], bool]) -> Path | None:
    """The first directory that holds what it is for: tools make them before they have anything to put there."""
    return next((path for path in places if path.is_dir() and holds(path)), None)


def _is_reference(path: Path) -> bool:
    return npy_folder.looks_like(path) or tfdbg.looks_like(path)
