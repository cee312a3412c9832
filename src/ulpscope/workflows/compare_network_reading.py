"""Reads tensors of a measured network once more, for what only their elements tell."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from ulpscope.align.network_layouts import Stated
from ulpscope.align.network_pairs import NetworkRow
from ulpscope.dialects.ascend.dump_records import Side
from ulpscope.judge.choices import numbers_alike
from ulpscope.judge.network_outcomes import Measurement, RowOutcome
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.workflows.compare_network_measuring import read_pair


class TensorReader:
    """Of operators and the values that they read or make themselves; nothing of what only stands for those."""

    def __init__(
        self, rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome], measured: Mapping[int, Measurement]
    ) -> None:
        self._rows = rows
        numbers = {id(outcome.measurement): number for number, outcome in outcomes.items() if outcome.measurement}
        self._row_of = {value: numbers[id(found)] for value, found in measured.items() if id(found) in numbers}
        self._own = _own_rows(rows, outcomes)

    def __call__(self, operator: str, value: int) -> Pair[NDArray[Any]] | None:
        number = self._row_of.get(value)
        if number is None or number not in self._own[operator]:
            return None
        row = self._rows[number]
        if row.tensor is None or row.reference is None:
            return None
        original = row.original
        stated = Stated() if original is None else Stated(original.layout, original.shape)
        try:
            found = read_pair(row.tensor.whole(), row.reference, stated)
        except (UlpscopeError, OSError, MemoryError):
            return None
        return numbers_alike(Pair(found.reference, found.target), found.dtypes)


def _own_rows(rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome]) -> dict[str, set[int]]:
    """Rows by the operators that read or made their tensors."""
    own: dict[str, set[int]] = defaultdict(set)
    outputs = {
        (row.operator.name, row.tensor.position): number
        for number, row in enumerate(rows)
        if row.tensor is not None and row.tensor.side is Side.OUTPUT
    }
    for number, row in enumerate(rows):
        source, outcome = row.planned.source, outcomes.get(number)
        own[row.operator.name].add(number)
        if outcome is not None and outcome.twin is not None:
            own[row.operator.name].add(outcome.twin)
        if source is not None:
            own[source[0]].add(number)
        if source in outputs:
            own[row.operator.name].add(outputs[source])
    return own
