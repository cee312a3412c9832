"""The HTML page of a result: one text out of template, style, script and content, which needs nothing else.

The content is columns of numbers and words in one compressed text, which the page unpacks. Unpacked it is: the length
of a header (4 bytes, little-endian), the header as JSON, then the columns it names, each one beginning at a multiple of
8. The bytes of numbers lie in planes, all first bytes before all second ones: equal exponents then stand together, and
compress.

What the page of a comparison, a check, a search for overflows or a single run holds, made of the files of a result.

told.json beside summary.json has a result's sentences in every language.
"""

import base64
import gzip
import html
import json
import re
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import polars as pl

from ulpscope.judge.rounding.limits import unit_roundoff
from ulpscope.phrases import phrase_table
from ulpscope.records.calls import Frame
from ulpscope.report.program import place_of, source_line
from ulpscope.report.words.language import Language, phrases

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
    files = sorted(_static().iterdir(), key=lambda file: file.name)
    # page.css, then those of single views.
    styles = [file.name for file in files if file.name.endswith(".css")]
    # Every script of the page by its bare name, as a data: URL.
    modules = {
        file.name.removesuffix(".js"): f"data:text/javascript;base64,{_base64(file.read_bytes())}"
        for file in files
        if file.name.endswith(".js")
    }
    parts = {
        "policy": _POLICY.format(connect="'self'" if served else "'none'"),
        "title": html.escape(title),
        "style": "".join(map(_text, ["page.css", *(name for name in styles if name != "page.css")])),
        "imports": _json({"imports": modules}),
        "words": _json({each.value: phrase_table(each.value, of_page=True) for each in Language}),
        "served": _json(served),
        "plotly": _plotly(),
        "content": pack(content),
    }
    pieces = re.split(r"\{\{(\w+)\}\}", _text("page.html"))
    # Every second piece is the name of a place; what is put there is not looked at again.
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


@cache
def _plotly() -> str:
    return compressed(resources.files("plotly.package_data").joinpath("plotly.min.js").read_bytes(), level=QUICK)


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
    data = bytearray()
    tables = {
        name: {"length": frame.height, "columns": {column.name: _column(column, data) for column in frame}}
        for name, frame in content.tables.items()
    }
    header = json.dumps({"meta": content.meta, "tables": tables}, allow_nan=False).encode()
    lead = struct.pack("<I", len(header)) + header
    return compressed(lead + bytes(-len(lead) % ALIGNMENT) + data)


def compressed(data: bytes, *, level: int = COMPRESSION) -> str:
    """Gzip'd, as base64 text; the same bytes give the same text."""
    return _base64(gzip.compress(data, level, mtime=0))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _column(column: pl.Series, data: bytearray) -> dict[str, Any]:
    """What the header says of a column, whose bytes are put behind those of others."""
    if column.null_count() == len(column):
        return {"type": "empty"}
    if isinstance(column.dtype, pl.List | pl.Array):
        items = column.cast(pl.List(pl.String)).list.join(", ")
        column = pl.select(pl.format("[{}]", items)).to_series()
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        numbers = _numbers(column)
        return {"type": str(numbers.dtype), "begin": _begin(numbers, data)}
    codes, words = _coded(column.cast(pl.String))
    return {"type": "words", "begin": _begin(codes, data), "words": words}


def _begin(numbers: "np.ndarray[Any, Any]", data: bytearray) -> int:
    """Where the numbers begin, as seen from the end of the header."""
    begin, planes = len(data), numbers.view(np.uint8).reshape(-1, numbers.itemsize).T.tobytes()
    data += planes + bytes(-len(planes) % ALIGNMENT)
    return begin


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


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of one result."""

    summary: Mapping[str, Any]
    """summary.json."""
    told: Mapping[str, Any]
    """told.json: sentences in every language, stacks of findings."""
    tables: Mapping[str, pl.DataFrame]
    """Tables by the name of their file without its ending."""
    plan: Mapping[str, Any] | None = None
    """plan.json of a comparison."""

    def content(self, kind: str, *parts: str, **more: Any) -> dict[str, Any]:
        """What every page of a result has, and more."""
        # told.json of earlier versions lacks the sentences of what is missing.
        told = {part: self.told[part] for part in parts} | {"missing": self.told.get("missing")}
        return {"kind": kind, "summary": self.summary, "told": told, "stacks": self.told["stacks"], **more}


UNMATCHED = {
    "rank": pl.Int64,
    "side": pl.String,
    "id": pl.Int64,
    "step": pl.Int64,
    "name": pl.String,
    "module": pl.String,
    "phase": pl.String,
}
"""Columns of the calls that only one run has."""


def compare_content(sources: Sources) -> Content:
    """The pairs of tensors, the calls without a partner, and what is told of them."""
    pairs = sources.tables["pairs"]
    ranks = (sources.plan or {}).get("ranks", [])
    reasons = [left["reason"] for left in sources.summary["scope"].get("not_compared", ())]
    meta = sources.content(
        "compare",
        *("findings", "notes", "advice"),
        rounding=_rounding(pairs),
        reasons={reason: _in_each_language(reason) for reason in reasons},
        modules={str(rank["rank"]): rank.get("modules", {}) for rank in ranks},
    )
    unmatched = [
        {**{name: call[name] for name in UNMATCHED if name in call}, "rank": rank["rank"], "side": side}
        for rank in ranks
        for side in ("reference", "target")
        for call in rank.get(f"unmatched_{side}", ())
    ]
    return Content(meta, {"pairs": pairs, "unmatched": pl.DataFrame(unmatched, schema=UNMATCHED)})


def _rounding(pairs: pl.DataFrame) -> dict[str, float]:
    """The rounding of one number, by dtype."""
    columns = [column for column in ("dtype_reference", "dtype_target") if column in pairs.columns]
    names = sorted({name for column in columns for name in pairs[column].drop_nulls().unique()})
    return {name: roundoff for name in names if (roundoff := unit_roundoff(name))}


def _in_each_language(reason: str) -> dict[str, str]:
    """Why tensors were not compared; what has no phrase is a text for all."""
    return {language.value: phrases(language).templates.get(f"reason.{reason}", reason) for language in Language}


SHOWN = (
    "name", "op", "phase", "variant", "data", "device", "place", "direction", "dtype", "shape", "verdict", "statistic",
    "limit_share", "worst", "worst_computed", "worst_exact", "message",
)  # fmt: skip
"""Columns of details.csv that the page shows; every figure of an output is in the file."""


def check_content(sources: Sources) -> Content:
    """The outputs of all cases, and what is told of them; modes of check have the latter only."""
    summary, details = sources.summary, sources.tables.get("details")
    about = f"{summary['trace']} ({', '.join(map(str, summary['scope']['devices']))})"
    meta = sources.content("check", "findings", "notes", about=about)
    if details is None:
        return Content(meta, {})
    return Content(meta, {"details": details.select(name for name in SHOWN if name in details.columns)})


def overflow_content(sources: Sources) -> Content:
    """The operations that overflowed, with their tensors and their ways, as summary.json has them."""
    meta = sources.content("overflow", "findings", "notes", about=", ".join(sources.summary["paths"]))
    return Content(meta, {})


def trace_content(path: str, stats: pl.DataFrame, missing: tuple[str, ...]) -> Content:
    """Statistics by module and step (trace.trends), and what the trace lacks."""
    return Content({"kind": "trace", "about": path, "missing": list(missing)}, {"stats": stats})


def stack_line(frame: Frame) -> dict[str, Any]:
    """A line of a call stack with its text, if that can be read here."""
    text = source_line(frame.file, frame.line)
    return {"file": frame.file, "line": frame.line, "function": frame.function, "text": text}


PARTS = ("findings", "notes", "advice")


def told_json(answer: Callable[[Language], Mapping[str, Any]], stacks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Sentences of findings, notes, advice and what is missing, each as {"en": ..., "zh": ...}; stacks of findings.

    Where no stacks are given the lines stand for them that the findings name.
    """
    answers = {language.value: answer(language) for language in Language}
    findings = answers[Language.EN.value].get("findings", ())
    # All that the `source` of a finding tells of its call stack; nothing where it names no line.
    places = [place_of(finding.get("source")) for finding in findings]
    lines = [[] if place is None else [stack_line(Frame(*place, ""))] for place in places]
    return _told(answers, stacks or lines)


def told_once(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a result that has only its summary: one language stands for all."""
    return _told({language.value: summary for language in Language}, [])


def _told(answers: Mapping[str, Mapping[str, Any]], stacks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    sentences = {part: _texts(answers, part, lambda entry: entry["sentence"]) for part in PARTS}
    return {"schema": 1, **sentences, "missing": _texts(answers, "missing", str), "stacks": stacks}


def _texts(answers: Mapping[str, Mapping[str, Any]], part: str, text: Callable[[Any], str]) -> list[dict[str, str]]:
    by_language: Iterable[list[str]] = ([text(entry) for entry in answer.get(part, ())] for answer in answers.values())
    return [dict(zip(answers, texts, strict=True)) for texts in zip(*by_language, strict=True)]
