"""Capture a run of any command, without a change to its script.

  ulpscope run -o runs/ref -- python train.py --epochs 1
  ulpscope run -o runs/ref -- torchrun --nproc-per-node 2 train.py
  ulpscope run -o runs/ref --steps 0,2-4 --save tensors -- ./start.sh

Every Python process that the command starts and that imports torch is captured, each into a directory of its own
below TRACE. The command's own non-zero exit code is passed on; 3 says that nothing was captured.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.cli.command import Parser, Subparsers, add_command, count, parsed, refuse
from ulpscope.records.enums import Level, Watch
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.records.runs import GradientWatch, OverflowWatch, TrainingWatch


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `run` to the command line."""
    parser = add_command(subparsers, "run", doc=__doc__, usage="ulpscope run -o TRACE [options] -- CMD ...")
    parser.add_argument("-o", "--out", metavar="TRACE", type=Path, required=True, help="directory for the trace")
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
    group.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        dest="configs",
        help="keep the settings of this config file in the trace, for ulpscope diff; may be repeated",
    )
    group = parser.add_argument_group("limits and checks")
    group.add_argument("--max-disk", metavar="10GB", help="keep a rank's trace within this size; the run goes on")
    group.add_argument("--stop", action="store_true", help="end the script after the last step of --steps")
    group.add_argument("--verify", action="store_true", help="recompute every reused summary and count differences")
    group = parser.add_argument_group("runs with other numbers, to try a suspect (only these change any)")
    for name, where in (("--in-float32", "in float32"), ("--on-cpu", "on the CPU")):
        group.add_argument(
            name,
            metavar="CALL",
            action="append",
            default=[],
            help=f"run calls whose op, module or name matches, as of --only, {where}; may be repeated",
        )
    _add_watch(parser)
    _add_twins(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace a trace that is already there")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout; the script's goes to stderr")


def _add_watch(parser: Parser) -> None:
    group = parser.add_argument_group("long runs")
    group.add_argument(
        "--watch",
        choices=("gradients", "overflow", "training"),
        help="record only gradients as optimizers read them, only steps in which numbers overflow, or modules, "
        "gradients and updates of all steps, and tell at once what is unlike the training so far",
    )
    group.add_argument(
        "--bounds", metavar="-1,0,1", help="with --watch gradients: count elements between these (--bounds=-1,0,1)"
    )
    group.add_argument("--signs", action="store_true", help="with --watch gradients: keep which elements are positive")
    group.add_argument(
        "--overflows", metavar="N", type=count, default=1, help="with --watch overflow: keep so many steps (default: 1)"
    )
    group.add_argument(
        "--ring",
        metavar="1GB",
        help="with --watch overflow: data of the last calls, too, so much (default: none)",
    )
    group.add_argument("--stop-on-overflow", action="store_true", help="with --watch overflow: end the script then")
    group.add_argument(
        "--every", metavar="N", type=count, default=1, help="with --watch training: record each Nth step (default: 1)"
    )
    group.add_argument(
        "--control",
        metavar="FILE",
        type=Path,
        help="with --watch training: yaml that says while it runs what is recorded: watch, every, only, skip",
    )


def _add_twins(parser: Parser) -> None:
    group = parser.add_argument_group("noise twins: runs with another precision's roundings")
    group.add_argument(
        "--twins", metavar="K", type=int, help="run it K times more as twins, for compare; TRACE itself may be there"
    )
    group.add_argument(
        "--like",
        metavar="TRACE",
        type=Path,
        help="round as this trace's run does, call by call; with --watch training: its loss is what it should be",
    )
    group.add_argument("--precision", metavar="DTYPE", help="round as autocast to bf16 or fp16 does")


def _refuse_raising(args: argparse.Namespace) -> None:
    """Calls that run elsewhere are calls that are recorded one by one."""
    if args.watch is not None:
        beside = f"with --watch {args.watch}"
    elif args.level == "module":
        beside = "with --level module"
    else:
        beside = "with --twins" if args.twins is not None else ""
    if beside:
        refuse(args, ("in_float32", "on_cpu"), beside, expected="a capture of single calls")


def _gradients(args: argparse.Namespace) -> "GradientWatch":
    from ulpscope.capture.settings import parse_bounds
    from ulpscope.records.runs import GradientWatch

    if args.watch != "gradients":
        refuse(args, ("bounds", "signs"), "without --watch gradients", expected="--watch gradients beside it")
    else:
        refuse(args, ("level", "compiled", "verify"), "with --watch gradients", expected="a capture of calls beside it")
    if args.watch is not None:
        refuse(args, ("twins",), f"with --watch {args.watch}", expected="runs that are captured whole")
    return GradientWatch(() if args.bounds is None else parse_bounds(args.bounds, option="--bounds"), args.signs)


def _overflow(args: argparse.Namespace) -> "OverflowWatch":
    from ulpscope.capture.settings import parse_size
    from ulpscope.records.runs import OverflowWatch

    if args.watch != "overflow":
        expected = "--watch overflow beside it"
        refuse(args, ("overflows", "stop_on_overflow", "ring"), "without --watch overflow", expected=expected)
    ring = 0 if args.ring is None else parse_size(args.ring, option="--ring")
    return OverflowWatch(max(1, args.overflows), args.stop_on_overflow, ring)


def _training(args: argparse.Namespace) -> "TrainingWatch":
    from ulpscope.records.runs import TrainingWatch
    from ulpscope.workflows.run.earlier import earlier_training

    if args.watch != "training":
        refuse(args, ("every", "control"), "without --watch training", expected="--watch training beside it")
        return TrainingWatch()
    expected = "modules in the place of all calls"
    refuse(args, ("level", "save", "compiled", "verify"), "with --watch training", expected=expected)
    control = None if args.control is None else args.control.absolute()
    return TrainingWatch(max(1, args.every), control, earlier_training(args.like))


def run(args: argparse.Namespace) -> int:
    """Capture the command behind `--`."""
    from ulpscope.capture.settings import parse_size
    from ulpscope.records.runs import CaptureSettings
    from ulpscope.workflows.run.command import run_command
    from ulpscope.workflows.run.configs import readable_configs

    refuse_stop_alone(args)
    _refuse_raising(args)
    max_disk = None if args.max_disk is None else parse_size(args.max_disk, option="--max-disk")
    settings = parsed(
        CaptureSettings,
        args,
        max_disk=max_disk,
        configs=readable_configs(args.configs),
        gradients=_gradients(args),
        overflow=_overflow(args),
        training=_training(args),
    )
    if settings.watch is Watch.TRAINING:
        settings = replace(settings, level=Level.MODULE)
    if args.twins is not None:
        from ulpscope.workflows.run.twins import AskedTwins, run_with_twins

        asked = AskedTwins(args.twins, like=args.like, precision=args.precision)
        return run_with_twins(args.command, settings, asked, overwrite=args.overwrite, as_json=args.json)
    if (args.like is not None and args.watch != "training") or args.precision is not None:
        raise UlpscopeError(
            "--like or --precision without --twins",
            expected="the number of twins that round so",
            next_step="add --twins 2",
        )
    return run_command(args.command, settings, overwrite=args.overwrite, as_json=args.json).exit_code


def refuse_stop_alone(args: argparse.Namespace) -> None:
    """Without steps nobody knows after which the script may end."""
    if args.stop and args.steps is None:
        raise UlpscopeError(
            "--stop without --steps",
            expected="the steps after which the script may end",
            next_step="add for example --steps 0-2",
        )
