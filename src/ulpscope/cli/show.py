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
import shutil
from pathlib import Path

from ulpscope.cli.command import Answer, Parser, Subparsers, add_command, count, number, parsed, refuse_all, tell
from ulpscope.records.enums import Kind, Phase
from ulpscope.records.errors import UlpscopeError

# Tables are as wide as their content: a file or a pipe gets whole names on one line.
PIPE_WIDTH = 240
_FILTERS = ("name", "type", "pass", "kernel")
_ABOUT_A_NODE = ("attributes", "dumps", "reference", "depth", "svg")
_ABOUT_GRAPHS = (*_FILTERS, "graph", *_ABOUT_A_NODE, "casts")
_ABOUT_TRACES = ("op", "module", "text", "phase", "kind", "step", "rank", "env", "coverage", "tensor", "elements")


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `show` to the command line."""
    usage = "ulpscope show TRACE|GRAPH|RESULT [CALL|NODE] [options]"
    parser = add_command(subparsers, "show", doc=__doc__, usage=usage)
    parser.add_argument(
        "trace",
        metavar="TRACE|GRAPH|RESULT",
        type=Path,
        help="directory of a trace or of one rank of it; a graph file; the CSV of a comparison",
    )
    parser.add_argument(
        "call", metavar="CALL|NODE", nargs="?", help="name (or its end) or id of a call; name of an operator"
    )
    _add_filters(parser)
    whole = parser.add_mutually_exclusive_group()
    whole.add_argument("--env", action="store_true", help="environment, versions, seeds and settings of the run")
    whole.add_argument("--coverage", action="store_true", help="what was seen of the run and what was not")
    parser.add_argument("--tensor", metavar="PLACE", help="elements of this tensor of CALL, e.g. output.0")
    parser.add_argument("--elements", metavar="N", type=count, help="how many elements; 0 for all (default: 10)")
    parser.add_argument(
        "--limit", metavar="N", type=count, default=50, help="how many are listed; 0 for all (default: 50)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _add_filters(parser: Parser) -> None:
    group = parser.add_argument_group("which calls of a trace")
    group.add_argument("--op", metavar="PATTERN", help="operation, e.g. '*.layer_norm'")
    group.add_argument("--module", metavar="PATTERN", help="module path, e.g. 'model.layers.2.*'")
    group.add_argument("--text", metavar="PATTERN", help="anything in name, module, arguments or error")
    group.add_argument("--phase", choices=[phase.value for phase in Phase])
    kinds = [kind.value for kind in Kind]
    group.add_argument("--kind", metavar="KIND", choices=kinds, help=f"{', '.join(kinds[:-1])} or {kinds[-1]}")
    group.add_argument("--step", metavar="0,2-4", help="training steps")
    group.add_argument("--rank", metavar="0,2-4", help="ranks of a distributed run")
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
    results = parser.add_argument_group("which operators of a comparison's result")
    results.add_argument(
        "--cosine",
        metavar="COSINE",
        type=number(lambda found: -1.0 <= found <= 1.0, "a number from -1 to 1"),
        help="those with an output at or below it (default: 0.98); RESULT may then be a directory of results",
    )


def run(args: argparse.Namespace) -> int:
    """Show, and give the exit code."""
    return tell(args, _answer(args), pipe_width=shutil.get_terminal_size((PIPE_WIDTH, 24)).columns)


def _answer(args: argparse.Namespace) -> Answer:
    # A trace is a directory: it need not wait for the readers of other files.
    if args.trace.is_file():
        from ulpscope.dialects.ascend.result_table import is_result_table
        from ulpscope.dialects.graphs.opening import is_graph
        from ulpscope.dialects.msprobe.result_tables import table_kind

        if table_kind(args.trace) is not None:
            return _show_table(args)
        if args.cosine is not None or is_result_table(args.trace):
            return _show_results(args)
        if is_graph(args.trace):
            return _show_graph(args)
    elif _is_saved_model(args.trace):
        return _show_graph(args)
    return _show_results(args) if args.cosine is not None else _show_trace(args)


def _is_saved_model(path: Path) -> bool:
    from ulpscope.dialects.graphs.opening import SAVED_MODEL

    return any((path / name).is_file() for name in SAVED_MODEL)


def _show_trace(args: argparse.Namespace) -> Answer:
    from ulpscope.report.terminal.show import Aspect
    from ulpscope.trace.query import CallFilter
    from ulpscope.workflows.show.command import show

    expected = "a graph file for these, or the options about calls"
    refuse_all(args, _ABOUT_GRAPHS, "a trace", expected=expected)
    if args.call is None:
        refuse_all(args, ("tensor", "elements"), "no CALL", expected="the id or name of the call that uses it")
    else:
        options = ("op", "module", "kind", "text", "env", "coverage")
        expected = "only --step, --phase and --rank, which choose among calls of that name"
        refuse_all(args, options, "the name of one call", expected=expected)
    if args.env or args.coverage:
        options = ("op", "module", "phase", "step", "kind", "text")
        refuse_all(args, options, "--env" if args.env else "--coverage", expected="only --rank")
    aspect = Aspect.ENVIRONMENT if args.env else Aspect.COVERAGE if args.coverage else Aspect.OVERVIEW
    tensors = {"tensor": args.tensor, "elements": args.elements}
    return show(args.trace, parsed(CallFilter, args), call=args.call, aspect=aspect, **tensors, limit=args.limit)


def _show_results(args: argparse.Namespace) -> Answer:
    from ulpscope.workflows.show.command import DEFAULT_COSINE, show_results

    expected = "--cosine and --limit only"
    refuse_all(args, (*_ABOUT_TRACES, *_ABOUT_GRAPHS), "a comparison's result", expected=expected)
    if args.call is not None:
        raise UlpscopeError(
            f"{args.call!r} with a comparison's result",
            expected=expected,
            next_step="one operator: ulpscope compare REFERENCE DUMPS --graph GRAPH --op OPERATOR",
        )
    return show_results(args.trace, cosine=DEFAULT_COSINE if args.cosine is None else args.cosine, limit=args.limit)


def _show_table(args: argparse.Namespace) -> Answer:
    from ulpscope.workflows.show.command import show_table

    expected = "--limit and --json only"
    refuse_all(args, (*_ABOUT_TRACES, *_ABOUT_GRAPHS, "cosine"), "a table of msprobe's", expected=expected)
    if args.call is not None:
        raise UlpscopeError(
            f"{args.call!r} with a table of msprobe's", expected=expected, next_step=f"ulpscope show {args.trace}"
        )
    return show_table(args.trace, limit=args.limit)


def _show_graph(args: argparse.Namespace) -> Answer:
    from ulpscope.graph.query import OperatorFilter
    from ulpscope.report.progress import progress
    from ulpscope.workflows.show.graph import DEFAULT_DEPTH, NodeWishes, check_casts, show_graph

    expected = "a trace for these, or the options about operators"
    refuse_all(args, _ABOUT_TRACES, "a graph", expected=expected)
    if args.call is None:
        refuse_all(args, _ABOUT_A_NODE, "no NODE", expected="the name of an operator")
    else:
        refuse_all(args, (*_FILTERS, "casts"), "the name of one operator", expected="only --graph")
    if args.casts:
        refuse_all(args, (*_FILTERS, "graph"), "--casts", expected="--casts and --limit only")
    if args.svg is None:
        refuse_all(args, ("depth",), "no --svg", expected="a file for the drawing")
    wanted = parsed(OperatorFilter, args, fusion_pass=getattr(args, "pass"))
    wishes = parsed(NodeWishes, args, depth=DEFAULT_DEPTH if args.depth is None else args.depth)
    with progress("reading the graph"):
        if args.casts:
            return check_casts([args.trace], limit=args.limit)
        return show_graph(args.trace, wanted, node=args.call, wishes=wishes, limit=args.limit)
