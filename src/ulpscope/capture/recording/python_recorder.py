"""The recorder that every framework can use: it keeps rows in Python's lists."""

import itertools
from typing import Any

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.calls import OpenCall
from ulpscope.capture.recording.output import Part
from ulpscope.capture.recording.recorder import Recorder, Surroundings
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.recording.values import ValueTable
from ulpscope.records.enums import MAKING_ROLES


class PythonRecorder(Recorder):
    """Keeps rows in lists."""

    values: ValueTable

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.values = self.make_values(around)
        self._ids = itertools.count()
        self._numbers: dict[tuple[str, bool, str], int] = {}
        self._uses: list[tuple[int, str, str, int]] = []

    def make_values(self, around: Surroundings) -> ValueTable:
        return ValueTable(around.tensors, saver=around.saver, verify=around.settings.verify)

    def next_id(self) -> int:
        return next(self._ids)

    def next_number(self, phase: str, recompute: bool, stem: str) -> int:
        key = (phase, recompute, stem)
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        return number

    def clear_numbers(self) -> None:
        self._numbers.clear()

    def use(self, call: OpenCall, role: str, place: str, tensor: Any) -> None:
        with self.lock:
            if self._given_up:
                return
            producer = call.id if role in MAKING_ROLES else None
            try:
                self._uses.append((call.id, role, place, self.values.observe(tensor, producer)))
            except Exception as error:
                pass_on_interruption(error)
                self.own_error(f"{place} of {call.op}", error)
            if self._much_data():  # one call of an optimizer may bring gigabytes
                self._flush(finishes_step=False)

    def use_all(self, call: OpenCall, role: str, tensors: Placed) -> None:
        for place, tensor in tensors:
            self.use(call, role, place, tensor)

    @property
    def fresh_rows(self) -> int:
        return len(self._calls) + len(self.values.fresh)

    def make_part(self, **known: Any) -> Part:
        uses, self._uses = self._uses, []
        return Part(
            values=self.values.take_fresh(),
            uses=uses,
            contents=self._saver.take_fresh() if self._saver is not None else [],
            rechecks=self.values.take_rechecks(),
            **known,
        )
