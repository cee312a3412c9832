"""Finds the data that the shell is about: the directories of precision_tool, of both eras, or a trace.

precision_data/npu/debug_0/{dump,graph}, tf/{dump,tf_debug}, overflow/dump, fusion, temp         since May 2021
precision_data/graph/{all,json}, dump/{npu,overflow,cpu,cpu_debug,temp}                          before
a graph file, or a directory with some and perhaps with dumps                                    of no tool
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ulpscope.dialects import tfdbg, tfdbg2
from ulpscope.dialects.ascend.tree import has_dumps
from ulpscope.dialects.graphs.opening import graph_file, open_graph
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.reference import is_npy_folder
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import GraphModel
from ulpscope.workflows.tensor_lookup import SEPARATOR, DumpTensors, FoundTensor, TraceTensors

DATA = "precision_data"
FUSION_RESULT = "fusion_result.json"
OVERFLOW = "overflow"
LONGEST_FILE_NAME = 200
"""Bytes; file systems take 255, and something is put before and behind it."""

_NEWER = ("npu/debug_*", "tf/dump", "tf/tf_debug", "overflow/dump")
_OLDER = ("dump/npu", "dump/overflow", "dump/cpu", "graph/all", "graph/json")
"""Directories by which the layouts of both eras are known."""
_DEBUG = re.compile(r"debug_\d+\Z", re.ASCII)
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
    def dump_roots(self) -> dict[str, Path]:
        """Where files of dumped tensors are, by what tells their names apart; a bare name is one of the first."""
        found = {debug.name: debug.dumps for debug in self.debugs if debug.dumps is not None}
        return found if self.overflow is None else {**found, OVERFLOW: self.overflow}

    @property
    def holds_arrays(self) -> bool:
        """Whether there are files of tensors, other than those of a trace."""
        return bool(self.dump_roots) or self.reference is not None

    @property
    def graphs(self) -> tuple[Path, ...]:
        return tuple(graph for debug in self.debugs for graph in debug.graphs)


def find_data(start: Path) -> ShellData | None:
    """The data of a directory, or of the `precision_data` in it; none if there is none."""
    try:
        return _laid_out(start) or _with_graphs(start) or _trace(start)
    except OSError as error:
        raise UlpscopeError(
            f"{error.filename or start} cannot be read: {error.strerror}",
            expected="directories that may be read",
            next_step="check who may read them",
        ) from error


def why_no_data(start: Path) -> UlpscopeError:
    """What to tell of a path that was named, and of which find_data finds nothing."""
    try:
        open_run(start)
        reason = "nothing in it is known"
    except UlpscopeError as error:
        reason = error.seen
    return UlpscopeError(
        f"{start} holds neither precision_data nor a graph, and does not open as a run: {reason}"
        if start.exists()
        else f"{start} does not exist",
        expected="precision_data (npu/debug_0/graph, npu/debug_0/dump, tf/dump, ...), a graph, a trace or a dump",
        next_step="check the path; ulpscope shell without DATA starts empty, and its commands take paths",
    )


def look_again(data: ShellData) -> ShellData:
    """The data with what has come and gone since; a trace stays what it was."""
    try:
        return data if data.trace is not None else _laid_out(data.root) or data
    except OSError:
        return data


def no_data(start: Path) -> ShellData:
    """The shell without data: its commands take paths."""
    return ShellData(root=start, own=_own(start / "temp"))


def file_name(name: str) -> str:
    """What stands for the name of an operator or tensor in that of a file: the end of it, if it is long."""
    safe = "".join(letter if letter.isprintable() and letter != "/" else "_" for letter in name)
    return safe.encode()[-LONGEST_FILE_NAME:].decode(errors="ignore")


def newest_result(data: ShellData) -> Path | None:
    """The directory of the last comparison."""
    return _newest(data.own.results)


def _laid_out(start: Path) -> ShellData | None:
    for root in (start, start / DATA):
        if any(path.is_dir() for place in _NEWER for path in root.glob(place)):
            return _newer(root)
        if any((root / place).is_dir() for place in _OLDER):
            return _older(root)
    return None


def _with_graphs(start: Path) -> ShellData | None:
    """A graph, or a directory that holds some itself: its dumps, if any, are of them."""
    own = graph_file(start)
    if own.is_dir():
        graphs = graph_files(start, deepest=0)
    else:
        try:
            graphs = (own,) if own.is_file() and open_graph(own).graphs else ()
        except UlpscopeError:
            graphs = ()
    if not graphs:
        return None
    dumps = start if start.is_dir() and has_dumps(start) else None
    return ShellData(start, _own(Path("temp")), (DebugData(start.stem or "graph", graphs, dumps),))


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


def _newer(root: Path) -> ShellData:
    return ShellData(
        root=root,
        own=_own(root / "temp"),
        debugs=tuple(
            DebugData(folder.name, graph_files(folder / "graph"), _first([folder / "dump"], has_dumps))
            for folder in sorted(_subfolders(root / "npu", _DEBUG), key=lambda path: (len(path.name), path.name))
        ),
        reference=_first([root / "tf" / "dump", root / "tf" / "tf_debug"], _is_reference),
        overflow=_overflow(root / "overflow" / "dump"),
        fusion=_fusion(root),
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
    return max((path for path in _subfolders(folder, _TIME) if path.is_dir()), key=lambda path: path.name, default=None)


def _subfolders(folder: Path, named: re.Pattern[str]) -> list[Path]:
    return [path for path in folder.iterdir() if named.match(path.name)] if folder.is_dir() else []


def _first(places: Iterable[Path], holds: Callable[[Path], bool]) -> Path | None:
    """The first directory that holds what it is for: tools make them before they have anything to put there."""
    return next((path for path in places if path.is_dir() and holds(path)), None)


def _is_reference(path: Path) -> bool:
    return is_npy_folder(path) or tfdbg.looks_like(path) or tfdbg2.looks_like(path)


STAGES = ("Build", "PreRunAfterBuild")
"""Of the graph as it runs: the first of these that a directory has."""

_NAME = re.compile(
    r"ge_(?:proto|onnx)_(?P<number>\d{1,12})_(?:graph_(?P<graph>\d{1,12})_)?(?P<stage>Build|PreRunAfterBuild)"
    r"(?P<ending>\.txt|\.json|\.txt\.json|\.pbtxt)",
    re.ASCII,
)
_BEST_FIRST = (".txt", ".txt.json", ".json", ".pbtxt")
DEEPEST = 3
"""Directories below the one of the graphs: compilers make one a process and device."""


def graph_files(folder: Path, *, deepest: int = DEEPEST) -> tuple[Path, ...]:
    """The graphs of the last stage in a directory and so far below it, each in the form that says most."""
    found: dict[str, dict[tuple[int, int, Path], tuple[int, Path]]] = {stage: {} for stage in STAGES}
    for path, match in _named(folder, deepest):
        # Each process of a run numbers its graphs from 0, in a directory of its own.
        key = int(match["number"]), int(match["graph"] or -1), path.parent
        choice = _BEST_FIRST.index(match["ending"]), path
        known = found[match["stage"]].setdefault(key, choice)
        found[match["stage"]][key] = min(known, choice)
    chosen = next((found[stage] for stage in STAGES if found[stage]), {})
    return tuple(path for _, (_, path) in sorted(chosen.items()))


def _named(folder: Path, deepest: int) -> Iterator[tuple[Path, re.Match[str]]]:
    """Files of such names that are not empty: some tools leave an empty text beside the JSON that they read."""
    top = len(folder.parts)
    for directory, names, files in os.walk(folder):
        path = Path(directory)
        names.sort()
        if len(path.parts) - top >= deepest:
            names.clear()
        for name in sorted(files):
            match = _NAME.fullmatch(name)
            if match is not None and (path / name).is_file() and (path / name).stat().st_size:
                yield path / name, match


@dataclass
class Context:
    """One session of the shell."""

    data: ShellData
    _models: dict[Path, tuple[int, GraphModel]] = field(default_factory=dict)
    _dumped: tuple[ShellData, DumpTensors] | None = None

    def refresh(self) -> None:
        """See what has come and gone since the last command."""
        self.data = look_again(self.data)

    @property
    def dumped(self) -> DumpTensors:
        """Tensors of dumps and of the reference."""
        if self._dumped is None or self._dumped[0] != self.data:
            data = self.data
            self._dumped = data, DumpTensors(dumps=data.dump_roots, reference=data.reference)
        return self._dumped[1]

    @cached_property
    def called(self) -> TraceTensors:
        """Tensors of the calls of the trace."""
        return TraceTensors(self.data.root)

    def tensor(self, name: str) -> FoundTensor:
        """The tensor that `pt` and `cp` mean; of a dump that was opened as a run, a file's or a call's."""
        if self.data.trace is None:
            return self.dumped.find(name)
        call = name.partition(SEPARATOR)[0]
        of_call = call.isdigit() or call in self.called.names()
        return self.called.find(name) if of_call or not self.data.holds_arrays else self.dumped.find(name)

    def prefix(self, debug: DebugData) -> str:
        """What stands before the names of a run's tensors: nothing for those of the first."""
        return "" if debug.name == next(iter(self.data.dump_roots), None) else f"{debug.name}/"

    def models(self) -> Iterator[GraphModel]:
        """All graphs."""
        return (self.model(path) for path in self.data.graphs)

    def model(self, path: Path) -> GraphModel:
        """A graph, kept until its file changes."""
        time = path.stat().st_mtime_ns
        known = self._models.get(path)
        if known is None or known[0] != time:
            known = self._models[path] = time, open_graph(path)
        return known[1]
