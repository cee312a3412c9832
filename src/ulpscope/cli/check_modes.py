"""The options of `ulpscope check` that ask something else: --overflow, --perturb, operators that an NPU dumped."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.cli.arguments import Parser
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ulpscope.records.check_runs import CheckedCase, CheckOptions
    from ulpscope.report.progress import Advance
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.check.command import CheckResult
    from ulpscope.workflows.check.modes import OverflowResult, PerturbResult


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
) -> "tuple[OverflowResult | PerturbResult, Path | None]":
    """Execute what was asked for, and write it to --out; gives its page, too."""
    from ulpscope.workflows.results import check_result, prepare_result

    if args.out is not None:
        check_result(args.out, overwrite=args.overwrite)
    result = _overflow(args, options, language) if args.overflow else _perturb(args, options, language)
    if args.out is None:
        return result, None
    prepare_result(args.out, overwrite=args.overwrite)
    return result, result.write(args.out, language=language)


def _overflow(args: argparse.Namespace, options: "CheckOptions", language: "Language") -> "OverflowResult":
    from ulpscope.report.progress import progress
    from ulpscope.report.words.check import live_text
    from ulpscope.workflows.check.modes import check_overflow, plan_overflow

    plan = plan_overflow(args.trace, options)
    with progress(live_text({}, language), total=len(plan.plan.cases)) as advance:
        return check_overflow(plan, options, heard=counting(advance, language))


def _perturb(args: argparse.Namespace, options: "CheckOptions", language: "Language") -> "PerturbResult":
    from ulpscope.records.checks import Perturbation, PerturbStandard
    from ulpscope.report.progress import progress
    from ulpscope.report.words.check import live_text
    from ulpscope.workflows.check.modes import check_perturb, plan_perturb

    standard = PerturbStandard.FREE_BENCHMARK if args.standard == FREE_BENCHMARK else PerturbStandard.CONDITION
    plan = plan_perturb(args.trace, options)
    with progress(live_text({}, language), total=len(plan.cases)) as advance:
        heard = counting(advance, language)
        return check_perturb(plan, options, mode=Perturbation(args.perturb), standard=standard, heard=heard)


def counting(advance: "Advance", language: "Language") -> "Callable[[CheckedCase], None]":
    from ulpscope.records.checks import Verdict
    from ulpscope.report.words.check import live_text

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


def run_dumps(
    args: argparse.Namespace, options: "CheckOptions", language: "Language"
) -> "tuple[CheckResult, Path | None]":
    """Check the operators of a dump, and write the result to --out; gives its page, too."""
    from ulpscope.report.progress import progress
    from ulpscope.report.words.check import live_text
    from ulpscope.workflows.check.dumps import check_dumps, plan_dump_check
    from ulpscope.workflows.results import check_result, prepare_result

    if args.out is not None:
        check_result(args.out, overwrite=args.overwrite)
    plan = plan_dump_check(args.trace, args.graph, options)
    with progress(live_text({}, language), total=len(plan.cases)) as advance:
        result = check_dumps(plan, options, figures=args.out is not None, heard=counting(advance, language))
    if args.out is None:
        return result, None
    prepare_result(args.out, overwrite=args.overwrite)
    return result, result.write(args.out, language=language)


def _refuse_dump(trace: Path) -> None:
    from ulpscope.dialects.ascend.opening import looks_like

    if looks_like(trace):
        raise UlpscopeError(
            f"{trace} is a dump of an NPU, whose operators cannot be executed here",
            expected="the graph that the device ran, which says what its operators are",
            next_step="add --graph ge_proto_*_Build.txt (DUMP_GE_GRAPH=2 makes the device's compiler write it)",
        )
