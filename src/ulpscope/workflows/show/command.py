"""`ulpscope show`: lists, filters and looks into the calls and values of a trace, or into a table of
msprobe's or msaccucmp's results.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.ascend.result_table import is_result_table, read_result_table
from ulpscope.dialects.msprobe.result_tables import read_table
from ulpscope.dialects.opening import open_run
from ulpscope.records.calls import Use
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.records.runs import IntRanges
from ulpscope.report.terminal.show import (
    Aspect,
    CallListView,
    CallView,
    ElementsView,
    TensorElements,
    View,
    WholeTraceView,
    show_json,
    show_text,
)
from ulpscope.report.terminal.show_results import LowOperators, TableView, low_json, low_text, table_json, table_text
from ulpscope.report.words.language import ranges_text
from ulpscope.trace.data import pick_elements
from ulpscope.trace.overview import overview_of
from ulpscope.trace.query import (
    CallFilter,
    FoundCall,
    Neighbours,
    find_call,
    match_calls,
    nearest_names,
    neighbours,
    with_outputs,
)
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.workflows.answers import Answer
from ulpscope.workflows.traces import with_ranks

DEFAULT_LIMIT = 50
DEFAULT_ELEMENTS = 10


def _told(view: View, code: ExitCode = ExitCode.OK) -> Answer:
    return Answer(view, code, show_text, show_json)


def show(
    path: str | Path,
    wanted: CallFilter | None = None,
    *,
    call: str | int | None = None,
    aspect: Aspect = Aspect.OVERVIEW,
    tensor: str | None = None,
    elements: int | None = None,
    limit: int | None = DEFAULT_LIMIT,
) -> Answer:
    """Look at a trace: as a whole, at the calls that a filter wants, or at one call.

    `tensor` and `elements` ask for elements of a call's saved tensors. 0 as limit or number of elements means all.
    """
    trace = open_run(path)
    wanted = wanted or CallFilter()
    if call is not None:
        step, rank = _single(wanted.step, "--step"), _single(wanted.rank, "--rank")
        found = find_call(trace, call, step=step, rank=rank, phase=wanted.phase)
        return _told(_call_view(trace, found, tensor=tensor, elements=elements, limit=limit or None))
    if wanted and aspect is Aspect.OVERVIEW:
        return _call_list(trace, wanted, limit=limit or None)
    return _told(WholeTraceView(overview_of(with_ranks(trace, wanted.rank, see="see all of it")), aspect))


def _call_list(trace: Trace, wanted: CallFilter, *, limit: int | None) -> Answer:
    matching = match_calls(trace, wanted)
    calls = trace.collect(matching if limit is None else matching.head(limit))
    complete = limit is None or calls.height < limit
    total = calls.height if complete else int(trace.collect(matching.select(pl.len())).item())
    view = CallListView(
        path=str(trace.path),
        filter=str(wanted),
        calls=with_outputs(trace, calls),
        total=total,
        processes=len(trace.ranks),
        hints=() if total else tuple(_hints(trace, wanted)),
    )
    return _told(view, ExitCode.OK if total else ExitCode.NOTHING)


def _hints(trace: Trace, wanted: CallFilter) -> Iterable[str]:
    ranks = {rank.info.rank for rank in trace.ranks}
    if wanted.rank is not None and not any(rank in wanted.rank for rank in ranks):
        yield f"This trace has rank {ranges_text(ranks)}."
    if wanted.step is not None and not any(step in wanted.step for step in trace.steps):
        yield f"This trace has step {ranges_text(trace.steps)}."
    for column, pattern in (("op", wanted.op), ("module", wanted.module)):
        near = nearest_names(trace, pattern, column=column) if pattern is not None else []
        if near:
            yield f"Near --{column} {pattern}: {', '.join(near)}."


def _single(numbers: IntRanges | None, option: str) -> int | None:
    if numbers is None:
        return None
    low, high = numbers.ranges[0]
    if len(numbers.ranges) > 1 or low != high:
        raise TraceError(
            f"{option} {numbers} with the name of one call",
            expected="one number",
            next_step=f"write for example {option} {low}",
        )
    return low


def _call_view(
    trace: Trace, found: FoundCall, *, tensor: str | None, elements: int | None, limit: int | None
) -> CallView | ElementsView:
    rank, call = found.rank_trace, found.call
    around = neighbours(rank, call)
    where = {"path": str(trace.path), "process": rank.name}
    if tensor is not None:
        uses = _chosen(around.uses, tensor, call_name=call.name)
        picked = _elements(rank, around, uses, count=DEFAULT_ELEMENTS if elements is None else elements)
        if not picked:
            raise TraceError(
                f"the data of {uses[0].place} was not saved",
                expected="a trace with data",
                next_step="capture again with: ulpscope run --save tensors",
                code=ExitCode.NOTHING,
            )
        return ElementsView(call=call, tensors=picked, **where)
    shown = () if elements is None else _elements(rank, around, around.uses, count=elements)
    stack = () if call.stack is None else rank.stack(call.stack)
    return CallView(call=call, stack=stack, around=around, elements=shown, edges_shown=limit, **where)


def _chosen(uses: Sequence[Use], wanted: str, *, call_name: str) -> list[Use]:
    """By place (`output.0`), or by role and place where a place has several (`gradient:weight`)."""
    chosen = [use for use in uses if wanted in (use.place, f"{use.role.value}:{use.place}")]
    if not chosen:
        places = ", ".join(dict.fromkeys(use.place for use in uses))
        raise TraceError(
            f"call {call_name} has no tensor {wanted!r}",
            expected=f"one of {places}" if places else "a call with tensors",
            next_step="look at the call without --tensor first",
        )
    return chosen


def _elements(rank: RankTrace, around: Neighbours, uses: Iterable[Use], *, count: int) -> tuple[TensorElements, ...]:
    """Of those uses whose data was saved."""
    found = []
    for use in (use for use in uses if use.value in around.values):
        value = around.values[use.value]
        data = rank.data(value)
        if data is not None:
            indices, picked = pick_elements(data, count or None)
            found.append(TensorElements(use=use, value=value, indices=indices, elements=picked, total=data.size))
    return tuple(found)


def show_table(path: Path, *, limit: int) -> Answer:
    """Look at a table; 0 lists all of its rows that do not pass."""
    view = TableView(path, read_table(path), limit or None)
    code = ExitCode.DIFFERENCE if view.failing else ExitCode.OK
    return Answer(view, code if view.content.rows else ExitCode.NOTHING, table_text, table_json)


DEFAULT_COSINE = 0.98
"""At or below it an output counts as wrong: what precision_tool has always taken."""
LOW_LISTED = 3


def show_results(path: Path, *, cosine: float = DEFAULT_COSINE, limit: int = LOW_LISTED) -> Answer:
    """Look at a result CSV, or at each one of a directory; 0 lists all operators."""
    found = low_operators(path, cosine=cosine, limit=limit or None)
    code = ExitCode.DIFFERENCE if any(each.total for each in found) else ExitCode.OK
    return Answer(found, code if any(each.compared for each in found) else ExitCode.NOTHING, low_text, low_json)


def low_operators(
    path: Path, *, cosine: float = DEFAULT_COSINE, limit: int | None = LOW_LISTED
) -> tuple[LowOperators, ...]:
    """Of a result CSV, or of each one of a directory, the operators with an output's cosine at or below `cosine`."""
    found = []
    for file in _tables(path):
        operators = read_result_table(file)
        # A comparison with nan is false: what was not computed is not low.
        low = [one for one in operators if any(tensor.cosine <= cosine for tensor in one.of(Side.OUTPUT))]
        found.append(LowOperators(file, cosine, tuple(low[:limit]), total=len(low), compared=len(operators)))
    return tuple(found)


def _tables(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    # Results of several times lie each in a directory of its own.
    for pattern in ("*.csv", "*/*.csv"):
        if found := [file for file in sorted(path.glob(pattern)) if is_result_table(file)]:
            return found
    raise UlpscopeError(
        f"{path} {'holds no result of a comparison' if path.is_dir() else 'does not exist'}",
        expected="a result CSV, a directory with some, or a directory of such directories",
        next_step="check the path, or compare again: ulpscope compare REFERENCE DUMPS --graph GRAPH",
        code=ExitCode.NOTHING if path.is_dir() else ExitCode.USAGE,
    )
