"""`ulpscope check DUMP --graph GRAPH` on tensors in tiles of a device, packed here; torch says what is right."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes
from ulpscope.cli.main import main

Array = NDArray[Any]
RANDOM = np.random.default_rng(9)
IMAGE = "NCHW"


@dataclass(frozen=True)
class Placed:
    """A tensor as it lies on the device, and its order in the network."""

    tensor: Tensor
    order: str
    shape: tuple[int, ...]

    def desc(self, side: str) -> str:
        dims = " ".join(f"dim: {size}" for size in self.tensor.data.shape)
        told = attribute("origin_format", self.order) + attribute("origin_shape", self.shape)
        return f'{side} {{ layout: "{self.tensor.layout}" shape {{ {dims} }}{told} }} '


@dataclass(frozen=True)
class Case:
    type: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Placed]
    outputs: Sequence[Placed]


def attribute(name: str, value: Any) -> str:
    kinds = {bool: "b", int: "i", float: "f", str: "s"}
    if isinstance(value, tuple | list):
        content = f"list {{ {' '.join(f'i: {each}' for each in value)} val_type: VT_LIST_INT }}"
    else:
        content = f"{kinds[type(value)]}: {json.dumps(value)}"
    return f' attr {{ key: "{name}" value {{ {content} }} }}'


def numbers(*shape: int, dtype: Any = np.float16) -> Array:
    return RANDOM.standard_normal(shape).astype(dtype)


def double(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64))


def plain(array: Array) -> Placed:
    return Placed(Tensor(array), "ND", array.shape)


def in_order(shape: Sequence[int], order: str) -> tuple[int, ...]:
    return tuple(shape[IMAGE.index(axis)] for axis in order)


def nz(array: Array) -> Placed:
    """Padding is not 0, so that a reader which keeps it is found."""
    *stack, rows, columns = array.shape
    padded = np.pad(array, [*[(0, 0)] * len(stack), (0, -rows % 16), (0, -columns % 16)], constant_values=7)
    split = padded.reshape(*stack, padded.shape[-2] // 16, 16, padded.shape[-1] // 16, 16)
    first = len(stack)
    tiles = np.ascontiguousarray(split.transpose(*range(first), first + 2, first, first + 1, first + 3))
    return Placed(Tensor(tiles, "FRACTAL_NZ", array.shape), "ND", array.shape)


def picture(array: Array, order: str) -> Placed:
    count, channels, height, width = array.shape
    padded = np.pad(array, ((0, 0), (0, -channels % 16), (0, 0), (0, 0)), constant_values=3)
    tiles = padded.reshape(count, -1, 16, height, width).transpose(0, 1, 3, 4, 2)
    shape = in_order(array.shape, order)
    return Placed(Tensor(np.ascontiguousarray(tiles), "NC1HWC0", shape), order, shape)


def weight(array: Array, order: str) -> Placed:
    padded = np.pad(array, ((0, -array.shape[0] % 16), (0, -array.shape[1] % 16), (0, 0), (0, 0)))
    outer, inner, height, width = padded.shape
    tiles = padded.reshape(outer // 16, 16, inner // 16, 16, height, width).transpose(2, 4, 5, 0, 1, 3)
    shape = in_order(array.shape, order)
    return Placed(Tensor(tiles.reshape(-1, outer // 16, 16, 16), "FRACTAL_Z", shape), order, shape)


def channels(vector: torch.Tensor, order: str) -> Placed:
    tiles = np.zeros((1, 1, 1, 1, 16), np.float32)
    tiles[..., : len(vector)] = vector.numpy()
    return Placed(Tensor(tiles, "NC1HWC0", (len(vector),)), order, (len(vector),))


def matrices(dtype: Any) -> list[Case]:
    x, w = numbers(20, 37, dtype=dtype), numbers(50, 37, dtype=dtype)
    stack, other = numbers(3, 20, 37, dtype=dtype), numbers(3, 37, 18, dtype=dtype)
    product, products = (double(x) @ double(w).T).numpy(), (double(stack) @ double(other)).numpy()
    return [
        Case("MatMulV2", {"transpose_x2": True}, [nz(x), nz(w)], [nz(product.astype(dtype))]),
        Case("BatchMatMulV2", {}, [nz(stack), nz(other)], [nz(products.astype(dtype))]),
    ]


def pictures(order: str) -> list[Case]:
    def listed(rows: int, columns: int) -> tuple[int, ...]:
        return in_order((1, 1, rows, columns), order)

    def half(result: torch.Tensor) -> Placed:
        return picture(result.numpy().astype(np.float16), order)

    x, w, bias = numbers(2, 5, 11, 9), numbers(20, 5, 3, 3), numbers(20)
    wide, read = double(x), picture(x, order)
    convolved = F.conv2d(F.pad(wide, (1, 2, 0, 1)), double(w), double(bias), stride=(2, 1))
    geometry = {"strides": listed(2, 1), "pads": (0, 1, 1, 2), "dilations": (1, 1, 1, 1), "groups": 1, "offset_x": 0}
    pooling = {"ksize": listed(3, 3), "strides": listed(2, 2), "padding": "VALID"}
    sums = [wide.sum((0, 2, 3)).float(), wide.square().sum((0, 2, 3)).float()]
    scale, offset, mean, variance = (torch.rand(5) + 0.5 for _ in range(4))
    given = [channels(each, order) for each in (scale, offset, mean, variance)]
    inferred = F.batch_norm(wide, mean.double(), variance.double(), scale.double(), offset.double(), eps=1e-5)
    running = mean.double(), variance.double()
    trained = F.batch_norm(wide, *running, scale.double(), offset.double(), training=True, momentum=0.25, eps=1e-5)
    batch = wide.mean((0, 2, 3)), wide.var((0, 2, 3), correction=0)
    statistics = [channels(each.float(), order) for each in (*running, *batch)]
    told = [channels(each, order) for each in sums]
    return [
        Case(
            "Conv2D",
            {**geometry, "data_format": order},
            [read, weight(w, "HWCN" if order == "NHWC" else order), plain(bias)],
            [half(convolved)],
        ),
        Case("MaxPool", {**pooling, "data_format": order}, [read], [half(F.max_pool2d(wide, 3, 2))]),
        Case("AvgPool", {**pooling, "data_format": order}, [read], [half(F.avg_pool2d(wide, 3, 2))]),
        Case("BNTrainingReduce", {}, [read], told),
        Case("BNInfer", {"epsilon": 1e-5}, [read, *given], [half(inferred)]),
        Case(
            "BNTrainingUpdate", {"epsilon": 1e-5, "factor": 0.25}, [read, *told, *given], [half(trained), *statistics]
        ),
        Case("Reshape", {}, [read], [plain(x.transpose([IMAGE.index(axis) for axis in order]).reshape(2, -1))]),
    ]


CASES = [*matrices(np.float16), *matrices(ml_dtypes.bfloat16), *matrices(np.float32)]
CASES += [*pictures("NCHW"), *pictures("NHWC")]


def spoiled(case: Case) -> Case:
    """Its first element is off."""
    first = case.outputs[0]
    data = first.tensor.data.copy()
    data.flat[0] += np.abs(data).max() / 2
    return replace(case, outputs=[replace(first, tensor=replace(first.tensor, data=data)), *case.outputs[1:]])


def check(folder: Path, cases: Sequence[Case], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    dumps = folder / "dump"
    dumps.mkdir(parents=True)
    operators = []
    for number, case in enumerate(cases):
        content = file_bytes(
            f"n/{number}",
            inputs=[each.tensor for each in case.inputs],
            outputs=[each.tensor for each in case.outputs],
        )
        (dumps / f"{case.type}.n_{number}.{number}.0.{FIRST_TIME + number}").write_bytes(content)
        sources = " ".join(f'input: "s{place}:0"' for place in range(len(case.inputs)))
        descs = "".join(each.desc("input_desc") for each in case.inputs)
        descs += "".join(each.desc("output_desc") for each in case.outputs)
        told = "".join(attribute(name, value) for name, value in case.attributes.items())
        operators.append(f'op {{ name: "n/{number}" type: "{case.type}" {sources} {descs}{told} }}\n')
    graph = folder / "graph.txt"
    graph.write_text(f'name: "g"\ngraph {{ name: "g"\n{"".join(operators)}}}\n')
    main(["check", str(dumps), "--graph", str(graph), "--json"])
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_sound_operators_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = check(tmp_path, CASES, capsys)
    assert (told["verdict"], told["findings"], told["notes"], told["skipped"]) == ("sound", [], [], [])
    assert told["counts"]["pass"] == len(CASES)


def test_every_wrong_element_is_found_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, case in enumerate(CASES):
        cases = [*CASES[:number], spoiled(case), *CASES[number + 1 :]][max(number - 1, 0) : number + 2]
        place = min(number, 1)
        told = check(tmp_path / str(number), cases, capsys)
        assert [(each["module"], each["op"]) for each in told["findings"]] == [(f"n/{place}", case.type)]
