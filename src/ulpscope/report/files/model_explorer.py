"""A step of a run as a graph of Model Explorer: calls as nodes, modules as groups, values as edges.

    {"label": "runs", "graphs": [{"id": "target", "nodes": [
        {"id": "17", "label": "linear", "namespace": "forward/model/head", "attrs": [...],
         "incomingEdges": [{"sourceNodeId": "16", "sourceNodeOutputId": "0", "targetNodeInputId": "0"}],
         "outputsMetadata": [{"id": "0", "attrs": [{"key": "shape", "value": "2x8"}, ...]}]}]}]}

Forward and backward are groups of their own: inside one group of a module they would run against each other.

Graphs are made of tables of a step: from a trace, or from what a comparison's table keeps of it.

Data on the nodes is what colours them, and what stands on them.

    {"target": {"results": {"17": {"value": 0.25, "bgColor": "#c62f17"}, ...}}, "reference": ...}

Colours of numbers are given node by node: Model Explorer's own gradient is linear, and errors span many decades.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl

from ulpscope.records.enums import MAKING_ROLES, Kind
from ulpscope.records.pairs import Judgement
from ulpscope.report.record_json import to_json
from ulpscope.trace.reader import RankTrace
from ulpscope.trace.schema import Columns

Json: TypeAlias = dict[str, Any]

CALL_COLUMNS: Columns = {
    "id": pl.Int64,
    "name": pl.String,
    "kind": pl.String,
    "op": pl.String,
    "module": pl.String,
    "phase": pl.String,
    "arguments": pl.String,
    "source": pl.String,
    "around": pl.Boolean,
}
"""`around`: other calls ran inside this one; `source`: file and line."""

USE_COLUMNS: Columns = {"call": pl.Int64, "role": pl.String, "place": pl.String, "value": pl.Int64}

VALUE_COLUMNS: Columns = {
    "id": pl.Int64,
    "producer": pl.Int64,
    "dtype": pl.String,
    "shape": pl.List(pl.Int64),
    "min": pl.Float64,
    "max": pl.Float64,
    "mean": pl.Float64,
    "norm": pl.Float64,
    "not_finite": pl.Int64,
}


STATS = ("min", "max", "mean", "norm", "not_finite")


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of one rank, in the columns above."""

    calls: pl.DataFrame
    uses: pl.DataFrame
    values: pl.DataFrame


@dataclass(frozen=True, slots=True)
class NodeIds:
    """What the nodes of a graph are called; a call and its partner in another graph have the same id."""

    partners: Mapping[int, int]
    """For calls that have a partner in the other graph, its id there."""
    apart: str = ""
    """What precedes the id of a call that has none."""

    def of(self, call: int) -> str:
        return str(self.partners[call]) if call in self.partners else f"{self.apart}{call}"


OWN_IDS = NodeIds({})


def graph_json(step: RunStep, *, name: str, facts: Mapping[str, str], ids: NodeIds = OWN_IDS) -> Json:
    """One graph; `facts` are shown while no node is selected."""
    flow = _Flow(step)
    return {
        "id": name,
        "nodes": [_node(call, flow, ids) for call in node_calls(step).iter_rows(named=True)],
        "groupNodeAttributes": {"": dict(facts)},
    }


def collection_json(label: str, graphs: Iterable[Json]) -> Json:
    """The content of a file that Model Explorer opens; the first graph is shown first."""
    return {"label": label, "graphs": list(graphs)}


def node_calls(step: RunStep) -> pl.DataFrame:
    """The calls that are nodes: all but those that only stand around others, whose outputs these have made."""
    makers = step.values["producer"].drop_nulls().unique().to_list()
    return step.calls.filter(~pl.col("around") | pl.col("id").is_in(makers)).sort("id")


def namespace(phase: str, module: str | None) -> str:
    """The path of groups in which a call stands."""
    path = module or ""
    parts = path.split("/") if "/" in path else path.split(".")
    return "/".join([phase, *(part for part in parts if part)])


def handed_out(step: RunStep) -> pl.DataFrame:
    """The values (`value`) that each node (`call`) made, or handed on as it got them."""
    made = step.values.select(call="producer", value="id")
    given = step.uses.filter(pl.col("role").is_in(MAKING_ROLES)).select("call", "value")
    nodes = node_calls(step)["id"].to_list()
    return pl.concat([made, given]).filter(pl.col("call").is_in(nodes)).unique().sort("call", "value")


class _Flow:
    """Which values the nodes take and hand out, and from whom they have them."""

    def __init__(self, step: RunStep) -> None:
        self.values: dict[int, Json] = {row["id"]: row for row in step.values.iter_rows(named=True)}
        self.taken: dict[int, list[Json]] = defaultdict(list)
        for use in step.uses.filter(~pl.col("role").is_in(MAKING_ROLES)).iter_rows(named=True):
            self.taken[use["call"]].append(use)
        self.given: dict[int, list[int]] = defaultdict(list)
        self._givers: dict[int, list[int]] = defaultdict(list)
        for call, value in handed_out(step).iter_rows():
            self.given[call].append(value)
            self._givers[value].append(call)

    def giver(self, use: Mapping[str, Any]) -> int | None:
        """The last node before this use that handed the value out; none if it comes from outside of the step."""
        givers = self._givers.get(use["value"], [])
        before = bisect_left(givers, use["call"])
        return givers[before - 1] if before else None


def _node(call: Mapping[str, Any], flow: _Flow, ids: NodeIds) -> Json:
    taken, given = flow.taken[call["id"]], flow.given[call["id"]]
    return {
        "id": ids.of(call["id"]),
        "label": _label(call),
        "namespace": namespace(call["phase"], call["module"]),
        "attrs": _attributes({**_call_facts(call), **_from_outside(taken, flow)}),
        "incomingEdges": _edges(taken, flow, ids),
        "inputsMetadata": [_tagged(number, use["place"]) for number, use in enumerate(taken)],
        "outputsMetadata": [_tensor(number, flow.values.get(value)) for number, value in enumerate(given)],
    }


def _label(call: Mapping[str, Any]) -> str:
    parts = str(call["op"]).split(".")
    # The last part of a kernel's name tells only the types of its arguments: aten.mm.default, aten.add.Tensor.
    name = parts[-2] if call["kind"] == Kind.KERNEL.value and len(parts) > 1 else parts[-1]
    return f"{name} backward" if call["kind"] == Kind.BACKWARD.value else name


def _call_facts(call: Mapping[str, Any]) -> dict[str, str]:
    shown = {"call": "name", "op": "op", "kind": "kind", "source": "source", "arguments": "arguments"}
    return {title: str(call[column]) for title, column in shown.items() if call[column] is not None}


def _from_outside(taken: Iterable[Json], flow: _Flow) -> dict[str, str]:
    """What no node of this graph has made: batches, parameters, results of earlier steps."""
    outside = (use for use in taken if flow.giver(use) is None)
    return {f"{use['role']} {use['place']}": _words(flow.values.get(use["value"])) for use in outside}


def _edges(taken: Iterable[Json], flow: _Flow, ids: NodeIds) -> list[Json]:
    edges = []
    for number, use in enumerate(taken):
        giver = flow.giver(use)
        if giver is not None:
            output = flow.given[giver].index(use["value"])
            ends = {"sourceNodeOutputId": str(output), "targetNodeInputId": str(number)}
            edges.append({"sourceNodeId": ids.of(giver), **ends})
    return edges


def _tensor(number: int, value: Mapping[str, Any] | None) -> Json:
    if value is None:
        return {"id": str(number), "attrs": []}
    shape = "x".join(map(str, value["shape"] or ())) or "scalar"
    stats = {name: _number(value[name]) for name in STATS if value[name] is not None}
    return {"id": str(number), "attrs": _attributes({"shape": shape, "dtype": str(value["dtype"]), **stats})}


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _tagged(number: int, place: str) -> Json:
    return {"id": str(number), "attrs": _attributes({"__tensor_tag": place})}


def _words(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "not recorded"
    norm = f", norm {value['norm']:.6g}" if value["norm"] is not None else ""
    return f"{value['dtype']} {list(value['shape'] or ())}{norm}"


def _attributes(facts: Mapping[str, str]) -> list[Json]:
    return [{"key": key, "value": text} for key, text in facts.items()]


MODULES = (Kind.MODULE.value, Kind.MODULE_BACKWARD.value)


def captured_step(rank: RankTrace, step: int) -> RunStep:
    """A step of a trace."""
    calls = rank.collect(rank.calls(step))
    innermost = rank.stacks().filter(pl.col("depth") == 0)
    lines = rank.collect(innermost.select("stack", source=pl.concat_str("file", "line", separator=":")))
    placed = calls.join(lines.unique("stack"), on="stack", how="left")
    # The backward of a module stands around those of its calls, which do not name it.
    around = pl.col("id").is_in(calls["parent"].drop_nulls().unique().to_list()) | pl.col("kind").is_in(MODULES[1:])
    values = rank.values(step).with_columns(not_finite=pl.col("nan") + pl.col("pos_inf") + pl.col("neg_inf"))
    return RunStep(
        calls=_select(placed.with_columns(around=around), CALL_COLUMNS),
        uses=_select(rank.collect(rank.tensors(step)), USE_COLUMNS),
        values=_select(rank.collect(values.select(*VALUE_COLUMNS)), VALUE_COLUMNS),
    )


def compared_step(pairs: pl.DataFrame, side: str) -> RunStep:
    """What rows of pairs.parquet, of one rank and step, tell of one run: the calls and values that have a partner."""
    ends = f"_{side}"
    one = pairs.select(
        pl.exclude("^.*_(reference|target)$"),
        pl.col(f"^.*{ends}$").name.map(lambda name: name.removesuffix(ends)),
        name=f"call{ends}",
    )
    calls = one.select("id", "name", "kind", "op", "module", "phase", around=pl.col("kind").is_in(MODULES)).unique(
        "id", maintain_order=True
    )
    values = one.select(pl.exclude("id"), id="value").unique("id", maintain_order=True)
    return RunStep(
        calls=_select(calls, CALL_COLUMNS),
        uses=_select(one.with_columns(call="id"), USE_COLUMNS),
        values=_select(values.join(_makers(one), on="id", how="left"), VALUE_COLUMNS),
    )


def _makers(one: pl.DataFrame) -> pl.DataFrame:
    """The call that made each value: no module while a call inside it has the value too; the first of several."""
    depth = pl.when(pl.col("kind").is_in(MODULES)).then(pl.col("module").str.count_matches(r"\.").fill_null(0))
    made = one.filter(pl.col("role").is_in(MAKING_ROLES))
    # Null, for what is no module, comes first.
    first = made.with_columns(depth=-depth.cast(pl.Int64)).sort("depth", "id", nulls_last=False)
    return first.unique("value", keep="first", maintain_order=True).select(producer="id", id="value")


def _select(frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """These columns; those that are not there are null."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in columns.items()
    )


NOT_COMPARED = "not compared"

COLORS = {
    Judgement.MADE_HERE.value: "#c62f17",
    Judgement.INHERITED.value: "#d98a00",
    Judgement.AFTER_CHOICE.value: "#8557bd",
    Judgement.ANOTHER_WAY.value: "#1e7a6d",
    Judgement.UNRESOLVED.value: "#6b7a1e",
    Judgement.ROUNDING.value: "#2b7bbd",
    Judgement.IDENTICAL.value: "#7d8997",
    NOT_COMPARED: "#b4bdc8",
}
"""Of judgements, the worst first; the same as in the page of a comparison."""

_JUDGEMENTS = dict(enumerate(COLORS))
_PLACES = {name: place for place, name in _JUDGEMENTS.items()}

FINE, BAD = "#2b7bbd", "#c62f17"

LOW_MAGNITUDE, HIGH_MAGNITUDE = (0xEE, 0xF3, 0xF9), (0x1B, 0x4F, 0x8F)


def error_data(step: RunStep, pairs: pl.DataFrame, side: str, ids: NodeIds) -> Json:
    """On each node the worst error of its outputs, in the colour of their worst judgement."""
    found = _judged(step, pairs, side).drop_nulls("error").select("call", "error", "judgement")
    return _on_nodes(ids, ((call, to_json(error), COLORS[word or NOT_COMPARED]) for call, error, word in found.rows()))


def judgement_data(step: RunStep, pairs: pl.DataFrame, side: str, ids: NodeIds) -> Json:
    """On each node the worst judgement of its outputs; groups tell how many there are of each."""
    found = dict(_judged(step, pairs, side).select("call", "judgement").iter_rows())
    words = {call: found.get(call) or NOT_COMPARED for call in node_calls(step)["id"]}
    marks = ((call, word.replace("_", " "), COLORS[word]) for call, word in words.items())
    return {**_on_nodes(ids, marks), "showExpandedSummaryOnGroupNode": True}


def magnitude_data(step: RunStep, ids: NodeIds) -> Json:
    """On each node the largest |x| of its outputs, darker by its exponent."""
    size = pl.max_horizontal(pl.col("min").abs(), pl.col("max").abs())
    sizes = _outputs(step).group_by("call").agg(value=size.max()).drop_nulls().sort("call")
    found = {call: value for call, value in sizes.iter_rows() if math.isfinite(value)}
    exponents = {call: math.log10(value) for call, value in found.items() if value > 0}
    lowest, highest = min(exponents.values(), default=0.0), max(exponents.values(), default=0.0)
    shades = {call: _shade(exponents.get(call, lowest), lowest, highest) for call in found}
    return _on_nodes(ids, ((call, value, shades[call]) for call, value in found.items()))


def not_finite_data(step: RunStep, ids: NodeIds) -> Json:
    """On each node how many nan and inf are in its outputs."""
    known = _outputs(step).drop_nulls("not_finite")
    counts = known.group_by("call").agg(pl.col("not_finite").sum()).sort("call")
    return _on_nodes(ids, ((call, number, BAD if number else FINE) for call, number in counts.iter_rows()))


def _on_nodes(ids: NodeIds, marks: Iterable[tuple[int, Any, str]]) -> Json:
    """What stands on the nodes of calls, and their colours."""
    return {"results": {ids.of(call): {"value": value, "bgColor": color} for call, value, color in marks}}


def _outputs(step: RunStep) -> pl.DataFrame:
    return handed_out(step).join(step.values.rename({"id": "value"}), on="value")


def _judged(step: RunStep, pairs: pl.DataFrame, side: str) -> pl.DataFrame:
    """By node (`call`), the worst error and judgement of its outputs.

    A value that a call made is judged by all rows that have it: the one that tells of new error may be that of a
    module around the call. Of a value that a call handed on only its own rows count: it made nothing.
    """
    rows = pairs.select(
        "error",
        worst=pl.col("judgement").replace_strict(_PLACES, default=None, return_dtype=pl.Int64),
        call=f"id_{side}",
        value=f"value_{side}",
    )
    made = step.values.select(call="producer", value="id").drop_nulls()
    of_makers = made.join(rows.drop("call"), on="value")
    of_calls = rows.join(handed_out(step), on=["call", "value"], how="semi")
    both = pl.concat([of_makers.select("call", "error", "worst"), of_calls.select("call", "error", "worst")])
    found = both.group_by("call").agg(pl.col("error").max(), pl.col("worst").min()).sort("call")
    return found.with_columns(
        judgement=pl.col("worst").replace_strict(_JUDGEMENTS, default=None, return_dtype=pl.String)
    )


def _shade(exponent: float, lowest: float, highest: float) -> str:
    share = (exponent - lowest) / (highest - lowest) if highest > lowest else 0.0
    mixed = (round(low + (high - low) * share) for low, high in zip(LOW_MAGNITUDE, HIGH_MAGNITUDE, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
