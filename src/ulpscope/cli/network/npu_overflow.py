"""Run a TensorFlow training script on an Ascend NPU with overflow detection on, and tell what overflowed.

  ulpscope npu-overflow -- python train.py
  ulpscope npu-overflow -- "sh run_train.sh 8"      a line for the shell, in one word

The script has one line: config = ulpscope.compat.tf_config.session_dump_config(config), which asks what to switch on.
Records go to precision_data/overflow/dump, graphs to precision_data/npu/debug_0/graph. What the command prints is
printed; stderr tells what was collected, and ERROR lines that the device's log got meanwhile.

The command's own non-zero exit code is passed on. Exit codes else: 0 nothing overflowed; 1 something did; 3 the
script did not switch detection on.
"""

import argparse
from typing import TYPE_CHECKING

from ulpscope.cli.command import Parser, Subparsers, add_command, add_telling, write_answer, write_json

if TYPE_CHECKING:
    from ulpscope.records.tf_runs import ScriptRun


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `npu-overflow` to the command line."""
    parser = add_command(subparsers, "npu-overflow", doc=__doc__, usage="ulpscope npu-overflow [options] -- CMD ...")
    add_telling(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command, tell what overflowed, and give the exit code."""
    import os

    from ulpscope.cli.network.running import streams, tell_problems, tell_run
    from ulpscope.records.tf_runs import RunKind
    from ulpscope.workflows.tf_runs.npu import code_of, find_overflows, run_on_npu
    from ulpscope.workflows.tf_runs.settings import read_settings

    settings = read_settings(os.environ)
    tell_problems(settings)
    done = run_on_npu(RunKind.NPU_OVERFLOW, args.command, settings, streams=streams(args))
    tell_run(done)
    found = find_overflows(done)
    _answer(args, done, found)
    return code_of(done, found)


def _answer(args: argparse.Namespace, done: "ScriptRun", found: object) -> None:
    from ulpscope.report.terminal.tf_runs import script_run_json
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.overflow import OverflowAnswer

    language = Language(args.language)
    answer = found if isinstance(found, OverflowAnswer) else None
    if args.json:
        write_json(script_run_json(done, overflow=None if answer is None else answer.json(language)))
    elif answer is not None:
        write_answer(answer.text(language=language))
