"""What the shell's commands work with: the data, and the graphs and tensors in it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.records.graphs import GraphModel
from ulpscope.shell.data import DebugData, ShellData, look_again
from ulpscope.workflows.diff.tensor_lookup import SEPARATOR, DumpTensors, FoundTensor, TraceTensors


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
