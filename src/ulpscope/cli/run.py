"""Capture a run of any command, without a change to its script.

  ulpscope run -o runs/ref -- python train.py --epochs 1
  ulpscope run -o runs/ref -- torchrun --nproc-per-node 2 train.py
  ulpscope run -o runs/ref --steps 0,2-4 --save tensors -- ./start.sh

Every Python process that the command starts and that imports torch is captured, each into a directory of its own
below TRACE. The command's own non-zero exit code is passed on; 3 says that nothing was captured.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.cli.arguments import Parser, Subparsers, add_command
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.records.settings import CaptureSettings

USAGE = "ulpscope run -o TRACE [options] -- CMD ..."


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `run` to the command line."""
    parser = add_command(subparsers, "run", doc=__doc__ or "", usage=USAGE)
    parser.add_argument("-o", "--out", metavar="TRACE", type=Path, required=True, help="directory for the trace")
    _add_what(parser)
    _add_how_much(parser)
    _add_twins(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace a trace that is already there")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout; the script's goes to stderr")


def _add_what(parser: Parser) -> None:
    group = parser.add_argument_group("what is captured")
    group.add_argument(
        "--level",
        choices=("module", "api", "kernel"),
        default="api",
        help="how deep to look; each level includes the coarser ones (default: api)",
    )
    group.add_argument(
        "--save",
        choices=("stats", "tensors"),
        default="stats",
        help="keep each value's summary, or its data too (default: stats)",
    )
    group.add_argument("--steps", metavar="0,2-4", help="only these training steps, counted from 0")
    group.add_argument("--ranks", metavar="0,2-4", help="only these ranks of a distributed run")
    for name, verb in (("--only", "record only"), ("--skip", "do not record")):
        group.add_argument(
            name,
            metavar="PATTERN",
            action="append",
            default=[],
            help=f"{verb} calls whose op, module or name matches, e.g. '*layer_norm*'; may be repeated",
        )
    group.add_argument(
        "--compiled",
        choices=("compiled", "eager"),
        default="compiled",
        help="run compiled callables as compiled, one call each, or eager, with a look inside (default: compiled)",
    )


def _add_how_much(parser: Parser) -> None:
    group = parser.add_argument_group("limits and checks")
    group.add_argument("--max-disk", metavar="10GB", help="keep a rank's trace within this size; the run goes on")
    group.add_argument("--stop", action="store_true", help="end the script after the last step of --steps")
    group.add_argument("--verify", action="store_true", help="recompute every reused summary and count differences")


def _add_twins(parser: Parser) -> None:
    group = parser.add_argument_group("noise twins: the run again, with another precision's roundings (docs/twins.md)")
    group.add_argument(
        "--twins", metavar="K", type=int, help="run it K times more as twins, for compare; TRACE itself may be there"
    )
    group.add_argument("--like", metavar="TARGET", type=Path, help="round as this trace's run does, call by call")
    group.add_argument("--precision", metavar="DTYPE", help="round as autocast to bf16 or fp16 does")


def run(arguments: argparse.Namespace) -> int:
    """Capture the command behind `--`."""
    if arguments.twins is None and (arguments.like is not None or arguments.precision is not None):
        raise UlpscopeError(
            "--like or --precision without --twins",
            expected="the number of twins that round so",
            next_step="add --twins 2",
        )
    if arguments.twins is not None:
        return _run_twins(arguments)
    from ulpscope.workflows.run.command import run_command

    settings = _settings(arguments)
    return run_command(arguments.command, settings, overwrite=arguments.overwrite, as_json=arguments.json).exit_code


def _run_twins(arguments: argparse.Namespace) -> int:
    from ulpscope.workflows.run.twins import AskedTwins, run_with_twins

    asked = AskedTwins(arguments.twins, like=arguments.like, precision=arguments.precision)
    return run_with_twins(
        arguments.command, _settings(arguments), asked, overwrite=arguments.overwrite, as_json=arguments.json
    )


def _settings(arguments: argparse.Namespace) -> "CaptureSettings":
    from ulpscope.capture.settings import parse_ranges, parse_size
    from ulpscope.records.enums import Compiled, Level, Save
    from ulpscope.records.settings import CaptureSettings

    if arguments.stop and arguments.steps is None:
        raise UlpscopeError(
            "--stop without --steps",
            expected="the steps after which the script may end",
            next_step="add for example --steps 0-2",
        )
    return CaptureSettings(
        out=arguments.out,
        level=Level(arguments.level),
        save=Save(arguments.save),
        steps=None if arguments.steps is None else parse_ranges(arguments.steps, option="--steps"),
        ranks=None if arguments.ranks is None else parse_ranges(arguments.ranks, option="--ranks"),
        only=tuple(arguments.only),
        skip=tuple(arguments.skip),
        max_disk=None if arguments.max_disk is None else parse_size(arguments.max_disk, option="--max-disk"),
        stop=arguments.stop,
        compiled=Compiled(arguments.compiled),
        verify=arguments.verify,
    )
