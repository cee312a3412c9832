"""Make the HTML page of a result anew, or serve it with the data behind it; or export it for other viewers.

  ulpscope report result                      result/report.html: one file, no network, to be opened or mailed
  ulpscope report result --out page.html      the same, elsewhere
  ulpscope report result --serve              the page on this machine, with the saved tensors behind it
  ulpscope report runs/ref                    trends of a single trace: runs/ref.html
  ulpscope report runs/ref --tensorboard DIR  scalars for TensorBoard

RESULT is a directory that ulpscope compare, check or overflow wrote with --out, or a trace. Exit codes: 0 done,
2 RESULT cannot be read, or the page cannot be written or served, 3 there is nothing to export.
"""

import argparse
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command, count, write_answer
from ulpscope.records.errors import UlpscopeError


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `report` to the command line."""
    parser = add_command(subparsers, "report", doc=__doc__, usage="ulpscope report RESULT [options]")
    parser.add_argument("result", metavar="RESULT", type=Path, help="the directory of a result, or a trace")
    parser.add_argument("--out", "-o", metavar="FILE", type=Path, help="write the page there (default: in RESULT)")
    parser.add_argument("--serve", action="store_true", help="serve the page on 127.0.0.1 until Ctrl-C")
    parser.add_argument("--port", metavar="N", type=int, default=0, help="for --serve (default: any free one)")
    exports = parser.add_argument_group("exports, of a trace or of a comparison's result, instead of the page")
    exports.add_argument("--tensorboard", metavar="DIR", type=Path, help="scalars by step and module")
    exports.add_argument("--model-explorer", metavar="DIR", type=Path, help="graph of a step, with data on its nodes")
    exports.add_argument("--step", metavar="N", type=count, help="step of the graph (default: the finding's, or first)")
    exports.add_argument("--rank", metavar="N", type=count, help="rank of the graph (default: the finding's, or first)")


def run(args: argparse.Namespace) -> int:
    """Make the page, serve it or export, and give the exit code."""
    _check(args)
    if args.tensorboard is not None or args.model_explorer is not None:
        _export(args)
    elif args.serve:
        from ulpscope.workflows.report.serving import serve_report

        serve_report(args.result, port=args.port, announce=_announce)
    else:
        from ulpscope.report.progress import progress
        from ulpscope.workflows.report.command import make_report

        with progress("making the page"):
            page = make_report(args.result, page=args.out)
        write_answer(f"{page}\n")
    return 0


def _announce(address: str) -> None:
    # Whoever waits for the address reads it while the server runs.
    print(address, flush=True)


def _export(args: argparse.Namespace) -> None:
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


def _check(args: argparse.Namespace) -> None:
    exports = args.tensorboard is not None or args.model_explorer is not None
    if exports and (args.serve or args.out is not None):
        raise UlpscopeError(
            f"{'--serve' if args.serve else '--out'} with an export",
            expected="an export, or the page",
            next_step="leave out one of them",
        )
    if args.port and not args.serve:
        raise UlpscopeError("--port without --serve", expected="a page to serve", next_step="add --serve")
    if args.serve and args.out is not None:
        raise UlpscopeError(
            "--out with --serve", expected="a page to write or one to serve", next_step="leave out one of them"
        )
    if args.model_explorer is None and (args.step is not None or args.rank is not None):
        raise UlpscopeError(
            "--step or --rank without --model-explorer",
            expected="one of them only to choose the step of a graph; pages and scalars hold all steps",
            next_step="add --model-explorer DIR, or leave it out",
        )
