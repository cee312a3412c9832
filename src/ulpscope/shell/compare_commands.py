"""`vc`, `cad` and `vcs`: a network or two directories compared, and what a comparison found.

`ac` and `overflow`: everything that can be found out at once.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

from ulpscope.diagnose.network_graphs import DangerousCast
from ulpscope.numerics.pairs.msaccucmp.metrics import Generation
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.evidence import Replay
from ulpscope.records.pairs import Pair
from ulpscope.report.files.network_tables import write_table
from ulpscope.report.progress import Advance, progress
from ulpscope.shell.data import Context, graph_files, newest_result
from ulpscope.shell.panels import cast_line, difference_panel, fusion_panel, low_panel, overflow_panel, similarity_line
from ulpscope.shell.words import (
    COMMANDS,
    PARSE_OUTPUT,
    Values,
    command,
    complain,
    limit,
    option,
    say,
    show,
    show_text,
    similarity,
)
from ulpscope.workflows.convert import prepare_out
from ulpscope.workflows.diff import diff
from ulpscope.workflows.fusion import fusion
from ulpscope.workflows.network.command import NetworkOptions, NetworkResult, are_dumps, compare_dumps, compare_network
from ulpscope.workflows.overflow import overflow
from ulpscope.workflows.results import write_json, writing
from ulpscope.workflows.show.command import DEFAULT_COSINE, LOW_LISTED, show_results
from ulpscope.workflows.show.graph import check_casts, check_similarity
from ulpscope.workflows.worker_pool import usable_cores


def show_low(path: Path, *, cosine: float, limit: int) -> ExitCode:
    """`vcs` of a file or directory; 0 shows all operators."""
    result = show_results(path, cosine=cosine, limit=limit)
    for each in result.found:
        shown = f"; the first {limit} of them" if each.total > len(each.operators) else ""
        say(f"Find {each.total} of {each.compared} ops with a cosine of at most {cosine:g} in {each.path}{shown}")
        for operator in each.operators:
            show(low_panel(operator, cosine))
    return result.code


@command(
    "vcs",
    "Operators of a comparison's result with an output that is not alike.",
    option("-f", "--file", metavar="FILE|DIR", type=Path, help="result (default: the newest)"),
    option(
        "-c", "--cos_sim", metavar="COSINE", type=similarity, default=DEFAULT_COSINE, help="at most (default: 0.98)"
    ),
    limit("how many"),
)
def _vcs(context: Context, values: Values) -> ExitCode:
    path = values.file or newest_result(context.data)
    if path is None:
        raise UlpscopeError(
            f"{context.data.own.results} holds no result",
            expected="the result of a comparison",
            next_step="vc makes one; vcs -f FILE reads any other",
            code=ExitCode.NOTHING,
        )
    return show_low(path, cosine=values.cos_sim, limit=values.limit)


@command(
    "vc",
    "Compare the dumps of a network with its reference, operator by operator; vcs of the result.",
    option("-lt", "--left", metavar="DIR", type=Path, help="dumps of the NPU (default: debug_0)"),
    option("-rt", "--right", metavar="DIR", type=Path, help="what is trusted (default: tf, else debug_1)"),
    option("-g", "--graph", metavar="GRAPH", type=Path, help="graph, or a directory of them (default: debug_0)"),
    option("-m", "--my_dump_path", metavar="DIR", type=Path, help="as -lt; -g is then what is trusted"),
    *PARSE_OUTPUT,
)
def _vc(context: Context, values: Values) -> ExitCode:
    """Each graph by itself: one that was not dumped does not keep the others from being compared."""
    if values.my_dump_path is not None:
        values.left, values.right, values.graph = values.my_dump_path, values.right or values.graph, None
    _require(values.left, values.right, values.graph)
    sides = _sides(context, values)
    graphs: list[Path | None] = list(_graphs(context, values.graph))
    if not graphs and are_dumps(sides.reference, sides.target):
        # Operators of two dumps belong together by their names.
        graphs = [None]
    if not graphs:
        raise UlpscopeError(
            f"{context.data.root} holds no graph",
            expected="the graph that the dumps are of",
            next_step="vc -g GRAPH; two dumps are compared without one: vc -lt DUMPS -rt DUMPS",
        )
    out = _results(context, values)
    codes = [_compared(sides, graph, out / f"result_{out.name}_{number}.csv") for number, graph in enumerate(graphs)]
    if any(out.glob("*.csv")):
        # What is wrong may have a cosine near 1, and what is alike may be too far off: both verdicts count.
        codes.append(show_low(out, cosine=DEFAULT_COSINE, limit=LOW_LISTED))
    return next((code for code in (ExitCode.DIFFERENCE, ExitCode.OK) if code in codes), codes[0])


@command(
    "cad",
    "Compare two directories of dumps or arrays, file by file.",
    option("-m", "--my_dump_path", metavar="DIR", type=Path, required=True, help="under suspicion"),
    option("-g", "--golden_dump_path", metavar="DIR", type=Path, required=True, help="what is trusted"),
    *PARSE_OUTPUT,
)
def _cad(context: Context, values: Values) -> ExitCode:
    """Dumps of two runs as `vc` does it; arrays by the names of their files."""
    sides = Pair(reference=values.golden_dump_path, target=values.my_dump_path)
    _require(sides.reference, sides.target)
    out = _results(context, values)
    if are_dumps(sides.reference, sides.target):
        return _compared(sides, None, out / f"result_{out.name}.csv")
    with progress("comparing arrays") as advance:
        result = diff(sides.reference, sides.target, advance=advance)
    show_text(result.text)
    if values.output_path is not None:
        with writing(out):
            write_json(out / "diff.json", result.json())
    return result.code


def _require(*paths: Path | None) -> None:
    for path in paths:
        if path is not None and not path.exists():
            raise UlpscopeError(
                f"{path} does not exist", expected="a path", next_step="check it; the Tab key completes paths"
            )


def _results(context: Context, values: Values) -> Path:
    """Where a result goes: a directory of its own, or the one that was named, if nothing is in it."""
    if values.output_path is None:
        return context.data.own.results / time.strftime("%Y%m%d%H%M%S")
    prepare_out(values.output_path)
    chosen: Path = values.output_path
    return chosen


def _compared(sides: Pair[Path], graph: Path | None, table: Path) -> ExitCode:
    """Compare a network, tell the verdict and write its table; what keeps it from being compared is told."""
    of_graph = "" if graph is None else f" by {graph}"
    say(f"Comparing {sides.target} (left) with {sides.reference} (right){of_graph}")
    try:
        with progress("comparing tensors") as advance:
            result = _compare(sides, graph, advance)
        with writing(table.parent, next_step="ulpscope compare REFERENCE DUMPS --graph GRAPH --out DIR"):
            table.parent.mkdir(parents=True, exist_ok=True)
            write_table(result.table(), table)
    except UlpscopeError as error:
        complain(error)
        return error.code
    show_text(result.text)
    code: ExitCode = result.code
    return code


def _compare(sides: Pair[Path], graph: Path | None, advance: Advance) -> NetworkResult:
    options = NetworkOptions(csv=Generation.OF_2025, jobs=usable_cores(), replay=Replay.OFF)
    if graph is not None:
        return compare_network(sides.reference, sides.target, graph, options, advance=advance)
    return compare_dumps(sides.reference, sides.target, options, advance=advance)


def _sides(context: Context, values: Values) -> Pair[Path]:
    """What is trusted, and what is under suspicion: the NPU's dumps against the reference, or against a second run."""
    dumps = context.data.dumps
    target = values.left or (dumps[0] if dumps else None)
    reference = values.right or context.data.reference or (dumps[1] if len(dumps) > 1 else None)
    if target is None or reference is None:
        missing = "dumps of an NPU" if target is None else "reference: neither tf/dump nor dumps of a second run"
        raise UlpscopeError(
            f"{context.data.root} holds no {missing}",
            expected="two sides to compare",
            next_step="vc -lt DUMPS -rt REFERENCE",
        )
    return Pair(reference=reference, target=target)


def _graphs(context: Context, chosen: Path | None) -> tuple[Path, ...]:
    """What was chosen, or those of the first run: the dumps under suspicion are of it."""
    if chosen is not None:
        return graph_files(chosen) or (chosen,)
    return next((debug.graphs for debug in context.data.debugs if debug.graphs), ())


DIFFERENCES_SHOWN = 20


@command(
    "ac",
    "Check all: comparison, fusion, overflow, casts, similarity of graphs.",
    option("-c", "--vector_compare", action="store_true", help="compare the network first (vc)"),
    limit("overflows"),
)
def _ac(context: Context, values: Values) -> ExitCode:
    """One check that cannot be made is told, and does not keep the others from being made."""
    overflows = partial(_overflow, limit=values.limit)
    checks: list[Callable[[Context], ExitCode]]
    checks = [_compare_all if values.vector_compare else _last_comparison, _fusion, overflows, _casts, _similarity]
    if context.data.trace is not None and not values.vector_compare:
        # The others are about graphs.
        checks = [overflows]
    codes = []
    for check in checks:
        try:
            codes.append(check(context))
        except UlpscopeError as error:
            complain(error)
            codes.append(error.code)
    # Most data is not there for every check; that counts if it is there for none.
    counting = (ExitCode.DIFFERENCE, ExitCode.USAGE, ExitCode.OK)
    return next((code for code in counting if code in codes), ExitCode.NOTHING)


def _compare_all(context: Context) -> ExitCode:
    """`vc` without options."""
    return _vc(context, COMMANDS["vc"].parse_args([]))


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
    # The records of the device; without them what numbers tell.
    found = context.data.trace or context.data.overflow
    sources = list(context.data.dumps) if found is None else [found]
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


@command("overflow", "Where numbers overflowed, the first first.", limit("how many"))
def _overflow_word(context: Context, values: Values) -> ExitCode:
    return _overflow(context, values.limit)
