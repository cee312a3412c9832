"""The options of `ulpscope check` for operators that an NPU dumped."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.cli.arguments import Parser
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.records.check_runs import CheckOptions
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.check.command import CheckResult

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
    from ulpscope.cli.check_modes import counting
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
