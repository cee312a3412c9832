"""Tell what an Ascend compiler fused how often, and write a file that switches passes off.

  ulpscope fusion fusion_result.json                            the passes that took effect, graph by graph
  ulpscope fusion fusion_switch.cfg                             what a switch file says
  ulpscope fusion fusion_result.json --switch-off MatMulBiasAddFusionPass --out fusion_switch.cfg
  ulpscope fusion fusion_result.json --switch-off ALL --out fusion_off.cfg

Exit codes: 0; 2 the file cannot be read, or a pass is not known; 3 no pass has run.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from ulpscope.cli.arguments import Parser, Subparsers, add_command
from ulpscope.cli.output import PIPE_WIDTH, write_answer
from ulpscope.records.errors import UlpscopeError

USAGE = "ulpscope fusion FILE [--switch-off PASS[,PASS] --out FILE] [--json]"


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `fusion` to the command line."""
    parser = add_command(subparsers, "fusion", doc=__doc__ or "", usage=USAGE)
    parser.add_argument("file", metavar="FILE", type=Path, help="fusion_result.json, or a switch file")
    parser.add_argument("--switch-off", metavar="PASS[,PASS]", help="passes that the written file switches off; or ALL")
    parser.add_argument("--out", "-o", metavar="FILE", type=Path, help="switch file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace that file")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Read, perhaps write, and give the exit code."""
    from ulpscope.workflows.fusion import fusion

    names = [name.strip() for name in (args.switch_off or "").split(",") if name.strip()]
    _check(args, names)
    result = fusion(args.file, switch_off=names, out=args.out, overwrite=args.overwrite)
    if args.json:
        write_answer(json.dumps(result.json(), allow_nan=False) + "\n")
    else:
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((80, 24)).columns if terminal else PIPE_WIDTH
        write_answer(result.text(width=width, color=terminal))
    return int(result.code)


def _check(args: argparse.Namespace, names: list[str]) -> None:
    if bool(names) != (args.out is not None):
        seen = "--switch-off without --out" if names else "--out without --switch-off"
        raise UlpscopeError(
            seen,
            expected="both: which passes, and the file that switches them off",
            next_step="add --switch-off PASS --out fusion_switch.cfg, or leave out both",
        )
