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
import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulpscope.cli.command import (
    Parser,
    Result,
    Subparsers,
    add_command,
    add_out,
    add_telling,
    deliver,
    parsed,
    refuse,
    write_answer,
    write_json,
)
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.worker_pool import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ulpscope.workflows.compare.command import CompareResult
    from ulpscope.workflows.network.command import NetworkOptions, OperatorChoice
    from ulpscope.workflows.network.pairing import PairedNetwork

USAGE = "ulpscope compare REFERENCE TARGET [options]"
MOST_TOP = 10_000
_OF_RUNS = ("steps", "ranks", "map", "plan", "details", "xlsx", "require_all", "standard", "replay")
_OF_CALLS = (*_OF_RUNS[2:], "graph")
"""Without steps and ranks."""
_NEEDS_GRAPH = ("close_graph", "quant_graph", "range", "select")
_OF_NETWORKS = ("csv_layout", "overflow", "mapping", "op")


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `compare` to the command line."""
    parser = add_command(subparsers, "compare", doc=__doc__, usage=USAGE)
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
    _add_network(parser)
    output = parser.add_argument_group("output")
    add_out(output, "summary.json, tensors.csv")
    output.add_argument("--xlsx", action="store_true", help="write tensors.xlsx, too (with --out)")
    add_telling(output)


def _add_network(parser: Parser) -> None:
    group = parser.add_argument_group("a network on an Ascend NPU")
    group.add_argument(
        "--graph", metavar="GRAPH", type=Path, help="graph file of TARGET's network, or a directory of several"
    )
    group.add_argument(
        "--close-graph",
        metavar="GRAPH",
        type=Path,
        help="graph of REFERENCE, dumped by a device with fusion off",
    )
    group.add_argument(
        "--quant-graph", metavar="GRAPH", type=Path, help="AMCT's graph: from the quantised network to the original one"
    )
    group.add_argument("--range", metavar="FIRST,LAST,STEP", help="operators by their ids in the graph; LAST -1: all")
    group.add_argument("--select", metavar="ID,ID", help="the same, one by one")
    group.add_argument("--mapping", action="store_true", help="only tell which tensor belongs to which file, as CSV")
    group.add_argument("--op", metavar="OPERATOR", help="one tensor of one operator, element by element")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--output", metavar="N", type=int, help="which output of --op (default: 0)")
    which.add_argument("--input", metavar="N", type=int, help="which input of --op")
    group.add_argument("--top", metavar="N", type=int, help="largest errors that --op lists (default: 20)")
    group.add_argument(
        "--csv-layout", choices=("2022", "2025"), help="columns and metrics of result_*.csv in --out (default: 2025)"
    )
    group.add_argument(
        "--overflow", action="store_true", help="a column OverFlow in result_*.csv: float16 at its limit"
    )


def run(args: argparse.Namespace) -> int:
    """Compare, and give the exit code."""
    from ulpscope.judge.standards.by_name import parse_standard
    from ulpscope.report.progress import progress
    from ulpscope.workflows.compare.checks import compare_checks, is_check_result
    from ulpscope.workflows.compare.command import CompareOptions, compare, plan_comparison
    from ulpscope.workflows.compare.trainings import are_trainings, compare_trainings

    _check(args)
    reference, target = _sides(args)
    if is_check_result(reference) and is_check_result(target):
        expected = "two runs; what is checked is chosen by ulpscope check"
        refuse(args, _OF_RUNS, "with two results of ulpscope check", expected=expected)
        return deliver(args, lambda _: compare_checks(reference, target))
    # A mistake is told at once, not after the comparison.
    parse_standard(args.standard)
    options = parsed(CompareOptions, args, mapping=args.map)
    if are_trainings(reference, target):
        expected = "two traces of calls; of trainings gradients, weights and losses are compared"
        refuse(args, _OF_CALLS, "with two traces of watched gradients", expected=expected)
        return deliver(args, lambda _: compare_trainings(reference, target, steps=options.steps, ranks=options.ranks))
    if _is_network(args):
        return _run_network(args, reference, target)
    if args.plan:
        from ulpscope.align.plan import plan_json, plan_lines
        from ulpscope.dialects.opening import open_run
        from ulpscope.records.pairs import Pair

        plan = plan_comparison(Pair(open_run(reference), open_run(target)), options).plan
        _tell_plan(plan_json(plan) if args.json else plan_lines(plan), as_json=args.json)
        return 0

    def compared(_: object) -> "CompareResult":
        with progress("comparing tensors") as advance:
            return compare(reference, target, options, advance=advance)

    return deliver(args, compared, xlsx=args.xlsx)


def _tell_plan(plan: "dict[str, Any] | Iterable[str]", *, as_json: bool) -> None:
    from ulpscope.report.tables import plain

    if as_json:
        write_json(plan)
    else:
        write_answer("".join(f"{plain(line).plain}\n" for line in plan))


def _sides(args: argparse.Namespace) -> tuple[Path, Path]:
    """The two runs, also where an old compare.json names them."""
    from ulpscope.dialects.msprobe.json_files import is_compare_config, read_compare_config

    if args.target is not None:
        return args.reference, args.target
    if args.reference.is_file() and is_compare_config(args.reference):
        configured = read_compare_config(args.reference)
        return configured.reference, configured.target
    if not args.reference.exists():
        raise UlpscopeError(
            f"{args.reference} does not exist",
            expected="a trace and a second one, or an old compare.json",
            next_step=f"check the path; {USAGE}",
        )
    raise UlpscopeError(
        f"one run, {args.reference}",
        expected="two: the reference and the target",
        next_step=f"ulpscope compare {args.reference} TARGET",
    )


def _is_network(args: argparse.Namespace) -> bool:
    """Whether options ask for a network: a graph, or a table of two dumps without one."""
    if args.graph is None:
        expected = "the graph of the network that was dumped"
        refuse(args, _NEEDS_GRAPH, "without --graph", expected=expected, next_step="add --graph GRAPH")
    return args.graph is not None or any(getattr(args, name) for name in _OF_NETWORKS)


def _run_network(args: argparse.Namespace, reference: Path, target: Path) -> int:
    from ulpscope.align.network.planning import network_plan_json, network_plan_lines
    from ulpscope.numerics.pairs.msaccucmp.metrics import Generation
    from ulpscope.records.enums import ExitCode
    from ulpscope.workflows.network.command import NetworkOptions, are_dumps
    from ulpscope.workflows.results import check_result

    _check_network(args)
    if args.graph is None and not are_dumps(reference, target):
        raise UlpscopeError(
            f"{reference} and {target} are not both dumps of an NPU",
            expected="two of them, or a graph that says which operators belong together",
            next_step="add --graph GRAPH",
        )
    layout = None if args.out is None else Generation(args.csv_layout or Generation.OF_2025.value)
    options = parsed(NetworkOptions, args, mapping=None, operators=_choice(args), csv=layout)
    if args.out is not None:
        check_result(args.out, overwrite=args.overwrite)
    if args.plan:
        plan = _paired(args, reference, target, options).plan
        _tell_plan(network_plan_json(plan) if args.json else network_plan_lines(plan), as_json=args.json)
        return int(ExitCode.OK if plan.groups else ExitCode.NOTHING)
    if args.mapping:
        paired = _paired(args, reference, target, options)
        _tell_mapping(args, paired.mapping())
        return int(ExitCode.OK if paired.matched else ExitCode.NOTHING)
    return deliver(args, lambda _: _compared(args, reference, target, options), xlsx=args.xlsx)


def _compared(args: argparse.Namespace, reference: Path, target: Path, options: "NetworkOptions") -> Result:
    from ulpscope.dialects.ascend.dump_file.records import Side
    from ulpscope.report.progress import progress
    from ulpscope.workflows.network.command import compare_dumps, compare_network, compare_networks
    from ulpscope.workflows.network.detail import DEFAULT_TOP, DetailWish, compare_tensor

    if args.op is not None:
        side, position = (Side.OUTPUT, args.output or 0) if args.input is None else (Side.INPUT, args.input)
        wish = DetailWish(args.op, side, position, args.top or DEFAULT_TOP)
        return compare_tensor(_paired(args, reference, target, options), wish, options)
    with progress("comparing tensors") as advance:
        if args.graph is None:
            return compare_dumps(reference, target, options, advance=advance)
        compare = compare_networks if args.graph.is_dir() else compare_network
        return compare(reference, target, args.graph, options, advance=advance)


def _paired(args: argparse.Namespace, reference: Path, target: Path, options: "NetworkOptions") -> "PairedNetwork":
    from ulpscope.workflows.network.pairing import pair_with_graph, pair_without_graph

    if args.graph is not None and args.graph.is_dir():
        word = "--op" if args.op is not None else "--plan" if args.plan else "--mapping"
        raise UlpscopeError(
            f"{word} with a directory of graphs", expected="one graph", next_step=f"--graph {args.graph}/FILE"
        )
    if args.graph is not None:
        return pair_with_graph(reference, target, args.graph, options)
    return pair_without_graph(reference, target, options)


def _tell_mapping(args: argparse.Namespace, table: list[list[str]]) -> None:
    """As CSV: in a file of --out, else on stdout."""
    from ulpscope.report.files.network_tables import write_table
    from ulpscope.workflows.results import stamp, writing

    if args.out is not None:
        with writing(args.out):
            args.out.mkdir(parents=True, exist_ok=True)
            write_table(table, args.out / f"mapping_{stamp()}.csv")
    if args.json:
        rows = [dict(zip(table[0], line, strict=True)) for line in table[1:]]
        write_json({"schema": 1, "command": "compare", "mapping": rows})
    elif args.out is None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(table)
        write_answer(text.getvalue())


def _choice(args: argparse.Namespace) -> "OperatorChoice":
    from ulpscope.workflows.network.command import OperatorChoice

    if args.select is not None:
        words = [word.strip() for word in args.select.split(",")]
        return OperatorChoice(numbers=frozenset(_number(word, "--select") for word in words if word))
    if args.range is None:
        return OperatorChoice()
    words = args.range.split(",")
    if len(words) != 3:
        raise _bad_number("--range", args.range, "three numbers: FIRST,LAST,STEP")
    first, last, step = (word.strip() for word in words)
    start, pace = _number(first or "0", "--range"), _number(step or "1", "--range")
    end = None if last in ("", "-1") else _number(last, "--range")
    if pace < 1 or (end is not None and end < start):
        raise _bad_number("--range", args.range, "a first id, one that is not smaller, and a step from 1 up")
    return OperatorChoice(span=(start, end, pace))


def _number(word: str, option: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise _bad_number(option, word, "numbers that are ids of operators")
    return int(word)


def _bad_number(option: str, seen: str, expected: str) -> UlpscopeError:
    return UlpscopeError(f"{option} {seen}", expected=expected, next_step="ids: ulpscope show GRAPH --name ''")


def _check(args: argparse.Namespace) -> None:
    if args.xlsx and args.out is None:
        raise UlpscopeError("--xlsx without --out", expected="a directory for it", next_step="add --out DIR")
    if args.jobs < 1:
        raise UlpscopeError(f"--jobs {args.jobs}", expected="a number from 1 up", next_step="leave it out: all cores")


def _check_network(args: argparse.Namespace) -> None:
    expected = "two runs; of a network the result says which operators were not compared"
    refuse(args, ["require_all"], "with --graph or an operator of a network", expected=expected)
    if args.range is not None and args.select is not None:
        raise UlpscopeError("--range and --select", expected="one of them", next_step="leave out one")
    only = [f"--{word}" for word in ("plan", "mapping", "op") if getattr(args, word)]
    if len(only) > 1:
        raise UlpscopeError(" and ".join(only), expected="one of them", next_step=f"leave out {only[-1]}")
    if args.out is None:
        expected, next_step = "a directory for the table", "add --out DIR"
        refuse(args, ("csv_layout", "overflow"), "without --out", expected=expected, next_step=next_step)
    if args.op is None:
        expected, next_step = "the operator that it is of", "add --op OPERATOR"
        refuse(args, ("output", "input", "top"), "without --op", expected=expected, next_step=next_step)
    if args.top is not None and not 1 <= args.top <= MOST_TOP:
        raise UlpscopeError(f"--top {args.top}", expected=f"1 to {MOST_TOP:,}", next_step="choose another number")
    if args.graph is not None and args.replay == "on":
        raise UlpscopeError(
            "--replay on with --graph",
            expected="calls of a framework, which can be executed again",
            next_step=f"leave it out; operators are executed by ulpscope check DUMPS --graph {args.graph}",
        )
    expected = "--graph, which says what belongs together"
    refuse(args, ["map"], "with a network", expected=expected)
