"""The options of `ulpscope report` that write files for other viewers."""

import argparse
from pathlib import Path

from ulpscope.cli.arguments import count
from ulpscope.cli.output import write_answer
from ulpscope.records.errors import UlpscopeError


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that make an export instead of a page."""
    exports = parser.add_argument_group("exports, of a trace or of a comparison's result, instead of the page")
    exports.add_argument("--tensorboard", metavar="DIR", type=Path, help="scalars by step and module")
    exports.add_argument("--model-explorer", metavar="DIR", type=Path, help="graph of a step, with data on its nodes")
    exports.add_argument("--step", metavar="N", type=count, help="step of the graph (default: the finding's, or first)")
    exports.add_argument("--rank", metavar="N", type=count, help="rank of the graph (default: the finding's, or first)")


def run_exports(args: argparse.Namespace) -> int | None:
    """Write what was asked for, and give the exit code; none if no export was asked for."""
    if args.model_explorer is None and (args.step is not None or args.rank is not None):
        raise UlpscopeError(
            "--step or --rank without --model-explorer",
            expected="one of them only to choose the step of a graph; pages and scalars hold all steps",
            next_step="add --model-explorer DIR, or leave it out",
        )
    if args.tensorboard is None and args.model_explorer is None:
        return None
    from ulpscope.report.progress import progress
    from ulpscope.workflows.report.exports import Wanted, export_model_explorer, export_tensorboard

    exports = []
    with progress("exporting"):
        if args.tensorboard is not None:
            exports.append(export_tensorboard(args.result, args.tensorboard))
        if args.model_explorer is not None:
            wanted = Wanted(rank=args.rank, step=args.step)
            exports.append(export_model_explorer(args.result, args.model_explorer, wanted))
    write_answer("".join(export.text() for export in exports))
    return 0
