"""What several commands ask of a trace in the same way."""

import shlex

from ulpscope.records.calls import Call
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import TraceError
from ulpscope.records.findings import Place
from ulpscope.records.runs import IntRanges
from ulpscope.report.words.language import ranges_text
from ulpscope.trace.reader import Trace


def place_of(call: Call, source: str | None) -> Place:
    """Where a call is; `source` is the innermost line of the user's code."""
    return Place(
        rank=call.rank,
        step=call.step,
        phase=call.phase,
        call=call.name,
        call_id=call.id,
        op=call.op,
        module=call.module,
        source=source,
    )


def with_ranks(trace: Trace, wanted: IntRanges | None, *, see: str) -> Trace:
    """The trace with these ranks alone; `see` is what the user may do instead, before the command."""
    ranks = [rank for rank in trace.ranks if wanted is None or rank.info.rank in wanted]
    if not ranks:
        raise TraceError(
            f"{trace.path} has no rank {wanted}",
            expected=f"rank {ranges_text(rank.info.rank for rank in trace.ranks)}",
            next_step=f"{see}: ulpscope show {shlex.quote(str(trace.path))}",
            code=ExitCode.NOTHING,
        )
    return Trace(trace.path, ranks, missing_ranks=trace.missing_ranks)
