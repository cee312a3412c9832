"""Compare two tensors, all tensors of two files, two graphs, or two environments.

  ulpscope diff reference.npy target.pt                      two tensors: metrics, and where they differ most
  ulpscope diff a.safetensors b.safetensors                  two checkpoints: a line a tensor, the worst first
  ulpscope diff checkpoint-10/ checkpoint-20/                the same, sharded
  ulpscope diff a.safetensors b.pt --key model.norm.weight   one tensor of each
  ulpscope diff a.npz::x b.npz::y --rtol 1e-3                tensors of other names, within a tolerance
  ulpscope diff debug_0/graph/ge_proto_00000_Build.txt debug_1/graph/ge_proto_00000_Build.txt
                                                             operators that two compilations gave other types or layouts
  ulpscope diff here.json there.json                         what two machines have otherwise (ulpscope env -o FILE)
  ulpscope diff runs/ref runs/target                         the same of two traces: also seeds, weights and data

Reads .npy, .npz, .safetensors, what torch.save wrote (.pt, .pth, .bin), and directories of shards, of
torch.distributed.checkpoint and of Megatron, of any type down to float8; nothing in a file is executed. Tensors whose
names differ are paired by what they hold. Numbers of other types are compared by value. Exit codes: 0 all equal, or
within the given tolerance; 1 a difference: also of shapes, or a tensor or operator that one side lacks; 2 a file cannot
be read; 3 nothing in common.
"""

import argparse
import math
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command, count, number, refuse_all, tell

PIPE_WIDTH = 240


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `diff` to the command line."""
    parser = add_command(subparsers, "diff", doc=__doc__, usage="ulpscope diff X Y [options]")
    parser.add_argument(
        "reference", metavar="X", help="file or directory of tensors that is trusted, X::KEY names one; a graph"
    )
    parser.add_argument("target", metavar="Y", help="file or directory of tensors under suspicion; a graph")
    parser.add_argument("--key", metavar="NAME", help="one tensor, by its name in both files")
    tolerance = parser.add_argument_group("what counts as equal: |y - x| <= ATOL + RTOL * |x|")
    positive = number(lambda found: 0.0 <= found < math.inf, "a finite number from 0 up")
    tolerance.add_argument("--atol", type=positive, help="absolute (default: 0)")
    tolerance.add_argument("--rtol", type=positive, help="relative (default: 0)")
    parser.add_argument(
        "-n", metavar="N", type=count, default=10, help="elements, tensors or operators listed; 0 for all (default: 10)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Compare, and give the exit code."""
    from ulpscope.dialects.graphs.opening import is_graph
    from ulpscope.workflows.env.comparing import tells_environment

    if tells_environment(Path(args.reference), Path(args.target)):
        return _diff_environments(args)
    # One graph is enough: what is wrong with the other side, its reader says.
    if is_graph(Path(args.reference)) or is_graph(Path(args.target)):
        return _diff_graphs(args)
    from ulpscope.numerics.pairs.metrics import compiled_available
    from ulpscope.report.progress import progress
    from ulpscope.workflows.diff import diff

    with progress("compiling kernels, once"):
        compiled_available()
    how = {"key": args.key, "atol": args.atol, "rtol": args.rtol, "count": args.n}
    with progress("comparing tensors") as advance:
        result = diff(args.reference, args.target, **how, advance=advance)
    return tell(args, result, pipe_width=PIPE_WIDTH)


def _diff_environments(args: argparse.Namespace) -> int:
    from ulpscope.workflows.env.comparing import diff_of_environments

    refuse_all(args, ("key", "atol", "rtol"), "two environments", expected="only -n and --json")
    return tell(
        args, diff_of_environments(Path(args.reference), Path(args.target), count=args.n), pipe_width=PIPE_WIDTH
    )


def _diff_graphs(args: argparse.Namespace) -> int:
    from ulpscope.report.progress import progress
    from ulpscope.workflows.show.graph import diff_graphs

    refuse_all(args, ("key", "atol", "rtol"), "two graphs", expected="only -n and --json")
    with progress("reading the graphs"):
        result = diff_graphs(Path(args.reference), Path(args.target), limit=args.n)
    return tell(args, result, pipe_width=PIPE_WIDTH)
