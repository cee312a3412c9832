"""The functions of a TensorFlow program as graphs, out of what tfdbg2 noted when each of their operators was traced."""

from collections import Counter
from pathlib import Path

from ulpscope.dialects.graphs.messages import GraphFileError
from ulpscope.dialects.tfdbg2_files import DebuggedGraph, graphs_file, read_graphs
from ulpscope.records.graphs import Attributes, Graph, GraphFormat, GraphModel, Input, Operator, Source

UNNAMED = "main"
"""The graph around all functions."""


def debugged_model(path: Path) -> GraphModel:
    """A graph a function, each once a tracing; GraphFileError if there is none."""
    files = graphs_file(path)
    graphs, _ = read_graphs([files])
    known = [graph for graph in graphs.values() if graph.operators]
    if not known:
        raise GraphFileError(f"holds no operator of tfdbg2{_lost(files.told)}")
    names = Counter[str]()
    attributes: Attributes = {"incomplete": tuple(files.told)} if files.told else {}
    return GraphModel("", GraphFormat.TFDBG2, tuple([_graph(each, names) for each in known]), attributes)


def _lost(told: list[str]) -> str:
    return f" ({'; '.join(told)})" if told else ""


def _graph(graph: DebuggedGraph, names: Counter[str]) -> Graph:
    """A function that was traced several times is `step`, `step#1`."""
    plain = graph.name or UNNAMED
    name = f"{plain}#{names[plain]}" if names[plain] else plain
    names[plain] += 1
    operators = [
        Operator(
            name=each.name,
            type=each.type,
            graph=name,
            id=number,
            inputs=tuple([Input(Source(*source)) for source in each.inputs]),
            attributes={"device": each.device} if each.device else {},
        )
        for number, each in enumerate(graph.operators.values())
    ]
    return Graph(name, tuple(operators))
