"""One HTML text out of template, style, script and content; the page needs nothing else and asks for nothing else.

The content is columns of numbers and words in one compressed text, which the page unpacks. Unpacked it is: the length
of a header (4 bytes, little-endian), the header as JSON, then the columns it names, each one beginning at a multiple of
8. The bytes of numbers lie in planes, all first bytes before all second ones: equal exponents then stand together, and
compress.
"""

import base64
import gzip
import html
import json
import re
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import polars as pl

from ulpscope.phrases import phrase_table
from ulpscope.report.words.language import Language

if sys.version_info >= (3, 11):
    from importlib.resources.abc import Traversable
else:
    from importlib.abc import Traversable

QUICK = 3
"""Compression of the library: each result has a page, and 10 % less of it would take twice the time."""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' data: blob:; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src {connect}; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, slots=True)
class Content:
    """What a page holds: values that json.dumps(allow_nan=False) takes, and tables by name."""

    meta: Mapping[str, Any]
    tables: Mapping[str, pl.DataFrame]


def assemble(content: Content, *, title: str, served: bool = False) -> str:
    """The page; a served one may ask its own server for more."""
    parts = {
        "policy": _POLICY.format(connect="'self'" if served else "'none'"),
        "title": html.escape(title),
        "style": _style(),
        "imports": _json({"imports": _modules()}),
        "words": _json({each.value: phrase_table(each.value, of_page=True) for each in Language}),
        "served": _json(served),
        "plotly": _plotly(),
        "content": pack(content),
    }
    pieces = re.split(r"\{\{(\w+)\}\}", _text("page.html"))
    # Every second piece is the name of a place; what is put there is not looked at again.
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _style() -> str:
    """page.css, then those of single views."""
    others = [file.name for file in _files() if file.name.endswith(".css") and file.name != "page.css"]
    return "".join(map(_text, ["page.css", *others]))


def _modules() -> dict[str, str]:
    """Every script of the page by its bare name, as a data: URL."""
    return {file.name.removesuffix(".js"): _data_url(file) for file in _files() if file.name.endswith(".js")}


def _data_url(file: Traversable) -> str:
    return "data:text/javascript;base64," + base64.b64encode(file.read_bytes()).decode("ascii")


@cache
def _plotly() -> str:
    return compressed(resources.files("plotly.package_data").joinpath("plotly.min.js").read_bytes(), level=QUICK)


def _files() -> list[Traversable]:
    return sorted(_static().iterdir(), key=lambda file: file.name)


def _static() -> Traversable:
    return resources.files("ulpscope.report.page").joinpath("static")


def _text(name: str) -> str:
    return _static().joinpath(name).read_text(encoding="utf-8")


def _json(content: object) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")


ALIGNMENT = 8
COMPRESSION = 4
"""A higher level gains a hundredth and takes twice the time."""


def pack(content: Content) -> str:
    """Everything of a page as base64 text."""
    columns = _Columns()
    tables = {name: _table(frame, columns) for name, frame in content.tables.items()}
    header = json.dumps({"meta": content.meta, "tables": tables}, allow_nan=False).encode()
    lead = struct.pack("<I", len(header)) + header
    packed = lead + bytes(-len(lead) % ALIGNMENT) + columns.data()
    return compressed(packed)


def compressed(data: bytes, *, level: int = COMPRESSION) -> str:
    """Gzip'd, as base64 text; the same bytes give the same text."""
    return base64.b64encode(gzip.compress(data, level, mtime=0)).decode("ascii")


class _Columns:
    """The bytes of columns, one behind the other."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def add(self, numbers: "np.ndarray[Any, Any]") -> int:
        """Where the numbers begin, as seen from the end of the header."""
        begin = self._length
        planes = numbers.view(np.uint8).reshape(-1, numbers.itemsize).T.tobytes()
        padded = planes + bytes(-len(planes) % ALIGNMENT)
        self._parts.append(padded)
        self._length += len(padded)
        return begin

    def data(self) -> bytes:
        return b"".join(self._parts)


def _table(frame: pl.DataFrame, columns: _Columns) -> dict[str, Any]:
    return {"length": frame.height, "columns": {column.name: _column(column, columns) for column in frame}}


def _column(column: pl.Series, columns: _Columns) -> dict[str, Any]:
    if column.null_count() == len(column):
        return {"type": "empty"}
    if isinstance(column.dtype, pl.List | pl.Array):
        items = column.cast(pl.List(pl.String)).list.join(", ")
        column = pl.select(pl.format("[{}]", items)).to_series()
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        numbers = _numbers(column)
        return {"type": str(numbers.dtype), "begin": columns.add(numbers)}
    codes, words = _coded(column.cast(pl.String))
    return {"type": "words", "begin": columns.add(codes), "words": words}


def _numbers(column: pl.Series) -> "np.ndarray[Any, Any]":
    """The narrowest type that keeps what is shown; a missing number is nan."""
    whole = column.dtype.is_integer() or column.dtype == pl.Boolean
    wide = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
    if whole and column.null_count() == 0 and np.abs(wide).max(initial=0) < 2**31:
        return np.ascontiguousarray(wide.astype(np.int32))
    return np.ascontiguousarray(wide if whole or _leaves_float32(wide) else wide.astype(np.float32))


def _leaves_float32(numbers: "np.ndarray[Any, Any]") -> bool:
    """Whether float32 would make zero or infinity of a number that is neither."""
    sizes = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    limits = np.finfo(np.float32)
    return bool(sizes.size) and bool(sizes.max() > limits.max or sizes.min() < limits.tiny)


def _coded(column: pl.Series) -> tuple["np.ndarray[Any, Any]", list[str]]:
    """Each word once, in the order of appearance, and for each row which one it is; -1 for none."""
    words = column.drop_nulls().unique(maintain_order=True)
    table = pl.DataFrame({"word": words, "code": pl.Series(range(len(words)), dtype=pl.Int32)})
    found = column.rename("word").to_frame().join(table, on="word", how="left", maintain_order="left")
    return found["code"].fill_null(-1).to_numpy().astype(np.int32), words.to_list()
