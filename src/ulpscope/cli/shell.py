"""Look at data of Ascend NPUs, or at a trace, in an interactive shell.

  ulpscope shell                       the precision_data directory here, or the trace
  ulpscope shell precision_data        graphs, dumps, reference, overflow records and fusion results in it
  ulpscope shell runs/ref              a trace, or what else opens as one
  ulpscope shell ge_proto_Build.txt    a graph, or a directory with graphs and perhaps dumps
  echo 'ac -l 2' | ulpscope shell      without a terminal: the lines of a pipe

Words: ac, ls, ni, pt, cp, dc, vc, vcs, overflow, npu_dump, npu_overflow, tf_dump, train, run, help, exit, with the
options that precision_tool knows. `help` tells them, the Tab key completes them. Exit codes: 0; of a pipe, the code of
the last line; 2 if DATA holds nothing.
"""

import argparse
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `shell` to the command line."""
    parser = add_command(subparsers, "shell", doc=__doc__, usage="ulpscope shell [DATA]")
    help_text = "data, a trace or a graph (default: what is here)"
    parser.add_argument("data", metavar="DATA", nargs="?", type=Path, help=help_text)


def run(args: argparse.Namespace) -> int:
    """Find the data, and hand over to the user."""
    from ulpscope.shell.data import find_data, no_data, why_no_data
    from ulpscope.shell.session import run_shell

    start = Path() if args.data is None else args.data
    data = find_data(start)
    if data is None and args.data is not None:
        raise why_no_data(start)
    return int(run_shell(data or no_data(start), debug=args.debug))
