"""A directory of graphs: each is compared with the dumps of its network, one after another."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulpscope.dialects.ascend.tree import DumpFolder
from ulpscope.dialects.graphs.opening import is_graph, open_graph
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Outcome
from ulpscope.records.graphs import GraphModel
from ulpscope.records.pairs import Pair
from ulpscope.report.language import Language
from ulpscope.workflows.compare_network import NetworkOptions, NetworkResult, judge_network, paired_network
from ulpscope.workflows.compare_network_dumps import Chosen, dump_folders, matching_model, read_dumps
from ulpscope.workflows.results import SUMMARY, write_json, writing

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance

_NUMBERS = re.compile(r"\d+")


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
        return f"{self.folder.device}_{self.folder.model or self.model.graphs[0].name}_{self.folder.step}"


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
        return "\n".join([*told, *(f"{sentence}\n" for sentence in self.left_out)])

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
            "networks": networks,
            "missing": list(self.left_out),
        }

    def write(self, out: Path, *, xlsx: bool = False, language: Language = Language.EN) -> None:
        """Write a directory a network, and summary.json of all."""
        with writing(out):
            for network, result in self.results:
                (out / network.name).mkdir()
                table_name = f"{network.name}_result"
                result.write(out / network.name, xlsx=xlsx, language=language, table_name=table_name)
            write_json(out / SUMMARY, self.json(language))


def compare_networks(
    reference: Path, dumps: Path, graphs: Path, options: NetworkOptions, *, advance: "Advance"
) -> BatchResult:
    """Compare the network of each graph file of a directory, on every device that dumped it."""
    networks, left_out = _networks(dumps, _graphs(graphs), options.chosen)
    results = []
    for network in networks:
        found = read_dumps(network.folder, network.missing)
        sides = Pair(reference, network.folder.path)
        paired = paired_network(network.model, found, sides, network.graph, options)
        results.append((network, judge_network(paired, options, advance)))
    return BatchResult(tuple(results), tuple(left_out))


def _graphs(directory: Path) -> list[tuple[Path, GraphModel]]:
    files = [path for path in sorted(directory.iterdir()) if is_graph(path)]
    # GE writes the same graph as text and as JSON of the same name; one of them is enough.
    chosen = {path.with_suffix("") if path.suffix == ".json" else path: path for path in reversed(files)}
    if not chosen:
        raise UlpscopeError(
            f"{directory} holds no graph",
            expected="graph files of the networks that were dumped",
            next_step="name the graph file, or the directory that holds some: --graph GRAPH",
        )
    return [(path, open_graph(path)) for path in sorted(chosen.values())]


def _networks(
    dumps: Path, graphs: Sequence[tuple[Path, GraphModel]], chosen: Chosen
) -> tuple[list[Network], list[str]]:
    folders = dump_folders(dumps)
    networks, left_out = [], []
    for path, model in graphs:
        found, missing = _folders_of(model, folders, chosen)
        if not found:
            left_out.append(f"{path}: no dumps of {model.graphs[0].name if model.graphs else model.name}")
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
    name = model.graphs[0].name if model.graphs else model.name
    models = [folder.model for folder in folders if folder.model is not None]
    missing: tuple[str, ...] = ()
    matching = matching_model(name, models)
    if matching is None:
        matching = next((other for other in models if _number(other) == _number(name) is not None), None)
        missing = (f"the dumps are of {matching}, the graph is {name}: made at different times",)
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
