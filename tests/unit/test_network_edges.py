"""Networks dumped, quantised, fused or named in unusual ways: the operator that is wrong is blamed, no other."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from network_making import NAMES, NOTHING, Array, Network, data, half, modules, random, spoilt

from make_ascend_dumps import FIRST_TIME, Tensor
from ulpscope.dialects.opening import open_run
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.network.command import NetworkOptions, OperatorChoice, compare_network


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def test_a_reader_that_was_dumped_before_its_producer_is_not_blamed(network: Network) -> None:
    """Clocks of two streams differ."""
    exact = data(network, "x", random(4, 64)) @ random(64, 64, seed=2)
    network.add("mm", "MatMulV2", half(spoilt(exact)), reads=("x",), reference=exact, time=50)
    relu = np.maximum(exact, 0)
    network.add("relu", "Relu", half(np.maximum(spoilt(exact), 0)), reads=("mm",), reference=relu, time=10)

    assert modules(network.compare()) == ["mm"]


def with_optional_inputs(network: Network) -> None:
    x, weight, bias = (
        data(network, name, random(*shape, seed=seed))
        for seed, (name, shape) in enumerate({"x": (4, 64), "w": (64, 64), "b": (64,)}.items())
    )
    exact = x @ weight + bias
    dumped = [Tensor(x), Tensor(weight), NOTHING, NOTHING, Tensor(bias)]
    network.add("mm", "MatMulV2", half(exact), reads=("x", "w", "", "", "b"), reference=exact, inputs=dumped)


def test_inputs_that_are_not_connected_may_be_among_the_dumped_ones(network: Network) -> None:
    with_optional_inputs(network)
    shutil.copytree(network.root / "dump", network.root / "other")
    beside_files, beside_dumps = network.compare(), network.compare(reference=network.root / "other")

    for result in (beside_files, beside_dumps):
        assert result.comparison.counts.tensors_compared == 4
        assert result.json()["missing"] == ["2 tensors have no partner in the reference, such as mm:input:2"]
        assert not result.findings
    assert beside_dumps.comparison.counts.identical == 4


@pytest.mark.parametrize("origin", [None, "cut"])
@pytest.mark.parametrize("faulty", [None, 1])
def test_outputs_that_the_graph_does_not_describe_are_their_own(
    network: Network, origin: str | None, faulty: int | None
) -> None:
    first, second = np.split(data(network, "x", random(8, 64)), 2)
    outputs = [half(first), spoilt(half(second)) if faulty else half(second)]
    network.add("cut", "SplitD", *outputs, reads=("x",), reference=(first, second), described=1, origin=origin)
    network.add("y", "Relu", half(np.maximum(outputs[1], 0)), reads=("cut:1",), reference=np.maximum(second, 0))

    assert modules(network.compare()) == (["cut"] if faulty else [])


def test_integers_that_the_device_computes_in_floats_are_compared(network: Network) -> None:
    whole = data(network, "x", np.arange(256, dtype=np.int32).reshape(4, 64))
    network.add("cast", "Cast", half(whole), reads=("x",), inserted=True)
    network.add("y", "Muls", half(whole * 2), reads=("cast",), reference=whole * 2)
    network.add("z", "Muls", spoilt(half(whole * 3)), reads=("cast",), reference=whole * 3)
    result = network.compare()

    assert modules(result) == ["z"]
    assert result.comparison.counts.tensors_compared == 6


@pytest.mark.parametrize("end", [np.float16(65504), np.float16(np.inf)])
def test_float16_that_ends_where_the_reference_goes_on_is_no_mask(network: Network, end: np.float16) -> None:
    exact = np.abs(data(network, "x", random(4, 64))) * np.float32(1e10) + np.float32(1e9)
    network.add("y", "Muls", np.full(exact.shape, end), reads=("x",), reference=exact)
    network.add("z", "Relu", np.full(exact.shape, end), reads=("y",), reference=exact)

    assert modules(network.compare()) == ["y"]


def test_a_mask_may_be_another_number_in_another_type(network: Network) -> None:
    mask = np.where(random(4, 64) > 0, np.float32(0), np.finfo(np.float32).min)
    network.add("y", "Muls", np.where(mask < 0, np.float16(-65504), np.float16(0)), reference=mask)

    assert not network.compare().findings


@pytest.mark.parametrize("end", [np.float16(-65504), np.float16(-np.inf)])
def test_a_mask_that_is_not_added_is_named(network: Network, end: np.float16) -> None:
    scores = data(network, "x", random(8, 64))
    mask = data(network, "mask", np.where(random(8, 64, seed=2) > 0.5, np.finfo(np.float32).min, np.float32(0)))
    mine = half(scores)
    # One of the masked elements is not.
    lost = np.where(mask < 0, end, mine)
    lost[mask < 0] = np.append(lost[mask < 0][:-1], mine[mask < 0][-1])
    network.add("add", "Add", mine, reads=("x", "mask"), reference=scores + mask)
    network.add("other", "Add", lost, reads=("x", "mask"), reference=scores + mask)
    result = network.compare()

    assert modules(result) == ["add", "other"]
    assert not result.comparison.scope.not_compared


@pytest.mark.parametrize("masked", [-10000.0, -65504.0])
@pytest.mark.parametrize("fault", [None, "add", "softmax"])
def test_scores_are_judged_without_what_their_mask_sets_aside(
    network: Network, masked: float, fault: str | None
) -> None:
    scores = data(network, "x", random(8, 64))
    mask = data(network, "mask", np.where(random(8, 64, seed=2) > 0.5, np.float32(masked), np.float32(0)))
    mine = half(half(scores) + half(mask))
    mine = np.where(mask < 0, mine, half(spoilt(scores))) if fault == "add" else mine
    network.add("add", "Add", mine, reads=("x", "mask"), reference=scores + mask)
    shares = half(softmax(mine.astype(np.float32)))
    shares = spoilt(shares) if fault == "softmax" else shares
    network.add("softmax", "SoftmaxV2", shares, reads=("add",), reference=softmax(scores + mask))

    assert modules(network.compare()) == ([] if fault is None else [fault])


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found: Array = powers / powers.sum(axis=-1, keepdims=True)
    return found


def quantised(network: Network, *, fault: str | None, dtype: str, names: tuple[str, str], layers: int = 3) -> None:
    """Matrices in 8 bits: codes of the activations and of the weights, scaled so that the largest is 127."""
    exact = data(network, "x", random(16, 64))
    mine, source = exact.astype(dtype), "x"
    for layer in range(layers):
        weight = random(64, 64, seed=layer + 2) / 8
        scale, weight_scale = 127 / np.abs(exact).max(), 127 / np.abs(weight).max()
        codes = np.clip(np.round(mine.astype(np.float32) * scale), -128, 127).astype(np.int8)
        product = codes.astype(np.int32) @ np.round(weight * weight_scale).astype(np.int32)
        exact, quant, end = exact @ weight, names[0].format(layer), names[1].format(layer)
        mine = (product / (scale * weight_scale)).astype(dtype)
        network.add(quant, "AscendQuant", codes, reads=(source,))
        network.add(f"mm{layer}", "MatMulV2", product, reads=(quant,))
        mine = spoilt(mine) if fault == end else mine
        network.add(end, "AscendDequant", mine, reads=(f"mm{layer}",), reference=exact, origin=f"mm{layer}")
        exact, mine, source = np.maximum(exact, 0), np.maximum(mine, 0), f"relu{layer}"
        mine = spoilt(mine) if fault == source else mine
        network.add(source, "Relu", mine, reads=(end,), reference=exact)


AMCT = ("mm{}/AscendQuant", "mm{}/AscendDequant")
OWN = ("before_{}", "after_{}")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("names", [AMCT, OWN])
def test_rounding_to_8_bits_is_no_fault(network: Network, dtype: str, names: tuple[str, str]) -> None:
    quantised(network, fault=None, dtype=dtype, names=names)
    result = network.compare()

    assert not result.findings
    assert "not compared, because computed in integers: 3 operators, such as mm0" in result.json()["missing"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("fault", ["relu0", "after_0", "relu1", "after_2", "relu2"])
def test_a_fault_of_a_quantised_network_is_found(network: Network, dtype: str, fault: str) -> None:
    quantised(network, fault=fault, dtype=dtype, names=OWN)

    assert modules(network.compare()) == [fault]


def test_parts_inside_of_an_l1_fusion_are_not_compared(network: Network) -> None:
    fused = {"_L1_fusion_sub_graph_no": {"s": "7"}}
    first = np.maximum(data(network, "x", random(4, 64)), 0)
    network.add("a", "Relu", half(first), reads=("x",), reference=first, attributes=fused)
    part = half(first * 2)
    part[2:] = 0
    network.add("b", "Muls", part, reads=("a",), reference=first * 2, attributes=fused)
    network.add("c", "Adds", half(first * 2 + 1), reads=("b",), reference=first * 2 + 1, attributes=fused)
    result = network.compare()

    assert not result.findings
    assert "2 tensors have no whole data inside of an L1 fusion: b:input:0" in result.json()["missing"]


def test_names_that_files_cannot_tell_apart(network: Network) -> None:
    first = np.maximum(data(network, "x", random(4, 64)), 0)
    network.add("a/b", "Relu", half(first), reads=("x",), reference=first, origin="p")
    network.add("a_b", "Muls", half(first * 3), reads=("a/b",), reference=first * 3, origin="q")
    result = network.compare()

    assert not result.findings
    assert result.comparison.counts.tensors_compared == 4


def test_parts_of_names_are_left_out_on_both_sides(network: Network) -> None:
    network.add("sgt_graph_0_net/relu", "Relu", half(random(4, 64)))
    shutil.copytree(network.root / "dump", network.root / "other")

    assert network.compare(reference=network.root / "other").comparison.counts.identical == 1


@pytest.mark.parametrize("inputs", [None, ()])
def test_chosen_operators_are_not_blamed_for_what_they_read(
    network: Network, inputs: tuple[Tensor, ...] | None
) -> None:
    """Also if only outputs were dumped: what lies before the chosen ones is measured for them."""
    exact = data(network, "x", random(4, 64))
    mine = half(exact)
    for number in range(4):
        exact = np.tanh(exact) * np.float32(1.2)
        mine = half(np.tanh(mine.astype(np.float32)) * 1.2)
        mine = spoilt(mine) if number == 1 else mine
        source = "x" if number == 0 else f"y{number - 1}"
        network.add(f"y{number}", "Tanh", mine, reads=(source,), reference=exact, inputs=inputs)
    result = network.compare(NetworkOptions(operators=OperatorChoice(numbers=frozenset((3, 4)))))

    assert [(found.kind, found.module, found.tensor) for found in result.findings] == [("input", "y2", "args.0")]
    assert {row.operator.name for row in result.paired.rows} == {"y2", "y3"}


def test_random_numbers_are_called_that(network: Network) -> None:
    network.add("draw", "RandomStandardNormal", random(16, 64), reference=random(16, 64, seed=2))

    assert [(found.kind, found.module) for found in network.compare().findings] == [("randomness", "draw")]


def test_dropout_is_random_by_its_mask(network: Network) -> None:
    exact = data(network, "x", random(16, 64))
    mine, theirs = (random(16, 64, seed=seed) > -1 for seed in (2, 3))
    network.add("mask", "DropOutGenMask", np.packbits(mine), inserted=True)
    network.add("drop", "DropOutDoMask", half(exact * mine), reads=("x", "mask"), reference=exact * theirs)

    assert [(found.kind, found.module) for found in network.compare().findings] == [("randomness", "drop")]


@pytest.mark.parametrize("inputs", [None, ()])
@pytest.mark.parametrize("faulty", ["cast", "fused"])
def test_two_compilations_are_compared_where_they_meet(
    tmp_path: Path, faulty: str, inputs: tuple[Tensor, ...] | None
) -> None:
    """Without dumped inputs, what a cast made is known from the other compilation's cast."""
    networks = {word: Network(tmp_path / word) for word in ("on", "off")}
    for word, network in networks.items():
        exact = data(network, "x", random(4, 64))
        cast = spoilt(half(exact)) if (word, faulty) == ("on", "cast") else half(exact)
        network.add("cast", "Cast", cast, reads=("x",), inserted=True, inputs=inputs)
        sums = half(cast.astype(np.float32) + 1)
        relu = np.maximum(sums, 0)
        if word == "on":
            relu = spoilt(relu) if faulty == "fused" else relu
            fused = {NAMES: {"list": {"s": ["add", "relu"]}}}
            network.add("fused", "Adds", relu, reads=("cast",), inputs=inputs, origin="relu", attributes=fused)
        else:
            network.add("add", "Adds", sums, reads=("cast",), inputs=inputs)
            network.add("relu", "Relu", relu, reads=("add",), inputs=inputs)
    options = NetworkOptions(close_graph=networks["off"].graph())

    assert modules(networks["on"].compare(options, reference=tmp_path / "off/dump")) == [faulty]


def test_a_quantised_network_s_graph_needs_a_reference_of_the_original_one(network: Network) -> None:
    with_optional_inputs(network)
    with pytest.raises(UlpscopeError, match="--quant-graph with a reference that a device dumped"):
        network.compare(NetworkOptions(quant_graph=network.graph()), reference=network.root / "dump")


def test_of_a_reference_of_several_networks_the_one_of_the_graph_s_name_is_taken(network: Network) -> None:
    with_optional_inputs(network)
    for name in ("net", "another"):
        shutil.copytree(network.root / "dump", network.root / f"tree/20260101000000/0/{name}/1/0")
    result = compare_network(network.root / "tree", network.root / "dump", network.graph())

    assert result.paired.reference.operations is not None
    assert result.comparison.counts.identical == 4


@pytest.mark.parametrize("kind", ["Conv2D", "DepthwiseConv2D"])
@pytest.mark.parametrize("faulty", [False, True])
def test_a_fault_of_a_hundredth_is_seen_in_a_convolution_of_many_filters(
    network: Network, kind: str, faulty: bool
) -> None:
    """TensorFlow has the filters last: how many numbers each has, their layout tells."""
    pictures = random(2, 8, 8, 256 if kind == "DepthwiseConv2D" else 16)
    weight = random(1, 1, *((256, 1) if kind == "DepthwiseConv2D" else (16, 256)), seed=2)
    network.add("x", "Data", pictures, reference=pictures, dumped=False, layout="NHWC")
    network.add("w", "Variable", weight, reference=weight, dumped=False, layout="HWCN")
    exact = pictures * weight[0, 0, :, 0] if kind == "DepthwiseConv2D" else pictures @ weight[0, 0]
    mine = half(exact * np.float32(1.01 if faulty else 1))
    inputs = [Tensor(half(pictures), "NHWC"), Tensor(half(weight), "HWCN")]
    network.add("conv", kind, mine, reads=("x", "w"), reference=exact, inputs=inputs, layout="NHWC")

    assert modules(network.compare()) == (["conv"] if faulty else [])


@pytest.mark.parametrize("name", ["input_x.0", "_arg_x_0_3.0"])
def test_inputs_of_the_network_have_other_names_in_dumps_of_frameworks(network: Network, name: str) -> None:
    """ONNX writes input_x; TensorFlow feeds through an operator of its own."""
    exact = random(4, 64)
    network.add("x", "Data", exact, dumped=False)
    np.save(network.root / f"reference/{name}.1767225600000001.npy", exact)
    network.add("y", "Relu", np.maximum(exact, 0), reads=("x",), reference=np.maximum(exact, 0))

    assert network.compare().comparison.counts.identical == 2


def test_what_is_known_may_lie_a_thousand_operators_upstream(network: Network) -> None:
    exact = random(4, 64)
    network.add("first", "Relu", spoilt(exact), reference=exact)
    for number in range(1000):
        source = f"y{number - 1}" if number else "first"
        network.add(f"y{number}", "Relu", spoilt(exact), reads=(source,), dumped=False)
    network.add("last", "Relu", spoilt(exact), reads=("y999",), reference=exact, inputs=())
    result = network.compare()

    assert modules(result) == ["first"]
    assert result.comparison.counts.matched == 2
    assert result.json()["missing"] == ["not dumped: 1,000 operators, such as y0"]


DYING = """
import os, sys
from ulpscope.cli import main as cli
from ulpscope.workflows.network import measuring as compare_network_pool

def die(orders, wanted):
    import multiprocessing
    if multiprocessing.parent_process() is not None:
        os._exit(9)
    return measure(orders, wanted)

measure, compare_network_pool.measure_batch = compare_network_pool.measure_batch, die
compare_network_pool._WORTH_WORKERS, compare_network_pool._BATCH = 0, 1
if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_process_that_dies_is_told_in_one_sentence(network: Network) -> None:
    exact = data(network, "x", random(4, 64))
    for number in range(200):
        network.add(f"y{number}", "Relu", half(exact), reads=("x",), reference=exact)
    script = network.root / "dying.py"
    script.write_text(DYING)
    words = ["compare", str(network.root / "reference"), str(network.root / "dump"), "--graph", str(network.graph())]
    done = subprocess.run([sys.executable, script, *words, "--jobs", "2"], capture_output=True, text=True, timeout=120)

    assert done.returncode == 2
    assert done.stdout == ""
    assert "a process that compares tensors has died" in done.stderr
    assert "Traceback" not in done.stderr


def test_operators_have_the_names_that_a_trace_of_the_same_dump_gives_them(network: Network) -> None:
    exact = data(network, "x", random(4, 64))
    network.add("y", "Relu", half(exact), reads=("x",), reference=exact)
    network.add("z", "Relu", spoilt(exact), reads=("y",), reference=exact)
    # Of one that ran before them only stats were dumped.
    stats = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value\n"
    (network.root / "dump" / f"Relu.first.9.0.{FIRST_TIME - 5}.csv").write_text(stats + "Output,0,4,FLOAT,ND,1,1,1,1\n")
    (finding,) = network.compare().findings
    trace = open_run(network.root / "dump")
    called = dict(trace.collect(trace.calls().select("module", "name")).iter_rows())

    assert finding.module == "z"
    assert finding.call == called["z"] == "Relu.2"
