"""Small networks made by hand, dumped as a device dumps them: what is blamed and what is not."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from network_making import NAMES, Network, half, modules, random

from ulpscope.cli.main import main
from ulpscope.numerics.pairs.msaccucmp.metrics import Generation
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.network import measuring as compare_network_pool
from ulpscope.workflows.network.command import NetworkOptions, compare_network


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def chain(network: Network, *, faulty: int | None = None, layers: int = 6) -> None:
    """x @ w1 @ w2 ...: in float16 on the device, in float32 in the reference."""
    exact = random(16, 64)
    mine = half(exact)
    network.add("x", "Data", mine, reference=exact, dumped=False)
    source = "x"
    for layer in range(layers):
        weight = random(64, 64, seed=layer + 2) / 8
        network.add(f"w{layer}", "Variable", half(weight), reference=weight, dumped=False)
        exact = exact @ weight
        mine = half(mine.astype(np.float32) @ half(weight).astype(np.float32))
        if layer == faulty:
            mine[3] *= np.float16(1.5)
        network.add(f"mm{layer}", "MatMulV2", mine, reads=(source, f"w{layer}"), reference=exact)
        source = f"mm{layer}"


def test_a_sound_network_agrees(network: Network) -> None:
    chain(network)
    result = network.compare()

    assert result.code is ExitCode.OK
    assert result.json()["verdict"] == "agree"
    assert result.comparison.counts.made_here == 0
    assert result.comparison.counts.tensors_compared == 18


@pytest.mark.parametrize("layer", range(6))
def test_whichever_operator_is_wrong_is_named(network: Network, layer: int) -> None:
    chain(network, faulty=layer)

    assert modules(network.compare()) == [f"mm{layer}"]


def test_an_inserted_cast_that_overflows_is_named(network: Network) -> None:
    big = random(4, 8) * 1e5
    network.add("x", "Mul", big, reference=big)
    with np.errstate(over="ignore"):
        cast = half(big)
    network.add("cast", "Cast", cast, reads=("x",), inserted=True)
    network.add("y", "Relu", np.maximum(cast, 0), reads=("cast",), reference=np.maximum(big, 0))
    result = network.compare()

    assert [(finding.module, finding.kind) for finding in result.findings] == [("cast", "overflow")]


def test_an_inserted_cast_that_passes_error_on_is_not_named(network: Network) -> None:
    exact = random(4, 64)
    network.add("x", "Mul", exact * np.float32(1.3), reference=exact)
    network.add("cast", "Cast", half(exact * np.float32(1.3)), reads=("x",), inserted=True)

    assert modules(network.compare()) == ["x"]


def test_a_parameter_that_differs_is_called_that(network: Network) -> None:
    exact, weight = random(4, 64), random(64, 64, seed=2)
    wrong = weight * np.float32(1.1)
    network.add("x", "Data", exact, reference=exact, dumped=False)
    network.add("w", "Variable", wrong, reference=weight, dumped=False)
    network.add("mm", "MatMulV2", exact @ wrong, reads=("x", "w"), reference=exact @ weight)
    first = network.compare().findings[0]

    assert (first.kind, first.tensor) == ("parameter", "w")


def test_other_input_data_is_the_cause(network: Network) -> None:
    exact, other = random(4, 64), random(4, 64, seed=9)
    network.add("x", "Data", other, reference=exact, dumped=False)
    network.add("y", "Relu", np.maximum(other, 0), reads=("x",), reference=np.maximum(exact, 0))
    result = network.compare()

    assert result.findings[0].kind == "input"
    assert {each["subject"] for each in result.json()["advice"]} == {"y"}


def test_quantised_operators_are_left_out(network: Network) -> None:
    exact = random(4, 64)
    codes = np.round(exact * 20).astype(np.int8)
    network.add("x", "Mul", exact, reference=exact)
    network.add("x.quant", "AscendQuant", codes, reads=("x",))
    network.add("conv", "Conv2D", codes.astype(np.int32) * 2, reads=("x.quant",))
    network.add("x.dequant", "AscendDequant", half(codes / 10), reads=("conv",))
    table = network.compare(NetworkOptions(csv=Generation.OF_2025)).table()
    tensors = [line[table[0].index("TensorIndex")] for line in table[1:]]

    assert tensors == ["x:output:0", "x.quant:input:0", "x.dequant:output:0"]


def test_a_fused_custom_operator_gets_its_advice(network: Network) -> None:
    exact = random(4, 64)
    attributes = {
        NAMES: {"list": {"s": ["a", "b"]}},
        "_fe_imply_type": {"i": 2},
        "pass_name": {"list": {"s": ["MyFusionPass"]}},
    }
    network.add("x", "Mul", exact, reference=exact)
    wrong = exact * np.float32(2)
    network.add("ab", "Custom", wrong, reads=("x",), reference=exact, origin="b", attributes=attributes)
    result = network.compare()
    advice = {each["kind"]: each["sentence"] for each in result.json()["advice"]}

    assert modules(result) == ["ab"]
    assert "ab is a custom operator" in advice["custom_operator"]
    assert "MyFusionPass" in advice["switch_pass_off"]
    assert "ulpscope fusion --switch-off" in advice["switch_pass_off"]


def test_an_unknown_operator_in_between_is_looked_through(network: Network) -> None:
    """The reference has nothing of b, whose output is what c reads: b's error is c's, not new."""
    exact = random(4, 64)
    wrong = exact * np.float32(1.2)
    network.add("a", "Mul", wrong, reference=exact)
    network.add("b", "Odd", wrong + 1, reads=("a",))
    network.add("c", "Relu", np.maximum(wrong + 1, 0), reads=("b",), reference=np.maximum(exact + 1, 0))

    assert modules(network.compare()) == ["a"]


@pytest.mark.parametrize(("workers", "threads_from"), [("processes", 2**40), ("threads", 0)])
def test_several_find_what_one_finds(
    network: Network, monkeypatch: pytest.MonkeyPatch, workers: str, threads_from: int
) -> None:
    chain(network, faulty=2)
    options = NetworkOptions(csv=Generation.OF_2025, overflow=True)
    alone = network.compare(options)
    monkeypatch.setattr(compare_network_pool, "_WORTH_WORKERS", 0)
    monkeypatch.setattr(compare_network_pool, "_WORTH_THREADS", threads_from)
    monkeypatch.setattr(compare_network_pool, "_BATCH", 1)
    shared = network.compare(NetworkOptions(csv=Generation.OF_2025, overflow=True, jobs=2))

    assert shared.table() == alone.table()
    assert shared.json()["findings"] == alone.json()["findings"]
    assert not alone.pairs.is_empty()
    assert shared.pairs.equals(alone.pairs)


def test_steps_and_devices_are_chosen_and_what_is_left_is_told(network: Network, tmp_path: Path) -> None:
    from ulpscope.capture.settings import parse_ranges

    chain(network)
    tree = tmp_path / "tree/20260101000000"
    for device, step in ((0, 0), (0, 3), (1, 0)):
        folder = tree / f"{device}/net/1/{step}"
        folder.mkdir(parents=True)
        for path in (tmp_path / "dump").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    graph = tmp_path / "graph.json"
    network.compare()
    usual = compare_network(tmp_path / "reference", tree, graph)
    chosen = NetworkOptions(parse_ranges("0", option="--steps"), parse_ranges("1", option="--ranks"))
    other = compare_network(tmp_path / "reference", tree, graph, chosen)

    assert usual.paired.dumps.folder.step == 3
    assert "device 1 of the dumps is not compared; device 0 is" in usual.json()["missing"]
    assert "step 0 of the dumps is not compared; step 3 is" in usual.json()["missing"]
    assert (other.paired.dumps.folder.device, other.paired.dumps.folder.step) == (1, 0)
    assert usual.json()["verdict"] == other.json()["verdict"] == "agree"


def test_of_two_runs_of_a_dump_path_the_newest_is_compared_and_of_two_dump_paths_none(
    network: Network, tmp_path: Path
) -> None:
    chain(network)
    network.compare()
    for place in ("a/20260101000000", "a/20260102000000", "b/20260103000000"):
        shutil.copytree(tmp_path / "dump", tmp_path / "tree" / place / "0/net/1/0")
    files = tmp_path / "reference", tmp_path / "tree", tmp_path / "graph.json"
    with pytest.raises(UlpscopeError, match="holds dumps of 2 places"):
        compare_network(*files)
    answer = compare_network(files[0], tmp_path / "tree/a", files[2]).json()
    assert answer["verdict"] == "agree"
    assert "dumps of 20260101000000 are not read; the newest is, 20260102000000" in answer["missing"]


def test_the_next_command_looks_at_the_step_and_device_that_were_compared(
    network: Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = random(4, 8)
    network.add("x", "Data", exact, reference=exact, dumped=False)
    network.add("y", "Relu", half(np.maximum(exact, 0)), reads=("x",), reference=np.maximum(exact, 0))
    dumps = tmp_path / "npu"
    for device, step in ((0, 0), (1, 0), (1, 3)):
        folder = dumps / "20260101000000" / str(device) / "net" / "1" / str(step)
        shutil.copytree(network.root / "dump", folder)
    wrong = Network(tmp_path / "wrong")
    wrong.add("x", "Data", exact, dumped=False)
    wrong.add("y", "Relu", half(np.abs(exact)), reads=("x",))
    shutil.copytree(wrong.root / "dump", dumps / "20260101000000/1/net/1/0", dirs_exist_ok=True)

    words = ["compare", str(network.root / "reference"), str(dumps), "--graph", str(network.graph())]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--ranks", "1", "--steps", "0"]) == 1
    (command,) = [line for line in capsys.readouterr().out.splitlines() if "Next:" in line]
    following = shlex.split(command.partition("ulpscope ")[2])
    assert following == [*words, "--steps", "0", "--ranks", "1", "--op=y", "--output", "0"]
    assert main(following) == 1

    assert main(["check", str(dumps), "--graph", str(network.graph())]) == 1
    out = capsys.readouterr().out
    assert out.count("npu:1, step 0") == 2
    assert "step 3" not in out


def test_the_next_command_pairs_operators_by_the_same_graphs(network: Network, tmp_path: Path) -> None:
    exact = random(4, 8)
    trusted = Network(tmp_path / "off")
    for side, made in ((network, np.abs(exact)), (trusted, np.maximum(exact, 0))):
        side.add("x", "Data", exact, dumped=False)
        side.add("y", "Relu", half(made), reads=("x",))
    close = trusted.graph()
    result = network.compare(NetworkOptions(close_graph=close), reference=trusted.root / "dump")

    (finding,) = result.findings
    expected = ["--graph", str(network.root / "graph.json"), "--close-graph", str(close), "--op=y", "--output", "0"]
    assert shlex.split(finding.next)[-7:] == expected
