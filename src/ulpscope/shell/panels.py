"""Panels about graphs, in the form in which precision_tool drew them."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ulpscope.dialects.ascend.tree import STATS_SUFFIX
from ulpscope.records.graphs import AttributeValue, Operator, TensorDesc
from ulpscope.records.values import Stats
from ulpscope.report.tables import plain
from ulpscope.report.terminal.show_graph import plain_value
from ulpscope.report.terminal.views import FoundDumps, OperatorView, SummarisedTensor

READERS_SHOWN = 20
INPUT_COLUMNS = "Input:idx | dtype | format | shape | value_range | shape_range | origin_shape | op_name:peer_idx"


def panel(lines: Iterable[str | Text], *, title: str | None = None) -> Panel:
    """Lines in a frame that is as wide as they are."""
    content = Text("\n").join(line if isinstance(line, Text) else plain(line) for line in lines)
    return Panel.fit(content, title=None if title is None else plain(title))


def framed_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table with a frame."""
    drawn = Table(title=plain(title) if title else None, box=box.HEAVY_HEAD)
    for header in headers:
        drawn.add_column(plain(header), overflow="fold")
    for row in rows:
        drawn.add_row(*(plain(cell) for cell in row))
    return drawn


def listed(names: Iterable[object]) -> str:
    """`['a', 'b']`, as users of precision_tool know lists."""
    return str(list(names))


def spec(dtype: str, shape: Sequence[int], stats: Stats | None) -> str:
    """`[Shape: (2, 40)] [Dtype: float16] [Max: 4.48828] [Min: 0] [Mean: 1.48817]`."""
    parts = [f"[Shape: {tuple(shape)}]", f"[Dtype: {dtype}]"]
    if stats is None:
        return " ".join(parts)
    numbers = {"Max": stats.max, "Min": stats.min, "Mean": stats.mean}
    parts += [f"[{name}: {'-' if number is None else f'{number:.8g}'}]" for name, number in numbers.items()]
    counts = {"NaN": stats.nan, "Inf": stats.pos_inf + stats.neg_inf}
    return " ".join([*parts, *(f"[{name}: {number}]" for name, number in counts.items() if number)])


def type_table(title: str, counts: Iterable[tuple[str, int]]) -> Table:
    """Types of operators, counted over several graphs."""
    total: Counter[str] = Counter()
    for kind, number in counts:
        total[kind] += number
    return framed_table(title, ("OpType", "Count"), total.most_common())


def operator_list(title: str, operators: Sequence[Operator]) -> Panel:
    """A line an operator: `[MatMulV2][MatMulBiasAddFusionPass] fc1/MatMul`."""
    lines = [f"[{each.type}][{', '.join(each.passes)}] {each.name}" for each in operators]
    return panel(lines or ["no operator matches"], title=title)


def operator_panel(
    debug: str, view: OperatorView, *, attributes: str | None, prefix: str = "", drawing: Path | None = None
) -> Panel:
    """Everything about one operator; the prefix tells its dumps from those of other runs.

    Attributes are those that have a text in their name; none if there is no text.
    """
    operator = view.operator
    lines = [*_facts(operator)]
    if attributes is not None:
        wanted = [(key, value) for key, value in operator.attributes.items() if attributes.lower() in key.lower()]
        lines += [f" {key}: {_value(value)}" for key, value in sorted(wanted)]
        if not wanted:
            lines.append(f" no attribute{f' with {attributes} in its name' if attributes else ''}")
    lines += [INPUT_COLUMNS, *_inputs(view), "Output:", *_outputs(view)]
    lines += _dumps(view.dumps, prefix)
    lines += _references(view.references)
    if drawing is not None:
        lines.append(f"OpGraph: {drawing}")
    return panel(lines, title=f"({debug}) {operator.graph}")


def _facts(operator: Operator) -> Iterator[str]:
    yield f"Op(Type/Name): [{operator.type}] {operator.name}"
    yield f"ID:            {operator.id}"
    yield f"KernelName:    {operator.kernel or ''}"
    yield f"KernelLibName: {operator.kernel_library or ''}"
    yield f"GraphName:     {operator.graph}"
    if operator.passes:
        yield f"PassName:      {listed(operator.passes)}"
    if operator.originals is not None:
        yield f"OriginalOp:    {listed(operator.originals)}"


def _inputs(view: OperatorView) -> Iterator[str]:
    for index, each in enumerate(view.operator.inputs):
        beyond = view.made_at.get(index)
        made = "" if beyond is None else f" (made at {beyond})"
        yield f" -[{index}]{_desc(each.desc)} {'' if each.source is None else each.source}{made}"


def _outputs(view: OperatorView) -> Iterator[str]:
    readers: dict[int, list[str]] = defaultdict(list)
    for edge in view.readers:
        readers[edge.output].append(edge.consumer)
    for index, desc in enumerate(view.operator.outputs):
        names = list(dict.fromkeys(readers[index]))
        more = f" and {len(names) - READERS_SHOWN} more" if len(names) > READERS_SHOWN else ""
        yield f" -[{index}]{_desc(desc)} {listed(names[:READERS_SHOWN])}{more}"


def _desc(desc: TensorDesc | None) -> str:
    if desc is None:
        return ""
    shape, origin = (listed(map(int, each or ())) for each in (desc.shape, desc.origin_shape))
    ranges = " ".join(str([list(each) for each in found]) for found in (desc.value_range, desc.shape_range))
    return f"[{desc.dtype}][{desc.layout}]{shape} {ranges} {origin}"


def _dumps(found: FoundDumps | None, prefix: str) -> Iterator[str]:
    """An operator's tensors, by the names by which `pt` and `cp` find them."""
    if found is None:
        return
    if not (found.tensors or found.problems):
        yield "NpuDump: none of this operator"
    for title, side in (("NpuDumpInput:", "input."), ("NpuDumpOutput:", "output.")):
        tensors = [each for each in found.tensors if each.place.startswith(side)]
        yield from [title] if tensors else []
        for each in tensors:
            file = Path(each.file).name
            name = file if file.endswith(STATS_SUFFIX) else f"{file}.{each.place}.npy"
            yield from _tensor(each, f"{prefix}{name}")
    yield from (f" not read: {problem}" for problem in found.problems)


def _references(found: FoundDumps | None) -> Iterator[str]:
    if found is None:
        return
    yield "TfDumpOutput:" if found.tensors or found.problems else "TfDumpOutput: none of this operator"
    for each in found.tensors:
        yield from _tensor(each, Path(each.file).name)
    yield from (f" not read: {problem}" for problem in found.problems)


def _tensor(tensor: SummarisedTensor, name: str) -> Iterator[str]:
    yield f" -[{tensor.place.rpartition('.')[2]}] {name}"
    yield f"   └─ {spec(tensor.dtype, tensor.shape, tensor.stats)}"


def _value(value: AttributeValue) -> str:
    return value if isinstance(value, str) else json.dumps(plain_value(value), ensure_ascii=False)
