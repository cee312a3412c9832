"""Execute every API call of a trace, or operator of a dump, again, and say which ones compute wrongly.

  ulpscope check runs/ref                                  on the CPU
  ulpscope check runs/ref --device cuda:0                  the device under test
  ulpscope check runs/ref --device cuda:0 --out result     summary.json, result.csv and details.csv, too
  ulpscope check runs/ref --only layer_norm --all          every call of one operation
  ulpscope check runs/ref --out result --resume            go on where an earlier check ended
  ulpscope check dump --graph ge_proto_00000_Build.txt     operators that an Ascend NPU dumped, by their definitions

Each call is rebuilt with its recorded data, or with data made like it, executed on the device, forward and backward,
and judged against the same call in high precision on the CPU: no second run, no second device, no accumulated error.
Exit codes: 0 nothing computes wrongly (WARN allowed), 1 a call fails, crashes or takes too long, 2 bad usage or
unreadable input, 3 nothing could be checked, 130 interrupted.
"""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.cli.command import (
    Parser,
    Result,
    Subparsers,
    add_command,
    add_out,
    add_telling,
    count,
    deliver,
    parsed,
    refuse,
    tell,
)
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.worker_pool import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from ulpscope.records.check_runs import CheckedCase, CheckOptions
    from ulpscope.report.progress import Advance
    from ulpscope.report.words.language import Language

MSPROBE = "msprobe"
FREE_BENCHMARK = "free-benchmark"
PERTURBATIONS = ("rounding", "bit_noise", "add_noise", "improve_precision", "change_value", "no_change", "to_cpu")
USAGE = "ulpscope check TRACE [options]   or   ulpscope check DUMP --graph GRAPH [options]"
OF_AN_EXECUTION = (
    "device", "data", "seed", "timeout", "references", "all", "no_stress", "resume", "save_failing", "overflow",
    "perturb",
)  # fmt: skip
"""Options that have no effect on what was dumped."""


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `check` to the command line."""
    parser = add_command(subparsers, "check", doc=__doc__, usage=USAGE)
    parser.add_argument(
        "trace", metavar="TRACE", type=Path, help="a trace, a dump of msprobe, or a dump of an NPU with --graph"
    )
    _add_what(parser)
    _add_how(parser)
    dumps = parser.add_argument_group("operators of an Ascend NPU")
    dumps.add_argument(
        "--graph", metavar="GRAPH", type=Path, help="graph that the device ran when it dumped: ge_proto_*_Build.txt"
    )
    modes = parser.add_argument_group("other questions").add_mutually_exclusive_group()
    modes.add_argument(
        "--overflow", action="store_true", help="calls that made inf or nan of finite numbers: does the CPU, too?"
    )
    modes.add_argument(
        "--perturb",
        metavar="MODE",
        nargs="?",
        const=PERTURBATIONS[0],
        choices=PERTURBATIONS,
        help=f"do outputs move more than they should? by {', '.join(PERTURBATIONS)} (default: {PERTURBATIONS[0]})",
    )
    group = parser.add_argument_group("output")
    add_out(group, "summary.json, result.csv")
    group.add_argument("--resume", action="store_true", help="go on with an earlier check in DIR")
    group.add_argument("--save-failing", action="store_true", help="tensors of failing cases, too (with --out)")
    group.add_argument(
        "--columns",
        choices=("ulpscope", MSPROBE),
        default="ulpscope",
        help="msprobe: accuracy_checking_result and _details with its columns, too (with --out)",
    )
    add_telling(group)


def _add_what(parser: Parser) -> None:
    group = parser.add_argument_group("what is checked")
    group.add_argument("--steps", metavar="0,2-4", help="training steps (default: all)")
    group.add_argument("--ranks", metavar="0,2-4", help="ranks of a distributed run (default: all)")
    group.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        default=[],
        help="operations or calls, e.g. layer_norm, '*.linear.3'",
    )
    group.add_argument("--skip", metavar="PATTERN", action="append", default=[], help="all but these")
    group.add_argument("--all", action="store_true", help="every call, not only one of those that are the same test")
    group.add_argument("--no-stress", action="store_true", help="recorded data only, none that provokes faults")
    group.add_argument(
        "--data",
        choices=("real", "random"),
        help="saved tensors, or tensors made from the stats (default: saved where there are some)",
    )


def _add_how(parser: Parser) -> None:
    group = parser.add_argument_group("how")
    group.add_argument("--device", metavar="D[,D]", default="cpu", help="device under test, or several (default: cpu)")
    group.add_argument(
        "--standard",
        choices=("rounding", "thousandth", "msprobe-a", FREE_BENCHMARK),
        default="rounding",
        help="what rounding explains (default), or an older fixed rule",
    )
    group.add_argument(
        "--jobs", metavar="N", type=int, default=usable_cores(), help="worker processes (default: cores)"
    )
    group.add_argument("--timeout", metavar="S", type=float, default=60.0, help="seconds a case may take (default: 60)")
    group.add_argument("--seed", metavar="N", type=count, default=0, help="of the data that is made (default: 0)")
    group.add_argument(
        "--references",
        metavar="FILE.py",
        type=Path,
        action="append",
        default=[],
        help="your file that calls ulpscope.reference_for; it is executed",
    )


def run(args: argparse.Namespace) -> int:
    """Check, and give the exit code."""
    from ulpscope.records.check_runs import CheckOptions

    _check(args)
    options = parsed(
        CheckOptions,
        args,
        devices=dict.fromkeys(device.strip() for device in args.device.split(",")),
        every=args.all,
        stress=not args.no_stress,
        source=args.data,
        standard="rounding" if _asks_mode(args) else args.standard,
    )
    if args.graph is not None or _asks_mode(args):
        return deliver(args, lambda language: _other_question(args, options, language))
    return _check_calls(args, options)


def _asks_mode(args: argparse.Namespace) -> bool:
    return bool(args.overflow or args.perturb is not None)


def _check_calls(args: argparse.Namespace, options: "CheckOptions") -> int:
    from ulpscope.report.progress import progress
    from ulpscope.report.terminal.check import live_text
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.check.command import check, plan_check
    from ulpscope.workflows.check.journal import begin_journal, check_destination, resume_journal

    language, journal = Language(args.language), None
    if args.out is not None:
        check_destination(args.out, overwrite=args.overwrite, resume=args.resume)
    plan = plan_check(args.trace, options)
    if args.out is not None and args.resume:
        journal = resume_journal(args.out, plan.trace, options)
    elif args.out is not None:
        journal = begin_journal(args.out, plan.trace, options, overwrite=args.overwrite)
    try:
        with progress(live_text({}, language), total=len(plan.cases)) as advance:
            result = check(plan, options, journal=journal, heard=_counting(advance, language))
    finally:
        if journal is not None:
            journal.close()
    page = None if args.out is None else result.write(args.out, language=language)
    if args.columns == MSPROBE:
        result.write_msprobe_tables(args.out)
    return tell(args, result, page=page)


def _other_question(args: argparse.Namespace, options: "CheckOptions", language: "Language") -> Result:
    """What was asked for instead of a check of calls: operators of a dump, overflows, or small changes."""
    from ulpscope.records.checks import Perturbation, PerturbStandard
    from ulpscope.report.progress import progress
    from ulpscope.report.terminal.check import live_text
    from ulpscope.workflows.check.command import check_overflow, check_perturb, plan_overflow, plan_perturb
    from ulpscope.workflows.check.dumps import check_dumps, plan_dump_check

    if args.graph is not None:
        dumped = plan_dump_check(args.trace, args.graph, options)
        with progress(live_text({}, language), total=len(dumped.cases)) as advance:
            heard = _counting(advance, language)
            return check_dumps(dumped, options, figures=args.out is not None, heard=heard)
    if args.overflow:
        overflows = plan_overflow(args.trace, options)
        with progress(live_text({}, language), total=len(overflows.plan.cases)) as advance:
            return check_overflow(overflows, options, heard=_counting(advance, language))
    standard = PerturbStandard.FREE_BENCHMARK if args.standard == FREE_BENCHMARK else PerturbStandard.CONDITION
    plan = plan_perturb(args.trace, options)
    with progress(live_text({}, language), total=len(plan.cases)) as advance:
        heard = _counting(advance, language)
        return check_perturb(plan, options, mode=Perturbation(args.perturb), standard=standard, heard=heard)


def _counting(advance: "Advance", language: "Language") -> "Callable[[CheckedCase], None]":
    from ulpscope.records.check_runs import worst_tested
    from ulpscope.records.checks import Verdict
    from ulpscope.report.terminal.check import live_text

    counts: dict[Verdict, int] = {}

    def heard(checked: "CheckedCase") -> None:
        verdict = worst_tested((checked.result.forward, checked.result.backward)) or Verdict.SKIP
        counts[verdict] = counts.get(verdict, 0) + 1
        advance(1, text=live_text(counts, language))

    return heard


def _check(args: argparse.Namespace) -> None:
    _check_mode(args)
    if args.graph is not None:
        expected = (
            "what the device dumped is judged as it is: only --only, --skip, --steps, --ranks, --standard, "
            "--jobs and options of output"
        )
        refuse(args, OF_AN_EXECUTION, "with --graph", expected=expected)
    else:
        _refuse_dump(args.trace)
    if args.columns == MSPROBE and (args.out is None or _asks_mode(args) or args.graph is not None):
        raise UlpscopeError(
            "--columns msprobe",
            expected="--out DIR for the tables, and none of --overflow, --perturb and --graph, which msprobe's lack",
            next_step="ulpscope check TRACE --out DIR --columns msprobe",
        )
    if args.out is None:
        options, expected = ("overwrite", "resume", "save_failing"), "a directory for the result"
        refuse(args, options, "without --out", expected=expected, next_step="add --out DIR")
    if args.resume and args.overwrite:
        raise UlpscopeError(
            "--resume with --overwrite", expected="one of them", next_step="leave out --overwrite to go on"
        )
    if args.jobs < 1:
        raise UlpscopeError(f"--jobs {args.jobs}", expected="a number from 1 up", next_step="leave it out: all cores")
    if not (math.isfinite(args.timeout) and args.timeout > 0):
        raise UlpscopeError(f"--timeout {args.timeout:g}", expected="seconds, more than 0", next_step="--timeout 60")
    if "" in [device.strip() for device in args.device.split(",")]:
        raise UlpscopeError(f"--device {args.device!r}", expected="names of devices", next_step="--device cpu")
    for file in args.references:
        if not file.is_file():
            raise UlpscopeError(
                f"--references {file} is not a file",
                expected="a Python file that calls ulpscope.reference_for",
                next_step="check the path",
            )


def _check_mode(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect."""
    if args.standard == FREE_BENCHMARK and args.perturb is None:
        raise UlpscopeError(
            f"--standard {FREE_BENCHMARK} without --perturb",
            expected="a standard of the check that was asked for",
            next_step="add --perturb, or leave out --standard",
        )
    if not _asks_mode(args):
        return
    mode = "--overflow" if args.overflow else "--perturb"
    if args.standard not in ("rounding", FREE_BENCHMARK):
        raise UlpscopeError(
            f"--standard {args.standard} with {mode}",
            expected=f"no standard, or {FREE_BENCHMARK} with --perturb",
            next_step="leave out --standard",
        )
    options, next_step = ("resume", "save_failing"), "leave out one of them"
    refuse(args, options, f"with {mode}", expected="one of them", next_step=next_step)


def _refuse_dump(trace: Path) -> None:
    from ulpscope.dialects.ascend.opening import looks_like

    if looks_like(trace):
        raise UlpscopeError(
            f"{trace} is a dump of an NPU, whose operators cannot be executed here",
            expected="the graph that the device ran, which says what its operators are",
            next_step="add --graph ge_proto_*_Build.txt (DUMP_GE_GRAPH=2 makes the device's compiler write it)",
        )
