"""A part of what the compiled host part has recorded, on its way to whoever writes it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ulpscope.capture.torch.host.columns import Buffer
from ulpscope.capture.torch.rows import Batch


class Taken:
    """What Core.take() gives; `seen` of the calls are not counted anywhere else."""

    def __init__(self, taken: tuple[Any, ...], seen: int) -> None:
        self._calls, self._uses, (self._values, self._shards), self.words = taken
        self.seen = seen
        self.recorded = len(self._calls[0]) // 8

    @property
    def on_device(self) -> bool:
        """Whether summaries of it were made on a device."""
        batches: Sequence[Batch] = self._values[-1]
        return any(batch.on_device for batch in batches)

    def described(self) -> dict[str, Any]:
        """What is short, as JSON has it."""
        *_, arguments, errors, draws = self._calls
        first, *_, shapes, strides, _ = self._values
        return {
            "arguments": arguments,
            "errors": _by_text(errors),
            "draws": _by_text(draws),
            "first_value": first,
            "shapes": shapes,
            "strides": strides,
            "shards": _by_text(self._shards),
        }

    def buffers(self) -> list[Buffer]:
        """The columns, and the rows of all batches; waits for the copies from the device."""
        batches: Sequence[Batch] = self._values[-1]
        rows = [batch.rows()[: batch.used].reshape(-1).view(np.uint8).data for batch in batches]
        return [*self._calls[:-3], *self._uses, *self._values[1:-3], *rows]


def _by_text(known: dict[int, Any]) -> dict[str, Any]:
    return {str(number): entry for number, entry in known.items()}
