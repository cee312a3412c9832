"""The network of tests/data/ascend, and small ones made by hand."""

import csv
from pathlib import Path

from ulpscope.records.graphs import Graph, GraphFormat, GraphModel, Input, Operator, Origin, Source, TensorDesc

DATA = Path(__file__).resolve().parents[1] / "data" / "ascend"
REFERENCE = DATA / "precision_data/tf/dump"
DUMPS = DATA / "precision_data/npu/debug_0/dump"
OTHER_DUMPS = DATA / "debug_1/dump"
"""Of the same network, without the fault in fc1/Relu."""
GRAPH = DATA / "precision_data/npu/debug_0/graph/ge_proto_00000_Build.txt"
LEAF = DUMPS / "20260101000000/0/ge_default_20260101000000_11/1/0"
EXPECTED = DATA / "expected"
MSACCUCMP_26 = EXPECTED / "msprobe_26.2.0"


def expected_table(path: Path) -> list[list[str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def model(*operators: Operator, name: str = "net") -> GraphModel:
    return GraphModel(name, GraphFormat.GE_TEXT, (Graph(name, operators),))


def operator(
    name: str,
    kind: str = "Relu",
    *,
    inputs: tuple[str | None, ...] = (),
    outputs: tuple[TensorDesc, ...] = (TensorDesc(dtype="float16"),),
    number: int = 0,
    **more: object,
) -> Operator:
    sources = tuple(Input(None if each is None else _source(each)) for each in inputs)
    return Operator(
        name=name,
        type=kind,
        graph="net",
        id=number,
        inputs=sources,
        outputs=outputs,
        **more,  # type: ignore[arg-type]
    )


def desc(origin: str | None = None, output: int | None = None, dtype: str = "float16") -> TensorDesc:
    return TensorDesc(dtype=dtype, origin=None if origin is None else Origin(origin, output))


def _source(text: str) -> Source:
    name, _, output = text.rpartition(":")
    return Source(name, int(output))
