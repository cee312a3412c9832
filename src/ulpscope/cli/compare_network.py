"""The options of `ulpscope compare` for networks on Ascend NPUs."""

import argparse
import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulpscope.cli.arguments import Parser
from ulpscope.cli.output import deliver, write_answer
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.workflows.compare.command import CompareOptions
    from ulpscope.workflows.network.command import NetworkOptions, OperatorChoice
    from ulpscope.workflows.network.pairing import PairedNetwork

MOST_TOP = 10_000
_ALONE = ("close_graph", "quant_graph", "range", "select")
_TABLES = ("csv_layout", "overflow", "mapping", "op")


def add_arguments(parser: Parser) -> None:
    """Add them as a group of their own."""
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


def is_wanted(args: argparse.Namespace) -> bool:
    """Whether options ask for a network: a graph, or a table of two dumps without one."""
    without = [name for name in (*_ALONE,) if getattr(args, name) is not None]
    if args.graph is None and without:
        raise UlpscopeError(
            f"--{without[0].replace('_', '-')} without --graph",
            expected="the graph of the network that was dumped",
            next_step="add --graph GRAPH",
        )
    return args.graph is not None or any(getattr(args, name) for name in _TABLES)


def run(args: argparse.Namespace, reference: Path, target: Path, ordinary: "CompareOptions") -> int:
    """Compare a network, and give the exit code."""
    from ulpscope.workflows.network.command import are_dumps
    from ulpscope.workflows.results import check_result

    _check(args)
    if args.graph is None and not are_dumps(reference, target):
        raise _needs_graph(reference, target)
    options = _options(args, ordinary)
    if args.out is not None:
        check_result(args.out, overwrite=args.overwrite)
    if args.plan:
        return _tell_plan(_paired(args, reference, target, options), as_json=args.json)
    if args.mapping:
        return _tell_mapping(args, _paired(args, reference, target, options))
    return deliver(args, lambda _: _compared(args, reference, target, options, ordinary), xlsx=args.xlsx)


def _compared(
    args: argparse.Namespace, reference: Path, target: Path, options: "NetworkOptions", ordinary: "CompareOptions"
) -> Any:
    from ulpscope.report.progress import progress
    from ulpscope.workflows.network.batch import compare_networks
    from ulpscope.workflows.network.command import compare_dumps, compare_network
    from ulpscope.workflows.network.detail import compare_tensor

    if args.op is not None:
        paired = _paired(args, reference, target, options)
        return compare_tensor(paired, _wish(args), options=options, ordinary=ordinary)
    with progress("comparing tensors") as advance:
        if args.graph is None:
            return compare_dumps(reference, target, options, ordinary, advance=advance)
        if args.graph.is_dir():
            return compare_networks(reference, target, args.graph, options, advance=advance)
        return compare_network(reference, target, args.graph, options, advance=advance)


def _paired(args: argparse.Namespace, reference: Path, target: Path, options: "NetworkOptions") -> "PairedNetwork":
    from ulpscope.workflows.network.command import pair_without_graph
    from ulpscope.workflows.network.pairing import pair_with_graph

    if args.graph is not None and args.graph.is_dir():
        word = "--op" if args.op is not None else "--plan" if args.plan else "--mapping"
        raise UlpscopeError(
            f"{word} with a directory of graphs", expected="one graph", next_step=f"--graph {args.graph}/FILE"
        )
    if args.graph is not None:
        return pair_with_graph(reference, target, args.graph, options)
    return pair_without_graph(reference, target, options)


def _tell_plan(paired: "PairedNetwork", *, as_json: bool) -> int:
    from ulpscope.align.network.planning import network_plan_json, network_plan_lines
    from ulpscope.report.tables import plain

    if as_json:
        write_answer(json.dumps(network_plan_json(paired.plan), allow_nan=False) + "\n")
    else:
        write_answer("".join(f"{plain(line).plain}\n" for line in network_plan_lines(paired.plan)))
    return int(ExitCode.OK if paired.plan.groups else ExitCode.NOTHING)


def _tell_mapping(args: argparse.Namespace, paired: "PairedNetwork") -> int:
    """As CSV: in a file of --out, else on stdout."""
    from ulpscope.report.files.network_tables import write_table
    from ulpscope.workflows.results import stamp, writing

    table = paired.mapping()
    if args.out is not None:
        with writing(args.out):
            args.out.mkdir(parents=True, exist_ok=True)
            write_table(table, args.out / f"mapping_{stamp()}.csv")
    if args.json:
        rows = [dict(zip(table[0], line, strict=True)) for line in table[1:]]
        write_answer(json.dumps({"schema": 1, "command": "compare", "mapping": rows}, allow_nan=False) + "\n")
    elif args.out is None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(table)
        write_answer(text.getvalue())
    return int(ExitCode.OK if paired.matched else ExitCode.NOTHING)


def _options(args: argparse.Namespace, ordinary: "CompareOptions") -> "NetworkOptions":
    from ulpscope.numerics.pairs.msaccucmp.metrics import Generation
    from ulpscope.workflows.network.command import NetworkOptions
    from ulpscope.workflows.network.sides import Chosen

    layout = Generation(args.csv_layout or Generation.OF_2025.value)
    return NetworkOptions(
        close_graph=args.close_graph,
        quant_graph=args.quant_graph,
        operators=_choice(args),
        chosen=Chosen(ordinary.steps, ordinary.ranks),
        csv=layout if args.out is not None else None,
        overflow=args.overflow,
        details=args.details,
        standard=args.standard,
        jobs=args.jobs,
    )


def _choice(args: argparse.Namespace) -> "OperatorChoice":
    from ulpscope.workflows.network.command import OperatorChoice

    if args.select is not None:
        return OperatorChoice(numbers=frozenset(_numbers(args.select, option="--select")))
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


def _numbers(text: str, *, option: str) -> list[int]:
    return [_number(word.strip(), option) for word in text.split(",") if word.strip()]


def _number(word: str, option: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise _bad_number(option, word, "numbers that are ids of operators")
    return int(word)


def _bad_number(option: str, seen: str, expected: str) -> UlpscopeError:
    return UlpscopeError(f"{option} {seen}", expected=expected, next_step="ids: ulpscope show GRAPH --name ''")


def _wish(args: argparse.Namespace) -> Any:
    from ulpscope.dialects.ascend.dump_file.records import Side
    from ulpscope.workflows.network.detail import DEFAULT_TOP, DetailWish

    side, position = (Side.OUTPUT, args.output or 0) if args.input is None else (Side.INPUT, args.input)
    return DetailWish(args.op, side, position, args.top or DEFAULT_TOP)


def _check(args: argparse.Namespace) -> None:
    if args.range is not None and args.select is not None:
        raise UlpscopeError("--range and --select", expected="one of them", next_step="leave out one")
    only = [word for word in ("plan", "mapping", "op") if getattr(args, word)]
    if len(only) > 1:
        seen = " and ".join(f"--{word}" for word in only)
        raise UlpscopeError(seen, expected="one of them", next_step=f"leave out --{only[-1]}")
    of_table = [name for name in ("csv_layout", "overflow") if getattr(args, name)]
    if of_table and args.out is None:
        option = of_table[0].replace("_", "-")
        raise UlpscopeError(
            f"--{option} without --out", expected="a directory for the table", next_step="add --out DIR"
        )
    of_operator = [name for name in ("output", "input", "top") if getattr(args, name) is not None]
    if of_operator and args.op is None:
        raise UlpscopeError(
            f"--{of_operator[0]} without --op", expected="the operator that it is of", next_step="add --op OPERATOR"
        )
    if args.top is not None and not 1 <= args.top <= MOST_TOP:
        raise UlpscopeError(f"--top {args.top}", expected=f"1 to {MOST_TOP:,}", next_step="choose another number")
    if args.graph is not None and args.replay == "on":
        raise UlpscopeError(
            "--replay on with --graph",
            expected="calls of a framework, which can be executed again",
            next_step=f"leave it out; operators are executed by ulpscope check DUMPS --graph {args.graph}",
        )
    if args.map is not None:
        raise UlpscopeError(
            "--map with a network", expected="--graph, which says what belongs together", next_step="leave out --map"
        )


def _needs_graph(reference: Path, target: Path) -> UlpscopeError:
    return UlpscopeError(
        f"{reference} and {target} are not both dumps of an NPU",
        expected="two of them, or a graph that says which operators belong together",
        next_step="add --graph GRAPH",
    )
