"""Panels about tensors: the first elements of one, two side by side."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from ulpscope.records.values import Stats
from ulpscope.report.tables import plain
from ulpscope.shell.panels import framed_table, panel, spec
from ulpscope.workflows.diff.elements import ElementRow, PairedElements, TensorView
from ulpscope.workflows.diff.tensor_lookup import FoundTensor

IN_A_ROW = 8
ROWS = 16


def tensor_panel(view: TensorView) -> Panel:
    """A table of the first elements, and what the tensor is."""
    starts = range(0, len(view.first), IN_A_ROW)
    rows = ((start, " ".join(map(str, view.first[start : start + IN_A_ROW]))) for start in starts)
    lines = [spec(view.dtype, view.shape, view.stats), f"Path: {view.path}", *_text_line(view.text, view.problem)]
    content = Group(framed_table("", ("Index", "Data"), rows), *map(plain, lines))
    return Panel.fit(content, title=plain(view.name))


def comparison(pair: PairedElements, texts: tuple[Path | None, Path | None] = (None, None)) -> RenderableType:
    """The elements that differ, the first elements, and a panel of both sides; left is what is under suspicion."""
    tables = (_elements("Error Item Table", pair.errors), _elements("Top Item Table", pair.first))
    metrics, tolerance = pair.metrics, pair.tolerance
    share = pair.outside / pair.elements if pair.elements else 0.0
    worst = "" if metrics.max_abs is None else f"{metrics.max_abs:.8g}"
    lines = [
        *_side("Left", pair.tensors.target, pair.stats.target, texts[0]),
        *_side("Right", pair.tensors.reference, pair.stats.reference, texts[1]),
        f"NumCnt:   {pair.elements}",
        f"AllClose: {not pair.outside}",
        f"CosSim:   {'-' if metrics.cosine is None else f'{metrics.cosine:.8f}'}",
        f"MaxDiff:  {worst or '-'}",
        f"ErrorPer: {share:.8g}  (rl= {tolerance.rtol:g}, al= {tolerance.atol:g})",
    ]
    shapes = f"{list(pair.tensors.target.stored.shape)} and {list(pair.tensors.reference.stored.shape)}"
    if pair.reordered is not None:
        source, wanted = pair.reordered
        lines.append(f"By the shapes, {shapes}, Left is {source}: it was brought into {wanted}, the order of Right.")
    elif pair.reshaped:
        lines.append(f"The shapes differ, {shapes}: elements were compared in the order of each.")
    return Group(Columns(tables), panel(lines))


def _elements(title: str, rows: Iterable[ElementRow]) -> Table:
    cells = ((_index(row.index), row.texts.target, row.texts.reference, f"{row.difference:.8g}") for row in rows)
    return framed_table(title, ("Index", "Left", "Right", "Diff"), cells)


def _index(index: tuple[int, ...]) -> str:
    return str(index[0]) if len(index) == 1 else str(list(index))


def _side(name: str, found: FoundTensor, stats: Stats, text: Path | None) -> Iterator[str]:
    yield f"{name}:"
    yield f" ├─ Tensor:  {found.name}"
    yield f" ├─ File:    {found.path}"
    if text is not None:
        yield f" ├─ TxtFile: {text}"
    yield f" └─ NpySpec: {spec(found.stored.dtype, found.stored.shape, stats)}"


def _text_line(text: Path | None, problem: str | None) -> Iterator[str]:
    if text is not None:
        yield f"TxtFile: {text}"
    elif problem is not None:
        yield f"TxtFile: not written ({problem})"
