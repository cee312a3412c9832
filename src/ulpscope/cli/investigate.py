"""Find why two runs differ: losses by step, every call of the step in which they part, the suspect's tensors, replay.

  ulpscope investigate -- python ref.py --against -- python new.py
  ulpscope investigate --out found -- torchrun a.py --against -- torchrun b.py
  ulpscope investigate traces/host-a traces/host-b

It runs both commands as often as it takes, each time captured for one question only, and stops at the first finding
that is a cause. With --out, the same command again goes on behind what is complete. Of two hosts, give what was
captured on each; it says what to capture next. The commands' own output goes to stderr. Exit codes: 0 the runs agree;
1 a cause was found, or a command does not repeat itself; 2 bad usage, or a command fails; 3 nothing was compared.
"""

import argparse
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command, add_telling, tell, tell_place
from ulpscope.records.errors import UlpscopeError

USAGE = (
    "ulpscope investigate [options] -- REFERENCE_CMD ... --against -- TARGET_CMD ..."
    "   or   ulpscope investigate [options] REFERENCE TARGET"
)


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `investigate` to the command line."""
    parser = add_command(subparsers, "investigate", doc=__doc__, usage=USAGE)
    parser.add_argument("traces", metavar="TRACES", type=Path, nargs="*", help="a directory of traces of each run")
    parser.add_argument("-o", "--out", metavar="DIR", type=Path, help="keep traces, results and summary.json there")
    parser.add_argument("--overwrite", action="store_true", help="begin anew in DIR, whatever it has")
    add_telling(parser)


def run(args: argparse.Namespace) -> int:
    """Investigate, and give the exit code."""
    from ulpscope.records.pairs import Pair
    from ulpscope.workflows.investigate.command import investigate, investigate_traces, split_commands

    if args.traces and args.command:
        raise UlpscopeError(
            f"{args.traces[0]} and a command",
            expected="two commands, or two directories of traces",
            next_step="leave out one of both",
        )
    if args.traces or not args.command:
        if len(args.traces) != 2:
            raise UlpscopeError(
                f"{len(args.traces)} directories of traces and no command",
                expected=USAGE,
                next_step="give two of one kind",
            )
        answer = investigate_traces(Pair(*args.traces), out=args.out, overwrite=args.overwrite)
    else:
        answer = investigate(split_commands(args.command), out=args.out, overwrite=args.overwrite)
    code = tell(args, answer)
    if args.out is not None:
        tell_place(args, "written", args.out)
    return code
