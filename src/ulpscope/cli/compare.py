"""Compare two runs and name the first operation that went wrong.

  ulpscope compare runs/ref runs/target                    one answer, on the terminal
  ulpscope compare runs/ref runs/target --out result       summary.json and the tables behind it, too
  ulpscope compare runs/ref runs/target --steps 0 --json   one JSON object on stdout
  ulpscope compare runs/ref runs/target --plan             which call is compared with which
  ulpscope compare runs/ref runs/target --replay on        every call executed again: who made which error
  ulpscope compare compare.json                            as an old msprobe config says
  ulpscope compare cpu-result gpu-result                   errors of two devices: results of ulpscope check --out
  ulpscope compare tf/dump npu/dump --graph GRAPH          a network on an Ascend NPU, operator by operator

REFERENCE is the run that is trusted, TARGET the one under suspicion: traces of ulpscope, dumps of msprobe, or dumps of
Ascend NPUs; with --graph, REFERENCE is what a framework dumped of the same network (docs/compare-network.md). Exit
codes: 0 they agree, 1 they diverge (or, with --require-all, are not compared in full), 2 an input cannot be read,
3 nothing could be compared.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.cli import compare_network
from ulpscope.cli.arguments import Parser, Subparsers, add_command
from ulpscope.cli.output import deliver, write_answer
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.worker_pool import usable_cores

if TYPE_CHECKING:
    from ulpscope.workflows.compare.command import CompareOptions, CompareResult

USAGE = "ulpscope compare REFERENCE TARGET [options]"


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `compare` to the command line."""
    parser = add_command(subparsers, "compare", doc=__doc__ or "", usage=USAGE)
    parser.add_argument("reference", metavar="REFERENCE", type=Path, help="the run that is trusted")
    parser.add_argument("target", metavar="TARGET", type=Path, nargs="?", help="the run under suspicion")
    scope = parser.add_argument_group("what is compared")
    scope.add_argument("--steps", metavar="0,2-4", help="training steps (default: all that both have)")
    scope.add_argument("--ranks", metavar="0,2-4", help="ranks of a distributed run (default: all that both have)")
    scope.add_argument(
        "--map", metavar="FILE.yaml", type=Path, help="modules, operations or tensors that belong together"
    )
    scope.add_argument(
        "--require-all",
        action="store_true",
        help="runs that agree are incomplete (exit 1) unless every rank, step, call and tensor of both was compared",
    )
    scope.add_argument("--plan", action="store_true", help="print which call is compared with which, and stop")
    judge = parser.add_argument_group("how")
    judge.add_argument(
        "--standard",
        metavar="NAME",
        default="rounding",
        help="rounding (default), msprobe, cosine:0.98, or a YAML file",
    )
    judge.add_argument(
        "--replay",
        choices=("auto", "on", "off"),
        default="auto",
        help="execute calls again, where both runs saved tensors: suspects (auto), all (on), none (off)",
    )
    judge.add_argument("--details", action="store_true", help="ULP and KL divergence too, where tensors were saved")
    judge.add_argument(
        "--jobs", metavar="N", type=int, default=usable_cores(), help="threads that read tensors (default: cores)"
    )
    compare_network.add_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--out", "-o", metavar="DIR", type=Path, help="write summary.json, tensors.csv, ... there")
    output.add_argument("--overwrite", action="store_true", help="replace an earlier result in DIR")
    output.add_argument("--xlsx", action="store_true", help="write tensors.xlsx, too (with --out)")
    output.add_argument("--json", action="store_true", help="one JSON object on stdout")
    output.add_argument("--language", choices=("en", "zh"), default="en", help="of sentences (default: en)")


def run(args: argparse.Namespace) -> int:
    """Compare, and give the exit code."""
    from ulpscope.report.progress import progress
    from ulpscope.workflows.compare.checks import compare_checks, is_check_result
    from ulpscope.workflows.compare.command import compare

    _check(args)
    reference, target = _sides(args)
    if is_check_result(reference) and is_check_result(target):
        _refuse_options_of_runs(args)
        return deliver(args, lambda _: compare_checks(reference, target))
    options = _options(args)
    if compare_network.is_wanted(args):
        _refuse_require_all(args)
        return compare_network.run(args, reference, target, options)
    if args.plan:
        return _print_plan(reference, target, options, as_json=args.json)

    def compared(_: object) -> "CompareResult":
        with progress("comparing tensors") as advance:
            return compare(reference, target, options, advance=advance)

    return deliver(args, compared, xlsx=args.xlsx)


def _refuse_options_of_runs(args: argparse.Namespace) -> None:
    flags = ("steps", "ranks", "map", "plan", "details", "xlsx", "require_all")
    given = [name.replace("_", "-") for name in flags if getattr(args, name)]
    usual = {"standard": "rounding", "replay": "auto"}
    given += [name for name, default in usual.items() if getattr(args, name) != default]
    if given:
        raise UlpscopeError(
            f"--{given[0]} with two results of ulpscope check",
            expected="two runs; what is checked is chosen by ulpscope check",
            next_step=f"leave out --{given[0]}",
        )


def _refuse_require_all(args: argparse.Namespace) -> None:
    if args.require_all:
        raise UlpscopeError(
            "--require-all with --graph or an operator of a network",
            expected="two runs; of a network the result says which operators were not compared",
            next_step="leave out --require-all",
        )


def _print_plan(reference: Path, target: Path, options: "CompareOptions", *, as_json: bool) -> int:
    from ulpscope.align.plan import plan_json, plan_lines
    from ulpscope.report.tables import plain
    from ulpscope.workflows.compare.command import open_both, plan_comparison

    plan = plan_comparison(open_both(reference, target), options).plan
    if as_json:
        write_answer(json.dumps(plan_json(plan), allow_nan=False) + "\n")
        return 0
    write_answer("".join(f"{plain(line).plain}\n" for line in plan_lines(plan)))
    return 0


def _options(args: argparse.Namespace) -> "CompareOptions":
    from ulpscope.capture.settings import parse_ranges
    from ulpscope.judge.standards.by_name import parse_standard
    from ulpscope.records.ledger import Replay
    from ulpscope.workflows.compare.command import CompareOptions

    # A mistake is told at once, not after the comparison.
    parse_standard(args.standard)
    return CompareOptions(
        steps=None if args.steps is None else parse_ranges(args.steps, option="--steps"),
        ranks=None if args.ranks is None else parse_ranges(args.ranks, option="--ranks"),
        mapping=args.map,
        details=args.details,
        jobs=args.jobs,
        standard=args.standard,
        replay=Replay(args.replay),
        require_all=args.require_all,
    )


def _sides(args: argparse.Namespace) -> tuple[Path, Path]:
    """The two runs, also where an old compare.json names them."""
    from ulpscope.workflows.compare.command import compare_configured

    if args.target is not None:
        return args.reference, args.target
    configured = compare_configured(args.reference) if args.reference.is_file() else None
    if configured is None and not args.reference.exists():
        raise UlpscopeError(
            f"{args.reference} does not exist",
            expected="a trace and a second one, or an old compare.json",
            next_step=f"check the path; {USAGE}",
        )
    if configured is None:
        raise UlpscopeError(
            f"one run, {args.reference}",
            expected="two: the reference and the target",
            next_step=f"ulpscope compare {args.reference} TARGET",
        )
    return configured.reference, configured.target


def _check(args: argparse.Namespace) -> None:
    if args.xlsx and args.out is None:
        raise UlpscopeError("--xlsx without --out", expected="a directory for it", next_step="add --out DIR")
    if args.jobs < 1:
        raise UlpscopeError(f"--jobs {args.jobs}", expected="a number from 1 up", next_step="leave it out: all cores")
