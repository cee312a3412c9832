"""Graphs of TensorFlow as values: what feeds a node, where results were made, what was not read."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ulpscope.capture.tensorflow.graphs.nodes import NotRead, ObservedGraph, Source, parse_graph
from ulpscope.capture.tensorflow.graphs.results import RECORD, ObservedResults
from ulpscope.numerics.summaries.compiled import native_summarizer
from ulpscope.numerics.summaries.constants import ROW_LENGTH, SUM


class Attribute(SimpleNamespace):
    """An attribute as TensorFlow's files have it: a list of words, of functions, or a function."""

    def __init__(self, *words: bytes, functions: tuple[str, ...] = (), function: str = "") -> None:
        listed = [SimpleNamespace(name=name) for name in functions]
        super().__init__(list=SimpleNamespace(s=words, func=listed), func=SimpleNamespace(name=function))

    def HasField(self, name: str) -> bool:  # noqa: N802 protobuf's own name
        return name == "func" and bool(self.func.name)


def node(name: str, op: str, *inputs: str, **attributes: Attribute) -> SimpleNamespace:
    debug = SimpleNamespace(original_node_names=["conv"] if op.startswith("_Fused") else [])
    return SimpleNamespace(name=name, op=op, input=inputs, attr=attributes, experimental_debug_info=debug)


def graph(*nodes: SimpleNamespace, left_out: str = "") -> ObservedGraph:
    texts = {"function": b"train", "device": b"/device:CPU:0", "definition": b"", "left_out": left_out.encode()}

    def parse(_: bytes) -> Any:
        return SimpleNamespace(node=nodes)

    return parse_graph(3, texts, parse, fusions=True)


def test_inputs_and_controls_are_places() -> None:
    read = graph(node("x", "_Arg"), node("split", "Split", "x"), node("add", "AddV2", "split:1", "x", "^split"))
    assert read.nodes[2].inputs == (Source(1, 1), Source(0, 0))
    assert read.nodes[2].controls == (1,)


def test_what_was_fused_is_told() -> None:
    fused = graph(node("relu", "_FusedConv2D", fused_ops=Attribute(b"BiasAdd", b"Relu"))).nodes[0]
    assert (fused.fused_ops, fused.fused_from) == (("BiasAdd", "Relu"), ("conv",))


def test_functions_of_a_node_are_named() -> None:
    case = node("case", "Case", branches=Attribute(functions=("one", "two")), f=Attribute(function="three"))
    assert graph(case).nodes[0].functions == ("one", "two", "three")


def test_a_result_that_is_handed_on_leads_to_where_it_was_made() -> None:
    read = graph(
        node("x", "_Arg"),
        node("enter", "Enter", "x"),
        node("merge", "Merge", "enter", "next"),
        node("double", "Mul", "merge", "merge"),
        node("next", "NextIteration", "double"),
        node("exit", "Exit", "merge"),
        left_out="1 0 handed_on\n4 0 handed_on\n5 0 handed_on\n",
    )
    assert read.origins(Source(3, 0)) == (Source(3, 0),)
    assert read.origins(Source(4, 0)) == (Source(3, 0),)
    assert read.origins(Source(1, 0)) == (Source(0, 0),)
    assert read.origins(Source(5, 0)) == (Source(2, 0),)


def test_what_is_not_read_is_counted_by_reason() -> None:
    read = graph(node("x", "_Arg"), left_out="0 0 dtype\n0 1 dtype\n0 -1 xla\n")
    assert read.counts() == {NotRead.DTYPE: 2, NotRead.XLA: 1}


def test_a_reason_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match="whim"):
        graph(node("x", "_Arg"), left_out="0 0 whim\n")


def test_records_are_results_in_the_order_of_their_sequence() -> None:
    records = np.zeros(2, RECORD)
    records["sequence"], records["dtype"], records["rank"], records["node"] = [8, 5], [1, 3], [2, 0], [4, 9]
    records["dims"][0, :2] = 6, 7
    records["row"][:, SUM] = 1.5, 2.5
    late = np.arange(3, dtype=np.uint8)
    results = list(ObservedResults(records, {1: "float32", 3: "int32"}, [late, None]))
    assert [(result.sequence, result.node, result.dtype, result.shape) for result in results] == [
        (5, 9, "int32", ()),
        (8, 4, "float32", (6, 7)),
    ]
    assert [batch.rows()[index][SUM] for batch, index in (result.summary for result in results)] == [2.5, 1.5]
    assert results[0].data is None
    assert results[1].data is late


def executed(*of: tuple[int, int, int, int, int]) -> ObservedResults:
    """Of runs, graphs, nodes, loops and turns, as they were read."""
    records = np.zeros(len(of), RECORD)
    records["sequence"] = np.arange(len(of))
    for name, column in zip(("run", "graph", "node", "frame", "iteration"), zip(*of, strict=True), strict=True):
        records[name] = column
    return ObservedResults(records, {0: "float32"}, None)


def test_the_same_executions_are_known_whatever_their_runs_and_their_order() -> None:
    first = executed((70, 1, 4, 0, 0), (70, 1, 2, 9, 0), (70, 1, 2, 9, 1))
    again = executed((-3, 1, 2, 9, 1), (-3, 1, 2, 9, 0), (-3, 1, 4, 0, 0))
    places, what = first.order(in_sequence=False)
    others, same = again.order(in_sequence=False)
    assert what == same
    assert (places.tolist(), others.tolist()) == ([1, 2, 0], [1, 0, 2])
    assert first.order(in_sequence=True)[1] != again.order(in_sequence=True)[1]


@pytest.mark.parametrize("other", [(5, 1, 3, 0, 0), (5, 1, 2, 9, 0), (6, 1, 2, 0, 0), (5, 2, 2, 0, 0)])
def test_other_executions_are_told_apart(other: tuple[int, int, int, int, int]) -> None:
    both = ((5, 1, 1, 0, 0), (5, 1, 2, 0, 0)), ((5, 1, 1, 0, 0), other)
    one, two = (executed(*of).order(in_sequence=False)[1] for of in both)
    assert one != two


def test_the_outermost_graph_ends_last() -> None:
    assert executed((5, 3, 1, 0, 0), (6, 4, 1, 0, 0), (5, 3, 2, 0, 0)).graphs == [4, 3]


def test_a_row_fills_the_end_of_a_record() -> None:
    assert RECORD.itemsize == 8 * (10 + 12 + 2 + ROW_LENGTH)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_kernels_without_a_table_have_an_address(name: str) -> None:
    native = native_summarizer(name)
    assert native is not None
    assert native.table is None


def test_the_kernel_of_small_floats_comes_with_its_table() -> None:
    native = native_summarizer("float8_e5m2")
    assert native is not None
    assert native.table
    assert native.smallest_normal == int(np.float32(2.0**-14).view(np.int32))
