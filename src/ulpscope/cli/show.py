"""List, filter and look into the calls and values of a trace.

  ulpscope show runs/ref                                        what the trace holds
  ulpscope show runs/ref --op '*layer_norm' --phase forward     calls that match
  ulpscope show runs/ref 57                                     one call, by its id
  ulpscope show runs/ref layer_norm.3 --step 0 --phase forward  one call, by its name
  ulpscope show runs/ref 57 --tensor output.0 --elements 20     elements of a saved tensor

Patterns of --op, --module and --text may stand anywhere in the text; one with * or ? must fit all of it. Upper and
lower case are alike. Exit codes: 0, 2 if the trace or the call cannot be read or found, 3 if nothing matches.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.cli.arguments import Parser, Subparsers, add_command, count
from ulpscope.cli.output import write_answer
from ulpscope.records.enums import Kind, Phase
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.trace.query import CallFilter
    from ulpscope.workflows.show import Aspect

USAGE = "ulpscope show TRACE [CALL] [options]"

# Tables are as wide as their content: a file or a pipe gets whole names on one line.
PIPE_WIDTH = 240


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `show` to the command line."""
    parser = add_command(subparsers, "show", doc=__doc__ or "", usage=USAGE)
    parser.add_argument("trace", metavar="TRACE", type=Path, help="directory of a trace, or of one rank of it")
    parser.add_argument("call", metavar="CALL", nargs="?", help="name (or its end) or id of one call")
    _add_filter(parser)
    whole = parser.add_mutually_exclusive_group()
    whole.add_argument("--env", action="store_true", help="environment, versions, seeds and settings of the run")
    whole.add_argument("--coverage", action="store_true", help="what was seen of the run and what was not")
    parser.add_argument("--tensor", metavar="PLACE", help="elements of this tensor of CALL, e.g. output.0")
    parser.add_argument("--elements", metavar="N", type=count, help="how many elements; 0 for all (default: 10)")
    parser.add_argument("--limit", metavar="N", type=count, default=50, help="how many calls; 0 for all (default: 50)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Show, and give the exit code."""
    from ulpscope.workflows.show import show

    _check(args)
    result = show(
        args.trace,
        _filter(args),
        call=args.call,
        aspect=_aspect(args),
        tensor=args.tensor,
        elements=args.elements,
        limit=args.limit,
    )
    if args.json:
        write_answer(json.dumps(result.json(), allow_nan=False) + "\n")
    else:
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((80, 24) if terminal else (PIPE_WIDTH, 24)).columns
        write_answer(result.text(width=width, color=terminal))
    return int(result.code)


def _add_filter(parser: Parser) -> None:
    group = parser.add_argument_group("which calls")
    group.add_argument("--op", metavar="PATTERN", help="operation, e.g. '*.layer_norm'")
    group.add_argument("--module", metavar="PATTERN", help="module path, e.g. 'model.layers.2.*'")
    group.add_argument("--text", metavar="PATTERN", help="anything in name, module, arguments or error")
    group.add_argument("--phase", choices=[phase.value for phase in Phase])
    group.add_argument("--kind", choices=[kind.value for kind in Kind])
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
    from ulpscope.workflows.show import Aspect

    if args.env:
        return Aspect.ENVIRONMENT
    return Aspect.COVERAGE if args.coverage else Aspect.OVERVIEW


def _check(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect."""
    whole = "--env" if args.env else "--coverage" if args.coverage else None
    if args.call is None:
        _refuse(args, ("tensor", "elements"), beside="no CALL", expected="the id or name of the call that uses it")
    else:
        options = ("op", "module", "kind", "text", "env", "coverage")
        expected = "only --step, --phase and --rank, which choose among calls of that name"
        _refuse(args, options, beside="the name of one call", expected=expected)
    if whole is not None:
        options = ("op", "module", "phase", "step", "kind", "text")
        _refuse(args, options, beside=whole, expected="only --rank")


def _refuse(args: argparse.Namespace, options: tuple[str, ...], *, beside: str, expected: str) -> None:
    given = [f"--{option}" for option in options if getattr(args, option) not in (None, False)]
    if given:
        seen = f"{' and '.join(given)} with {beside}"
        raise UlpscopeError(seen, expected=expected, next_step="see ulpscope show --help")
