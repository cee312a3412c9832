"""`ulpscope compare ... --op OPERATOR --output 0`: one tensor of a network, element by element."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.align.network.pairs import NetworkRow
from ulpscope.dialects.ascend.dump_file.records import AnyArray, Side
from ulpscope.dialects.ascend.logical import has_data
from ulpscope.graph.names import sanitised
from ulpscope.numerics.layouts import IMAGES, VOLUMES
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Outcome
from ulpscope.records.pairs import Judgement
from ulpscope.report.files.network_tables import TensorDetail, detail_json, detail_text, write_detail
from ulpscope.report.words.language import Language
from ulpscope.workflows.compare.command import compare
from ulpscope.workflows.network.command import NetworkOptions, judge_network
from ulpscope.workflows.network.measuring import SIZES_DIFFER, TwoTensors, read_pair
from ulpscope.workflows.network.pairing import PairedNetwork, only
from ulpscope.workflows.results import SUMMARY, write_json, writing

DEFAULT_TOP = 20
_PICTURE, _VOLUME = "NCHW", "NCDHW"
_WRONG = (Judgement.INHERITED, Judgement.MADE_HERE)


@dataclass(frozen=True, slots=True)
class DetailWish:
    """Which tensor of which operator."""

    operator: str
    side: Side = Side.OUTPUT
    position: int = 0
    top: int = DEFAULT_TOP


@dataclass(frozen=True, slots=True)
class DetailResult:
    """One tensor beside its partner."""

    detail: TensorDetail
    graph: str | None
    judgement: Judgement | None
    """None of a tensor that comparing the network does not judge."""

    @property
    def verdict(self) -> Outcome:
        if self.judgement is None:
            return Outcome.NOTHING_COMPARED
        return Outcome.DIVERGED if self.judgement in _WRONG else Outcome.AGREE

    @property
    def code(self) -> ExitCode:
        return self.verdict.code

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        return detail_text(self.detail, self.judgement, width=width, color=color)

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        head = {"schema": 1, "command": "compare", "verdict": self.verdict.value}
        judgement = None if self.judgement is None else self.judgement.value
        return {**head, **detail_json(self.detail), "judgement": judgement, "graph": self.graph}

    def write(self, out: Path, *, xlsx: bool = False, language: Language = Language.EN) -> None:
        """Write the files that msaccucmp writes, and summary.json, into a directory that is empty."""
        with writing(out):
            write_detail(self.detail, out)
            write_json(out / SUMMARY, self.json(language))


def compare_tensor(paired: PairedNetwork, wish: DetailWish, options: NetworkOptions | None = None) -> DetailResult:
    """Set one tensor beside its partner, both in the order NCHW where they have such axes.

    It is judged as in a comparison by these options: of the network or, without a graph, of two runs.
    """
    row = _row(paired, wish)
    assert row.tensor is not None
    if row.reference is None:
        raise UlpscopeError(
            f"{row.tensor_id} has no partner: {row.reason}",
            expected="a tensor that the reference holds",
            next_step="see which has one: add --mapping in place of --op",
            code=ExitCode.NOTHING,
        )
    tensor = row.tensor.whole()
    if not has_data(tensor):
        raise _nothing_to_compare(f"{row.tensor_id} has no numbers in {row.tensor.path}")
    pair = read_pair(tensor, row.reference, row.stated)
    reference, target = pair.arrays
    if target.size != reference.size:
        sizes = {"target": target.size, "reference": reference.size}
        raise _nothing_to_compare(SIZES_DIFFER.format(name=wish.operator, **sizes))
    target, reference, axes = _in_order(pair, tensor.format_name)
    detail = TensorDetail.of(
        target,
        reference,
        top=wish.top,
        operator=row.operator.name,
        side=wish.side.value,
        position=wish.position,
        names=row.names,
        originals=row.originals,
        axes=axes,
    )
    if paired.graph is None:
        table = compare(paired.names.reference, paired.names.target, options).pairs
    else:
        unwritten = replace(options or NetworkOptions(), csv=None)
        table = judge_network(only(paired, row.index), unwritten, lambda *_, **__: None).pairs
    return DetailResult(detail, paired.graph, _judgement(paired, row, table))


def _judgement(paired: PairedNetwork, row: NetworkRow, table: pl.DataFrame) -> Judgement | None:
    assert row.tensor is not None
    place = f"{'args' if row.tensor.side is Side.INPUT else 'output'}.{row.tensor.position}"
    # Parameters are called by their names.
    places = (place, None if row.original is None or row.tensor.side is Side.OUTPUT else row.original.operator)
    folder = paired.dumps.folder
    # Without a graph operators are called as the files of their dumps are, in the table as their heads say.
    called = sanitised if paired.graph is None else str
    name = called(row.operator.name)
    found = [
        Judgement(each["judgement"])
        for each in table.select("rank", "step", "module", "place", "judgement").iter_rows(named=True)
        if (each["rank"], each["step"]) == (folder.device, folder.step)
        and called(each["module"] or "") == name
        and each["place"] in places
        and each["judgement"] is not None
    ]
    if Judgement.MADE_HERE in found and row.tensor.side is Side.INPUT:
        # Of one operator alone nothing is known of what made its inputs.
        return Judgement.INHERITED
    return found[-1] if found else None


def _in_order(pair: TwoTensors, device_layout: str) -> tuple[AnyArray, AnyArray, str]:
    """Pictures as NCHW, volumes as NCDHW; weights stay in the reference's order."""
    (reference, target), layout = pair.arrays, pair.layout
    if target.shape != reference.shape:
        return target, reference.reshape(target.shape), _PICTURE
    weights = device_layout.startswith("FRACTAL_Z")
    for family, wanted in ((IMAGES, _PICTURE), (VOLUMES, _VOLUME)):
        if layout in family and target.ndim == len(layout):
            if weights:
                return target, reference, layout
            order = [layout.index(axis) for axis in wanted]
            return target.transpose(order).copy(), reference.transpose(order).copy(), wanted
    return target, reference, _PICTURE


def _row(paired: PairedNetwork, wish: DetailWish) -> NetworkRow:
    called = _called(paired.rows, wish.operator)
    if not called:
        raise UlpscopeError(
            f"the network has no operator {wish.operator!r}",
            expected="the whole name of one",
            next_step="list them: ulpscope show GRAPH --name ''",
        )
    found = {(row.tensor.side, row.tensor.position): row for row in reversed(called) if row.tensor is not None}
    if not found:
        raise _nothing_to_compare(called[0].reason)
    if (wish.side, wish.position) not in found:
        raise UlpscopeError(
            f"{wish.operator} has no {wish.side.value} {wish.position} in its dump",
            expected=f"one of {', '.join(f'--{side.value} {position}' for side, position in reversed(found))}",
            next_step="choose one of them",
        )
    return found[wish.side, wish.position]


def _called(rows: Sequence[NetworkRow], name: str) -> list[NetworkRow]:
    """Rows of the operator of this name; as files have it, if that is one."""
    exactly = [row for row in rows if row.operator.name == name]
    if exactly:
        return exactly
    alike = [row for row in rows if sanitised(row.operator.name) == sanitised(name)]
    names = list(dict.fromkeys(row.operator.name for row in alike))
    if len(names) > 1:
        raise UlpscopeError(
            f"{name!r} may be {' or '.join(names)}",
            expected="the whole name of one operator",
            next_step=f"name one of them: --op {names[0]}",
        )
    return alike


def _nothing_to_compare(seen: str) -> UlpscopeError:
    return UlpscopeError(
        seen,
        expected="two tensors of the same size",
        next_step="see which tensors have a partner: add --mapping in place of --op",
        code=ExitCode.NOTHING,
    )
