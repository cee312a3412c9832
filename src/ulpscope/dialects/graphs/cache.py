"""Graphs that were read before: as JSON in the user's cache directory, so that a large one is parsed once.

A file's entry is found by its path and holds its size and time; a file that has changed, or an entry that is damaged or
of another version, is read anew. An entry is data and nothing else. Only graphs that take long to parse are kept.
"""

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ulpscope._version import __version__
from ulpscope.records.graphs import (
    Attributes,
    AttributeValue,
    Graph,
    GraphFormat,
    GraphModel,
    Input,
    Operator,
    Origin,
    Source,
    TensorDesc,
)
from ulpscope.trace.files import LARGEST_DUMP, read_bytes
from ulpscope.trace.objects import collector_paused

WORTH_KEEPING = 1 << 20
"""Bytes of a file from which on it is kept: less is parsed in a tenth of a second."""

SCHEMA = 2


Header: TypeAlias = dict[str, object]
"""Which file an entry is of, and of what size and time."""


def load(path: Path, header: Header | None) -> GraphModel | None:
    """The graph of this file as it was read before; none if it was not, or has changed."""
    if header is None:
        return None
    try:
        data = read_bytes(_entry(path), limit=LARGEST_DUMP)
        first, _, body = data.partition(b"\n")
        if json.loads(first) != {**header, "checksum": zlib.crc32(body)}:
            return None
        with collector_paused():
            return _model(json.loads(body))
    except (OSError, ValueError, TypeError, IndexError, RuntimeError):
        # A RuntimeError also comes of a user without a home, as in containers.
        return None


def store(path: Path, header: Header | None, model: GraphModel) -> None:
    """Keep a graph of a file that was so before it was read; a cache that cannot be written is no reason to fail."""
    if header is None:
        return
    try:
        with collector_paused():
            body = json.dumps(_model_row(model), separators=(",", ":")).encode()
        first = json.dumps({**header, "checksum": zlib.crc32(body)}).encode()
        _write(_entry(path), first + b"\n" + body)
    except (OSError, RuntimeError):
        return


def header_of(path: Path) -> Header | None:
    """How a file is now; none if its graph is not worth keeping."""
    try:
        status = path.stat()
    except OSError:
        return None
    if status.st_size < WORTH_KEEPING:
        return None
    return {
        "schema": SCHEMA,
        "version": __version__,
        "path": str(path.resolve()),
        "size": status.st_size,
        "time": status.st_mtime_ns,
    }


def _entry(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ulpscope" / "graphs" / f"{name}.json"


def _write(entry: Path, data: bytes) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=entry.parent, prefix=entry.stem)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(aside, entry)
    except OSError:
        os.unlink(aside)
        raise


def _model_row(model: GraphModel) -> list[Any]:
    return [model.name, model.format.value, [_graph_row(graph) for graph in model.graphs], dict(model.attributes)]


def _graph_row(graph: Graph) -> list[Any]:
    return [graph.name, [_operator_row(operator) for operator in graph.operators], dict(graph.attributes)]


def _operator_row(operator: Operator) -> list[Any]:
    return [
        operator.name,
        operator.type,
        operator.id,
        operator.stream,
        [_input_row(each) for each in operator.inputs],
        [_desc_row(desc) for desc in operator.outputs],
        operator.controls,
        operator.kernel,
        operator.kernel_library,
        operator.passes,
        operator.originals,
        operator.multiple,
        operator.l1_fusion,
        operator.subgraphs,
        operator.attributes,
    ]


def _input_row(each: Input) -> list[Any]:
    source = None if each.source is None else [each.source.operator, each.source.output]
    return [source, None if each.desc is None else _desc_row(each.desc)]


def _desc_row(desc: TensorDesc) -> list[Any]:
    return [
        desc.name,
        desc.dtype,
        desc.layout,
        desc.shape,
        desc.origin_shape,
        desc.origin_layout,
        desc.value_range,
        desc.shape_range,
        _origin_row(desc.origin),
        _origin_row(desc.fusion_origin),
        desc.attributes,
    ]


def _origin_row(origin: Origin | None) -> list[Any] | None:
    return None if origin is None else [origin.name, origin.output, origin.layout, origin.dtype]


def _model(row: Sequence[Any]) -> GraphModel:
    name, file_format, graphs, attributes = row
    return GraphModel(
        name, GraphFormat(file_format), tuple([_graph(graph) for graph in graphs]), _attributes(attributes)
    )


def _graph(row: Sequence[Any]) -> Graph:
    name, operators, attributes = row
    return Graph(name, tuple([_operator(operator, name) for operator in operators]), _attributes(attributes))


def _operator(row: Sequence[Any], graph: str) -> Operator:
    name, kind, number, stream, inputs, outputs, controls, kernel, library, passes, originals, *rest = row
    multiple, l1_fusion, subgraphs, attributes = rest
    return Operator(
        name=name,
        type=kind,
        graph=graph,
        id=number,
        stream=stream,
        inputs=tuple([_input(each) for each in inputs]),
        outputs=tuple([_desc(desc) for desc in outputs]),
        controls=tuple(controls),
        kernel=kernel,
        kernel_library=library,
        passes=tuple(passes),
        originals=None if originals is None else tuple(originals),
        multiple=multiple,
        l1_fusion=l1_fusion,
        subgraphs=tuple(subgraphs),
        attributes=_attributes(attributes),
    )


def _input(row: Sequence[Any]) -> Input:
    source, desc = row
    return Input(None if source is None else Source(*source), None if desc is None else _desc(desc))


def _desc(row: Sequence[Any]) -> TensorDesc:
    name, dtype, layout, shape, origin_shape, origin_layout, value_range, shape_range, origin, fusion_origin, rest = row
    return TensorDesc(
        name=name,
        dtype=dtype,
        layout=layout,
        shape=None if shape is None else tuple(shape),
        origin_shape=None if origin_shape is None else tuple(origin_shape),
        origin_layout=origin_layout,
        value_range=tuple([tuple(each) for each in value_range]),
        shape_range=tuple([tuple(each) for each in shape_range]),
        origin=None if origin is None else Origin(*origin),
        fusion_origin=None if fusion_origin is None else Origin(*fusion_origin),
        attributes=_attributes(rest),
    )


def _attributes(row: dict[str, Any]) -> Attributes:
    return {key: _value(value) if type(value) in (list, dict) else value for key, value in row.items()}


def _value(value: Any) -> AttributeValue:
    """Lists were tuples before they became JSON."""
    if isinstance(value, list):
        return tuple([_value(item) for item in value])
    return _attributes(value) if isinstance(value, dict) else value
