"""The options of `ulpscope show` that ask about a graph file."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.cli.arguments import Parser, count
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.workflows.show.graph import CastsResult, ShowGraphResult

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

    _check(args)
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

    _check(args)
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


def _check(args: argparse.Namespace) -> None:
    refuse(args, ABOUT_TRACES, beside="a graph", expected="a trace for these, or the options about operators")
    if args.call is None:
        refuse(args, _ABOUT_A_NODE, beside="no NODE", expected="the name of an operator")
    else:
        refuse(args, (*_FILTERS, "casts"), beside="the name of one operator", expected="only --graph")
    if args.casts:
        refuse(args, (*_FILTERS, "graph"), beside="--casts", expected="--casts and --limit only")
    if args.svg is None:
        refuse(args, ("depth",), beside="no --svg", expected="a file for the drawing")
