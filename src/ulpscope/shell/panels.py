"""Panels about graphs, comparisons and tensors, in the form in which precision_tool drew them."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ulpscope.diagnose.network_graphs import DangerousCast, GraphSimilarity, OperatorDifference
from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.ascend.fusion_files import GraphFusion, Stage
from ulpscope.dialects.ascend.result_table import ComparedOperator, ComparedTensor
from ulpscope.dialects.ascend.tree import STATS_SUFFIX
from ulpscope.records.calls import Stats
from ulpscope.records.graphs import Operator, TensorDesc
from ulpscope.records.overflows import OverflowFinding
from ulpscope.report.tables import plain
from ulpscope.report.terminal.overflow import overflow_sentence
from ulpscope.report.terminal.show_graph import FoundDumps, OperatorView, SummarisedTensor, value_words
from ulpscope.report.words.language import Language, phrases
from ulpscope.workflows.diff import ElementRow, PairedElements, TensorView
from ulpscope.workflows.tensor_lookup import FoundTensor

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
        lines += [f" {key}: {value_words(value)}" for key, value in sorted(wanted)]
        if not wanted:
            lines.append(f" no attribute{f' with {attributes} in its name' if attributes else ''}")
    lines.append(INPUT_COLUMNS)
    for index, each in enumerate(operator.inputs):
        made = f" (made at {view.made_at[index]})" if index in view.made_at else ""
        lines.append(f" -[{index}]{_desc(each.desc)} {'' if each.source is None else each.source}{made}")
    lines += ["Output:", *_outputs(view)]
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


IN_A_ROW = 8
ROWS = 16


def tensor_panel(view: TensorView) -> Panel:
    """A table of the first elements, and what the tensor is."""
    starts = range(0, len(view.first), IN_A_ROW)
    rows = ((start, " ".join(map(str, view.first[start : start + IN_A_ROW]))) for start in starts)
    lines = [spec(view.dtype, view.shape, view.stats), f"Path: {view.path}"]
    if view.text is not None or view.problem is not None:
        lines.append(f"TxtFile: {view.text or f'not written ({view.problem})'}")
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


def low_panel(operator: ComparedOperator, cosine: float) -> Panel:
    """Both sides of an operator, and how alike its inputs and outputs are."""
    lines: list[str | Text] = [f"Left:  {listed(operator.target)}", f"Right: {listed(operator.reference)}"]
    for title, side in (("Input:", Side.INPUT), ("Output:", Side.OUTPUT)):
        lines += [title, *(_cosine(tensor, cosine) for tensor in operator.of(side))]
    return panel(lines, title=f"[{operator.index}] {operator.name}" if operator.index else operator.name)


def _cosine(tensor: ComparedTensor, limit: float) -> Text:
    style = "yellow" if math.isnan(tensor.cosine) else "red" if tensor.cosine <= limit else "green"
    return Text.assemble(f" - [{tensor.index}]", (f"{tensor.cosine:.6f}", style))


def fusion_panel(graph: GraphFusion) -> Panel:
    """The passes that took effect in a graph."""
    tables = []
    for stage, name in ((Stage.GRAPH, "Graph Fusion"), (Stage.UB, "UB Fusion")):
        rows = [(each.name, each.effect) for each in graph.passes if each.stage is stage and each.effect]
        tables.append(framed_table(f"{name} [GraphID: {graph.graph}]", ("Fusion Name", "Effect times"), rows))
    return Panel.fit(Columns(tables), title=plain(f"GraphID:{graph.graph}"))


def overflow_panel(finding: OverflowFinding) -> Panel:
    """An operation that overflowed, what the device noted of it, and its tensors."""
    place, record = finding.place, finding.record
    task = "" if record is None else f"[{record.task}]"
    lines = [f"[{place.op or '-'}]{task} {place.module or place.call or '-'}"]
    if record is None:
        lines.append(f" - {overflow_sentence(finding, Language.EN, several_ranks=False)}")
    else:
        words, status = phrases(Language.EN), ",".join(map(str, record.status))
        meanings = listed(words.say(f"overflow.meaning.{meaning}") for meaning in record.meanings)
        lines.append(f" - [{record.unit}][Status:{status}][TaskId:{record.task}] {meanings}")
        lines.append(f" - First overflow file timestamp [{record.timestamp}] -")
    for tensor in finding.tensors:
        lines += [f" ├─ {tensor.place}", f"  └─ {spec(tensor.dtype, tensor.shape, tensor.stats)}"]
    if record is not None and not finding.tensors:
        lines.append(" - no dump of this operator in the same directory")
    return panel(lines)


def cast_line(casts: Iterable[DangerousCast]) -> str:
    """`[Cast][float32 -> int32] ['global_step/Cast']`; all of one pair of types."""
    several = list(casts)
    return f"[Cast][{several[0].source} -> {several[0].target}] {listed(cast.operator.name for cast in several)}"


def difference_panel(difference: OperatorDifference) -> Panel:
    """The tensors of an operator that two compilations gave other types or layouts."""
    operator = difference.operators.reference
    lines = [
        f" - {tensor.place}: {_form(tensor.descs.reference)} | {_form(tensor.descs.target)}"
        for tensor in difference.tensors
    ]
    return panel(lines, title=f"[{operator.type}] {operator.name}")


def similarity_line(found: GraphSimilarity) -> str:
    """How many of the operators of two graphs are alike."""
    graphs = found.graphs
    line = f"Compare [{graphs.reference}] [{graphs.target}], similarity is [{found.similar} / {found.compared}]"
    for names, word in ((found.only_reference, "first"), (found.only_target, "second")):
        if names:
            line += f"; only in the {word}: {listed(names[:3])}{' ...' if len(names) > 3 else ''}"
    return line


def _form(desc: TensorDesc | None) -> str:
    return "-" if desc is None else f"[{desc.dtype}][{desc.layout}]"
