"""Opens a graph file, whichever tool wrote it. What kind it is, its content tells; names of files only help.

Graphs that were read before are kept as JSON in the user's cache directory, so that a large one is parsed once. A
file's entry is found by its path and holds its size and time; a file that has changed, or an entry that is damaged or
of another version, is read anew. An entry is data and nothing else. Only graphs that take long to parse are kept.
"""

import dataclasses
import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

from ulpscope._version import __version__
from ulpscope.dialects.graphs import tf_graph
from ulpscope.dialects.graphs.ge_model import ge_model, ge_onnx_model, ge_operator, is_ge_onnx
from ulpscope.dialects.graphs.messages import GraphFileError, Message, read_message
from ulpscope.dialects.graphs.onnx_graph import onnx_model, onnx_node
from ulpscope.dialects.graphs.text_proto import parse_json, parse_text
from ulpscope.dialects.tfrecord import RECORD_HEAD, is_record_file
from ulpscope.dialects.wire import FIXED64, LENGTH, VARINT, WireError, fields, schemas_of
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import (
    Attributes,
    Graph,
    GraphFormat,
    GraphModel,
    Input,
    Operator,
    Origin,
    Source,
    TensorDesc,
)
from ulpscope.trace.files import LARGEST_DUMP, check_file, map_bytes, read_bytes
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
    "Event": ("tensorflow", tf_graph.event_model),
}
"""Messages that binary files hold, with their schemas and what makes a model of them."""
DEBUGGED = "graphs of tfdbg2"
"""A file of records, each about one operator."""
GRAPH_EVENTS = (7, 8, 12)
"""Fields of a DebugEvent: an operator, a function, a device."""
_SUFFIXES = {".onnx": "ModelProto", ".meta": "MetaGraphDef", ".pb": "GraphDef"}


SAVED_MODEL = ("saved_model.pb", "saved_model.pbtxt")
"""The graph of a directory that TensorFlow saved a model into."""


def graph_file(path: Path) -> Path:
    """The file that holds the graph: of a saved model's directory the one in it, else the path itself."""
    files = (path / name for name in SAVED_MODEL) if path.is_dir() else ()
    return next((file for file in files if file.is_file()), path)


def is_graph(path: Path) -> bool:
    """Whether this is a file that holds a graph, or a saved model, as far as a quick look tells."""
    path = graph_file(path)
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
    file = graph_file(Path(path))
    header = _header(file)
    known = None if header is None else _kept(file, header)
    if known is not None:
        return known
    model = read_graph(file)
    if header is not None:
        _keep(file, header, model)
    return model


def read_graph(path: Path) -> GraphModel:
    """The graph of a file, or of a saved model's directory, read anew."""
    path = graph_file(path)
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
    if name == DEBUGGED:
        # Readers of dumps take half a second to import, which other graphs need not wait for.
        from ulpscope.dialects.tfdbg2_graphs import debugged_model

        return debugged_model(path)
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
    if is_record_file(data) and any(_top(data[RECORD_HEAD:], event) is not None for event in GRAPH_EVENTS):
        return DEBUGGED
    if _top(data, 1, FIXED64) is not None and _is_node(_top(_top(data, 4), 1)):
        return "Event"
    if _top(data, 1, VARINT) is not None:
        if _top(data, 7) is not None:
            return "ModelProto"
        if _is_meta_graph(_top(data, 2)):
            return "SavedModel"
    if _is_node(_top(data, 1)):
        return "GraphDef"
    return "MetaGraphDef" if _is_meta_graph(data) else _SUFFIXES.get(path.suffix.lower())


def _is_meta_graph(data: int | memoryview | None) -> bool:
    return _is_node(_top(_top(data, 2), 1))


def _is_node(data: int | memoryview | None) -> bool:
    kind = _top(data, 2)
    return isinstance(kind, memoryview) and len(kind) < 256 and _OPERATOR_TYPE.fullmatch(kind) is not None


def _top(data: int | memoryview | None, number: int, wire_type: int = LENGTH) -> int | memoryview | None:
    """The first field of this number and type among those at the top, as far as they can be read."""
    if not isinstance(data, memoryview):
        return None
    try:
        top = islice(fields(data), _TOP_FIELDS)
        return next((content for found, kind, content in top if (found, kind) == (number, wire_type)), None)
    except WireError:
        return None


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
        "saved model (binary or text; also its directory), a graph of tfdbg, or ONNX",
        next_step="copy the file again, or dump the graph again (DUMP_GE_GRAPH=2 for GE's)",
    )


WORTH_KEEPING = 1 << 20
"""Bytes of a file from which on it is kept: less is parsed in a tenth of a second."""

_SCHEMA = 4


Header: TypeAlias = dict[str, object]
"""Which file an entry is of, and of what size and time."""


def _kept(path: Path, header: Header) -> GraphModel | None:
    """The graph of this file as it was read before; none if it was not, or has changed."""
    try:
        data = read_bytes(_entry(path), limit=LARGEST_DUMP)
        first, _, body = data.partition(b"\n")
        if json.loads(first) != {**header, "checksum": zlib.crc32(body)}:
            return None
        with collector_paused():
            return _model_of_row(json.loads(body))
    except (OSError, ValueError, TypeError, IndexError, RuntimeError):
        # A RuntimeError also comes of a user without a home, as in containers.
        return None


def _keep(path: Path, header: Header, model: GraphModel) -> None:
    """Keep a graph of a file that was so before it was read; a cache that cannot be written is no reason to fail."""
    try:
        with collector_paused():
            body = json.dumps(model, default=_row, separators=(",", ":")).encode()
        first = json.dumps({**header, "checksum": zlib.crc32(body)}).encode()
        _write(_entry(path), first + b"\n" + body)
    except (OSError, RuntimeError):
        return


def _header(path: Path) -> Header | None:
    """How a file is now; none if its graph is not worth keeping."""
    try:
        status = path.stat()
    except OSError:
        return None
    if status.st_size < WORTH_KEEPING:
        return None
    return {
        "schema": _SCHEMA,
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


_ROWS = {
    kind: attrgetter(*(each.name for each in dataclasses.fields(kind)))
    for kind in (GraphModel, Graph, Operator, Input, Source, TensorDesc, Origin)
}
"""Each record as a row of its fields, in their order."""


def _row(record: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = _ROWS[type(record)](record)
    return found


def _model_of_row(row: Sequence[Any]) -> GraphModel:
    name, file_format, graphs, attributes = row
    return GraphModel(name, GraphFormat(file_format), tuple(map(_graph, graphs)), _attributes(attributes))


def _graph(row: Sequence[Any]) -> Graph:
    name, operators, attributes = row
    return Graph(name, tuple(map(_operator, operators)), _attributes(attributes))


def _operator(row: Sequence[Any]) -> Operator:
    name, kind, graph, number, stream, inputs, outputs, *plain, attributes = row
    read, made = tuple([_input(each) for each in inputs]), tuple([_desc(each) for each in outputs])
    told: list[Any] = [name, kind, graph, number, stream, read, made, *map(_value, plain), _attributes(attributes)]
    return Operator(*told)


def _input(row: Sequence[Any]) -> Input:
    source, desc = row
    return Input(None if source is None else Source(*source), None if desc is None else _desc(desc))


def _desc(row: Sequence[Any]) -> TensorDesc:
    *plain, origin, fusion_origin, attributes = row
    origins = (None if each is None else Origin(*each) for each in (origin, fusion_origin))
    told: list[Any] = [*map(_value, plain), *origins, _attributes(attributes)]
    return TensorDesc(*told)


def _attributes(row: dict[str, Any]) -> Attributes:
    return {key: _value(value) if type(value) in (list, dict) else value for key, value in row.items()}


def _value(value: Any) -> Any:
    """Lists were tuples before they became JSON."""
    if isinstance(value, list):
        return tuple([_value(item) for item in value])
    return _attributes(value) if isinstance(value, dict) else value
