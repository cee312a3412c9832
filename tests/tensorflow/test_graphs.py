"""Graphs as TensorFlow saves them, against its own protos; and a graph that ulpscope writes for TensorBoard."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tests.unit.handmade import HandmadeRun

from ulpscope.cli.main import main
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.records.graphs import Graph


class Model(tf.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(np.eye(3, dtype=np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])  # type: ignore[untyped-decorator]
    def forward(self, x: Any) -> Any:
        return tf.nn.relu(tf.matmul(x, self.weight) + 1.0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    tf.saved_model.save(Model(), str(folder / "model"))
    return folder / "model"


def same(graph: Graph, nodes: Any) -> None:
    assert [(each.name, each.type) for each in graph.operators if each.type not in ("_Arg", "_Retval")] == [
        (node.name, node.op) for node in nodes
    ]


def test_a_saved_model(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = saved_model_pb2.SavedModel.FromString((saved / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def
    main_graph, *functions = open_graph(saved).graphs
    same(main_graph, stated.node)
    assert [graph.name for graph in functions] == [each.signature.name for each in stated.library.function]
    for graph, function in zip(functions, stated.library.function, strict=True):
        same(graph, function.node_def)
    assert main(["show", str(saved), "Relu"]) == 0
    assert "read by" in capsys.readouterr().out


def test_a_frozen_graph(tmp_path: Path) -> None:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    model = Model()
    function = model.forward.get_concrete_function()
    frozen = convert_variables_to_constants_v2(function).graph.as_graph_def()
    for name, as_text in (("frozen.pb", False), ("frozen.pbtxt", True)):
        tf.io.write_graph(frozen, str(tmp_path), name, as_text)
        same(open_graph(tmp_path / name).graphs[0], frozen.node)


def test_the_graph_of_a_trace_is_a_graph_to_tensorboard(tmp_path: Path) -> None:
    run = HandmadeRun()
    made = run.call("torch.relu", reads={"args.0": run.value([-1.0, 2.0])}, makes={"output.0": [0.0, 2.0]})
    run.call("torch.exp", reads={"args.0": run.output(made)}, makes={"output.0": [1.0, 7.4]})
    run.write(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--tensorboard", str(tmp_path / "board")]) == 0
    (file,) = (tmp_path / "board" / "graph").iterdir()
    events = list(tf.compat.v1.train.summary_iterator(str(file)))
    assert events[0].file_version == "brain.Event:2"
    graph = tf.compat.v1.GraphDef.FromString(events[1].graph_def)
    assert {node.name: list(node.input) for node in graph.node} == {
        "forward/relu_0": [],
        "forward/exp_1": ["forward/relu_0"],
    }
    assert graph.node[0].attr["max_abs"].s == b"2.0"
