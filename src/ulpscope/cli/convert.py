"""Write a trace in the layout of another tool, for that tool's own commands.

  ulpscope convert runs/ref --to msprobe -o dumps/ref
  ulpscope convert runs/ref runs/target --to msprobe -o dumps

--to msprobe writes DIR/stepN/rankR/dump.json, stack.json, construct.json and, if the trace has data, one .pt file a
tensor, as `msprobe compare` and `msprobe graph_visualize` read them. Several traces each go into a directory of
their own name below DIR. Calls that msprobe has no form for are left out and counted. Exit codes: 0; 1 if a trace
or a file failed; 2 if the trace cannot be read; 3 if there was nothing to convert.
"""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from ulpscope.cli.arguments import Parser, Subparsers, add_command
from ulpscope.cli.output import write_answer

USAGE = "ulpscope convert TRACE... --to msprobe -o DIR [--json]"


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `convert` to the command line."""
    parser = add_command(subparsers, "convert", doc=__doc__ or "", usage=USAGE)
    parser.add_argument("traces", metavar="TRACE", nargs="+", type=Path, help="directory of a trace, or of one rank")
    parser.add_argument("--to", choices=("msprobe",), required=True, help="the layout to write")
    parser.add_argument("-o", "--out", metavar="DIR", type=Path, required=True, help="empty or new directory")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Convert, and give the exit code."""
    from ulpscope.workflows.convert import Layout, convert

    with _progress() as told:
        result = convert(args.traces, to=Layout(args.to), out=args.out, told=told)
    write_answer(json.dumps(result.json(), allow_nan=False) + "\n" if args.json else result.text())
    return int(result.code)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("converting", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
