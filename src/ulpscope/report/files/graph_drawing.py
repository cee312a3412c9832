"""Draws what lies around an operator: as SVG of our own, or as text for graphviz."""

import unicodedata
from collections.abc import Iterator
from html import escape

from ulpscope.graph.layout import Box, Layout, Point, lay_out
from ulpscope.graph.query import Cut
from ulpscope.records.graphs import Edge, Operator, TensorDesc

LETTER, LINE, MARGIN = 6.6, 15.0, 8.0
"""Width and height of a letter in a box, and what is left free around the text, in pixels."""

LONGEST_LABEL = 44

_STYLE = """
  text { font: 11px monospace; fill: #222; text-anchor: middle }
  title + rect + text { font-weight: bold }
  rect { fill: #f5f7fa; stroke: #7a8aa0 }
  .moves rect { fill: #fff; stroke-dasharray: 3 2 }
  .centre rect { fill: #ffe9b3; stroke: #b07800; stroke-width: 2 }
  path { fill: none; stroke: #7a8aa0 }
  .control path { stroke-dasharray: 4 3; stroke: #b0b8c4 }
""".strip("\n")

_MOVES = ("Cast", "TransData")
"""Types that change how a tensor lies in memory, and not what it means."""


def svg_text(cut: Cut) -> str:
    """A picture of its own, without any other program."""
    sizes = {operator.name: _size(operator) for operator in cut.operators}
    arcs = [(edge.producer, edge.consumer) for edge in cut.edges]
    arcs += [(edge.before, edge.after) for edge in cut.controls]
    layout = lay_out(sizes, arcs)
    return "\n".join(_svg_lines(cut, layout)) + "\n"


def dot_text(cut: Cut) -> str:
    """The graph in graphviz's language."""
    lines = [
        "digraph operators {",
        "  node [shape=box, style=filled, fillcolor=white, fontname=monospace, fontsize=10];",
    ]
    lines += [f"  {_dot(operator.name)} [{_dot_node(operator, cut)}];" for operator in cut.operators]
    lines += [
        f"  {_dot(edge.producer)} -> {_dot(edge.consumer)} [label={_dot(f'{edge.output}:{edge.input}')}, fontsize=8];"
        for edge in cut.edges
    ]
    lines += [f"  {_dot(edge.before)} -> {_dot(edge.after)} [style=dashed];" for edge in cut.controls]
    return "\n".join([*lines, "}"]) + "\n"


def _dot_node(operator: Operator, cut: Cut) -> str:
    label, tip = "label=" + _dot("\n".join(_labels(operator))), "tooltip=" + _dot(_tip(operator))
    return f"{label}, {tip}" + (', fillcolor="#ffe9b3"' if operator.name == cut.centre else "")


def _dot(text: str) -> str:
    # Graphviz knows no escapes in quotes but \" and, in labels, \n; a backslash of a name's own is doubled. It takes
    # &lt; for a sign.
    plain = _clean(text).replace("&", "&amp;")
    quoted = plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{quoted}"'


def _svg_lines(cut: Cut, layout: Layout) -> Iterator[str]:
    size = f'width="{layout.width:.0f}" height="{layout.height:.0f}"'
    view = f'viewBox="0 0 {layout.width:.0f} {layout.height:.0f}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view}>'
    yield f"<style>\n{_STYLE}\n</style>"
    yield '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    yield '<path d="M0,0 L8,4 L0,8 z" style="fill:#7a8aa0;stroke:none"/></marker>'
    by_name = {operator.name: operator for operator in cut.operators}
    for edge, route in zip(cut.edges, layout.routes, strict=False):
        yield _svg_edge(edge, by_name[edge.producer], route)
    for control, route in zip(cut.controls, layout.routes[len(cut.edges) :], strict=True):
        words = escape(_clean(f"{control.before} before {control.after}"))
        yield f'<g class="control"><title>{words}</title>{_path(route)}</g>'
    for operator in cut.operators:
        yield _svg_box(operator, layout.boxes[operator.name], centre=operator.name == cut.centre)
    yield "</svg>"


def _svg_edge(edge: Edge, producer: Operator, route: tuple[Point, ...]) -> str:
    desc = producer.outputs[edge.output] if edge.output < len(producer.outputs) else None
    words = escape(_clean(f"{edge.producer}:{edge.output} to {edge.consumer}:{edge.input} {_desc_words(desc)}".strip()))
    return f'<g class="edge"><title>{words}</title>{_path(route)}</g>'


def _path(route: tuple[Point, ...]) -> str:
    """A curve that leaves and meets each point from above or below."""
    first, *rest = route
    parts = [f"M{first[0]:.1f},{first[1]:.1f}"]
    before = first
    for point in rest:
        middle = (before[1] + point[1]) / 2
        parts.append(f"C{before[0]:.1f},{middle:.1f} {point[0]:.1f},{middle:.1f} {point[0]:.1f},{point[1]:.1f}")
        before = point
    return f'<path d="{" ".join(parts)}" marker-end="url(#tip)"/>'


def _svg_box(operator: Operator, box: Box, *, centre: bool) -> str:
    kind = "centre" if centre else "moves" if operator.type in _MOVES else "operator"
    middle = box.x + box.width / 2
    lines = "".join(
        f'<text x="{middle:.1f}" y="{box.y + MARGIN + (place + 0.7) * LINE:.1f}">{escape(label)}</text>'
        for place, label in enumerate(_labels(operator))
    )
    shape = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="4"'
    return f'<g class="{kind}"><title>{escape(_tip(operator))}</title><rect {shape}/>{lines}</g>'


def _size(operator: Operator) -> tuple[float, float]:
    labels = _labels(operator)
    return max(map(_columns, labels), default=0) * LETTER + 2 * MARGIN, len(labels) * LINE + 2 * MARGIN


def _labels(operator: Operator) -> list[str]:
    """What stands in a box: type, name, and what the first output is."""
    desc = _desc_words(operator.outputs[0] if operator.outputs else None)
    return [_shortened(_clean(line)) for line in (operator.type, operator.name, desc) if line]


def _tip(operator: Operator) -> str:
    outputs = [f"output {place}: {_desc_words(desc)}" for place, desc in enumerate(operator.outputs)]
    passes = [f"passes: {', '.join(operator.passes)}"] if operator.passes else []
    return "\n".join(_clean(line) for line in (f"{operator.type} {operator.name}", *outputs, *passes))


def _desc_words(desc: TensorDesc | None) -> str:
    if desc is None:
        return ""
    shape = "" if desc.shape is None else str(list(desc.shape))
    return " ".join(word for word in (desc.dtype, desc.layout, shape) if word)


def _shortened(label: str) -> str:
    """The ends of long names tell them apart, not their beginnings."""
    return label if len(label) <= LONGEST_LABEL else f"…{label[1 - LONGEST_LABEL :]}"


def _columns(label: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in label)


def _clean(text: str) -> str:
    """Without what XML and graphviz do not take: control characters and halves of pairs."""
    taken = (letter == "\n" or unicodedata.category(letter) not in ("Cc", "Cs") for letter in text)
    return "".join(letter if fits else "\ufffd" for letter, fits in zip(text, taken, strict=True))
