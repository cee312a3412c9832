"""`ulpscope report --tensorboard`, `--model-explorer`: a trace or a comparison for viewers that people already use."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects.opening import open_run
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.viewers.tensorboard import EVENTS, comparison_scalars, trend_scalars, write_scalars
from ulpscope.trace.trends import module_trends
from ulpscope.workflows.report.command import is_result, read_pairs, understanding
from ulpscope.workflows.report.graphs import Wanted, comparison_graphs, run_graphs
from ulpscope.workflows.results import writing

JSON_ENDING = ".ulpscope.json"
OURS = (EVENTS, JSON_ENDING)
"""Ends of the names of all files that are written here."""


@dataclass(frozen=True, slots=True)
class Export:
    """What was written, what there is to say about it, and how to look at it."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]
    viewer: str

    def text(self) -> str:
        lines = [*(str(file) for file in self.files), *(f"Note: {note}" for note in self.notes)]
        return "\n".join([*lines, f"Next: {self.viewer}"]) + "\n"


def export_tensorboard(path: Path, out: Path) -> Export:
    """Write the statistics of a trace, or the errors of a comparison, as scalars by step and module."""
    trace = None if is_result(path) else open_run(path)
    scalars = comparison_scalars(read_pairs(path)) if trace is None else trend_scalars(module_trends(trace))
    if scalars.is_empty():
        raise UlpscopeError(
            f"{path} has no statistics of floats",
            expected="a trace with floats, or a result with compared tensors",
            next_step="see what was captured: ulpscope show TRACE",
            code=ExitCode.NOTHING,
        )
    with _replacing(out, EVENTS, option="--tensorboard"):
        files = write_scalars(scalars, out)
    notes = () if trace is None else trace.missing
    return Export(tuple(files), notes, f"tensorboard --logdir {shlex.quote(str(out))}")


def export_model_explorer(path: Path, out: Path, wanted: Wanted) -> Export:
    """Write one step of a trace, or of both runs of a comparison, as graphs with data on their nodes."""
    if is_result(path):
        with understanding(path):
            graphs = comparison_graphs(path, wanted)
    else:
        graphs = run_graphs(path, wanted)
    contents = {out / f"graph{JSON_ENDING}": graphs.collection}
    contents |= {out / f"{name}{JSON_ENDING}": content for name, content in graphs.node_data.items()}
    with _replacing(out, JSON_ENDING, option="--model-explorer"):
        for file, content in contents.items():
            file.write_text(json.dumps(content, allow_nan=False, separators=(",", ":")), encoding="utf-8")
    graph, *data = (shlex.quote(str(file)) for file in contents)
    return Export(tuple(contents), graphs.notes, f"model-explorer {graph} --node_data_paths={','.join(data)}")


@contextmanager
def _replacing(out: Path, ending: str, *, option: str) -> Iterator[None]:
    """A directory without the files of an earlier export of this kind, in which only exports may be."""
    next_step = f"choose another directory: {option} DIR"
    with writing(out, next_step=next_step):
        out.mkdir(parents=True, exist_ok=True)
        other = next((entry for entry in _files(out) if not entry.name.endswith(OURS)), None)
        if other is not None:
            raise UlpscopeError(
                f"{out} holds other files, {other.relative_to(out)} for one",
                expected="a directory that does not exist yet, is empty, or holds an earlier export",
                next_step=next_step,
            )
        for entry in [entry for entry in _files(out) if entry.name.endswith(ending)]:
            entry.unlink()
        yield


def _files(out: Path) -> Iterator[Path]:
    return (entry for entry in out.rglob("*") if not entry.is_dir())
