"""List, filter and look into the calls and values of a trace, the operators of a graph, or a comparison's result.

  ulpscope show runs/ref                                        what the trace holds
  ulpscope show runs/ref --op '*layer_norm' --phase forward     calls that match
  ulpscope show runs/ref 94                                     one call, by its id
  ulpscope show runs/ref layer_norm.3 --step 0 --phase forward  one call, by its name
  ulpscope show runs/ref 94 --tensor output.0 --elements 20     elements of a saved tensor
  ulpscope show ge_proto_00000_Build.txt                        types of operators, counted
  ulpscope show ge_proto_00000_Build.txt --type MatMul          operators that match
  ulpscope show ge_proto_00000_Build.txt fc1/Relu               one operator
  ulpscope show ge_proto_00000_Build.txt --casts                casts from float32 to int32
  ulpscope show result_20260101000000.csv --cosine 0.9          operators with an output that is not alike

A graph is GE's (text, JSON or ONNX text), TensorFlow's (GraphDef, meta graph or saved model) or ONNX. Patterns may
stand anywhere in the text; one with * or ? must fit all of it. Upper and lower case are alike. A result is the table of
compare --graph, of msaccucmp of any time, or of msprobe's compare and API checker. Exit codes: 0; 1 if there are such
casts, such operators of a result or rows that do not pass; 2 if the file, call or operator cannot be read or found; 3
if nothing matches.
"""

import argparse
import json
import math
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ulpscope.cli.arguments import Parser, Subparsers, add_command, count
from ulpscope.cli.output import write_answer
from ulpscope.records.enums import ExitCode, Kind, Phase
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.report.terminal.show import Aspect
    from ulpscope.trace.query import CallFilter
    from ulpscope.workflows.show.command import LowResult, ShowResult, TableResult
    from ulpscope.workflows.show.graph import CastsResult, ShowGraphResult


USAGE = "ulpscope show TRACE|GRAPH|RESULT [CALL|NODE] [options]"

# Tables are as wide as their content: a file or a pipe gets whole names on one line.
PIPE_WIDTH = 240


class Shown(Protocol):
    """What was found, of whatever it is."""

    @property
    def code(self) -> ExitCode: ...

    def text(self, *, width: int, color: bool) -> str: ...

    def json(self) -> dict[str, Any]: ...


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `show` to the command line."""
    parser = add_command(subparsers, "show", doc=__doc__ or "", usage=USAGE)
    parser.add_argument(
        "trace",
        metavar="TRACE|GRAPH|RESULT",
        type=Path,
        help="directory of a trace or of one rank of it; a graph file; the CSV of a comparison",
    )
    parser.add_argument(
        "call", metavar="CALL|NODE", nargs="?", help="name (or its end) or id of a call; name of an operator"
    )
    _add_filter(parser)
    add_graph_options(parser)
    add_results_options(parser)
    whole = parser.add_mutually_exclusive_group()
    whole.add_argument("--env", action="store_true", help="environment, versions, seeds and settings of the run")
    whole.add_argument("--coverage", action="store_true", help="what was seen of the run and what was not")
    parser.add_argument("--tensor", metavar="PLACE", help="elements of this tensor of CALL, e.g. output.0")
    parser.add_argument("--elements", metavar="N", type=count, help="how many elements; 0 for all (default: 10)")
    parser.add_argument(
        "--limit", metavar="N", type=count, default=50, help="how many are listed; 0 for all (default: 50)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Show, and give the exit code."""
    result = _result(args)
    if args.json:
        write_answer(json.dumps(result.json(), allow_nan=False) + "\n")
    else:
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((80, 24) if terminal else (PIPE_WIDTH, 24)).columns
        write_answer(result.text(width=width, color=terminal))
    return int(result.code)


def _result(args: argparse.Namespace) -> Shown:
    if asks_table(args):
        return show_table_of(args)
    if asks_results(args):
        return show_results_of(args)
    if asks_graph(args):
        return show_casts_of(args) if args.casts else show_graph_file(args)
    return _show_trace(args)


def _show_trace(args: argparse.Namespace) -> "ShowResult":
    from ulpscope.workflows.show.command import show

    _check(args)
    return show(
        args.trace,
        _filter(args),
        call=args.call,
        aspect=_aspect(args),
        tensor=args.tensor,
        elements=args.elements,
        limit=args.limit,
    )


def _add_filter(parser: Parser) -> None:
    group = parser.add_argument_group("which calls of a trace")
    group.add_argument("--op", metavar="PATTERN", help="operation, e.g. '*.layer_norm'")
    group.add_argument("--module", metavar="PATTERN", help="module path, e.g. 'model.layers.2.*'")
    group.add_argument("--text", metavar="PATTERN", help="anything in name, module, arguments or error")
    group.add_argument("--phase", choices=[phase.value for phase in Phase])
    kinds = [kind.value for kind in Kind]
    group.add_argument("--kind", metavar="KIND", choices=kinds, help=f"{', '.join(kinds[:-1])} or {kinds[-1]}")
    group.add_argument("--step", metavar="0,2-4", help="training steps")
    group.add_argument("--rank", metavar="0,2-4", help="ranks of a distributed run")


def _filter(args: argparse.Namespace) -> "CallFilter":
    from ulpscope.capture.settings import parse_ranges
    from ulpscope.trace.query import CallFilter

    return CallFilter(
        op=args.op,
        module=args.module,
        phase=None if args.phase is None else Phase(args.phase),
        step=None if args.step is None else parse_ranges(args.step, option="--step"),
        rank=None if args.rank is None else parse_ranges(args.rank, option="--rank"),
        kind=None if args.kind is None else Kind(args.kind),
        text=args.text,
    )


def _aspect(args: argparse.Namespace) -> "Aspect":
    from ulpscope.report.terminal.show import Aspect

    if args.env:
        return Aspect.ENVIRONMENT
    return Aspect.COVERAGE if args.coverage else Aspect.OVERVIEW


def _check(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect."""
    refuse_graph_options(args)
    whole = "--env" if args.env else "--coverage" if args.coverage else None
    if args.call is None:
        refuse(args, ("tensor", "elements"), beside="no CALL", expected="the id or name of the call that uses it")
    else:
        options = ("op", "module", "kind", "text", "env", "coverage")
        expected = "only --step, --phase and --rank, which choose among calls of that name"
        refuse(args, options, beside="the name of one call", expected=expected)
    if whole is not None:
        options = ("op", "module", "phase", "step", "kind", "text")
        refuse(args, options, beside=whole, expected="only --rank")


def add_results_options(parser: Parser) -> None:
    """Add the options to the parser of `show`."""
    group = parser.add_argument_group("which operators of a comparison's result")
    group.add_argument(
        "--cosine",
        metavar="COSINE",
        type=_cosine,
        help="those with an output at or below it (default: 0.98); RESULT may then be a directory of results",
    )


def asks_results(args: argparse.Namespace) -> bool:
    """Whether the path leads to a result, or is said to."""
    if args.cosine is not None:
        return True
    if not args.trace.is_file():
        return False
    from ulpscope.dialects.ascend.result_table import is_result_table

    return is_result_table(args.trace)


def show_results_of(args: argparse.Namespace) -> "LowResult":
    """What was asked about the result."""
    from ulpscope.workflows.show.command import DEFAULT_COSINE, show_results

    expected = "--cosine and --limit only"
    refuse(args, (*ABOUT_TRACES, *ABOUT_GRAPHS), beside="a comparison's result", expected=expected)
    if args.call is not None:
        raise UlpscopeError(
            f"{args.call!r} with a comparison's result",
            expected=expected,
            next_step="one operator: ulpscope compare REFERENCE DUMPS --graph GRAPH --op OPERATOR",
        )
    return show_results(args.trace, cosine=DEFAULT_COSINE if args.cosine is None else args.cosine, limit=args.limit)


def asks_table(args: argparse.Namespace) -> bool:
    """Whether the path leads to a table of msprobe's results."""
    if not args.trace.is_file():
        return False
    from ulpscope.dialects.msprobe.result_tables import table_kind

    return table_kind(args.trace) is not None


def show_table_of(args: argparse.Namespace) -> "TableResult":
    """What the table says."""
    from ulpscope.workflows.show.command import show_table

    expected = "--limit and --json only"
    refuse(args, (*ABOUT_TRACES, *ABOUT_GRAPHS, "cosine"), beside="a table of msprobe's", expected=expected)
    if args.call is not None:
        raise UlpscopeError(
            f"{args.call!r} with a table of msprobe's", expected=expected, next_step=f"ulpscope show {args.trace}"
        )
    return show_table(args.trace, limit=args.limit)


def _cosine(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not -1.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from -1 to 1")
    return number


_FILTERS = ("name", "type", "pass", "kernel")
_ABOUT_A_NODE = ("attributes", "dumps", "reference", "depth", "svg")
ABOUT_GRAPHS = (*_FILTERS, "graph", *_ABOUT_A_NODE, "casts")
ABOUT_TRACES = ("op", "module", "text", "phase", "kind", "step", "rank", "env", "coverage", "tensor", "elements")


def add_graph_options(parser: Parser) -> None:
    """Add the options to the parser of `show`."""
    chosen = parser.add_argument_group("which operators of a graph")
    chosen.add_argument("--name", metavar="PATTERN", help="name")
    chosen.add_argument("--type", metavar="PATTERN", help="type, e.g. MatMul")
    chosen.add_argument("--pass", metavar="PATTERN", help="fusion pass that made it")
    chosen.add_argument("--kernel", metavar="PATTERN", help="name of its kernel")
    chosen.add_argument("--graph", metavar="PATTERN", help="name of the graph or sub-graph it is in")
    chosen.add_argument("--casts", action="store_true", help="those that cast from float32 to int32")
    node = parser.add_argument_group("about one operator of a graph")
    node.add_argument("--attributes", action="store_true", help="all attributes, as the file has them")
    node.add_argument("--dumps", metavar="DIR", type=Path, help="its tensors in this dump of an NPU")
    node.add_argument("--reference", metavar="DIR", type=Path, help="its outputs in this dump of .npy files or tfdbg")
    node.add_argument("--svg", metavar="FILE", type=Path, help="draw what lies around it")
    node.add_argument("--depth", metavar="N", type=count, help="how many steps around it (default: 2)")


def asks_graph(args: argparse.Namespace) -> bool:
    """Whether the path leads to a graph; most lead to a directory, which is none."""
    if not args.trace.is_file():
        return False
    from ulpscope.dialects.graphs.opening import is_graph

    return is_graph(args.trace)


def show_graph_file(args: argparse.Namespace) -> "ShowGraphResult":
    """What was asked about the graph."""
    from ulpscope.graph.query import OperatorFilter
    from ulpscope.report.progress import progress
    from ulpscope.workflows.show.graph import DEFAULT_DEPTH, NodeWishes, show_graph

    _check_graph(args)
    wanted = OperatorFilter(
        name=args.name, type=args.type, fusion_pass=getattr(args, "pass"), kernel=args.kernel, graph=args.graph
    )
    wishes = NodeWishes(
        attributes=args.attributes,
        dumps=args.dumps,
        reference=args.reference,
        svg=args.svg,
        depth=DEFAULT_DEPTH if args.depth is None else args.depth,
    )
    with progress("reading the graph"):
        return show_graph(args.trace, wanted, node=args.call, wishes=wishes, limit=args.limit)


def show_casts_of(args: argparse.Namespace) -> "CastsResult":
    """The dangerous casts of the graph."""
    from ulpscope.report.progress import progress
    from ulpscope.workflows.show.graph import check_casts

    _check_graph(args)
    with progress("reading the graph"):
        return check_casts([args.trace], limit=args.limit)


def refuse_graph_options(args: argparse.Namespace) -> None:
    """What would have no effect on a trace."""
    refuse(args, ABOUT_GRAPHS, beside="a trace", expected="a graph file for these, or the options about calls")


def refuse(args: argparse.Namespace, options: tuple[str, ...], *, beside: str, expected: str) -> None:
    """Say so if an option was given that would have no effect."""
    given = [f"--{option}" for option in options if getattr(args, option) not in (None, False)]
    if given:
        seen = f"{' and '.join(given)} with {beside}"
        raise UlpscopeError(seen, expected=expected, next_step="see ulpscope show --help")


def _check_graph(args: argparse.Namespace) -> None:
    refuse(args, ABOUT_TRACES, beside="a graph", expected="a trace for these, or the options about operators")
    if args.call is None:
        refuse(args, _ABOUT_A_NODE, beside="no NODE", expected="the name of an operator")
    else:
        refuse(args, (*_FILTERS, "casts"), beside="the name of one operator", expected="only --graph")
    if args.casts:
        refuse(args, (*_FILTERS, "graph"), beside="--casts", expected="--casts and --limit only")
    if args.svg is None:
        refuse(args, ("depth",), beside="no --svg", expected="a file for the drawing")
