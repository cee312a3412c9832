"""Definitions of Ascend operators against torch in float64; sound results and planted faults judged by them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from make_ascend_dumps import Tensor, file_bytes
from ulpscope.dialects.ascend.dump_file.file import parse_dump
from ulpscope.judge.soundness.verdicts import judge_output
from ulpscope.records.checks import OutputResult, Verdict
from ulpscope.records.graphs import Operator
from ulpscope.replay.ascend.engine import Dumped, ExecutedOperator
from ulpscope.replay.ascend.recipes import DEFINITIONS

Array = NDArray[Any]
Oracle = Callable[..., torch.Tensor | Sequence[torch.Tensor]]
RANDOM = np.random.default_rng(11)
EPSILON = float(np.float32(1e-3))
"""Attributes of a graph are float32."""


def floats(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    return RANDOM.uniform(low, high, shape).astype(np.float16).astype(np.float32)


@dataclass
class Example:
    type: str
    inputs: Sequence[Array]
    oracle: Oracle
    attributes: Mapping[str, Any] = field(default_factory=dict)
    layouts: Sequence[str] = ()
    layout: str = "ND"

    def __str__(self) -> str:
        return f"{self.type}-{len(self.attributes)}-{len(self.inputs)}"

    def outputs(self) -> list[Array]:
        made = self.oracle(*[_double(each) for each in self.inputs])
        return [each.numpy() for each in ([made] if isinstance(made, torch.Tensor) else made)]


def _double(array: Array) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor


def nhwc(function: Callable[..., torch.Tensor], **settings: Any) -> Callable[..., torch.Tensor]:
    """torch's pictures are NCHW, its weights NCHW."""

    def called(x: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
        turned = [each.permute(3, 2, 0, 1) for each in weight[:1]]
        return function(x.permute(0, 3, 1, 2), *turned, *weight[1:], **settings).permute(0, 2, 3, 1)

    return called


def layer_norm(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> list[torch.Tensor]:
    variance, mean = torch.var_mean(x, dim=(1, 2), keepdim=True, correction=0)
    return [F.layer_norm(x, x.shape[1:], gamma, beta, eps=1e-5), mean, variance]


def batch_update(
    x: torch.Tensor, total: torch.Tensor, squares: torch.Tensor, *rest: torch.Tensor
) -> list[torch.Tensor]:
    scale, offset, mean, variance = (each.clone() for each in rest)
    y = F.batch_norm(x, mean, variance, scale, offset, training=True, momentum=0.25, eps=EPSILON)
    return [y, mean, variance, x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)]


def batch_sums(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.sum((0, 2, 3)), x.square().sum((0, 2, 3))]


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    leaf = logits.clone().requires_grad_()
    loss = F.cross_entropy(leaf, labels, reduction="none")
    loss.sum().backward()
    assert leaf.grad is not None
    return [loss.detach(), leaf.grad]


X, Y, V = floats(6, 40), floats(6, 40), floats(40)
POSITIVE = floats(6, 40, low=0.25, high=4.0)
PICTURE, WEIGHT = floats(2, 9, 8, 4), floats(3, 3, 4, 5)
NCHW = floats(2, 4, 9, 8)
BATCH = floats(3, 5, 6, 7)
SUMS = [each.numpy().astype(np.float32) for each in batch_sums(_double(BATCH))]
LABELS = np.eye(10, dtype=np.float32)[RANDOM.integers(0, 10, 7)]
ROWS = RANDOM.integers(0, 6, (3, 2)).astype(np.int32)
MASK = RANDOM.integers(0, 2, (6, 40)).astype(bool)
NUMBERS = RANDOM.integers(-90, 90, (6, 40)).astype(np.int32)


def indices(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


EXAMPLES = [
    Example("MatMulV2", [X, floats(40, 9)], torch.matmul),
    Example("MatMulV2", [X, floats(40, 9), floats(9)], lambda x, w, b: x @ w + b),
    Example("MatMul", [X, floats(9, 40)], lambda x, w: x @ w.T, {"transpose_x2": True}),
    Example("MatMul", [floats(40, 6), floats(40, 9)], lambda x, w: x.T @ w, {"transpose_x1": True}),
    Example("BatchMatMulV2", [floats(2, 3, 5, 7), floats(2, 3, 7, 4)], torch.matmul),
    Example("BatchMatMul", [floats(3, 7, 5), floats(3, 7, 4)], lambda x, y: x.mT @ y, {"adj_x": True}),
    Example("BatchMatMul", [floats(3, 7, 5), floats(3, 4, 7)], lambda x, y: x.mT @ y.mT,
            {"adj_x1": True, "adj_x2": True}),
    Example("FullyConnection", [floats(3, 2, 4, 5), floats(6, 2, 4, 5), floats(6)],
            lambda x, w, b: F.linear(x.flatten(1), w.flatten(1), b)[:, :, None, None],
            {"num_output": 6, "transpose": False, "axis": 1}, ("NCHW", "NCHW", "ND"), "NCHW"),
    Example("Conv2D", [PICTURE, WEIGHT], nhwc(F.conv2d, stride=2, padding=1),
            {"strides": (1, 2, 2, 1), "pads": (1, 1, 1, 1)}, ("NHWC", "HWCN"), "NHWC"),
    Example("Conv2D", [NCHW, floats(6, 2, 3, 3), floats(6)],
            lambda x, w, b: F.conv2d(F.pad(x, (3, 0, 1, 2)), w, b, stride=(1, 2), dilation=2, groups=2),
            {"strides": (1, 1, 1, 2), "pads": (1, 2, 3, 0), "dilations": (1, 1, 2, 2), "groups": 2},
            ("NCHW", "NCHW", "ND"), "NCHW"),
    Example("Conv2D", [PICTURE, WEIGHT], nhwc(F.conv2d, padding="same"), {}, ("NHWC", "HWCN"), "NHWC"),
    Example("Conv2D", [PICTURE, WEIGHT], nhwc(F.conv2d), {}, ("NHWC", "HWCN"), "NHWC"),
    Example("MaxPool", [PICTURE], nhwc(F.max_pool2d, kernel_size=3, stride=2),
            {"ksize": (1, 3, 3, 1), "strides": (1, 2, 2, 1), "padding": "VALID"}, ("NHWC",), "NHWC"),
    Example("MaxPool", [NCHW], lambda x: F.max_pool2d(F.pad(x, (0, 1, 1, 1), value=-9.0), (3, 3), (2, 2)),
            {"ksize": (1, 1, 3, 3), "strides": (1, 1, 2, 2), "padding": "SAME"}, ("NCHW",), "NCHW"),
    Example("AvgPool", [PICTURE], nhwc(F.avg_pool2d, kernel_size=(3, 2), stride=(3, 2)),
            {"ksize": (1, 3, 2, 1), "strides": (1, 3, 2, 1), "padding": "VALID"}, ("NHWC",), "NHWC"),
    Example("AvgPool", [NCHW], lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
            {"ksize": (1, 1, 3, 3), "strides": (1, 1, 1, 1), "padding": "SAME"}, ("NCHW",), "NCHW"),
    Example("BiasAdd", [PICTURE, floats(4)], torch.add, {}, ("NHWC", "ND"), "NHWC"),
    Example("BiasAdd", [floats(3, 5, 7), floats(5)], lambda x, b: x + b[:, None], {"data_format": "NCHW"}),
    Example("BiasAdd", [floats(3, 5, 7), floats(7)], torch.add, {"data_format": "NHWC"}),
    Example("BiasAdd", [NCHW, floats(4)], lambda x, b: x + b[:, None, None], {}, ("NCHW", "ND"), "NCHW"),
    Example("LayerNorm", [floats(4, 6, 9), floats(6, 9), floats(6, 9)], layer_norm,
            {"begin_norm_axis": 1, "epsilon": 1e-5}),
    Example("BNTrainingReduce", [BATCH], batch_sums, {}, ("NCHW",)),
    Example("BNInfer", [BATCH, floats(5), floats(5), floats(5), floats(5, low=0.5)],
            lambda x, s, o, m, v: F.batch_norm(x, m, v, s, o, eps=EPSILON), {"epsilon": EPSILON}, ("NCHW",), "NCHW"),
    Example("BatchNorm", [BATCH, floats(5), floats(5)],
            lambda x, s, o: F.batch_norm(x, None, None, s, o, training=True, eps=EPSILON),
            {"epsilon": EPSILON}, ("NCHW",), "NCHW"),
    Example("BatchNorm", [BATCH, floats(5), floats(5), floats(5), floats(5, low=0.5)],
            lambda x, s, o, m, v: F.batch_norm(x, m, v, s, o, eps=1e-4), {"is_training": False}, ("NCHW",), "NCHW"),
    Example("SoftmaxV2", [X], lambda x: x.softmax(-1)),
    Example("SoftmaxV2", [NCHW], lambda x: x.softmax(1), {"axes": (1,)}),
    Example("LogSoftmaxV2", [X], lambda x: x.log_softmax(-1)),
    Example("Softmax", [NCHW], lambda x: x.softmax(1), {"axis": (1,)}),
    Example("LogSoftmax", [X], lambda x: x.log_softmax(0), {"axis": 0}),
    Example("SoftmaxCrossEntropyWithLogits", [floats(7, 10), LABELS], cross_entropy),
    Example("ReduceSum", [NCHW, indices(1, -1)], lambda x, axes: x.sum((1, 3))),
    Example("ReduceSumD", [NCHW], lambda x: x.sum((2, 3), keepdim=True), {"axes": (2, 3), "keep_dims": True}),
    Example("ReduceMeanD", [NCHW], lambda x: x.mean((0, 2)), {"axes": (0, 2)}),
    Example("ReduceMeanD", [NCHW], lambda x: x.mean()[None], {"axes": ()}),
    Example("ReduceSumD", [X], lambda x: x.clone(), {"axes": ()}),
    Example("ReduceMaxD", [NCHW], lambda x: x.amax((1,)), {"axes": (1,)}),
    Example("ReduceMinD", [NCHW], lambda x: x.amin((1,)), {"axes": 1}),
    Example("ReduceProdD", [floats(6, 8, low=0.5)], lambda x: x.prod(1), {"axes": (1,)}),
    Example("L2Loss", [X], lambda x: x.square().sum()[None] / 2),
    Example("Add", [X, V], torch.add),
    Example("AddV2", [PICTURE, floats(2, 1, 8, 4)], torch.add),
    Example("Sub", [X, Y], torch.sub),
    Example("Mul", [X, V], torch.mul),
    Example("RealDiv", [X, POSITIVE], torch.div),
    Example("Pow", [POSITIVE, Y], torch.pow),
    Example("Maximum", [X, Y], torch.maximum),
    Example("Minimum", [X, Y], torch.minimum),
    Example("SquaredDifference", [X, Y], lambda x, y: (x - y).square()),
    Example("AddN", [X, Y, POSITIVE], lambda x, y, z: x + y + z),
    Example("Muls", [X], lambda x: x * 0.125, {"value": 0.125}),
    Example("Adds", [X], lambda x: x + 3.0, {"value": 3.0}),
    Example("Relu", [X], torch.relu),
    Example("Relu6", [X * 5], F.relu6),
    Example("LeakyRelu", [X], lambda x: F.leaky_relu(x, 0.25), {"negative_slope": 0.25}),
    Example("Elu", [X], F.elu),
    Example("Elu", [X], lambda x: torch.ops.aten.elu(x, 1.5, 1.25, 0.5),
            {"alpha": 1.5, "scale": 1.25, "input_scale": 0.5}),
    Example("Gelu", [X], lambda x: F.gelu(x, approximate="tanh")),
    # float64's own 1 + tanh is off here by more than float32 rounds.
    Example("Gelu", [-3.0 * POSITIVE], lambda x: x * torch.sigmoid((8 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    Example("FastGelu", [X], lambda x: x * torch.sigmoid(1.702 * x)),
    Example("Swish", [X], F.silu),
    Example("Sigmoid", [X * 4], torch.sigmoid),
    Example("Tanh", [X], torch.tanh),
    Example("Softplus", [X], F.softplus),
    Example("Softsign", [X], F.softsign),
    Example("Sqrt", [POSITIVE], torch.sqrt),
    Example("Rsqrt", [POSITIVE], torch.rsqrt),
    Example("Reciprocal", [POSITIVE], torch.reciprocal),
    Example("Exp", [X], torch.exp),
    Example("Exp", [X], lambda x: torch.exp2(2 * x + 1), {"base": 2.0, "scale": 2.0, "shift": 1.0}),
    Example("Log", [POSITIVE], torch.log),
    Example("Log1p", [POSITIVE], torch.log1p),
    Example("Expm1", [X], torch.expm1),
    Example("Power", [POSITIVE], lambda x: (0.5 * x + 1) ** 3, {"power": 3.0, "scale": 0.5, "shift": 1.0}),
    Example("Square", [X], torch.square),
    Example("Abs", [X], torch.abs),
    Example("Neg", [X], torch.neg),
    Example("Floor", [X * 9], torch.floor),
    Example("Rint", [X * 9], torch.round),
    Example("Round", [np.round(X * 9) / 2], torch.round, {"decimals": 0}),
    Example("ClipByValue", [X, np.array([-1.0], np.float32), np.array([0.5], np.float32)],
            lambda x, a, b: x.clamp(-1, 0.5)),
    Example("ReluGrad", [X, Y], lambda g, f: torch.where(f > 0, g, 0.0)),
    Example("Greater", [X, Y], torch.gt),
    Example("LessEqual", [X, V], torch.le),
    Example("Equal", [NUMBERS, NUMBERS[:1]], torch.eq),
    Example("LogicalNot", [MASK], torch.logical_not),
    Example("Select", [MASK, X, Y], torch.where),
    Example("Select", [MASK[:, 0].copy(), X, Y], lambda c, x, y: torch.where(c[:, None], x, y)),
    Example("ArgMaxD", [X], lambda x: x.argmax(1).int(), {"dimension": -1}),
    Example("ArgMaxV2", [X, indices(0)], lambda x, axis: x.argmax(0).int()),
    Example("Transpose", [NCHW, indices(0, 2, 3, 1)], lambda x, order: x.permute(0, 2, 3, 1).contiguous()),
    Example("TransposeD", [X], lambda x: x.T.contiguous(), {"perm": (1, 0)}),
    Example("Reshape", [X], lambda x: x.reshape(8, 30)),
    Example("ConcatD", [X, Y, POSITIVE], lambda *parts: torch.cat(parts, 1), {"concat_dim": 1, "N": 3}),
    Example("ConcatV2", [X, Y, indices(-2)], lambda x, y, axis: torch.cat([x, y], 0)),
    Example("Concat", [indices(1), X, Y], lambda axis, x, y: torch.cat([x, y], 1)),
    Example("Concat", [X, Y, indices(1)], lambda x, y, axis: torch.cat([x, y], 1)),
    Example("SplitD", [X], lambda x: [each.contiguous() for each in x.chunk(4, 1)], {"split_dim": 1, "num_split": 4}),
    Example("SplitVD", [X], lambda x: [each.contiguous() for each in x.split([7, 33], 1)],
            {"split_dim": -1, "size_splits": (7, 33), "num_split": 2}),
    Example("Pack", [X, Y], lambda x, y: torch.stack([x, y], 1), {"axis": 1, "N": 2}),
    Example("Unpack", [floats(3, 4)], lambda x: [each.contiguous() for each in x.unbind(1)], {"axis": 1, "num": 4}),
    Example("PadD", [X], lambda x: F.pad(x, (0, 3, 1, 2)), {"paddings": ((1, 2), (0, 3))}),
    Example("Pad", [X, np.array([[1, 2], [0, 3]], np.int32)], lambda x, p: F.pad(x, (0, 3, 1, 2))),
    Example("GatherV2", [X, ROWS, indices(0)], lambda x, rows, axis: x[rows.long()]),
    Example("GatherV2D", [X, ROWS], lambda x, rows: x[:, rows.long()], {"axis": 1}),
    Example("TileD", [X], lambda x: x.tile(2, 3), {"multiples": (2, 3)}),
    Example("BroadcastTo", [V, indices(6, 40)], lambda x, shape: x.expand(6, 40).contiguous()),
    Example("SliceD", [X], lambda x: x[1:4, 5:].contiguous(), {"offsets": (1, 5), "size": (3, -1)}),
    Example("Add", [NUMBERS, NUMBERS], lambda x, y: x + y),
]  # fmt: skip

UPDATE = Example(
    "BNTrainingUpdate", [BATCH, *SUMS, floats(5), floats(5), floats(5), floats(5, low=0.5)], batch_update,
    {"epsilon": EPSILON, "factor": 0.25}, ("NCHW",), "NCHW",
)  # fmt: skip


def executed(example: Example, outputs: Sequence[Array]) -> ExecutedOperator:
    layouts = [*example.layouts, *["ND"] * len(example.inputs)]
    inputs = [Tensor(each, layout) for each, layout in zip(example.inputs, layouts, strict=False)]
    made = [Tensor(each, example.layout if each.ndim == 4 else "ND") for each in outputs]
    dump = parse_dump(file_bytes("net/op", inputs=inputs, outputs=made))
    operator = Operator("net/op", example.type, "net", 0, attributes=example.attributes)
    return ExecutedOperator(operator, Dumped(dump.inputs, dump.outputs), {})


def judged(example: Example, outputs: Sequence[Array]) -> list[OutputResult]:
    again = executed(example, outputs)
    results = [judge_output(each) for each in again.evidence]
    if None in results:
        again.refine()
        results = [judge_output(each) for each in again.evidence]
    assert None not in results
    return [each for each in results if each is not None]


def rounded(array: Array, dtype: str) -> Array:
    return array.astype(dtype) if array.dtype.kind == "f" else array


@pytest.mark.parametrize("example", [*EXAMPLES, UPDATE], ids=str)
def test_a_definition_is_what_torch_computes(example: Example) -> None:
    outputs = example.outputs()
    again = executed(example, [rounded(each, "float32") for each in outputs])
    assert [each.place for each in again.evidence] == [f"output.{place}" for place in range(len(outputs))]
    chosen = DEFINITIONS[example.type].chosen is not None
    for each, expected in zip(again.evidence, outputs, strict=True):
        if chosen:
            np.testing.assert_array_equal(each.computed, each.exact)
        else:
            # The sums that BNTrainingUpdate is given are rounded already.
            np.testing.assert_allclose(each.exact, expected, rtol=1e-5 if example is UPDATE else 1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_the_correctly_rounded_result_is_sound(example: Example, dtype: str) -> None:
    results = judged(example, [rounded(each, dtype) for each in example.outputs()])
    assert {each.verdict for each in results} <= {Verdict.PASS, Verdict.UNTESTED}
    assert any(each.verdict is Verdict.PASS for each in results)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_wrong_element_is_found(example: Example) -> None:
    outputs = [rounded(each, "float32") for each in example.outputs()]
    first = outputs[0]
    place = int(np.argmax(np.abs(first))) if first.dtype.kind == "f" else 0
    if first.dtype.kind == "b":
        first.flat[place] = not first.flat[place]
    else:
        # Sixteen thousand roundings of float32. An index or whole number is off by one.
        first.flat[place] += first.flat[place] / 1000 if first.dtype.kind == "f" else 1
    result = judged(example, outputs)[0]
    assert result.verdict is Verdict.FAIL
    if DEFINITIONS[example.type].chosen is None:
        assert result.worst == np.unravel_index(place, first.shape)


def test_every_type_with_a_definition_that_is_asked_for_has_one() -> None:
    asked = (
        "MatMul MatMulV2 BatchMatMul BatchMatMulV2 Conv2D BiasAdd Relu Relu6 Gelu Sigmoid Tanh Softmax SoftmaxV2 "
        "LayerNorm BNTrainingReduce BNTrainingUpdate BatchNorm BNInfer Add AddV2 Mul Sub RealDiv Muls Adds Maximum "
        "Minimum Sqrt Rsqrt Exp Log Pow Square ReduceSum ReduceSumD ReduceMean ReduceMeanD ReduceMax ReduceMaxD "
        "ArgMax ArgMaxD Greater Less GreaterEqual LessEqual Equal NotEqual Cast Transpose TransposeD TransData "
        "Reshape ConcatD SplitD Pad PadD MaxPool AvgPool Select GatherV2 FullyConnection "
        "SoftmaxCrossEntropyWithLogits "
    ).split()
    assert not set(asked) - DEFINITIONS.keys()
