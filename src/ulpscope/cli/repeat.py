"""Run a command again, and name the first call whose output bits differ though its inputs' bits agree.

  ulpscope repeat -- python train.py                                  twice
  ulpscope repeat --until-differs 20 -o result -- torchrun train.py   until a run differs, 20 times at most

Then it tries what may make the run repeatable, from outside and without a change to the script: seeds, the framework's
deterministic kernels, one thread; and says what that costs. The command's own output goes to stderr. Exit codes: 0 the
run repeats itself; 1 it does not; 2 bad usage, or the command fails; 3 nothing was captured.
"""

import argparse
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command, add_telling, parsed, tell
from ulpscope.records.errors import UlpscopeError


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `repeat` to the command line."""
    parser = add_command(subparsers, "repeat", doc=__doc__, usage="ulpscope repeat [options] -- CMD ...")
    parser.add_argument("-n", metavar="N", type=int, default=2, help="runs that are compared (default: 2)")
    parser.add_argument("--until-differs", metavar="N", type=int, help="run it until a run differs, so often at most")
    group = parser.add_argument_group("what is captured")
    group.add_argument(
        "--level",
        choices=("module", "api", "kernel"),
        default="api",
        help="how deep to look; each level includes the coarser ones (default: api)",
    )
    group.add_argument("--steps", metavar="0,2-4", help="only these training steps, counted from 0")
    group.add_argument("--stop", action="store_true", help="end the script after the last step of --steps")
    parser.add_argument("-o", "--out", metavar="DIR", type=Path, help="keep summary.json and two traces there")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result in DIR")
    add_telling(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command behind `--` again and again, and give the exit code."""
    from ulpscope.cli.run import refuse_stop_alone
    from ulpscope.records.runs import CaptureSettings
    from ulpscope.workflows.repeat.command import AskedRepeats, repeat

    refuse_stop_alone(args)
    for option, number in (("-n", args.n), ("--until-differs", args.until_differs)):
        if number is not None and number < 2:
            raise UlpscopeError(f"{option} {number}", expected="at least 2 runs", next_step=f"write {option} 2")
    settings = parsed(CaptureSettings, args, out=Path())
    asked = AskedRepeats(args.n, args.until_differs, args.out)
    answer = repeat(args.command, settings, asked, overwrite=args.overwrite)
    return tell(args, answer)
