"""`ulpscope fusion ON OFF`: a network of two dense layers, compiled with and without fusion, dumped by both."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes
from ulpscope.cli.main import main
from ulpscope.diagnose.network import fused_operators

Array = NDArray[Any]
DATA = Path(__file__).parents[1] / "data" / "ascend"
DUMP = DATA / "precision_data/npu/debug_0/dump"
SOUND = DATA / "debug_1/dump"
GRAPH = DATA / json.loads((DATA / "manifest.json").read_text())["graph"]
RANDOM = np.random.default_rng(5)
LAYERS = ("a", "b")


def rounded(array: Array) -> Array:
    return array.astype(np.float16)


class Network:
    """x @ w + bias, relu; twice."""

    def __init__(self) -> None:
        self.x = rounded(RANDOM.standard_normal((8, 32)))
        self.weights = {name: rounded(RANDOM.standard_normal((32, 32)) / 6) for name in LAYERS}
        self.biases = {name: rounded(RANDOM.standard_normal(32)) for name in LAYERS}

    def unfused(self, folder: Path) -> None:
        """Every operator rounds its result."""
        x, files = self.x, Files(folder)
        for name in LAYERS:
            product = rounded(x.astype(np.float64) @ self.weights[name].astype(np.float64))
            files.write("MatMulV2", f"{name}/MatMul", [x, self.weights[name]], product)
            total = rounded(product.astype(np.float64) + self.biases[name])
            files.write("BiasAdd", f"{name}/BiasAdd", [product, self.biases[name]], total)
            positive = np.maximum(total, np.float16(0))
            files.write("Relu", f"{name}/Relu", [total], positive)
            x = positive

    def fused(self, folder: Path, *, wrong: str | None = None) -> None:
        """One operator a layer, which rounds once; the wrong one forgets its bias."""
        x, files = self.x, Files(folder)
        for name in LAYERS:
            bias = self.biases[name] * (0 if name == wrong else 1)
            wide = x.astype(np.float64) @ self.weights[name].astype(np.float64) + bias
            made = rounded(np.maximum(wide, 0))
            files.write("MatMulV2", f"{name}/fused", [x, self.weights[name], self.biases[name]], made)
            x = made


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        folder.mkdir(parents=True)

    def write(self, kind: str, name: str, inputs: Sequence[Array], output: Array) -> None:
        self.count += 1
        file = f"{kind}.{name.replace('/', '_')}.{self.count}.0.{FIRST_TIME + self.count}"
        content = file_bytes(name, inputs=[Tensor(each) for each in inputs], outputs=[Tensor(output)])
        (self.folder / file).write_bytes(content)


def operator(number: int, name: str, kind: str, inputs: Sequence[str], *, originals: Sequence[str] = ()) -> str:
    sources = "".join(f' input: "{each}"' for each in inputs)
    descs = ' input_desc { dtype: DT_FLOAT16 layout: "ND" }' * len(inputs)
    attributes, origin = "", ""
    if originals:
        listed = "".join(f' s: "{each}"' for each in originals)
        attributes = attribute("_datadump_original_op_names", f"list {{{listed} val_type: VT_LIST_STRING }}")
        attributes += attribute("pass_name", f's: "Dense{name[0].upper()}FusionPass"')
        origin = attribute("_datadump_origin_name", f's: "{originals[-1]}"')
    made = f' output_desc {{ dtype: DT_FLOAT16 layout: "ND"{origin} }}'
    return f'op {{ name: "{name}" type: "{kind}" id: {number}{sources}{descs}{made}{attributes} }}\n'


def attribute(key: str, value: str) -> str:
    return f' attr {{ key: "{key}" value {{ {value} }} }}'


def graph(path: Path, operators: Sequence[str]) -> Path:
    path.write_text(f'name: "net"\ngraph {{ name: "net"\n{"".join(operators)}}}\n')
    return path


def variables() -> list[str]:
    names = ["x", *(f"{layer}/{part}" for layer in LAYERS for part in ("weights", "biases"))]
    return [operator(number, name, "Variable", []) for number, name in enumerate(names)]


def unfused_graph(path: Path) -> Path:
    operators, source = variables(), "x:0"
    for layer in LAYERS:
        steps = [
            ("MatMul", "MatMulV2", [source, f"{layer}/weights:0"]),
            ("BiasAdd", "BiasAdd", [f"{layer}/MatMul:0", f"{layer}/biases:0"]),
            ("Relu", "Relu", [f"{layer}/BiasAdd:0"]),
        ]
        operators += [operator(9, f"{layer}/{name}", kind, inputs) for name, kind, inputs in steps]
        source = f"{layer}/Relu:0"
    return graph(path, operators)


def fused_graph(path: Path) -> Path:
    operators, source = variables(), "x:0"
    for layer in LAYERS:
        inputs = [source, f"{layer}/weights:0", f"{layer}/biases:0"]
        originals = [f"{layer}/{name}" for name in ("MatMul", "BiasAdd", "Relu")]
        operators.append(operator(9, f"{layer}/fused", "MatMulV2", inputs, originals=originals))
        source = f"{layer}/fused:0"
    return graph(path, operators)


def analysed(tmp_path: Path, *, wrong: str | None) -> list[object]:
    network = Network()
    network.unfused(tmp_path / "off")
    network.fused(tmp_path / "on", wrong=wrong)
    graphs = fused_graph(tmp_path / "on.txt"), unfused_graph(tmp_path / "off.txt")
    return [tmp_path / "on", tmp_path / "off", "--graph", graphs[0], "--close-graph", graphs[1]]


def fusion(*words: object) -> int:
    return main(["fusion", *map(str, words)])


def told(capsys: pytest.CaptureFixture[str], words: Sequence[object]) -> dict[str, Any]:
    fusion(*words, "--json")
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


@pytest.mark.parametrize("wrong", LAYERS)
def test_the_pass_whose_operator_parts_is_named(wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = analysed(tmp_path, wrong=wrong)
    found = told(capsys, words)
    assert found["verdict"] == "diverged"
    first = found["findings"][0]
    assert first["module"] == f"{wrong}/fused"
    assert first["evidence"]["passes"] == [f"Dense{wrong.upper()}FusionPass"]
    assert f"--switch-off Dense{wrong.upper()}FusionPass" in first["next"]
    assert first["evidence"]["error"] > 100 * first["evidence"]["expected"]
    parting = {each["pass"]: each["parts"] for each in found["passes"]}
    assert parting == {f"Dense{name.upper()}FusionPass": name == wrong for name in LAYERS}
    assert fusion(*words) == 1
    assert f"DIVERGED: Dense{wrong.upper()}FusionPass parts: {wrong}/fused" in capsys.readouterr().out


def test_it_is_told_in_chinese(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*analysed(tmp_path, wrong="b"), "--language", "zh"]
    assert fusion(*words) == 1
    text = capsys.readouterr().out
    assert text.startswith("出现分歧（DIVERGED）：DenseBFusionPass 引入误差：融合后 b/fused 的数值不同\n")
    assert "下一步：ulpscope fusion fusion_result.json --switch-off DenseBFusionPass" in text
    assert told(capsys, words)["findings"][0]["sentence"].startswith("DenseBFusionPass 引入误差")


def test_the_first_is_the_one_that_parts_first_and_not_the_one_that_ran_first() -> None:
    """In step 0 the later operator parts, in step 1 the earlier one does, too."""
    row = {"role": "output", "op": "Relu", "call_target": "Relu.0", "rank": 0, "place": "output.0"}
    row |= {"error": 1.0, "error_in": 0.0, "expected": 0.0}
    judged = [(0, 0, "a", "rounding"), (0, 1, "b", "made_here"), (1, 2, "a", "made_here"), (1, 3, "b", "inherited")]
    pairs = pl.DataFrame(
        [row | dict(zip(("step", "id_target", "module", "judgement"), each, strict=True)) for each in judged]
    )
    found = fused_operators(pairs, {})
    assert [(each.name, each.step, each.judgement) for each in found] == [("b", 0, "made_here"), ("a", 1, "made_here")]


def test_fusion_that_only_rounds_less_often_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = analysed(tmp_path, wrong=None)
    found = told(capsys, words)
    assert (found["verdict"], found["findings"]) == ("agree", [])
    judged = {each["judgement"] for one in found["passes"] for each in one["operators"]}
    assert judged <= {"rounding", "inherited"}
    assert fusion(*words) == 0


def test_an_operator_that_no_pass_made_is_not_blamed_on_fusion(capsys: pytest.CaptureFixture[str]) -> None:
    words = [DUMP, SOUND, "--graph", GRAPH, "--close-graph", GRAPH]
    found = told(capsys, words)
    assert [each["module"] for each in found["findings"]] == ["fc1/Relu"]
    assert found["findings"][0]["evidence"]["passes"] == []
    assert not any(each["parts"] for each in found["passes"])
    names = {each["pass"] for each in found["passes"]}
    assert {"AABiasaddConvFusion", "MatMulBiasAddFusionPass", "FusedBatchnormFusionPass"} <= names
    assert fusion(*words) == 1
    assert "fc1/Relu parts, which no pass has fused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([DUMP, SOUND], "two dumps without their graphs"),
        ([DUMP, SOUND, "--graph", GRAPH], "two dumps without their graphs"),
        ([DATA / "fusion/fusion_result.list.json", "--graph", GRAPH], "--graph and --close-graph with one file"),
        (
            [DUMP, SOUND, "--graph", GRAPH, "--close-graph", GRAPH, "--switch-off", "A", "--out", "x"],
            "two dumps with --switch-off or --out",
        ),
    ],
)
def test_bad_usage(words: list[object], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fusion(*words) == 2
    assert problem in capsys.readouterr().err
