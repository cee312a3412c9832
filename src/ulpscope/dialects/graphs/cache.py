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
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

from ulpscope._version import __version__
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
from ulpscope.trace.files import LARGEST_DUMP, read_bytes
from ulpscope.trace.objects import collector_paused

WORTH_KEEPING = 1 << 20
"""Bytes of a file from which on it is kept: less is parsed in a tenth of a second."""

SCHEMA = 3


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
            body = json.dumps(model, default=_row, separators=(",", ":")).encode()
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


_ROWS = {
    kind: attrgetter(*(each.name for each in fields(kind)))
    for kind in (GraphModel, Graph, Operator, Input, Source, TensorDesc, Origin)
}
"""Each record as a row of its fields, in their order."""


def _row(record: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = _ROWS[type(record)](record)
    return found


def _model(row: Sequence[Any]) -> GraphModel:
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
