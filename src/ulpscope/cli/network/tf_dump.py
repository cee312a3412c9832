"""Make the reference of a TensorFlow script: what its sessions dump on a CPU or GPU becomes a .npy file a tensor.

  ulpscope tf-dump -- python train.py     run it, then convert
  ulpscope tf-dump                        convert what precision_data/tf/tf_debug holds

The script wraps its session: sess = ulpscope.compat.tf_config.sess_dump(sess), or estimator_dump() as a hook. One
that has tfdbg's command line (LocalCLIDebugWrapperSession, LocalCLIDebugHook) dumps without a prompt. Files go to
precision_data/tf/dump as OPERATOR.OUTPUT.TIMESTAMP.npy, where ulpscope shell and compare --graph find them.

The command's own non-zero exit code is passed on. Exit codes else: 0; 1 a file could not be converted; 2 an earlier
dump is in the way; 3 nothing was dumped.
"""

import argparse

from ulpscope.cli.command import Parser, Subparsers, add_command, write_answer, write_json


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `tf-dump` to the command line."""
    parser = add_command(subparsers, "tf-dump", doc=__doc__, usage="ulpscope tf-dump [--json] [-- CMD ...]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout; the script's goes to stderr")


def run(args: argparse.Namespace) -> int:
    """Run the command if there is one, convert, and give the exit code."""
    import os

    from ulpscope.cli.network.running import streams, tell_problems, tell_run
    from ulpscope.report.terminal.tf_runs import script_run_json
    from ulpscope.workflows.tf_runs.reference import convert_reference, dump_reference
    from ulpscope.workflows.tf_runs.settings import read_settings

    settings = read_settings(os.environ)
    tell_problems(settings)
    done = None
    if args.command:
        done = dump_reference(args.command, settings, streams=streams(args))
        tell_run(done)
    if done is not None and (done.exit_code or done.nothing_collected):
        if args.json:
            write_json(script_run_json(done, converted=None))
        return done.exit_code
    result = convert_reference(settings)
    if args.json:
        write_json(result.json() if done is None else script_run_json(done, converted=result.json()))
    else:
        write_answer(result.text())
    return int(result.code)
