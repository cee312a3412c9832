"""Cases of hostile.py: graphs of GE, TensorFlow and ONNX."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ascend_graph import model_text
from ulpscope.dialects.graphs.opening import is_graph, read_graph
from ulpscope.graph.query import borders, cut_out, made_at, type_counts
from ulpscope.report.files.graph_drawing import dot_text, svg_text

DATA = Path(__file__).parents[1] / "tests" / "data"
NETWORK = DATA / "ascend" / "precision_data" / "npu" / "debug_0" / "graph" / "ge_proto_00000_Build.txt"
GRAPHS = DATA / "graphs"


def sound_texts() -> list[bytes]:
    return [model_text(12).encode(), NETWORK.read_bytes()]


def sound_json() -> list[bytes]:
    return [NETWORK.with_name(f"{NETWORK.name}.json").read_bytes()]


def sound_messages() -> list[bytes]:
    return [(GRAPHS / name).read_bytes() for name in ("branches.onnx", "session.pb", "functions.meta")]


def sound_message_texts() -> list[bytes]:
    return [(GRAPHS / name).read_bytes() for name in ("branches.pbtxt", "functions.pbtxt")]


def look_at_graph(path: Path) -> None:
    """Everything that is done with a graph, and drawings of some operators."""
    is_graph(path)
    model = read_graph(path)
    type_counts(model)
    known = borders(model)
    for graph in model.graphs:
        for operator in graph.operators:
            _ = [made_at(known, graph.name, each.source) for each in operator.inputs if each.source is not None]
        for operator in graph.operators[:2]:
            cut = cut_out(graph, operator.name, depth=3)
            dot_text(cut).encode()
            svg_text(cut).encode()


GRAPH_CASES: dict[str, tuple[Callable[[], Sequence[bytes]], Callable[[Path], None]]] = {
    "GE text": (sound_texts, look_at_graph),
    "GE JSON": (sound_json, look_at_graph),
    "messages": (sound_messages, look_at_graph),
    "pbtxt": (sound_message_texts, look_at_graph),
}
