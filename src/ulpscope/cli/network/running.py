"""What the commands that run a training script share: how they tell what was wrong with the settings, and what came."""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ulpscope.records.tf_runs import ScriptRun
    from ulpscope.workflows.tf_runs.running import Streams
    from ulpscope.workflows.tf_runs.settings import Settings


def tell_problems(settings: "Settings") -> None:
    """On stderr: the run goes on with what is right."""
    for problem in settings.problems:
        print(f"ulpscope: {problem}", file=sys.stderr, flush=True)


def tell_run(done: "ScriptRun") -> None:
    """On stderr: stdout is the script's."""
    from ulpscope.report.terminal.tf_runs import script_run_text

    sys.stdout.flush()
    print(script_run_text(done), file=sys.stderr, flush=True)


def streams(args: argparse.Namespace) -> "Streams":
    """The script's stdout is ours; with --json it goes to stderr."""
    from ulpscope.workflows.tf_runs.running import Streams

    return Streams(stdout=sys.stderr.fileno() if args.json else None)
