"""Mutated graph files: a graph, or an error that names the file; never a crash, and in bounded time and memory."""

import random
import tracemalloc
from pathlib import Path

import pytest
from tests.unit.graph_files import CALLS, GRAPHS, NETWORK, NETWORK_JSON

from ulpscope.dialects.graphs.opening import is_graph, read_graph
from ulpscope.graph.query import OperatorFilter, borders, cut_out, made_at, match_operators, type_counts
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import GraphModel
from ulpscope.report.files.graph_drawing import svg_text
from ulpscope.workflows.show.graph import show_graph

TOKENS = (
    b"{", b"}", b"<", b">", b"[", b"]", b'"', b"\\", b"\\377", b":", b"-1", b"9" * 40, b"1e999", b"nan", b"\xff",
    b"\x00", b"op {", b"node {", b'input: "x:0"', b"null", b"\x80" * 11, b"\xff\xff\xff\xff\x0f", b"\n", b"#",
)  # fmt: skip
SEEDS = {
    "network.txt": NETWORK.read_bytes(),
    "network.json": NETWORK_JSON.read_bytes(),
    "calls.txt": CALLS.encode(),
    "branches.onnx": (GRAPHS / "branches.onnx").read_bytes(),
    "branches.pbtxt": (GRAPHS / "branches.pbtxt").read_bytes(),
    "session.pb": (GRAPHS / "session.pb").read_bytes(),
    "functions.meta": (GRAPHS / "functions.meta").read_bytes(),
    "functions.pbtxt": (GRAPHS / "functions.pbtxt").read_bytes(),
}


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One to three changes: a byte, a token, a piece cut out, doubled or moved, the end cut off."""
    for _ in range(chance.randint(1, 3)):
        place, other = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        other = min(other, place + chance.choice((1, 8, 200, 5000)))
        piece = data[place:other]
        data = chance.choice(
            (
                data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :],
                data[:place] + chance.choice(TOKENS) + data[place:],
                data[:place] + chance.choice(TOKENS) + data[other:],
                data[:place] + data[other:],
                data[:place] + piece + data[place:],
                data[:place],
            )
        )
    return data


def use(model: GraphModel) -> None:
    """Everything that is done with a graph."""
    type_counts(model)
    match_operators(model, OperatorFilter(name="a", fusion_pass="b", kernel="c"))
    known = borders(model)
    for graph in model.graphs:
        for operator in graph.operators[:3]:
            svg_text(cut_out(graph, operator.name, depth=2))
            for each in operator.inputs:
                if each.source is not None:
                    made_at(known, graph.name, each.source)


@pytest.mark.parametrize("name", SEEDS)
def test_mutated_files(tmp_path: Path, name: str) -> None:
    chance = random.Random(name)
    path = tmp_path / name
    outcomes = {True: 0, False: 0}
    for _ in range(150):
        path.write_bytes(mutated(SEEDS[name], chance))
        is_graph(path)
        problem = _problem(path)
        assert problem is None or problem.startswith(f"{path} ")
        outcomes[problem is None] += 1
    assert min(outcomes.values()) > 0


def _problem(path: Path) -> str | None:
    try:
        use(read_graph(path))
    except UlpscopeError as error:
        return error.seen
    return None


def test_numbers_of_tensors_are_not_counted_up_to(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text('graph { op { name: "a" type: "A" } op { name: "b" type: "B" input: "a:999999999" } }')
    text = show_graph(path, node="a").text()
    assert text.split()[-2:] == ["999999999", "b:0"]
    attribute = 'attribute { name: "input_desc_dtype:9999" s: "DT_FLOAT" type: STRING }'
    path.write_text(f'graph {{ node {{ name: "a" op_type: "ge:A" {attribute} }} }}')
    with pytest.raises(UlpscopeError, match="describes input 9999 of an operator with 1 attributes"):
        read_graph(path)


@pytest.mark.parametrize(
    "content",
    [
        b'graph { op { name: [] type: "A" id: [] input_desc { dtype: [] } attr { key: "a" value { s: [] } } } }',
        b'graph { op { name: "a" attr { key: "a" value { t { desc { dtype: [] } data: [] } } } } }',
        b'graph { node { op_type: "A" attribute { name: "a" type: [] i: [] } attribute { type: FLOAT f: [] } } }',
        b'node { op: "A" attr { key: "a" value { list: [] tensor { dtype: [] } } } }',
        b'node { op: "A" attr { key: "a" value { tensor { dtype: [] } } } }',
        b'{"graph": [{"op": [{"name": [], "output_desc": [{"dtype": [], "shape": []}], "attr": []}]}]}',
    ],
)
def test_fields_without_a_value_are_as_if_they_were_not_there(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "graph.txt"
    path.write_bytes(content)
    use(read_graph(path))


@pytest.mark.parametrize(
    "content",
    [
        b"\x08\x07\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x0a\x80\x80\x80\x80\x08" + b"\x00" * 100,
        b"graph { op { input_desc { shape { dim: 99999999999999 } } } }",
        b'graph { op { attr { key: "a" value { list { i: 1 } } } } }' + b" " * 100_000,
    ],
)
def test_memory_is_bounded_by_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "graph.onnx"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        read_graph(path)
    except UlpscopeError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2_000_000
