"""`ac` and `overflow`: everything that can be found out at once."""

from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from ulpscope.diagnose.graph_casts import DangerousCast
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.progress import progress
from ulpscope.shell.compare_commands import compare_all, show_low
from ulpscope.shell.context import Context, say, show
from ulpscope.shell.data import newest_result
from ulpscope.shell.panels_checks import (
    cast_line,
    difference_panel,
    fusion_panel,
    overflow_panel,
    similarity_line,
)
from ulpscope.shell.telling import complain
from ulpscope.shell.words import Command, Values, Words, count
from ulpscope.workflows.check_graphs import check_casts, check_similarity
from ulpscope.workflows.comparison_results import DEFAULT_COSINE, DEFAULT_LIMIT
from ulpscope.workflows.fusion import fusion
from ulpscope.workflows.overflow import overflow

DIFFERENCES_SHOWN = 20


def ac_command() -> Command:
    words = Words("ac", "Check all: comparison, fusion, overflow, casts, similarity of graphs.")
    words.add_argument("-c", "--vector_compare", action="store_true", help="compare the network first (vc)")
    words.add_argument("-l", "--limit", metavar="N", type=count, default=DEFAULT_LIMIT, help="overflows (default: 3)")
    return Command(words, _ac)


def overflow_command() -> Command:
    words = Words("overflow", "Where numbers overflowed, the first first.")
    words.add_argument("-l", "--limit", metavar="N", type=count, default=DEFAULT_LIMIT, help="how many (default: 3)")
    return Command(words, lambda context, values: _overflow(context, values.limit))


def _ac(context: Context, values: Values) -> ExitCode:
    """One check that cannot be made is told, and does not keep the others from being made."""
    if context.data.trace is not None:
        return _overflow(context, values.limit)
    checks: list[Callable[[], ExitCode]] = [
        lambda: compare_all(context) if values.vector_compare else _last_comparison(context),
        lambda: _fusion(context),
        lambda: _overflow(context, values.limit),
        lambda: _casts(context),
        lambda: _similarity(context),
    ]
    codes = [_made(check) for check in checks]
    return max(codes, key=[ExitCode.OK, ExitCode.NOTHING, ExitCode.USAGE, ExitCode.DIFFERENCE].index)


def _made(check: Callable[[], ExitCode]) -> ExitCode:
    try:
        return check()
    except UlpscopeError as error:
        complain(error)
        return ExitCode.USAGE


def _last_comparison(context: Context) -> ExitCode:
    newest = newest_result(context.data)
    if newest is None:
        say("Comparison: none was made yet; ac -c or vc makes one.")
        return ExitCode.OK
    return show_low(newest, cosine=DEFAULT_COSINE, limit=DEFAULT_LIMIT)


def _fusion(context: Context) -> ExitCode:
    if not context.data.fusion:
        say("Fusion: no fusion_result.json.")
    for path in context.data.fusion:
        say(f"Fusion: passes that took effect, of {path}")
        for graph in fusion(path).view.graphs:
            show(fusion_panel(graph))
    return ExitCode.OK


def _overflow(context: Context, limit: int) -> ExitCode:
    sources = _overflow_sources(context)
    if not sources:
        say("Overflow: no records and no dumps.")
        return ExitCode.OK
    with progress("looking for overflows") as advance:
        survey = overflow(sources, told=lambda text: advance(1, text=text)).survey
    shown = f"; the first {limit} of them" if len(survey.findings) > limit else ""
    say(f"Overflow: {len(survey.findings)} found in {', '.join(survey.paths)}{shown}")
    for finding in survey.findings[:limit]:
        show(overflow_panel(finding))
    for sentence in survey.missing:
        say(sentence)
    return survey.code


def _overflow_sources(context: Context) -> list[Path]:
    """The records of the device; without them what numbers tell."""
    data = context.data
    if data.overflow is not None:
        return [data.overflow]
    return list(data.dumps) if data.trace is None else [data.trace]


def _casts(context: Context) -> ExitCode:
    found: dict[tuple[str, str], list[DangerousCast]] = defaultdict(list)
    result = check_casts(context.data.graphs)
    for cast in result.casts:
        found[cast.source, cast.target].append(cast)
    for casts in found.values():
        say(cast_line(casts))
    return result.code


def _similarity(context: Context) -> ExitCode:
    debugs = [debug for debug in context.data.debugs if debug.graphs]
    if len(debugs) < 2:
        return ExitCode.OK
    result = check_similarity(debugs[0].graphs, debugs[1].graphs)
    if not result.found:
        say(f"Graphs of {debugs[0].name} and {debugs[1].name}: none is of the same session and number in both.")
    for found in result.found:
        say(similarity_line(found))
        for difference in islice(found.differences, DIFFERENCES_SHOWN):
            show(difference_panel(difference))
        if len(found.differences) > DIFFERENCES_SHOWN:
            say(f"and {len(found.differences) - DIFFERENCES_SHOWN:,} more operators that differ")
    return result.code
