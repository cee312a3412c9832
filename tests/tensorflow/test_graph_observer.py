"""What is read inside of graphs is what was computed there, and nothing computes otherwise for it."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ulpscope.capture.tensorflow.graphs.loading import load
from ulpscope.capture.tensorflow.graphs.nodes import NotRead, ObservedGraph
from ulpscope.capture.tensorflow.graphs.observer import GraphObserver
from ulpscope.capture.tensorflow.graphs.results import ObservedResult
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.numerics.summaries import summary
from ulpscope.numerics.summaries.rows import stats_from_row

TRAININGS = ("step", "fit", "mixed", "attention", "loops", "session", "session_references")
SCRIPTS = Path(__file__).with_name("graph_scripts.py")


@pytest.fixture(scope="module")
def observer() -> GraphObserver:
    return GraphObserver.load()


class Observed:
    """What a function made while it ran."""

    def __init__(self, observer: GraphObserver, work: Callable[[], object], *, data: bool = False) -> None:
        observer.drain()
        observer.begin(data=data)
        self.returned = work()
        observer.end()
        self.results = list(observer.drain())
        self.graphs = observer.graphs()

    def node(self, result: ObservedResult) -> str:
        return self.graphs[result.graph].nodes[result.node].name

    def op(self, result: ObservedResult) -> str:
        return self.graphs[result.graph].nodes[result.node].op

    def of(self, op: str) -> list[ObservedResult]:
        return [result for result in self.results if self.op(result) == op]

    def graph(self) -> ObservedGraph:
        (number,) = {result.graph for result in self.results}
        return self.graphs[number]


def row_of(result: ObservedResult) -> np.ndarray:
    rows, index = result.summary
    return rows.rows()[index]


def mean_of(result: ObservedResult) -> float:
    mean = stats_from_row(row_of(result), result.dtype, result.shape).mean
    assert mean is not None
    return mean


@pytest.mark.parametrize("words", [(), ("deterministic",)], ids=["as it comes", "deterministic"])
def test_trainings_compute_the_same_bits(words: tuple[str, ...]) -> None:
    plain, observed = (run_scripts(*words, *more) for more in ((), ("observed",)))
    assert observed.stdout == plain.stdout
    read = dict(line.split() for line in observed.stderr.splitlines() if line.split()[0] in TRAININGS)
    assert all(int(read[name]) >= 40 for name in TRAININGS)


def run_scripts(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ, timeout=600)


NAMES = ["float32", "float64", "float16", "bfloat16", "complex64", "complex128", "int8", "int16", "int32", "int64"]


@pytest.mark.parametrize("name", [*NAMES, "uint8", "uint16", "uint32", "uint64", "bool", "float8_e5m2"])
def test_rows_are_those_of_the_reference(observer: GraphObserver, name: str) -> None:
    dtype = tf.dtypes.as_dtype(name)
    # Small numbers, whose sums are exact in any order.
    numbers = tf.constant(np.arange(6000).reshape(3, 2000) % 13, tf.float32 if name != "float32" else tf.int32)

    @tf.function
    def convert(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(x, dtype)

    seen = Observed(observer, lambda: convert(numbers).numpy(), data=True)
    (result,) = seen.of("Cast")
    array = np.ascontiguousarray(seen.returned)
    assert (result.dtype, result.shape, result.slot) == (name, array.shape, 0)
    assert result.data is not None
    assert result.data.tobytes() == array.tobytes()
    assert row_of(result).tobytes() == summary.summarize(array, name).tobytes()


def test_subnormal_numbers_are_summed_though_kernels_flush_them(observer: GraphObserver) -> None:
    tiny = np.full(300, np.float32(1e-40))
    double = tf.function(lambda x: tf.reshape(x, (3, 100)))
    (result,) = Observed(observer, lambda: double(tf.constant(tiny))).of("Reshape")
    told = stats_from_row(row_of(result), "float32", result.shape)
    assert told.subnormal == 300
    assert told.mean == pytest.approx(float(np.float32(1e-40)), rel=1e-3)


def test_a_reshape_has_the_row_of_what_it_was_given(observer: GraphObserver) -> None:
    """Its row is not made again: what another run of the graph has made is another content."""
    move = tf.function(lambda x: tf.squeeze(tf.reshape(x * 3.0, (4, 1, 5))) - 1.0)
    for factor in (1.0, 2.0):
        seen = Observed(observer, lambda factor=factor: move(tf.range(20.0) * factor), data=True)
        for op in ("Mul", "Reshape", "Squeeze"):
            (result,) = seen.of(op)
            assert result.data is not None
            made = summary.summarize(result.data.view(np.float32).reshape(result.shape), "float32")
            assert row_of(result).tobytes() == made.tobytes()
            assert mean_of(result) == 28.5 * factor


def test_reshapes_that_run_at_once_are_not_mixed_up(observer: GraphObserver) -> None:
    move = tf.function(lambda x: tf.reshape(x + 1.0, (50, 40)) * 2.0)
    inputs = [tf.fill((2000,), float(number)) for number in range(40)]

    def run_all() -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(move, inputs))

    seen = Observed(observer, run_all)
    sums = {result.run: row_of(result).tobytes() for result in seen.of("AddV2")}
    assert len(sums) == 40
    assert {result.run: row_of(result).tobytes() for result in seen.of("Reshape")} == sums


def test_nodes_that_nobody_wants_are_not_read(observer: GraphObserver) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(x, name="waste/Sin") + 1.0

    observer.leave_out(["waste/Sin"])
    try:
        outer = tf.function(lambda x: inner(x) * tf.cos(x))
        seen = Observed(observer, lambda: outer(tf.constant([1.0, 2.0])))
    finally:
        observer.leave_out([])
    assert seen.of("Sin") == []
    assert len(seen.of("Cos")) == len(seen.of("Mul")) == 1
    left_out = [left for left in seen.graph().left_out if left.reason is NotRead.OPTIMIZER]
    assert [seen.graph().nodes[left.node].op for left in left_out] == ["Sin"]


def test_fused_nodes_are_seen_as_they_run(observer: GraphObserver) -> None:
    weight, bias = tf.random.normal((8, 4), seed=1), tf.random.normal((4,), seed=2)
    dense = tf.function(lambda x: tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weight), bias)))
    seen = Observed(observer, lambda: dense(tf.random.normal((2, 8), seed=3)))
    fused = [node for node in seen.graph().nodes if node.fused_ops == ("BiasAdd", "Relu")]
    assert [node.op for node in fused] == ["_FusedMatMul"] or fused[0].op.startswith("_Mkl")
    assert seen.graph().fusions


def test_inputs_lead_to_results_and_come_first(observer: GraphObserver) -> None:
    @tf.function
    def count(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = tf.cond(tf.reduce_sum(x) > 5.0, lambda x=x: x - 4.0, lambda x=x: x * 3.0)
        return tf.identity(x) + 0.5

    seen = Observed(observer, lambda: count(tf.constant([2.0])).numpy())
    assert seen.returned == pytest.approx([6.5])
    assert [mean_of(result) for result in seen.results if seen.op(result) in {"Mul", "Sub"}] == [6.0, 2.0, 6.0]
    last, graph = seen.of("AddV2")[-1], seen.graph()
    read = {(result.node, result.slot): result.sequence for result in seen.results}
    for source in graph.nodes[last.node].inputs:
        for origin in graph.origins(source):
            assert read[origin] < last.sequence


def test_iterations_are_told_apart(observer: GraphObserver) -> None:
    repeat = tf.function(lambda x: tf.while_loop(lambda x: x < 20.0, lambda x: (x * 3.0,), [x]))
    products = Observed(observer, lambda: repeat(tf.constant(1.0))).of("Mul")
    assert [(result.iteration, mean_of(result)) for result in products] == [(0, 3.0), (1, 9.0), (2, 27.0)]


def test_functions_that_are_inlined_belong_to_one_run(observer: GraphObserver) -> None:
    inner = tf.function(lambda x: tf.sin(x) + 1.0)
    outer = tf.function(lambda x: inner(x) * inner(x + 1.0))
    first, second = (Observed(observer, lambda: outer(tf.constant([1.0, 2.0]))) for _ in range(2))
    assert len(first.of("Sin")) == 2
    runs = [{result.run for result in seen.results} for seen in (first, second)]
    assert [len(run) for run in runs] == [1, 1]
    assert runs[0] != runs[1]


def test_what_is_not_read_is_counted(observer: GraphObserver) -> None:
    compiled = tf.function(lambda x: tf.exp(x) * 2.0, jit_compile=True)
    mixed = tf.function(lambda x: (compiled(x), tf.strings.as_string(x)))
    seen = Observed(observer, lambda: mixed(tf.constant([1.0])))
    assert seen.graph().counts() == {NotRead.XLA: 1, NotRead.DTYPE: 1, NotRead.NO_RESULT: 2}


def test_variables_of_a_session_are_read_before_they_are_written(observer: GraphObserver) -> None:
    one = tf.compat.v1
    with tf.Graph().as_default(), one.Session() as session:
        weight = one.Variable(tf.fill((4096,), 3.0), use_resource=False)
        read = tf.identity(weight) * 2.0
        with tf.control_dependencies([read]):
            written = one.assign_add(weight, tf.fill((4096,), 1.0))
        session.run(one.global_variables_initializer())
        for before in (3.0, 4.0, 5.0):
            seen = Observed(observer, lambda: session.run([read, written]))
            (product,) = seen.of("Mul")
            assert mean_of(product) == 2 * before
            assert seen.graph().function == ""
            assert NotRead.REFERENCE in seen.graph().counts()


def test_eager_operations_are_not_graphs(observer: GraphObserver) -> None:
    seen = Observed(observer, lambda: tf.sin(tf.constant([1.0, 2.0])) + tf.Variable(3.0))
    assert seen.results == []


def test_nothing_is_read_unless_asked(observer: GraphObserver) -> None:
    double = tf.function(lambda x: x * 2.0)
    assert Observed(observer, lambda: double(tf.constant(1.0))).results
    double(tf.constant(1.0))
    assert len(observer.drain()) == 0


def test_a_function_that_is_not_inlined_is_seen_in_a_graph_of_its_own(observer: GraphObserver) -> None:
    @tf.function(experimental_attributes={"_noinline": True})
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.cos(x) * 2.0

    outer = tf.function(lambda x: inner(x) + 1.0)
    seen = Observed(observer, lambda: outer(tf.constant([1.0, 2.0])))
    (cosine,), (called,) = seen.of("Cos"), [result for result in seen.results if "Call" in seen.op(result)]
    assert cosine.graph != called.graph
    assert cosine.run != called.run
    assert cosine.sequence < called.sequence
    functions = seen.graphs[called.graph].nodes[called.node].functions
    assert seen.graphs[cosine.graph].function in functions


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(NotCompiledError, match="/bin/false failed"):
        load.__wrapped__()


def test_threads_that_run_graphs_at_once_lose_nothing(observer: GraphObserver) -> None:
    work = tf.function(lambda x: tf.reduce_sum(tf.sin(x) * 3.0))
    inputs = [tf.fill((2000,), float(number)) for number in range(40)]
    work(inputs[0])

    def run_all() -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, inputs))

    seen = Observed(observer, run_all)
    assert len({result.run for result in seen.results}) == 40
    assert len({result.sequence for result in seen.results}) == len(seen.results)
    means = sorted(mean_of(result) for result in seen.of("Sin"))
    assert means == pytest.approx(sorted(np.sin(np.arange(40.0))), abs=1e-6)
