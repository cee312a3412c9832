"""Find where a run overflowed: which operation first, on which unit, with which inputs and outputs.

  ulpscope overflow precision_data/overflow/dump      overflow records of an Ascend NPU, the first first
  ulpscope overflow precision_data/npu/debug_0/dump   dumps: float16 that reaches 65504, inf and nan
  ulpscope overflow runs/ref                          a trace: the calls that made inf or nan out of finite numbers
  ulpscope overflow DIR --out result                  and summary.json, overflow.csv, each record as JSON

Calls of torch are executed again on the CPU where torch is installed: does the CPU overflow, too? Exit codes: 0 nothing
overflowed; 1 something did; 2 an input cannot be read; 3 there was nothing to look at.
"""

import argparse
from pathlib import Path

from ulpscope.cli.arguments import Parser, Subparsers, add_command
from ulpscope.cli.output import tell
from ulpscope.records.errors import UlpscopeError

USAGE = "ulpscope overflow DIR|TRACE... [options]"


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `overflow` to the command line."""
    parser = add_command(subparsers, "overflow", doc=__doc__ or "", usage=USAGE)
    parser.add_argument("paths", metavar="DIR|TRACE", nargs="+", type=Path, help="overflow records, dumps, or traces")
    parser.add_argument("--out", "-o", metavar="DIR", type=Path, help="write summary.json, overflow.csv, ... there")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result in DIR")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--language", choices=("en", "zh"), default="en", help="of sentences (default: en)")


def run(args: argparse.Namespace) -> int:
    """Look for overflows, and give the exit code."""
    from ulpscope.report.progress import progress
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.overflow import overflow
    from ulpscope.workflows.results import check_result, prepare_result

    if args.overwrite and args.out is None:
        raise UlpscopeError(
            "--overwrite without --out", expected="a directory for the result", next_step="add --out DIR"
        )
    language = Language(args.language)
    if args.out is not None:
        check_result(args.out, overwrite=args.overwrite)
    with progress("looking for overflows") as advance:
        answer = overflow(args.paths, told=lambda text: advance(1, text=text))
    page = None
    if args.out is not None:
        prepare_result(args.out, overwrite=args.overwrite)
        page = answer.write(args.out, language=language)
    tell(answer, language, as_json=args.json, page=page)
    return int(answer.code)
