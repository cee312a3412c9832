"""Find where a run overflowed: which operation first, on which unit, with which inputs and outputs.

  ulpscope overflow precision_data/overflow/dump      overflow records of an Ascend NPU, the first first
  ulpscope overflow precision_data/npu/debug_0/dump   dumps: float16 that reaches 65504, inf and nan
  ulpscope overflow runs/ref                          a trace: the calls that made inf or nan out of finite numbers
  ulpscope overflow DIR --out result                  and summary.json, overflow.csv, each record as JSON

Calls of torch are executed again on the CPU where torch is installed: does the CPU overflow, too? Exit codes: 0 nothing
overflowed; 1 something did; 2 an input cannot be read; 3 there was nothing to look at.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.cli.command import Parser, Subparsers, add_command, add_out, add_telling, deliver, refuse

if TYPE_CHECKING:
    from ulpscope.workflows.overflow import OverflowAnswer


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `overflow` to the command line."""
    parser = add_command(subparsers, "overflow", doc=__doc__, usage="ulpscope overflow DIR|TRACE... [options]")
    parser.add_argument("paths", metavar="DIR|TRACE", nargs="+", type=Path, help="overflow records, dumps, or traces")
    add_out(parser, "summary.json, overflow.csv")
    add_telling(parser)


def run(args: argparse.Namespace) -> int:
    """Look for overflows, and give the exit code."""
    from ulpscope.report.progress import progress
    from ulpscope.workflows.overflow import overflow

    if args.out is None:
        expected = "a directory for the result"
        refuse(args, ["overwrite"], "without --out", expected=expected, next_step="add --out DIR")

    def look(_: object) -> "OverflowAnswer":
        with progress("looking for overflows") as advance:
            return overflow(args.paths, told=lambda text: advance(1, text=text))

    return deliver(args, look)
