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

from ulpscope.cli.arguments import Parser, Subparsers, add_command, count
from ulpscope.cli.check_modes import (
    FREE_BENCHMARK,
    add_dumps,
    add_modes,
    asks_mode,
    check_mode,
    refuse_for_dumps,
    run_dumps,
    run_mode,
)
from ulpscope.cli.output import tell
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.worker_pool import usable_cores

if TYPE_CHECKING:
    from ulpscope.records.check_runs import CheckOptions
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.check.command import CheckPlan, CheckResult
    from ulpscope.workflows.check.journal import Journal

MSPROBE = "msprobe"
USAGE = "ulpscope check TRACE [options]   or   ulpscope check DUMP --graph GRAPH [options]"


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `check` to the command line."""
    parser = add_command(subparsers, "check", doc=__doc__ or "", usage=USAGE)
    parser.add_argument(
        "trace", metavar="TRACE", type=Path, help="a trace, a dump of msprobe, or a dump of an NPU with --graph"
    )
    _add_what(parser)
    _add_how(parser)
    add_dumps(parser)
    add_modes(parser)
    _add_output(parser)


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


def _add_output(parser: Parser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--out", "-o", metavar="DIR", type=Path, help="write summary.json, result.csv, ... there")
    group.add_argument("--overwrite", action="store_true", help="replace an earlier result in DIR")
    group.add_argument("--resume", action="store_true", help="go on with an earlier check in DIR")
    group.add_argument("--save-failing", action="store_true", help="tensors of failing cases, too (with --out)")
    group.add_argument(
        "--columns",
        choices=("ulpscope", MSPROBE),
        default="ulpscope",
        help="msprobe: accuracy_checking_result and _details with its columns, too (with --out)",
    )
    group.add_argument("--json", action="store_true", help="one JSON object on stdout")
    group.add_argument("--language", choices=("en", "zh"), default="en", help="of sentences (default: en)")


def run(args: argparse.Namespace) -> int:
    """Check, and give the exit code."""
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.check.command import plan_check
    from ulpscope.workflows.check.journal import check_destination

    _check(args)
    options, language = _options(args), Language(args.language)
    if args.graph is not None:
        dumped, page = run_dumps(args, options, language)
        tell(dumped, language, as_json=args.json, page=page)
        return int(dumped.code)
    if asks_mode(args):
        asked, page = run_mode(args, options, language)
        tell(asked, language, as_json=args.json, page=page)
        return int(asked.code)
    if args.out is not None:
        check_destination(args.out, overwrite=args.overwrite, resume=args.resume)
    plan = plan_check(args.trace, options)
    journal = _journal(args, plan, options)
    try:
        result = _execute(plan, options, journal, language)
    finally:
        if journal is not None:
            journal.close()
    page = None if args.out is None else result.write(args.out, language=language)
    if args.columns == MSPROBE:
        result.write_msprobe_tables(args.out)
    tell(result, language, as_json=args.json, page=page)
    return int(result.code)


def _execute(
    plan: "CheckPlan", options: "CheckOptions", journal: "Journal | None", language: "Language"
) -> "CheckResult":
    from ulpscope.records.check_runs import CheckedCase, worst_tested
    from ulpscope.records.checks import Verdict
    from ulpscope.report.progress import progress
    from ulpscope.report.words.check import live_text
    from ulpscope.workflows.check.command import check

    counts: dict[Verdict, int] = {}
    with progress(live_text(counts, language), total=len(plan.cases)) as advance:

        def heard(checked: CheckedCase) -> None:
            verdict = worst_tested((checked.result.forward, checked.result.backward)) or Verdict.SKIP
            counts[verdict] = counts.get(verdict, 0) + 1
            advance(1, text=live_text(counts, language))

        return check(plan, options, journal=journal, heard=heard)


def _journal(args: argparse.Namespace, plan: "CheckPlan", options: "CheckOptions") -> "Journal | None":
    from ulpscope.workflows.check.journal import begin_journal, resume_journal

    if args.out is None:
        return None
    if args.resume:
        return resume_journal(args.out, plan.trace, options)
    return begin_journal(args.out, plan.trace, options, overwrite=args.overwrite)


def _options(args: argparse.Namespace) -> "CheckOptions":
    from ulpscope.capture.settings import parse_ranges
    from ulpscope.records.check_runs import CheckOptions, CheckStandard
    from ulpscope.records.checks import DataSource

    return CheckOptions(
        devices=tuple(dict.fromkeys(device.strip() for device in args.device.split(","))),
        steps=None if args.steps is None else parse_ranges(args.steps, option="--steps"),
        ranks=None if args.ranks is None else parse_ranges(args.ranks, option="--ranks"),
        only=tuple(args.only),
        skip=tuple(args.skip),
        every=args.all,
        stress=not args.no_stress,
        source=None if args.data is None else DataSource(args.data),
        standard=CheckStandard.ROUNDING if asks_mode(args) else CheckStandard(args.standard),
        jobs=args.jobs,
        timeout=args.timeout,
        seed=args.seed,
        references=tuple(args.references),
        save_failing=args.save_failing,
    )


def _check(args: argparse.Namespace) -> None:
    check_mode(args)
    refuse_for_dumps(args)
    if args.columns == MSPROBE and (args.out is None or asks_mode(args) or args.graph is not None):
        raise UlpscopeError(
            "--columns msprobe",
            expected="--out DIR for the tables, and none of --overflow, --perturb and --graph, which msprobe's lack",
            next_step="ulpscope check TRACE --out DIR --columns msprobe",
        )
    for option in ("overwrite", "resume", "save_failing"):
        if getattr(args, option) and args.out is None:
            name = f"--{option.replace('_', '-')}"
            raise UlpscopeError(
                f"{name} without --out", expected="a directory for the result", next_step="add --out DIR"
            )
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
