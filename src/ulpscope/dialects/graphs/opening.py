"""Opens a graph file, whichever tool wrote it. What kind it is, its content tells; names of files only help."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from ulpscope.dialects.graphs import cache, tf_graph
from ulpscope.dialects.graphs.ge_model import ge_model, ge_onnx_model, ge_operator, is_ge_onnx
from ulpscope.dialects.graphs.messages import GraphFileError, Message, read_message
from ulpscope.dialects.graphs.onnx_graph import onnx_model, onnx_node
from ulpscope.dialects.graphs.text_proto import parse_json, parse_text
from ulpscope.dialects.wire import LENGTH, VARINT, WireError, fields, schemas_of
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import GraphFormat, GraphModel
from ulpscope.trace.files import LARGEST_DUMP, check_file, map_bytes
from ulpscope.trace.objects import collector_paused

_Maker: TypeAlias = Callable[[Message], GraphModel]

_HEAD = 4096
_TOP_FIELDS = 64
"""How many fields at the top of a binary file are looked at to tell what it is."""

_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_JSON_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
_JSON_GRAPH = re.compile(rb'"op"\s*:\s*\[')
_JSON_NODES = re.compile(rb'"node"\s*:\s*\[')
_JSON_NODE = re.compile(rb'"(?:op|op_type|opType)"\s*:\s*"')
_TEXT_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:#[^\n]*\n\s*)*\w+\s*[:{<]")
_TEXT_GRAPH = re.compile(rb"(?:^|[\s;,{])(?:op|node)\s*:?\s*[{<]")
_OPERATOR_TYPE = re.compile(rb"[A-Za-z_][\w.>:/-]*")

_FINISHED = {"graph.op": ge_operator, "graph.node": onnx_node, **tf_graph.FINISHED}

_BINARY: dict[str, tuple[str, _Maker]] = {
    "ModelProto": ("onnx", onnx_model),
    "GraphDef": ("tensorflow", tf_graph.graph_def_model),
    "MetaGraphDef": ("tensorflow", tf_graph.meta_graph_model),
    "SavedModel": ("tensorflow", tf_graph.saved_model),
}
"""Messages that binary files hold, with their schemas and what makes a model of them."""
_SUFFIXES = {".onnx": "ModelProto", ".meta": "MetaGraphDef", ".pb": "GraphDef"}


def is_graph(path: Path) -> bool:
    """Whether this is a file that holds a graph, as far as a quick look tells."""
    if not path.is_file() or not os.access(path, os.R_OK) or not 0 < path.stat().st_size <= LARGEST_DUMP:
        return False
    data = _mapped(path)
    head = bytes(data[:_HEAD])
    if _NO_TEXT.search(head):
        return _binary_message(data, path) is not None
    if _JSON_BEGINS.match(head):
        if _JSON_GRAPH.search(data) is not None:
            return True
        return _JSON_NODES.search(data) is not None and _JSON_NODE.search(data) is not None
    return _TEXT_BEGINS.match(head) is not None and _TEXT_GRAPH.search(data) is not None


def open_graph(path: str | Path) -> GraphModel:
    """The graph of a file, from the cache if it was read before and has not changed since."""
    file = Path(path)
    header = cache.header_of(file)
    known = cache.load(file, header)
    if known is not None:
        return known
    model = read_graph(file)
    cache.store(file, header, model)
    return model


def read_graph(path: Path) -> GraphModel:
    """The graph of a file, read anew."""
    if not path.is_file():
        raise _no_graph(path, "is a directory" if path.is_dir() else "is not there, or no file")
    try:
        if path.stat().st_size == 0:
            raise GraphFileError("is empty")
        with collector_paused():
            model = _read(_mapped(path), path)
    except OSError as error:
        raise _no_graph(path, f"cannot be read: {error.strerror}") from error
    except GraphFileError as problem:
        raise (_another_kind(path) or _no_graph(path, str(problem))) from problem
    if not any(graph.operators for graph in model.graphs):
        raise _no_graph(path, "holds a graph without operators")
    return model


def _read(data: memoryview, path: Path) -> GraphModel:
    head = bytes(data[:_HEAD])
    if not _NO_TEXT.search(head):
        text = _decoded(data)
        if _JSON_BEGINS.match(head):
            model = _model(parse_json(text, _FINISHED), "is JSON")
            return replace(model, format=GraphFormat.GE_JSON) if model.format is GraphFormat.GE_TEXT else model
        return _model(parse_text(text, _FINISHED), "is in protobuf's text format")
    name = _binary_message(data, path)
    if name is None:
        raise GraphFileError("is a binary file, but neither ONNX nor TensorFlow's")
    schemas, make = _BINARY[name]
    return make(read_message(data, name, schemas_of(schemas), _FINISHED))


def _decoded(data: memoryview) -> str:
    for encoding in ("utf-8-sig", "gb18030"):
        try:
            return str(data, encoding)
        except UnicodeDecodeError as error:
            position = error.start
    raise GraphFileError(f"is neither UTF-8 nor GBK: byte {position:,} fits none of them")


def _model(message: Message, form: str) -> GraphModel:
    """What a message that was read with _FINISHED is a model of."""
    for fits, make in _MODELS:
        if fits(message):
            return make(message)
    fields_seen = ", ".join(list(message)[:5]) or "nothing"
    raise GraphFileError(f"{form}, but no graph: at its top it has {fields_seen}")


def _some_graph_has(field: str) -> Callable[[Message], bool]:
    return lambda message: any(isinstance(graph, dict) and field in graph for graph in message.get("graph", ()))


_MODELS: tuple[tuple[Callable[[Message], bool], _Maker], ...] = (
    (_some_graph_has("op"), ge_model),
    (is_ge_onnx, ge_onnx_model),
    (_some_graph_has("node"), onnx_model),
    (lambda message: "meta_graphs" in message, tf_graph.saved_model),
    (lambda message: "graph_def" in message, tf_graph.meta_graph_model),
    (lambda message: "node" in message or "library" in message, tf_graph.graph_def_model),
)


def _binary_message(data: memoryview, path: Path) -> str | None:
    """Which message the fields at the top belong to; a damaged file is told by its name."""
    top = _top_fields(data)
    if isinstance(top.get((1, VARINT)), int):
        if (7, LENGTH) in top:
            return "ModelProto"
        meta_graph = top.get((2, LENGTH))
        if isinstance(meta_graph, memoryview) and _is_meta_graph(meta_graph):
            return "SavedModel"
    node = top.get((1, LENGTH))
    if isinstance(node, memoryview) and _is_node(node):
        return "GraphDef"
    return "MetaGraphDef" if _is_meta_graph(data) else _SUFFIXES.get(path.suffix.lower())


def _is_meta_graph(data: memoryview) -> bool:
    graph = _top_fields(data).get((2, LENGTH))
    node = _top_fields(graph).get((1, LENGTH)) if isinstance(graph, memoryview) else None
    return isinstance(node, memoryview) and _is_node(node)


def _is_node(data: memoryview) -> bool:
    kind = _top_fields(data).get((2, LENGTH))
    return isinstance(kind, memoryview) and len(kind) < 256 and _OPERATOR_TYPE.fullmatch(kind) is not None


def _top_fields(data: memoryview) -> dict[tuple[int, int], int | memoryview]:
    """The first of each of the fields at the top, as far as they can be read."""
    found: dict[tuple[int, int], int | memoryview] = {}
    try:
        for number, wire_type, content in islice(fields(data), _TOP_FIELDS):
            found.setdefault((number, wire_type), content)
    except WireError:
        pass
    return found


def _mapped(path: Path) -> memoryview:
    """A file's bytes without reading them into memory. The map closes when the last view into it is gone."""
    check_file(path, limit=LARGEST_DUMP)
    return map_bytes(path).data


def _another_kind(path: Path) -> UlpscopeError | None:
    """What a file is that begins like no graph; none if it is a damaged one."""
    from ulpscope.dialects.recognising import wrong_kind

    return None if is_graph(path) else wrong_kind(path, "a graph")


def _no_graph(path: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"{path} {problem}",
        expected="a graph: GE's ge_proto_*_Build.txt, its JSON, ge_onnx_*.pbtxt, TensorFlow's GraphDef, meta graph or "
        "saved model (binary or text), or ONNX",
        next_step="copy the file again, or dump the graph again (DUMP_GE_GRAPH=2 for GE's)",
    )
