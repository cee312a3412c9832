"""One HTML text out of template, style, script and content; the page needs nothing else and asks for nothing else."""

import base64
import html
import json
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from ulpscope.phrases import phrase_table
from ulpscope.report.page.packing import Content, compressed, pack
from ulpscope.report.words.language import Language

QUICK = 3
"""Compression of the library: each result has a page, and 10 % less of it would take twice the time."""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' data: blob:; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src {connect}; base-uri 'none'; form-action 'none'"
)


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
    return compressed(resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes(), level=QUICK)


def _files() -> list[Traversable]:
    return sorted(_static().iterdir(), key=lambda file: file.name)


def _static() -> Traversable:
    return resources.files("ulpscope.report.page").joinpath("static")


def _text(name: str) -> str:
    return _static().joinpath(name).read_text(encoding="utf-8")


def _json(content: object) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
