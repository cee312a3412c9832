"""Tell what an Ascend compiler fused how often, which pass changes numbers, and write a file that switches passes off.

  ulpscope fusion fusion_result.json                            the passes that took effect, graph by graph
  ulpscope fusion fusion_switch.cfg                             what a switch file says
  ulpscope fusion fusion_result.json --switch-off MatMulBiasAddFusionPass --out fusion_switch.cfg
  ulpscope fusion fusion_result.json --switch-off ALL --out fusion_off.cfg
  ulpscope fusion ON OFF --graph ON.txt --close-graph OFF.txt   dumps of both: whose operators part

Exit codes: 0; 1 operators part; 2 a file cannot be read, or a pass is not known; 3 no pass has run, or nothing was
compared.
"""

import argparse
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command, add_telling, tell
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.worker_pool import usable_cores

USAGE = (
    "ulpscope fusion FILE [--switch-off PASS[,PASS] --out FILE] [--json]   or   "
    "ulpscope fusion ON OFF --graph GRAPH --close-graph GRAPH [--json]"
)


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `fusion` to the command line."""
    parser = add_command(subparsers, "fusion", doc=__doc__, usage=USAGE)
    parser.add_argument(
        "file", metavar="FILE|ON", type=Path, help="fusion_result.json, or a switch file; or a dump with fusion"
    )
    parser.add_argument("off", metavar="OFF", type=Path, nargs="?", help="a dump of the same network without fusion")
    parser.add_argument("--switch-off", metavar="PASS[,PASS]", help="passes that the written file switches off; or ALL")
    parser.add_argument("--out", "-o", metavar="FILE", type=Path, help="switch file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace that file")
    parser.add_argument("--graph", metavar="GRAPH", type=Path, help="graph that dumped ON: ge_proto_*_Build.txt")
    parser.add_argument("--close-graph", metavar="GRAPH", type=Path, help="graph that dumped OFF")
    add_telling(parser)


def run(args: argparse.Namespace) -> int:
    """Read, perhaps write, and give the exit code."""
    from ulpscope.report.progress import progress
    from ulpscope.workflows.fusion import analyse_fusion, fusion

    names = [name.strip() for name in (args.switch_off or "").split(",") if name.strip()]
    _check(args, names)
    if args.off is None:
        return tell(args, fusion(args.file, switch_off=names, out=args.out, overwrite=args.overwrite))
    graphs = {"graph": args.graph, "close_graph": args.close_graph}
    with progress("comparing operators") as advance:
        result = analyse_fusion(args.file, args.off, **graphs, jobs=usable_cores(), advance=advance)
    return tell(args, result)


def _check(args: argparse.Namespace, names: list[str]) -> None:
    graphs = [args.graph, args.close_graph]
    if args.off is None and any(graphs):
        raise UlpscopeError(
            "--graph and --close-graph with one file",
            expected="two dumps, with and without fusion",
            next_step="ulpscope fusion ON OFF --graph GRAPH --close-graph GRAPH",
        )
    if args.off is not None and (None in graphs or names or args.out):
        raise UlpscopeError(
            "two dumps with --switch-off or --out" if names or args.out else "two dumps without their graphs",
            expected="the graphs that dumped them, which say what was fused, and nothing to write",
            next_step="ulpscope fusion ON OFF --graph GRAPH --close-graph GRAPH",
        )
    if bool(names) != (args.out is not None):
        seen = "--switch-off without --out" if names else "--out without --switch-off"
        raise UlpscopeError(
            seen,
            expected="both: which passes, and the file that switches them off",
            next_step="add --switch-off PASS --out fusion_switch.cfg, or leave out both",
        )
