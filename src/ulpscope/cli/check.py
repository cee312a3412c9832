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
from ulpscope.cli.output import deliver, tell
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.worker_pool import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from ulpscope.records.check_runs import CheckedCase, CheckOptions
    from ulpscope.report.progress import Advance
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.check.command import CheckPlan, CheckResult
    from ulpscope.workflows.check.journal import Journal
    from ulpscope.workflows.check.modes import OverflowResult, PerturbResult


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
    if args.graph is not None or asks_mode(args):
        return deliver(args, lambda language: run_mode(args, options, language))
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
    from ulpscope.report.terminal.check import live_text
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


PERTURBATIONS = ("bit_noise", "add_noise", "improve_precision", "change_value", "no_change", "to_cpu")
FREE_BENCHMARK = "free-benchmark"


def add_modes(parser: Parser) -> None:
    """Add the options to the parser of `check`."""
    group = parser.add_argument_group("other questions").add_mutually_exclusive_group()
    group.add_argument(
        "--overflow", action="store_true", help="calls that made inf or nan of finite numbers: does the CPU, too?"
    )
    group.add_argument(
        "--perturb",
        metavar="MODE",
        nargs="?",
        const=PERTURBATIONS[0],
        choices=PERTURBATIONS,
        help=f"do outputs move more than they should? by {', '.join(PERTURBATIONS)} (default: {PERTURBATIONS[0]})",
    )


def asks_mode(args: argparse.Namespace) -> bool:
    return bool(args.overflow or args.perturb is not None)


def check_mode(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect."""
    if args.standard == FREE_BENCHMARK and args.perturb is None:
        raise UlpscopeError(
            f"--standard {FREE_BENCHMARK} without --perturb",
            expected="a standard of the check that was asked for",
            next_step="add --perturb, or leave out --standard",
        )
    if not asks_mode(args):
        return
    mode = "--overflow" if args.overflow else "--perturb"
    if args.standard not in ("rounding", FREE_BENCHMARK):
        raise UlpscopeError(
            f"--standard {args.standard} with {mode}",
            expected=f"no standard, or {FREE_BENCHMARK} with --perturb",
            next_step="leave out --standard",
        )
    for option in ("resume", "save_failing"):
        if getattr(args, option):
            raise UlpscopeError(
                f"--{option.replace('_', '-')} with {mode}", expected="one of them", next_step="leave out one of them"
            )


def run_mode(
    args: argparse.Namespace, options: "CheckOptions", language: "Language"
) -> "CheckResult | OverflowResult | PerturbResult":
    """Execute what was asked for instead of a check of calls."""
    if args.graph is not None:
        return _check_dumps(args, options, language)
    return _overflow(args, options, language) if args.overflow else _perturb(args, options, language)


def _overflow(args: argparse.Namespace, options: "CheckOptions", language: "Language") -> "OverflowResult":
    from ulpscope.report.progress import progress
    from ulpscope.report.terminal.check import live_text
    from ulpscope.workflows.check.modes import check_overflow, plan_overflow

    plan = plan_overflow(args.trace, options)
    with progress(live_text({}, language), total=len(plan.plan.cases)) as advance:
        return check_overflow(plan, options, heard=counting(advance, language))


def _perturb(args: argparse.Namespace, options: "CheckOptions", language: "Language") -> "PerturbResult":
    from ulpscope.records.checks import Perturbation, PerturbStandard
    from ulpscope.report.progress import progress
    from ulpscope.report.terminal.check import live_text
    from ulpscope.workflows.check.modes import check_perturb, plan_perturb

    standard = PerturbStandard.FREE_BENCHMARK if args.standard == FREE_BENCHMARK else PerturbStandard.CONDITION
    plan = plan_perturb(args.trace, options)
    with progress(live_text({}, language), total=len(plan.cases)) as advance:
        heard = counting(advance, language)
        return check_perturb(plan, options, mode=Perturbation(args.perturb), standard=standard, heard=heard)


def counting(advance: "Advance", language: "Language") -> "Callable[[CheckedCase], None]":
    from ulpscope.records.checks import Verdict
    from ulpscope.report.terminal.check import live_text

    counts: dict[Verdict, int] = {}

    def heard(checked: "CheckedCase") -> None:
        verdict = checked.result.verdict
        counts[verdict] = counts.get(verdict, 0) + 1
        advance(1, text=live_text(counts, language))

    return heard


WITHOUT_EFFECT: dict[str, object] = {
    "device": "cpu",
    "data": None,
    "seed": 0,
    "timeout": 60.0,
    "references": [],
    "all": False,
    "no_stress": False,
    "resume": False,
    "save_failing": False,
    "overflow": False,
    "perturb": None,
}
"""Options that ask for something of an execution, with what they are if nobody gave them."""


def add_dumps(parser: Parser) -> None:
    """Add the options to the parser of `check`."""
    group = parser.add_argument_group("operators of an Ascend NPU")
    group.add_argument(
        "--graph", metavar="GRAPH", type=Path, help="graph that the device ran when it dumped: ge_proto_*_Build.txt"
    )


def refuse_for_dumps(args: argparse.Namespace) -> None:
    """Say so if the data and the options do not go together."""
    if args.graph is None:
        return _refuse_dump(args.trace)
    given = [name for name, default in WITHOUT_EFFECT.items() if getattr(args, name) != default]
    if given:
        raise UlpscopeError(
            f"--{given[0].replace('_', '-')} with --graph",
            expected="what the device dumped is judged as it is: only --only, --skip, --steps, --ranks, --standard, "
            "--jobs and options of output",
            next_step=f"leave out --{given[0].replace('_', '-')}",
        )
    return None


def _check_dumps(args: argparse.Namespace, options: "CheckOptions", language: "Language") -> "CheckResult":
    from ulpscope.report.progress import progress
    from ulpscope.report.terminal.check import live_text
    from ulpscope.workflows.check.dumps import check_dumps, plan_dump_check

    plan = plan_dump_check(args.trace, args.graph, options)
    with progress(live_text({}, language), total=len(plan.cases)) as advance:
        return check_dumps(plan, options, figures=args.out is not None, heard=counting(advance, language))


def _refuse_dump(trace: Path) -> None:
    from ulpscope.dialects.ascend.opening import looks_like

    if looks_like(trace):
        raise UlpscopeError(
            f"{trace} is a dump of an NPU, whose operators cannot be executed here",
            expected="the graph that the device ran, which says what its operators are",
            next_step="add --graph ge_proto_*_Build.txt (DUMP_GE_GRAPH=2 makes the device's compiler write it)",
        )
