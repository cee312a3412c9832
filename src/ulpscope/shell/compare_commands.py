"""`vc`, `cad` and `vcs`: a network or two directories compared, and what a comparison found."""

import time
from pathlib import Path

from ulpscope.numerics.pairs.msaccucmp.metrics import Generation
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.ledger import Replay
from ulpscope.records.pairs import Pair
from ulpscope.report.files.network_tables import write_table
from ulpscope.report.progress import Advance, progress
from ulpscope.shell.data import Context, graph_files, newest_result
from ulpscope.shell.panels import low_panel
from ulpscope.shell.telling import complain, say, show, show_text
from ulpscope.shell.words import Command, Values, Words, add_limit, add_parse_output, similarity
from ulpscope.workflows.convert import prepare_out
from ulpscope.workflows.diff import diff
from ulpscope.workflows.network.command import NetworkOptions, NetworkResult, are_dumps, compare_dumps, compare_network
from ulpscope.workflows.results import write_json, writing
from ulpscope.workflows.show.command import DEFAULT_COSINE, LOW_LISTED, show_results
from ulpscope.workflows.worker_pool import usable_cores


def vc_command() -> Command:
    words = Words("vc", "Compare the dumps of a network with its reference, operator by operator; vcs of the result.")
    words.add_argument("-lt", "--left", metavar="DIR", type=Path, help="dumps of the NPU (default: debug_0)")
    words.add_argument("-rt", "--right", metavar="DIR", type=Path, help="what is trusted (default: tf, else debug_1)")
    words.add_argument(
        "-g", "--graph", metavar="GRAPH", type=Path, help="graph, or a directory of them (default: debug_0)"
    )
    words.add_argument("-m", "--my_dump_path", metavar="DIR", type=Path, help="as -lt; -g is then what is trusted")
    add_parse_output(words)
    return Command(words, _vc)


def cad_command() -> Command:
    words = Words("cad", "Compare two directories of dumps or arrays, file by file.")
    words.add_argument("-m", "--my_dump_path", metavar="DIR", type=Path, required=True, help="under suspicion")
    words.add_argument("-g", "--golden_dump_path", metavar="DIR", type=Path, required=True, help="what is trusted")
    add_parse_output(words)
    return Command(words, _cad)


def vcs_command() -> Command:
    words = Words("vcs", "Operators of a comparison's result with an output that is not alike.")
    words.add_argument("-f", "--file", metavar="FILE|DIR", type=Path, help="result (default: the newest)")
    words.add_argument(
        "-c", "--cos_sim", metavar="COSINE", type=similarity, default=DEFAULT_COSINE, help="at most (default: 0.98)"
    )
    add_limit(words, "how many")
    return Command(words, _vcs)


def compare_all(context: Context) -> ExitCode:
    """`vc` without options."""
    return _vc(context, vc_command().words.parse_args([]))


def show_low(path: Path, *, cosine: float, limit: int) -> ExitCode:
    """`vcs` of a file or directory; 0 shows all operators."""
    result = show_results(path, cosine=cosine, limit=limit)
    for each in result.found:
        shown = f"; the first {limit} of them" if each.total > len(each.operators) else ""
        say(f"Find {each.total} of {each.compared} ops with a cosine of at most {cosine:g} in {each.path}{shown}")
        for operator in each.operators:
            show(low_panel(operator, cosine))
    return result.code


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
