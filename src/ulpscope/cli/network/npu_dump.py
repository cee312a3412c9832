"""Run a TensorFlow training script on an Ascend NPU with its dump on; or write and check an acl.json for inference.

  ulpscope npu-dump -- python train.py
  ulpscope npu-dump --acl acl.json --model resnet50 --layers conv1,fc
  ulpscope npu-dump --acl acl.json --overflow       overflow detection instead of a dump
  ulpscope npu-dump --acl acl.json                  checks a file that is there

The script has one line: config = ulpscope.compat.tf_config.session_dump_config(config), which asks what to switch on.
Dumps go to precision_data/npu/debug_0/dump, graphs beside them. What the command prints is printed; stderr tells what
was collected, and ERROR lines that the device's log got meanwhile.

The command's own non-zero exit code is passed on. Exit codes else: 0; 2 an acl.json is wrong; 3 nothing was dumped.
"""

import argparse
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command, given, tell, write_json
from ulpscope.records.errors import UlpscopeError

USAGE = (
    "ulpscope npu-dump [--json] -- CMD ...   or   ulpscope npu-dump --acl FILE [--model NAME [--layers NAME,NAME]] "
    "[--mode MODE] [--steps 0|3-5] [--overflow] [--dump-path DIR] [--overwrite] [--json]"
)
_WRITING = ("model", "layers", "mode", "steps", "overflow", "dump_path", "overwrite")


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `npu-dump` to the command line."""
    parser = add_command(subparsers, "npu-dump", doc=__doc__, usage=USAGE)
    group = parser.add_argument_group("acl.json")
    group.add_argument("--acl", metavar="FILE", type=Path, help="the file to write, or to check")
    group.add_argument("--model", metavar="NAME", help="of the model whose operators are dumped")
    group.add_argument("--layers", metavar="NAME,NAME", help="these of its operators (default: all)")
    group.add_argument("--mode", choices=("input", "output", "all"), help="tensors (default: all)")
    group.add_argument("--steps", metavar="0|3-5", help="executions, counted from 0 (default: all)")
    group.add_argument("--overflow", action="store_true", help="detect overflows instead of dumping")
    group.add_argument("--dump-path", metavar="DIR", type=Path, help="where dumps go (default: in precision_data)")
    group.add_argument("--overwrite", action="store_true", help="replace the file")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout; the script's goes to stderr")


def run(args: argparse.Namespace) -> int:
    """Run the command, or write or check the file, and give the exit code."""
    import os

    from ulpscope.cli.network.running import streams, tell_problems, tell_run
    from ulpscope.records.tf_runs import RunKind
    from ulpscope.report.terminal.tf_runs import script_run_json
    from ulpscope.workflows.tf_runs.npu import code_of, run_on_npu
    from ulpscope.workflows.tf_runs.settings import read_settings

    settings = read_settings(os.environ)
    tell_problems(settings)
    if args.acl is not None:
        return _acl(args)
    if options := given(args, _WRITING):
        raise UlpscopeError(
            f"{options[0]} without --acl", expected="the acl.json that it is for", next_step="add --acl acl.json"
        )
    done = run_on_npu(RunKind.NPU_DUMP, args.command, settings, streams=streams(args))
    tell_run(done)
    if args.json:
        write_json(script_run_json(done))
    return code_of(done)


def _acl(args: argparse.Namespace) -> int:
    import os

    from ulpscope.workflows.tf_runs.acl import AclWishes, acl
    from ulpscope.workflows.tf_runs.settings import read_settings

    if args.command:
        raise UlpscopeError(
            "--acl with a command",
            expected="one of both: acl.json is for inference, a command for training",
            next_step="leave out one of them",
        )
    layers = [name.strip() for name in (args.layers or "").split(",") if name.strip()]
    wishes = AclWishes(
        model=args.model,
        layers=tuple(layers),
        mode=args.mode,
        steps=args.steps,
        overflow=args.overflow,
        dump_path=args.dump_path,
    )
    return tell(args, acl(args.acl, wishes, read_settings(os.environ), overwrite=args.overwrite))
