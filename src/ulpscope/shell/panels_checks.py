"""Panels about what is wrong: outputs that are not alike, passes that fused, overflows, casts, graphs that differ."""

import math
from collections.abc import Iterable, Iterator

from rich.columns import Columns
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ulpscope.diagnose.networks.graphs import DangerousCast, GraphSimilarity, OperatorDifference
from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.ascend.fusion_files import GraphFusion, Stage
from ulpscope.dialects.ascend.result_table import ComparedOperator, ComparedTensor
from ulpscope.records.graphs import TensorDesc
from ulpscope.records.overflows import DeviceRecord, OverflowFinding
from ulpscope.report.tables import plain
from ulpscope.report.words.language import Language, phrases
from ulpscope.report.words.overflow import overflow_sentence
from ulpscope.shell.panels import framed_table, listed, panel, spec

_STAGES = {Stage.GRAPH: "Graph Fusion", Stage.UB: "UB Fusion"}


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
    return Panel.fit(Columns([_passes(graph, stage) for stage in Stage]), title=plain(f"GraphID:{graph.graph}"))


def _passes(graph: GraphFusion, stage: Stage) -> Table:
    rows = [(each.name, each.effect) for each in graph.passes if each.stage is stage and each.effect]
    return framed_table(f"{_STAGES[stage]} [GraphID: {graph.graph}]", ("Fusion Name", "Effect times"), rows)


def overflow_panel(finding: OverflowFinding) -> Panel:
    """An operation that overflowed, what the device noted of it, and its tensors."""
    return panel(_overflow_lines(finding))


def _overflow_lines(finding: OverflowFinding) -> Iterator[str]:
    place, record = finding.place, finding.record
    task = "" if record is None else f"[{record.task}]"
    yield f"[{place.op or '-'}]{task} {place.module or place.call or '-'}"
    if record is None:
        yield f" - {overflow_sentence(finding, Language.EN, several_ranks=False)}"
    else:
        yield from _record_lines(record)
    for tensor in finding.tensors:
        yield f" ├─ {tensor.place}"
        yield f"  └─ {spec(tensor.dtype, tensor.shape, tensor.stats)}"
    if record is not None and not finding.tensors:
        yield " - no dump of this operator in the same directory"


def _record_lines(record: DeviceRecord) -> Iterator[str]:
    words = phrases(Language.EN)
    meanings = listed(words.say(f"overflow.meaning.{meaning}") for meaning in record.meanings)
    status = ",".join(map(str, record.status))
    yield f" - [{record.unit}][Status:{status}][TaskId:{record.task}] {meanings}"
    yield f" - First overflow file timestamp [{record.timestamp}] -"


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
