"""Write one call of a trace as a short script that needs only torch, or only TensorFlow, and as a test.

  ulpscope repro runs/ref 94 -o repro                            a script, a test and their data
  python repro/repro.py cuda:0                                   is it right there? exits 1 if not
  ulpscope repro runs/ref layer_norm.3 -o repro --data random    data made from the stats
  ulpscope repro runs/ref 94 -o repro --variant tiny             data that provokes what ordinary data hides

CALL is what `ulpscope show` takes: an id, a name or its end; a backward leads to its forward. The script runs the call,
forward and backward, on a device and in float64 on the CPU, and tells how many ulp each output and gradient
is off at its worst element. Exit codes: 0, 2 if the call cannot be found or executed again.
"""

import argparse
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command, count, parsed, write_answer, write_json
from ulpscope.records.enums import Phase

VARIANTS = ("recorded", "tiny", "offset", "large", "long")


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `repro` to the command line."""
    parser = add_command(subparsers, "repro", doc=__doc__, usage="ulpscope repro TRACE CALL -o DIR [options]")
    parser.add_argument("trace", metavar="TRACE", type=Path, help="directory of a trace, or of one rank of it")
    parser.add_argument("call", metavar="CALL", help="name (or its end) or id of one call")
    parser.add_argument("--out", "-o", metavar="DIR", type=Path, required=True, help="where the files go")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier script in DIR")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    which = parser.add_argument_group("which of several calls of that name")
    which.add_argument("--step", metavar="N", type=count, help="training step")
    which.add_argument("--rank", metavar="N", type=count, help="rank of a distributed run")
    which.add_argument("--phase", choices=[phase.value for phase in Phase])
    how = parser.add_argument_group("what the script does")
    how.add_argument("--data", choices=("real", "random"), help="saved tensors, or tensors made from the stats")
    how.add_argument("--seed", metavar="N", type=count, default=0, help="of the data that is made (default: 0)")
    how.add_argument("--variant", choices=VARIANTS, default="recorded", help="of the data (default: recorded)")
    how.add_argument("--device", metavar="D", help="where it runs if not told (default: where the call was recorded)")


def run(args: argparse.Namespace) -> int:
    """Write the files, and give the exit code."""
    from ulpscope.workflows.repro import ReproOptions, repro

    options = parsed(ReproOptions, args, source=args.data)
    phase = None if args.phase is None else Phase(args.phase)
    result = repro(args.trace, args.call, args.out, options, step=args.step, rank=args.rank, phase=phase)
    if args.json:
        write_json(result.json())
    else:
        write_answer(result.text())
    return int(result.code)
