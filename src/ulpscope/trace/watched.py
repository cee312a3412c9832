"""Traces of long runs, which hold updates in the place of all calls: what they name, and what they keep."""

import shlex
from pathlib import Path

from ulpscope.records.enums import Watch
from ulpscope.records.errors import TraceError
from ulpscope.trace.description import read_rank_info
from ulpscope.trace.reader import Trace, has_rank_file
from ulpscope.trace.schema import RANK_FILE

POSITIVE = "positive"
"""A bit for each element of a gradient, the first in the lowest bit: whether it is above zero."""
AT_MOST = "at_most"
"""How many elements of a gradient are no larger than each of the bounds."""

SCALER_OP, SCALE = "torch.amp.GradScaler.step", "scale"
"""The call of a watched training that holds its loss scale, and the scale's place in it."""

_BETWEEN = "#"
"""No name of a parameter has it."""


def kept_place(name: str, what: str) -> str:
    """The place of something that is kept beside the gradient of a parameter."""
    return f"{name}{_BETWEEN}{what}"


def parameter_of(place: str) -> tuple[str, str]:
    """The parameter's name, and what is kept; the latter is empty for the gradient itself."""
    name, _, what = place.partition(_BETWEEN)
    return name, what


def is_watched(path: Path, watch: Watch) -> bool:
    """Whether a path is a trace of which all ranks were recorded so."""
    try:
        folders = [path] if has_rank_file(path) else [folder for folder in path.iterdir() if has_rank_file(folder)]
        captures = [read_rank_info(folder / RANK_FILE).capture for folder in folders]
    except (OSError, TraceError):
        return False
    return bool(captures) and all(capture.get("watch") == watch.value for capture in captures)


def refuse_gradients(trace: Trace) -> None:
    """Say so where calls are asked for: an update beside calls would look like another structure of the run."""
    if not any(rank.info.capture.get("watch") == Watch.GRADIENTS.value for rank in trace.ranks):
        return
    raise TraceError(
        f"{trace.path} holds watched gradients, and no calls",
        expected="a trace of calls, captured without --watch gradients",
        next_step=f"compare it with another watch of gradients: ulpscope compare {shlex.quote(str(trace.path))} OTHER",
    )
