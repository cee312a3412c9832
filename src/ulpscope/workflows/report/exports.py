"""`ulpscope report --tensorboard`, `--model-explorer`: a trace or a comparison for viewers that people already use."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.dialects.opening import open_run
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.report.files.model_explorer import (
    OWN_IDS,
    Json,
    NodeIds,
    RunStep,
    captured_step,
    collection_json,
    compared_step,
    error_data,
    graph_json,
    judgement_data,
    magnitude_data,
    not_finite_data,
)
from ulpscope.report.files.tensorboard import EVENTS, comparison_scalars, course_scalars, trend_scalars, write_scalars
from ulpscope.report.files.tensorboard_graph import write_graph
from ulpscope.report.words.language import shown_text
from ulpscope.trace.overview import module_trends
from ulpscope.trace.reader import Trace
from ulpscope.trace.trainings.course import course_of
from ulpscope.workflows.report.command import is_result, located, read_pairs, read_summary, understanding
from ulpscope.workflows.results import writing

REFERENCE, TARGET = "reference", "target"
LISTED = 6


Graphs = tuple[Json, Mapping[str, Json], tuple[str, ...]]
"""A collection, what stands on its nodes by the name of the quantity, and what is missing of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank and a step of a run."""

    rank: int
    step: int

    def __str__(self) -> str:
        return f"rank {self.rank} step {self.step}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rank and step are shown; without a wish, those of the finding, or the first."""

    rank: int | None = None
    step: int | None = None

    def choose(self, places: Iterable[Place], *, path: Path, preferred: Place | None = None) -> Place:
        known = list(places)
        fitting = [place for place in known if self.rank in (None, place.rank) and self.step in (None, place.step)]
        if not fitting:
            raise _no_place(path, self, known)
        return preferred if preferred in fitting else fitting[0]

    def __str__(self) -> str:
        given = {"rank": self.rank, "step": self.step}
        return " ".join(f"{word} {number}" for word, number in given.items() if number is not None)


def run_graphs(path: Path, wanted: Wanted) -> Graphs:
    """The graph of a trace, with the size of numbers and the count of nan and inf on its nodes."""
    trace = open_run(path)
    ranks = {Place(rank.info.rank, step): rank for rank in reversed(trace.ranks) for step in rank.steps}
    place = wanted.choose(sorted(ranks, key=lambda place: (place.rank, place.step)), path=path)
    step = captured_step(ranks[place], place.step)
    name = path.resolve().name
    graph = graph_json(step, name=name, facts=_facts(str(path), place))
    node_data = {
        "max_abs": {name: magnitude_data(step, OWN_IDS)},
        "not_finite": {name: not_finite_data(step, OWN_IDS)},
    }
    missing = trace.missing
    if not any(node["incomingEdges"] for node in graph["nodes"]):
        # A dump of single operators knows their tensors, but not who reads them.
        missing += ("the trace does not tell which call reads what another made: the graph has no edges",)
    return collection_json(name, [graph]), node_data, missing


def comparison_graphs(result: Path, wanted: Wanted) -> Graphs:
    """The graphs of both runs, with errors and judgements on their nodes; calls that are partners have the same id."""
    summary, pairs = read_summary(result), read_pairs(result)
    places = pairs.select("rank", "step").drop_nulls().unique().sort("rank", "step").iter_rows()
    findings = summary.get("findings") or [{}]
    preferred = Place(findings[0].get("rank", -1), findings[0].get("step", -1))
    place = wanted.choose((Place(*each) for each in places), path=result, preferred=preferred)
    rows = pairs.filter(pl.col("rank") == place.rank, pl.col("step") == place.step)
    ids = Pair(_reference_ids(rows), OWN_IDS)
    notes: list[str] = []
    steps = Pair(REFERENCE, TARGET).map(lambda side: _step_of(summary, result, side, place, rows, notes))
    sides = ((TARGET, steps.target, ids.target), (REFERENCE, steps.reference, ids.reference))
    told = {"verdict": str(summary.get("verdict"))}
    if summary.get("findings"):
        told["finding"] = str(findings[0].get("sentence"))
    graphs = [
        graph_json(step, name=side, facts={**told, **_facts(str(summary[side]), place)}, ids=own)
        for side, step, own in sides
    ]
    node_data = {
        "error": {side: error_data(step, rows, side, own) for side, step, own in sides},
        "judgement": {side: judgement_data(step, rows, side, own) for side, step, own in sides},
    }
    return collection_json(result.resolve().name, graphs), node_data, tuple(notes)


def _reference_ids(rows: pl.DataFrame) -> NodeIds:
    # Several calls may be partners of one; an id must be that of one node.
    partners = rows.select("id_reference", "id_target").drop_nulls().unique(maintain_order=True)
    for side in ("id_reference", "id_target"):
        partners = partners.unique(side, keep="first", maintain_order=True)
    return NodeIds(dict(partners.iter_rows()), apart=f"{REFERENCE} ")


def _step_of(
    summary: Mapping[str, Any], result: Path, side: str, place: Place, rows: pl.DataFrame, notes: list[str]
) -> RunStep:
    """The step of one run: of its trace, and if that is not there, of what the table keeps."""
    path = str(summary[side])
    if summary.get("graph") is not None:
        # The dumps of a network have no calls that both sides know.
        return compared_step(rows, side)
    try:
        trace = open_run(located(path, result))
        rank = next((rank for rank in trace.ranks if rank.info.rank == place.rank), None)
        if rank is not None and place.step in rank.steps:
            step = captured_step(rank, place.step)
            if _is_compared(step, rows, side):
                return step
        problem = f"{path} has no {place} any more that was compared"
    except UlpscopeError as error:
        problem = error.seen
    notes.append(f"the graph of the {side} has only the calls that were compared: {problem}")
    return compared_step(rows, side)


def _is_compared(step: RunStep, rows: pl.DataFrame, side: str) -> bool:
    """Whether the calls are called as in the table; a trace that was captured anew has others."""
    compared = rows.select(id=f"id_{side}", name=f"call_{side}").drop_nulls().unique()
    return not compared.is_empty() and compared.join(step.calls, on=["id", "name"], how="anti").is_empty()


def _facts(trace: str, place: Place) -> dict[str, str]:
    return {"trace": trace, "rank": str(place.rank), "step": str(place.step)}


def _no_place(path: Path, wanted: Wanted, known: list[Place]) -> UlpscopeError:
    if not known:
        return UlpscopeError(
            f"{path} has no step with calls",
            expected="a trace with at least one step, or a result with compared tensors",
            next_step="see what was captured: ulpscope show TRACE",
            code=ExitCode.NOTHING,
        )
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return UlpscopeError(
        f"{path} has no {wanted}",
        expected=f"one of {', '.join(map(str, known[:LISTED]))}{more}",
        next_step=f"choose one of these: --rank {known[0].rank} --step {known[0].step}",
    )


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
        lines = [*(str(file) for file in self.files), *(f"Note: {shown_text(note)}" for note in self.notes)]
        return "\n".join([*lines, f"Next: {self.viewer}"]) + "\n"


def export_tensorboard(path: Path, out: Path) -> Export:
    """Write the statistics of a trace, or the errors of a comparison, as scalars by step and module; and the graph."""
    compared = is_result(path)
    scalars = comparison_scalars(read_pairs(path)) if compared else _run_scalars(open_run(path))
    if scalars.is_empty():
        raise UlpscopeError(
            f"{path} has no statistics of floats",
            expected="a trace with floats, or a result with compared tensors",
            next_step="see what was captured: ulpscope show TRACE",
            code=ExitCode.NOTHING,
        )
    graphs, notes = _tensorboard_graphs(path)
    with _replacing(out, EVENTS, option="--tensorboard"):
        files = write_scalars(scalars, out)
        files += [write_graph(*graph, out / name, colour="judgement") for name, graph in graphs.items()]
    return Export(tuple(files), notes, f"tensorboard --logdir {shlex.quote(str(out))}")


def _run_scalars(trace: Trace) -> pl.DataFrame:
    """Statistics by module; of a watched training its loss, gradient norm and learning rates before them."""
    courses = [(rank.info.rank, course) for rank in trace.ranks if (course := course_of(rank)) is not None]
    parts = [course_scalars(rank, course.table) for rank, course in courses]
    return pl.concat([*parts, trend_scalars(module_trends(trace))]).sort("rank", "step", maintain_order=True)


def _tensorboard_graphs(path: Path) -> tuple[dict[str, tuple[Json, dict[str, Json]]], tuple[str, ...]]:
    """Graphs with what stands on their nodes, by the names of the runs that show them; and what is told."""
    if is_result(path):
        with understanding(path):
            collection, data, notes = comparison_graphs(path, Wanted())
    else:
        collection, data, notes = run_graphs(path, Wanted())
    named = {
        ("graph" if len(collection["graphs"]) == 1 else f"graph_{each['id']}"): each for each in collection["graphs"]
    }
    return {
        name: (graph, {quantity: sides.get(graph["id"], {"results": {}}) for quantity, sides in data.items()})
        for name, graph in named.items()
    }, notes


def export_model_explorer(path: Path, out: Path, wanted: Wanted) -> Export:
    """Write one step of a trace, or of both runs of a comparison, as graphs with data on their nodes."""
    if is_result(path):
        with understanding(path):
            collection, node_data, notes = comparison_graphs(path, wanted)
    else:
        collection, node_data, notes = run_graphs(path, wanted)
    named = {"graph": collection, **node_data}
    contents = {out / f"{name}{JSON_ENDING}": content for name, content in named.items()}
    with _replacing(out, JSON_ENDING, option="--model-explorer"):
        for file, content in contents.items():
            file.write_text(json.dumps(content, allow_nan=False, separators=(",", ":")), encoding="utf-8")
    graph, *data = (shlex.quote(str(file)) for file in contents)
    return Export(tuple(contents), notes, f"model-explorer {graph} --node_data_paths={','.join(data)}")


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
