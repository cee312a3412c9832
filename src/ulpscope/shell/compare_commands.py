"""`vc` and `vcs`: the network compared, and what a comparison found."""

import time
from pathlib import Path

from ulpscope.numerics.msaccucmp_metrics import Generation
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.ledger import Replay
from ulpscope.records.pairs import Pair
from ulpscope.report.network_csv import write_table
from ulpscope.report.progress import Advance, progress
from ulpscope.shell.context import Context, say, show, show_text
from ulpscope.shell.data import newest_result
from ulpscope.shell.panels_checks import low_panel
from ulpscope.shell.telling import complain
from ulpscope.shell.words import Command, Values, Words, count, similarity
from ulpscope.workflows.compare import CompareOptions
from ulpscope.workflows.compare_network import NetworkOptions, NetworkResult, compare_network
from ulpscope.workflows.compare_network_dumped import are_dumps, compare_dumps
from ulpscope.workflows.comparison_results import DEFAULT_COSINE, DEFAULT_LIMIT, low_operators
from ulpscope.workflows.cores import usable_cores
from ulpscope.workflows.results import writing


def vc_command() -> Command:
    words = Words("vc", "Compare the dumps of a network with its reference, operator by operator; vcs of the result.")
    words.add_argument("-lt", "--left", metavar="DIR", type=Path, help="dumps of the NPU (default: debug_0)")
    words.add_argument("-rt", "--right", metavar="DIR", type=Path, help="what is trusted (default: tf, else debug_1)")
    words.add_argument("-g", "--graph", metavar="GRAPH", type=Path, help="graph (default: each of debug_0)")
    return Command(words, _vc)


def vcs_command() -> Command:
    words = Words("vcs", "Operators of a comparison's result with an output that is not alike.")
    words.add_argument("-f", "--file", metavar="FILE|DIR", type=Path, help="result (default: the newest)")
    words.add_argument(
        "-c", "--cos_sim", metavar="COSINE", type=similarity, default=DEFAULT_COSINE, help="at most (default: 0.98)"
    )
    words.add_argument("-l", "--limit", metavar="N", type=count, default=DEFAULT_LIMIT, help="how many (default: 3)")
    return Command(words, _vcs)


def compare_all(context: Context) -> ExitCode:
    """`vc` without options."""
    return _vc(context, vc_command().words.parse_args([]))


def show_low(path: Path, *, cosine: float, limit: int) -> ExitCode:
    """`vcs` of a file or directory."""
    found = low_operators(path, cosine=cosine, limit=limit)
    for each in found:
        shown = f"; the first {limit} of them" if each.total > limit else ""
        say(f"Find {each.total} ops with a cosine of at most {cosine:g} in {each.path}{shown}")
        for operator in each.operators:
            show(low_panel(operator, cosine))
    return ExitCode.DIFFERENCE if any(each.total for each in found) else ExitCode.OK


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


def _vc(context: Context, values: Values) -> ExitCode:
    """Each graph by itself: one that was not dumped does not keep the others from being compared."""
    sides = _sides(context, values)
    graphs: list[Path | None] = [values.graph] if values.graph is not None else list(_graphs(context))
    if not graphs and are_dumps(sides.reference, sides.target):
        # Operators of two dumps belong together by their names.
        graphs = [None]
    if not graphs:
        raise UlpscopeError(
            f"{context.data.root} holds no graph",
            expected="the graph that the dumps are of",
            next_step="vc -g GRAPH",
        )
    out = context.data.own.results / time.strftime("%Y%m%d%H%M%S")
    compared = [_compared(sides, graph, out / f"result_{out.name}_{number}.csv") for number, graph in enumerate(graphs)]
    if not any(compared):
        return ExitCode.NOTHING
    return show_low(out, cosine=DEFAULT_COSINE, limit=DEFAULT_LIMIT)


def _compared(sides: Pair[Path], graph: Path | None, table: Path) -> bool:
    """Compare a network and write its result; whether that could be done."""
    try:
        with progress("comparing tensors") as advance:
            result = _compare(sides, graph, advance)
        with writing(table.parent, next_step="ulpscope compare REFERENCE DUMPS --graph GRAPH --out DIR"):
            table.parent.mkdir(parents=True, exist_ok=True)
            write_table(result.table(), table)
    except UlpscopeError as error:
        complain(error)
        return False
    show_text(result.text)
    return True


def _compare(sides: Pair[Path], graph: Path | None, advance: Advance) -> NetworkResult:
    options = NetworkOptions(csv=Generation.OF_2025, jobs=usable_cores())
    if graph is not None:
        return compare_network(sides.reference, sides.target, graph, options, advance=advance)
    ordinary = CompareOptions(jobs=usable_cores(), replay=Replay.OFF)
    return compare_dumps(sides.reference, sides.target, options, ordinary, advance=advance)


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


def _graphs(context: Context) -> tuple[Path, ...]:
    """Those of the first run: the dumps under suspicion are of it."""
    return next((debug.graphs for debug in context.data.debugs if debug.graphs), ())
