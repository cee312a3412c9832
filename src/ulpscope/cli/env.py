"""Tell what can change numbers here: versions, switches, variables, the machine.

  ulpscope env                                       at a glance
  ulpscope env -o here.json --config train.yaml      all of it, with the settings of a config file
  ulpscope diff here.json there.json                 what two machines have otherwise, what is likely to matter first

Every trace holds the same of its run: ulpscope diff TRACE TRACE, and ulpscope show TRACE --env. Of most variables only
the name is kept; tokens, keys and passwords never are.
"""

import argparse
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command, add_telling, tell, tell_place


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `env` to the command line."""
    parser = add_command(subparsers, "env", doc=__doc__, usage="ulpscope env [-o FILE] [options]")
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="write it there, as JSON")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it is there")
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="add this config file: its digest and, of yaml, json and toml, its settings; may be repeated",
    )
    add_telling(parser)


def run(args: argparse.Namespace) -> int:
    """Look around, write, and give the exit code."""
    from ulpscope.workflows.env.command import tell_environment, write_environment

    answer = tell_environment(args.config)
    if args.out is not None:
        write_environment(answer, args.out, overwrite=args.overwrite)
    code = tell(args, answer)
    if args.out is not None:
        tell_place(args, "written", args.out)
    return code
