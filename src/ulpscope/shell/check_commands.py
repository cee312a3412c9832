"""`ac` and `overflow`: everything that can be found out at once."""

from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from ulpscope.diagnose.networks.graphs import DangerousCast
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.progress import progress
from ulpscope.shell.compare_commands import compare_all, show_low
from ulpscope.shell.data import Context, newest_result
from ulpscope.shell.panels import (
    cast_line,
    difference_panel,
    fusion_panel,
    overflow_panel,
    similarity_line,
)
from ulpscope.shell.telling import complain, say, show
from ulpscope.shell.words import Command, Values, Words, add_limit
from ulpscope.workflows.fusion import fusion
from ulpscope.workflows.overflow import overflow
from ulpscope.workflows.show.command import DEFAULT_COSINE, LOW_LISTED
from ulpscope.workflows.show.graph import check_casts, check_similarity

DIFFERENCES_SHOWN = 20


def ac_command() -> Command:
    words = Words("ac", "Check all: comparison, fusion, overflow, casts, similarity of graphs.")
    words.add_argument("-c", "--vector_compare", action="store_true", help="compare the network first (vc)")
    add_limit(words, "overflows")
    return Command(words, _ac)


def overflow_command() -> Command:
    words = Words("overflow", "Where numbers overflowed, the first first.")
    add_limit(words, "how many")
    return Command(words, lambda context, values: _overflow(context, values.limit))


def _ac(context: Context, values: Values) -> ExitCode:
    """One check that cannot be made is told, and does not keep the others from being made."""
    comparison = compare_all if values.vector_compare else _last_comparison
    checks: list[Callable[[], ExitCode]] = [
        lambda: comparison(context),
        lambda: _fusion(context),
        lambda: _overflow(context, values.limit),
        lambda: _casts(context),
        lambda: _similarity(context),
    ]
    if context.data.trace is not None and not values.vector_compare:
        # The others are about graphs.
        checks = [lambda: _overflow(context, values.limit)]
    codes = [_made(check) for check in checks]
    # Most data is not there for every check; that counts if it is there for none.
    counting = (ExitCode.DIFFERENCE, ExitCode.USAGE, ExitCode.OK)
    return next((code for code in counting if code in codes), ExitCode.NOTHING)


def _made(check: Callable[[], ExitCode]) -> ExitCode:
    try:
        return check()
    except UlpscopeError as error:
        complain(error)
        return error.code


def _last_comparison(context: Context) -> ExitCode:
    newest = newest_result(context.data)
    if newest is None:
        say("Comparison: none was made yet; ac -c or vc makes one.")
        return ExitCode.NOTHING
    return show_low(newest, cosine=DEFAULT_COSINE, limit=LOW_LISTED)


def _fusion(context: Context) -> ExitCode:
    if not context.data.fusion:
        say("Fusion: no fusion_result.json.")
        return ExitCode.NOTHING
    for path in context.data.fusion:
        say(f"Fusion: passes that took effect, of {path}")
        for graph in fusion(path).found.graphs:
            show(fusion_panel(graph))
    return ExitCode.OK


def _overflow(context: Context, limit: int) -> ExitCode:
    sources = _overflow_sources(context)
    if not sources:
        say("Overflow: no records and no dumps.")
        return ExitCode.NOTHING
    with progress("looking for overflows") as advance:
        survey = overflow(sources, told=lambda text: advance(1, text=text)).survey
    shown = survey.findings[: limit or None]
    first = f"; the first {limit} of them" if len(shown) < len(survey.findings) else ""
    say(f"Overflow: {len(survey.findings)} found in {', '.join(survey.paths)}{first}")
    for finding in shown:
        show(overflow_panel(finding))
    for sentence in survey.missing:
        say(sentence)
    return survey.code


def _overflow_sources(context: Context) -> list[Path]:
    """The records of the device; without them what numbers tell."""
    data = context.data
    if data.trace is not None:
        return [data.trace]
    return [data.overflow] if data.overflow is not None else list(data.dumps)


def _casts(context: Context) -> ExitCode:
    if not context.data.graphs:
        say("Casts: no graph.")
        return ExitCode.NOTHING
    found: dict[tuple[str, str], list[DangerousCast]] = defaultdict(list)
    result = check_casts(context.data.graphs)
    for cast in result.found:
        found[cast.source, cast.target].append(cast)
    if not found:
        say("Casts: none that is dangerous.")
    for casts in found.values():
        say(cast_line(casts))
    return result.code


def _similarity(context: Context) -> ExitCode:
    debugs = [debug for debug in context.data.debugs if debug.graphs]
    if len(debugs) < 2:
        say("Similarity: no graphs of a second run.")
        return ExitCode.NOTHING
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
