"""stack.json: where in the source each forward entry was called.

Two forms: `{"0": [[entries], [frames]], ...}`, and in older dumps `{entry: [frames]}`. Frames are texts, innermost
first: `File /home/user/model.py, line 54, in forward, \\n x = self.tok(ids)`.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.dialects.msprobe.json_files import bad_field
from ulpscope.trace.schema import STACKS

_FRAME = re.compile(r"File (.+?), line (\d{1,9}), in (.+?),?\s*(?:\n|$)", re.DOTALL)
_FRAMEWORK = re.compile(r"/(?:site|dist)-packages/(?:torch|torch_npu|mindspore|mindtorch|msprobe)/")
# Recomputation runs a forward from inside a backward: torch's checkpoint in a hook of a saved tensor or in its own
# backward, Megatron's in the backward of tensor_parallel/random.py.
_RECOMPUTING = re.compile(r"in (?:unpack_hook|recompute_fn)\b|(?:checkpoint|random)\w*\.py, line \d+, in backward\b")
_IN_BACKWARD = re.compile(r"in _engine_run_backward\b|/torch/[^,]*, line \d+, in backward\b")


@dataclass(frozen=True, slots=True)
class Stack:
    """A call stack of one dump."""

    id: int
    in_backward: bool
    recompute: bool


@dataclass(slots=True)
class StackTable:
    """The stacks of a rank, each once over all of its steps."""

    _known: dict[tuple[str, ...], Stack] = field(default_factory=dict)
    _new: list[tuple[int, int, str, int, str]] = field(default_factory=list)

    def read(self, path: Path, content: dict[str, Any]) -> dict[str, Stack]:
        """The stack of each entry that has one."""
        found: dict[str, Stack] = {}
        for key, item in content.items():
            if not isinstance(item, list):
                raise bad_field(path, key, item, "a list")
            shared = len(item) == 2 and isinstance(item[0], list)
            names, frames = item if shared else ([key], item)
            if not isinstance(frames, list) or not all(isinstance(text, str) for text in [*names, *frames]):
                raise bad_field(path, key, item, "a list of entries and one of frames, all texts")
            stack = self._stack(tuple(frames))
            found.update(dict.fromkeys(names, stack))
        return found

    def take_new(self) -> pl.DataFrame:
        """Rows of the stacks that were first seen since this was last asked for."""
        rows, self._new = self._new, []
        return pl.DataFrame(rows, schema=dict(STACKS), orient="row")

    def _stack(self, frames: tuple[str, ...]) -> Stack:
        known = self._known.get(frames)
        if known is None:
            recompute = any(_RECOMPUTING.search(text) for text in frames)
            in_backward = recompute or any(_IN_BACKWARD.search(text) for text in frames)
            known = self._known[frames] = Stack(len(self._known), in_backward, recompute)
            own = [text for text in frames if not _FRAMEWORK.search(text)] or frames
            self._new += [(known.id, depth, *_frame(text)) for depth, text in enumerate(own)]
        return known


def _frame(text: str) -> tuple[str, int, str]:
    match = _FRAME.match(text)
    return (match[1], int(match[2]), match[3]) if match else (text, 0, "unknown")
