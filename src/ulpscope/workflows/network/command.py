"""`ulpscope compare REFERENCE DUMPS --graph GRAPH`: a whole network, operator by operator.

    result = compare_network("tf/dump", "npu/dump/20260101000000", "ge_proto_00000_Build.txt")
    result.findings[0].module                                  fc1/Relu

Plan (from the graph alone), pairs (with what was dumped), measurements (in processes), then judging as of any two runs.
Two dumps of a device need no graph: operators of equal names are pairs, with msaccucmp's tables beside our own verdict.
Of a directory of graphs each is compared with the dumps of its network, one after another.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulpscope.align.network.pairs import NetworkRow
from ulpscope.align.network.planning import network_name, network_plan_json
from ulpscope.align.network.upstream import members_of
from ulpscope.align.plan import Plan
from ulpscope.diagnose.advice import advise_on_network
from ulpscope.diagnose.comparing import Captured, judge_ranks, summarise
from ulpscope.diagnose.flow.evidence import RankEvidence, gather
from ulpscope.diagnose.flow.states import WRONG, State
from ulpscope.diagnose.network import ReadTensor, network_evidence, with_spans
from ulpscope.dialects.ascend.tree import DumpFolder
from ulpscope.dialects.graphs.opening import is_graph, open_graph
from ulpscope.judge.rounding.masks import masks_differ
from ulpscope.judge.rounding.measuring import RowOutcome, comparable_by_data, refine
from ulpscope.judge.standards.by_name import judge_by, parse_standard
from ulpscope.numerics.pairs.msaccucmp.metrics import Generation
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Outcome
from ulpscope.records.graphs import GraphModel
from ulpscope.records.pairs import Pair
from ulpscope.records.remarks import Counted, remark
from ulpscope.report.files.network_tables import ResultColumns, result_table, write_table
from ulpscope.report.words.language import Language, remark_text
from ulpscope.trace.objects import collector_paused
from ulpscope.workflows.compare.command import CompareResult, compare, paired_values, unseen
from ulpscope.workflows.compare.saved_data import other_masks
from ulpscope.workflows.network.frames import Moment, NetworkRun, network_run
from ulpscope.workflows.network.measuring import TensorReader, Wanted, measure_all, tensor_orders
from ulpscope.workflows.network.pairing import (
    Dumps,
    NetworkOptions,
    OperatorChoice,
    PairedNetwork,
    matching_model,
    npu_run,
    pair_with_graph,
    pair_without_graph,
    paired_network,
    read_dumps,
    was_dumped,
)
from ulpscope.workflows.results import SUMMARY, stamp, write_json, writing

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance


__all__ = [
    "NetworkOptions",
    "NetworkResult",
    "OperatorChoice",
    "compare_network",
    "judge_network",
    "pair_without_graph",
]


@dataclass(frozen=True, slots=True, repr=False)
class NetworkResult(CompareResult):
    """What comparing a network found."""

    paired: PairedNetwork
    outcomes: Mapping[int, RowOutcome]
    options: NetworkOptions
    table_name: str = "result"
    """What the file of msaccucmp's table begins with."""

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return {**CompareResult.json(self, language), "graph": self.paired.graph}

    def table(self) -> list[list[str]]:
        """msaccucmp's result table, the header first."""
        columns = ResultColumns(
            generation=self.options.csv or Generation.OF_2025,
            overflow=self.options.overflow,
            sequence=bool(self.options.operators),
            reference_address=isinstance(self.paired.reference, Dumps),
        )
        return list(result_table(self.paired.rows, self.outcomes, columns, others=self.paired.context))

    def _stacks(self) -> list[list[dict[str, Any]]]:
        return []

    def _write_tables(self, out: Path, *, xlsx: bool, language: Language) -> None:
        CompareResult._write_tables(self, out, xlsx=xlsx, language=language)
        if self.paired.graph is not None:
            write_json(out / "plan.json", network_plan_json(self.paired.plan))
        if self.options.csv is not None:
            write_table(self.table(), out / f"{self.table_name}_{stamp()}.csv")


def compare_network(
    reference: str | Path,
    dumps: str | Path,
    graph: str | Path,
    options: NetworkOptions | None = None,
    *,
    advance: "Advance | None" = None,
) -> NetworkResult:
    """Compare what a device dumped of a network with a reference, and name the first operator that went wrong."""
    options = options or NetworkOptions()
    paired = pair_with_graph(Path(reference), Path(dumps), Path(graph), options)
    with collector_paused():
        return judge_network(paired, options, advance or unseen)


def judge_network(paired: PairedNetwork, options: NetworkOptions, advance: "Advance") -> NetworkResult:
    """Measure all pairs and judge them."""
    rows, standard = (*paired.rows, *paired.context), parse_standard(options.standard)
    details = options.details or (standard is not None and standard.needs_details)
    outcomes = measure_all(
        tensor_orders(rows, overflow=options.overflow),
        Wanted(options.csv, options.overflow, details),
        jobs=options.jobs,
        advance=lambda number: advance(number),
    )
    folder, names = paired.dumps.folder, paired.dumps.call_names
    moment = Moment(Path(paired.names.reference), folder.path, folder.device, folder.step)
    called = {row.operator.name: names[row.tensor.operation.name] for row in paired.rows if row.tensor is not None}
    run_of = partial(network_run, paired.whole, rows, outcomes, moment=moment, names=called)
    run = run_of(chosen=members_of(paired.plan))
    read = TensorReader(rows, outcomes, run.measured)
    sound = _sound(run_of(chosen=members_of(paired.whole)), read) if paired.context else {}
    own = {number: outcome for number, outcome in sorted(outcomes.items()) if number < len(paired.rows)}
    masks = [found.mask for outcome in own.values() if (found := outcome.measurement) is not None]
    plan = Plan((run.plan,), Pair((), ()), Pair((), ()))
    comparison, table = summarise(
        plan,
        judge_ranks([_evidence(run, read, sound)]),
        names=paired.names,
        captured=Captured(levels=("api", "api")),
        missing=[
            *paired.missing,
            *_failures(rows, own),
            *other_masks([mask for mask in masks if mask is not None and masks_differ(mask)]),
        ],
    )
    comparison = replace(comparison, graph=paired.graph, graph_options=paired.options)
    comparison = with_spans(comparison, run.known, run.seen)
    operators = {name: member.operator for name, member in members_of(paired.plan).items()}
    indices = {row.operator.name: row.index for row in paired.rows}
    comparison = replace(comparison, advice=advise_on_network(comparison, operators, table, indices=indices))
    if standard is not None:
        comparison, table = judge_by(standard, comparison, table)
        comparison = with_spans(comparison, run.known, run.seen)
    return NetworkResult(comparison, table, plan, paired, outcomes, options)


def _sound(whole: NetworkRun, read: ReadTensor) -> dict[int, State]:
    """Values that are not wrong in the whole network.

    Of chosen operators alone nobody could tell: what they read has the rounding of all that lies before them.
    """
    [judged] = judge_ranks([_evidence(whole, read, {})])
    ids = judged.evidence.sides.target.id.tolist()
    found = zip(ids, judged.flow.states, strict=True)
    return {value: state for value, state in found if state not in WRONG and state is not State.UNKNOWN}


def _evidence(run: NetworkRun, read: ReadTensor, sound: Mapping[int, State]) -> RankEvidence:
    slots, rows, known = paired_values(run.plan)
    row_of = {value: row for row, value in enumerate(known.sides.target.id.tolist())}
    measured = {row: run.measured[value] for value, row in row_of.items()}
    pairs = comparable_by_data(known, measured)
    compared = {row: found.metrics for row, found in measured.items() if pairs.compared[row]}
    return network_evidence(
        gather(run.plan, slots, rows, refine(pairs, compared)),
        dequantised=frozenset(row_of[value] for value in run.dequantised if value in row_of),
        filters={row_of[value]: shape for value, shape in run.filters.items()},
        read=read,
        sound={row_of[value]: state for value, state in sound.items() if value in row_of},
    )


def _failures(rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome]) -> list[str]:
    failed = [outcome for outcome in outcomes.values() if outcome.reason]
    if not failed:
        return []
    sizes, problem = failed[0].sizes, failed[0].reason
    if sizes is not None:
        tensor = rows[failed[0].row].tensor_id
        problem = remark("sizes_differ", tensor=tensor, reference=sizes.reference, target=sizes.target)
    return [remark("not_measured", tensors=Counted(len(failed), "tensor"), problem=problem)]


def are_dumps(reference: Path, target: Path) -> bool:
    """Whether a device dumped both sides."""
    return was_dumped(reference) and was_dumped(target)


def compare_dumps(reference: Path, target: Path, options: NetworkOptions, *, advance: "Advance") -> NetworkResult:
    """Compare two dumps: judged as any two runs are, with a row a tensor for msaccucmp's table."""
    paired = pair_without_graph(reference, target, options)
    orders = [] if options.csv is None else tensor_orders(paired.rows, overflow=options.overflow)
    wanted = Wanted(options.csv, options.overflow, options.details)
    outcomes = measure_all(orders, wanted, jobs=options.jobs, advance=lambda number: advance(number))
    found = compare(reference, target, options)
    return NetworkResult(found.comparison, found.pairs, found.plan, paired, outcomes, options)


_NUMBERS = re.compile(r"\d+")
_STAGE = re.compile(r"ge_(?:proto|onnx)_\d+_(?P<graph>graph_\d+_)?(?P<stage>[A-Za-z]+)")
_LAST_STAGE = "Build"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What comparing several networks found."""

    results: tuple[tuple[str, NetworkResult], ...]
    """By device, network and step, `0_ge_default_20260101000000_11_0`: as msaccucmp names its files."""
    left_out: tuple[str, ...]

    @property
    def code(self) -> ExitCode:
        """The worst of them."""
        codes = {result.code for _, result in self.results}
        order = (ExitCode.DIFFERENCE, ExitCode.OK, ExitCode.NOTHING)
        return next((code for code in order if code in codes), ExitCode.NOTHING)

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        how: dict[str, Any] = {"width": width, "color": color, "language": language}
        told = [f"{name}\n{result.text(**how)}" for name, result in self.results]
        return "\n".join([*told, *(f"{remark_text(each, language)}\n" for each in self.left_out)])

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        networks = [{"name": name, **result.json(language)} for name, result in self.results]
        verdicts = {network["verdict"] for network in networks}
        order = (Outcome.DIVERGED.value, Outcome.AGREE.value, Outcome.NOTHING_COMPARED.value)
        return {
            "schema": 1,
            "command": "compare",
            "verdict": next((word for word in order if word in verdicts), Outcome.NOTHING_COMPARED.value),
            "findings": [finding for network in networks for finding in network["findings"]],
            "notes": [note for network in networks for note in network["notes"]],
            "counts": {key: sum(each["counts"][key] for each in networks) for key in networks[0]["counts"]},
            "networks": networks,
            "missing": [remark_text(each, language) for each in self.left_out],
        }

    def write(self, out: Path, *, xlsx: bool = False, language: Language = Language.EN) -> None:
        """Write a directory a network, and summary.json of all."""
        with writing(out):
            for name, result in self.results:
                named = replace(result, table_name=f"{name}_result")
                named.write(_free(out / name), xlsx=xlsx, language=language)
            write_json(out / SUMMARY, self.json(language))


def _free(folder: Path) -> Path:
    """Two models of one network on a device differ only in the number after its name."""
    others = (folder.with_name(f"{folder.name}_{number}") for number in count(1))
    return next(path for path in chain((folder,), others) if not path.exists())


def compare_networks(
    reference: Path, dumps: Path, graphs: Path, options: NetworkOptions, *, advance: "Advance"
) -> BatchResult:
    """Compare the network of each graph file of a directory, on every device that dumped it."""
    models, left_out = _graphs(graphs)
    run = npu_run(dumps)
    left_out += run.left_out
    networks = []
    for path, model in models:
        folders, missing = _folders_of(model, run.folders, options)
        if not folders:
            left_out.append(remark("no_dumps_of_graph", path=path, graph=network_name(model)))
        networks += [(path, model, folder, missing) for folder in folders]
    if not networks:
        raise UlpscopeError(
            f"{dumps} holds dumps of none of the {len(models)} graphs",
            expected="directories called as the graphs are: time/device/NETWORK/model id/step",
            next_step="compare one of them: --graph FILE",
            code=ExitCode.NOTHING,
        )
    results = []
    for path, model, folder, missing in networks:
        sides = Pair(reference, folder.path)
        paired = paired_network(model, read_dumps(folder, missing), sides, path, options)
        name = f"{folder.device}_{folder.model or network_name(model)}_{folder.step}"
        results.append((name, judge_network(paired, options, advance)))
    return BatchResult(tuple(results), tuple(left_out))


def _graphs(directory: Path) -> tuple[list[tuple[Path, GraphModel]], list[str]]:
    """The graphs of a directory, one file of each, and why others cannot be read."""
    found: dict[str, tuple[Path, GraphModel]] = {}
    unread = []
    for path in sorted(_last_stages(directory), key=lambda path: (path.suffix != ".pbtxt", path.name)):
        try:
            model = open_graph(path)
        except UlpscopeError as error:
            unread.append(remark("problem", problem=error.seen))
        else:
            # GE's text says more than its ONNX.
            found[network_name(model)] = path, model
    if not found:
        raise UlpscopeError(
            unread[0] if unread else f"{directory} holds no graph",
            expected="graph files of the networks that were dumped",
            next_step="name the graph file, or the directory that holds some: --graph GRAPH",
        )
    return sorted(found.values(), key=lambda each: each[0]), unread


def _last_stages(directory: Path) -> list[Path]:
    """Graph files; of those that GE wrote stage by stage while it compiled, only what was run in the end."""
    files = [path for path in sorted(directory.iterdir()) if is_graph(path)]
    stages = {path: found for path in files if (found := _STAGE.match(path.name)) is not None}
    built = {found["graph"] for found in stages.values() if found["stage"] == _LAST_STAGE}
    earlier = {path for path, found in stages.items() if found["graph"] in built and found["stage"] != _LAST_STAGE}
    # What atc made of the text beside it.
    copies = {path for path in files if path.suffix == ".json" and path.with_suffix("").is_file()}
    return [path for path in files if path not in earlier | copies]


def _folders_of(
    model: GraphModel, folders: Sequence[DumpFolder], options: NetworkOptions
) -> tuple[list[DumpFolder], tuple[str, ...]]:
    """Of each device the highest step of a graph's dumps; by name, else by the number at its end."""
    name = network_name(model)
    models = [folder.model for folder in folders if folder.model is not None]
    missing: tuple[str, ...] = ()
    matching = matching_model(name, models)
    if matching is None:
        matching = next((other for other in models if _number(other) == _number(name) is not None), None)
        missing = (remark("other_time", model=matching, graph=name),)
    wanted = [
        folder
        for folder in folders
        if folder.model == matching is not None
        and (options.ranks is None or folder.device in options.ranks)
        and (options.steps is None or folder.step in options.steps)
    ]
    latest: dict[tuple[int, int | None], DumpFolder] = {}
    for folder in sorted(wanted, key=lambda each: each.step):
        latest[folder.device, folder.model_id] = folder
    return list(latest.values()), missing


def _number(name: str) -> str | None:
    """`11` of ge_default_20260101000000_11."""
    numbers = _NUMBERS.findall(name)
    return numbers[1] if len(numbers) == 2 else None
