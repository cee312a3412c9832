"""The options of `ulpscope show` that ask about the result of a comparison."""

import argparse
import math
from typing import TYPE_CHECKING

from ulpscope.cli.arguments import Parser
from ulpscope.cli.show_graph import ABOUT_GRAPHS, ABOUT_TRACES, refuse
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.workflows.show.command import LowResult, TableResult


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
