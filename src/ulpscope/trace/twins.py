"""Twins of a captured run: the run again with the roundings of another one, each a trace in the trace's folder `twins`.

Beside them lies precision.json: whose roundings they have, and in which dtype that run has what operations of a family
give inside of a module.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.operations.registry import Operation, Trait, operation
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.records.errors import TraceError
from ulpscope.records.pairs import Pair
from ulpscope.records.remarks import remark
from ulpscope.records.runs import TWINS
from ulpscope.trace.files import LARGEST_DESCRIPTION, read_json
from ulpscope.trace.reader import RankTrace, Trace, open_trace

PRECISION_FILE = "precision.json"
_FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind is DtypeKind.FLOAT]
PARAMETERS = ("", "parameters")
UNSCALING = "_amp_foreach_non_finite_check_and_unscale_"
Precisions = dict[tuple[str, str], str]
"""By module and kind of operation (precision_key): the dtype of what it gives. One entry is that of parameters."""


def carries(known: Operation) -> bool:
    """Whether an operation gives what went in: no rounding but that of a cast."""
    return known.has(Trait.MOVING, Trait.VIEW, Trait.EXACT, Trait.PLACING)


def precision_key(known: Operation) -> str:
    """What operations have in common whose results have one dtype inside of a module."""
    return known.name if carries(known) else known.family.value


@dataclass(frozen=True, slots=True)
class TwinPrecision:
    """Whose roundings twins have."""

    coarsest: str | None
    """The dtype with the fewest bits among results; None: each of its own."""
    results: Precisions
    loss_scale: int = 0
    """Binary exponent of the factor that is on gradients, where a GradScaler keeps them from underflow."""


def fitting_twins(traces: Pair[Trace]) -> tuple[list[Trace], list[str]]:
    """The reference's twins that tell of the target's healthy error, and why others do not."""
    folder = traces.reference.path / TWINS
    if not folder.is_dir():
        return [], []
    try:
        stands_for = read_precision(folder / PRECISION_FILE).coarsest
    except (OSError, ValueError, TypeError, LookupError) as error:
        return [], [remark("twin_unreadable", problem=f"{folder / PRECISION_FILE}: {error}")]
    own, other = stands_for or precision_of(traces.reference).coarsest, precision_of(traces.target).coarsest
    if own != other:
        return [], [remark("twins_unlike", own=own, other=other)]
    names = sorted((entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal()), key=int)
    found, problems = [], []
    for name in names:
        try:
            found.append(open_trace(folder / name))
        except TraceError as error:
            problems.append(remark("twin_unreadable", problem=error.seen))
    return found, problems


def precision_of(trace: Trace) -> TwinPrecision:
    """In which dtypes a run has its results: what its twin must be moved by."""
    frames = [_results(rank) for rank in trace.ranks]
    counted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for op, module, dtype in pl.concat(frames).iter_rows():
        counted[module or "", precision_key(operation(op))][dtype] += 1
    for rank in trace.ranks:
        counted[PARAMETERS].update(_parameters(rank))
    results = {key: dtypes.most_common(1)[0][0] for key, dtypes in counted.items() if dtypes}
    scale = max(map(_loss_scale, trace.ranks), default=0)
    return TwinPrecision(coarsest(results.values()), results, scale)


def _loss_scale(rank: RankTrace) -> int:
    """What a GradScaler multiplied its losses by: where it undoes that, it is given the inverse."""
    undoing = rank.calls().filter(pl.col("op").str.contains(UNSCALING, literal=True)).select(call="id")
    given = (
        rank.tensors().filter(pl.col("role") == Role.INPUT.value, pl.col("place") == "args.2").select("call", "value")
    )
    inverses = given.join(undoing, on="call", how="semi").join(rank.values().select("mean", value="id"), on="value")
    inverse = rank.collect(inverses.select(pl.col("mean").median()))["mean"].item()
    return round(-math.log2(inverse)) if inverse is not None and 0.0 < inverse < math.inf else 0


def _results(rank: RankTrace) -> pl.DataFrame:
    forward = pl.col("phase") == Phase.FORWARD.value, pl.col("kind") == Kind.API.value
    calls = rank.calls().filter(*forward).select("op", "module", call="id")
    made = rank.tensors().filter(pl.col("role") == Role.OUTPUT.value).select("call", "value")
    values = rank.values().filter(pl.col("dtype").is_in(_FLOATS)).select("dtype", value="id")
    return rank.collect(calls.join(made, on="call").join(values, on="value").select("op", "module", "dtype"))


def _parameters(rank: RankTrace) -> list[str]:
    shown = rank.tensors().filter(pl.col("role") == Role.PARAMETER.value).select(id="value").unique()
    values = rank.values().filter(pl.col("dtype").is_in(_FLOATS)).select("id", "dtype")
    return rank.collect(shown.join(values, on="id"))["dtype"].to_list()


def coarsest(dtypes: Iterable[str | None]) -> str | None:
    """The dtype with the fewest bits among those that are known."""
    known = (dtype for dtype in dtypes if dtype is not None)
    return max(known, key=lambda name: DTYPES[name].unit_roundoff, default=None)


def write_precision(folder: Path, precision: TwinPrecision) -> Path:
    """Put it down beside twins."""
    rows = [[module, family, dtype] for (module, family), dtype in precision.results.items()]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / PRECISION_FILE
    file.write_text(
        json.dumps({"coarsest": precision.coarsest, "results": rows, "loss_scale": precision.loss_scale}),
        encoding="utf-8",
    )
    return file


def read_precision(file: Path) -> TwinPrecision:
    """What write_precision has written."""
    content = read_json(file, limit=LARGEST_DESCRIPTION)
    results = {(module, family): dtype for module, family, dtype in content["results"]}
    return TwinPrecision(content["coarsest"], results, int(content.get("loss_scale", 0)))
