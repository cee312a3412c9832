"""Write dumps of an Ascend NPU, of tfdbg or files of tensors as npy, pt, txt or bin, or a trace in msprobe's layout.

  ulpscope convert DUMPS --to npy -o arrays                             every tensor of every dump file below DUMPS
  ulpscope convert FILE --output 0 --to txt -o arrays                   one tensor
  ulpscope convert DUMPS --to npy --layout NHWC -o arrays               in another layout, padding taken off
  ulpscope convert FILE --input 1 --to npy --layout ND --shape 40,10 -o arrays
  ulpscope convert weights.npz --to txt -o texts                        any file of tensors, or a folder of them
  ulpscope convert tf_debug --to npy -o tf/dump                         a dump of tfdbg, as reference data is named
  ulpscope convert runs/ref --to npy -o tf/dump                         a trace with saved tensors, named alike
  ulpscope convert runs/ref --to msprobe -o dumps/ref

Files are named as msaccucmp names them: DUMP.output.0.npy, with --layout DUMP.output.0.2x40.npy. npy, txt and bin have
bfloat16 and smaller floats as float32. Overflow records become JSON, buffers and workspaces bin files. Dump files that
failed are listed in DIR/convert_failed_file_list.txt.

What operators and calls made becomes OPERATOR.OUTPUT.TIMESTAMP.npy: that of the last step (a run of a session, an
execution of a function), unless --steps names others.

--to msprobe writes DIR/stepN/rankR/dump.json, stack.json, construct.json and, if the trace has data, one .pt file a
tensor, as `msprobe compare` and `msprobe graph_visualize` read them. Several traces each go into a directory of
their own name below DIR. Calls that msprobe has no form for are left out and counted.

Exit codes: 0; 1 if a trace or a file failed; 2 if nothing can be read; 3 if there was nothing to convert.
"""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.cli.command import Parser, Subparsers, add_command, count, refuse, write_answer, write_json
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.dialects.ascend.converting import Wanted

USAGE = (
    "ulpscope convert FILE|DIR|TRACE... --to {npy,pt,txt,bin,msprobe} -o DIR [--input N | --output N]\n"
    "                        [--steps N,N-N] [--layout LAYOUT] [--shape N,N,...] [--converter FILE] [--jobs N]\n"
    "                        [--json] [--language {en,zh}]"
)
TRACE_LAYOUT = "msprobe"
KINDS = ("npy", "pt", "txt", "bin", TRACE_LAYOUT)


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `convert` to the command line."""
    parser = add_command(subparsers, "convert", doc=__doc__, usage=USAGE)
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        type=Path,
        help="dump file, file of tensors, directory of these; for msprobe, a trace",
    )
    parser.add_argument("--to", choices=KINDS, required=True, help="what to write")
    parser.add_argument("-o", "--out", metavar="DIR", type=Path, required=True, help="empty or new directory")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--input", metavar="N", type=count, help="of each dump, only this input")
    one.add_argument("--output", metavar="N", type=count, help="of each dump, only this output")
    parser.add_argument("--steps", metavar="0,2-4", help="of a trace or dump of tfdbg, these steps (default: the last)")
    parser.add_argument("--layout", metavar="LAYOUT", help="NCHW, NHWC, HWCN, ND, NCDHW, NC1HWC0, FRACTAL_NZ, ...")
    parser.add_argument("--shape", metavar="N,N,...", type=_shape, help="shape in that layout, if the dump has none")
    parser.add_argument(
        "--converter",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="convert_A_to_B.py of your own, which is executed; may be given several times",
    )
    parser.add_argument("--jobs", metavar="N", type=count, help="processes (default: one a core)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--language", choices=("en", "zh"), help="of what is said about dumps (default: en)")


def run(args: argparse.Namespace) -> int:
    """Convert, and give the exit code."""
    from ulpscope.capture.settings import parse_ranges
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.convert import convert_dumps, convert_traces

    if args.to == TRACE_LAYOUT:
        refuse(
            args,
            ("input", "output", "steps", "layout", "shape", "converter", "jobs", "language"),
            f"with --to {TRACE_LAYOUT}",
            expected="this option with --to npy, pt, txt or bin, which convert tensors one by one",
            next_step="leave {} out",
        )
        with _progress() as told:
            result = convert_traces(args.sources, out=args.out, told=told)
    else:
        steps = None if args.steps is None else parse_ranges(args.steps, option="--steps")
        how = {"converters": args.converter, "jobs": args.jobs, "steps": steps}
        wanted = _wanted(args)
        with _progress() as told:
            result = convert_dumps(args.sources, wanted, out=args.out, **how, told=told)
    if args.json:
        write_json(result.json())
    else:
        write_answer(result.text(Language(args.language or Language.EN)))
    return int(result.code)


def _wanted(args: argparse.Namespace) -> "Wanted":
    from ulpscope.dialects.ascend.converting import FileKind, Wanted
    from ulpscope.dialects.ascend.dump_file.records import Side

    if args.shape is not None and args.layout is None:
        raise UlpscopeError(
            "--shape without --layout", expected="the layout that the shape is in", next_step="add e.g. --layout ND"
        )
    side = Side.INPUT if args.input is not None else Side.OUTPUT if args.output is not None else None
    index = args.input if args.input is not None else args.output
    return Wanted(FileKind(args.to), args.layout, args.shape, side, index)


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(count(size) for size in text.split(","))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 1,3,224,224") from error


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("converting", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
