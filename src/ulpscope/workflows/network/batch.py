"""A directory of graphs: each is compared with the dumps of its network, one after another."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulpscope.align.network.planning import network_name
from ulpscope.dialects.ascend.tree import DumpFolder
from ulpscope.dialects.graphs.opening import is_graph, open_graph
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Outcome
from ulpscope.records.graphs import GraphModel
from ulpscope.records.pairs import Pair
from ulpscope.records.remarks import remark
from ulpscope.report.words.language import Language, remark_text
from ulpscope.workflows.network.command import NetworkOptions, NetworkResult, judge_network
from ulpscope.workflows.network.pairing import paired_network
from ulpscope.workflows.network.sides import Chosen, matching_model, npu_run, read_dumps
from ulpscope.workflows.results import SUMMARY, write_json, writing

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance

_NUMBERS = re.compile(r"\d+")
_STAGE = re.compile(r"ge_(?:proto|onnx)_\d+_(?P<graph>graph_\d+_)?(?P<stage>[A-Za-z]+)")
_LAST_STAGE = "Build"


@dataclass(frozen=True, slots=True)
class Network:
    """A graph, and the dumps of one device of its network."""

    graph: Path
    model: GraphModel
    folder: DumpFolder
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`0_ge_default_20260101000000_11_0`: device, network and step, as msaccucmp names its files."""
        return f"{self.folder.device}_{self.folder.model or network_name(self.model)}_{self.folder.step}"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What comparing several networks found."""

    results: tuple[tuple[Network, NetworkResult], ...]
    left_out: tuple[str, ...]

    @property
    def code(self) -> ExitCode:
        """The worst of them."""
        codes = {result.code for _, result in self.results}
        order = (ExitCode.DIFFERENCE, ExitCode.OK, ExitCode.NOTHING)
        return next((code for code in order if code in codes), ExitCode.NOTHING)

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        told = [
            f"{network.name}\n{result.text(width=width, color=color, language=language)}"
            for network, result in self.results
        ]
        return "\n".join([*told, *(f"{remark_text(each, language)}\n" for each in self.left_out)])

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        networks = [{"name": network.name, **result.json(language)} for network, result in self.results]
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
            for network, result in self.results:
                named = replace(result, table_name=f"{network.name}_result")
                named.write(_free(out / network.name), xlsx=xlsx, language=language)
            write_json(out / SUMMARY, self.json(language))


def _free(folder: Path) -> Path:
    """Two models of one network on a device differ only in the number after its name."""
    others = (folder.with_name(f"{folder.name}_{number}") for number in count(1))
    return next(path for path in chain((folder,), others) if not path.exists())


def compare_networks(
    reference: Path, dumps: Path, graphs: Path, options: NetworkOptions, *, advance: "Advance"
) -> BatchResult:
    """Compare the network of each graph file of a directory, on every device that dumped it."""
    models, unread = _graphs(graphs)
    networks, left_out = _networks(dumps, models, options.chosen)
    results = []
    for network in networks:
        found = read_dumps(network.folder, network.missing)
        sides = Pair(reference, network.folder.path)
        paired = paired_network(network.model, found, sides, network.graph, options)
        results.append((network, judge_network(paired, options, advance)))
    return BatchResult(tuple(results), (*unread, *left_out))


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
    return [path for path in files if path not in earlier and not _is_copy(path)]


def _is_copy(path: Path) -> bool:
    """Whether this is what atc made of the text beside it."""
    return path.suffix == ".json" and path.with_suffix("").is_file()


def _networks(
    dumps: Path, graphs: Sequence[tuple[Path, GraphModel]], chosen: Chosen
) -> tuple[list[Network], list[str]]:
    run = npu_run(dumps)
    networks, left_out = [], run.left_out
    for path, model in graphs:
        found, missing = _folders_of(model, run.folders, chosen)
        if not found:
            left_out.append(remark("no_dumps_of_graph", path=path, graph=network_name(model)))
        networks += [Network(path, model, folder, missing) for folder in found]
    if not networks:
        raise UlpscopeError(
            f"{dumps} holds dumps of none of the {len(graphs)} graphs",
            expected="directories called as the graphs are: time/device/NETWORK/model id/step",
            next_step="compare one of them: --graph FILE",
            code=ExitCode.NOTHING,
        )
    return networks, left_out


def _folders_of(
    model: GraphModel, folders: Sequence[DumpFolder], chosen: Chosen
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
        and (chosen.ranks is None or folder.device in chosen.ranks)
        and (chosen.steps is None or folder.step in chosen.steps)
    ]
    latest: dict[tuple[int, int | None], DumpFolder] = {}
    for folder in sorted(wanted, key=lambda each: each.step):
        latest[folder.device, folder.model_id] = folder
    return list(latest.values()), missing


def _number(name: str) -> str | None:
    """`11` of ge_default_20260101000000_11."""
    numbers = _NUMBERS.findall(name)
    return numbers[1] if len(numbers) == 2 else None
