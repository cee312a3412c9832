"""Its entries, checked and in the form of a dump's, which says the same in other words.

    forward_info    {"Functional*silu*0": {"args": [...], "kwargs": {...}}}   ->  Functional.silu.0.forward
    backward_info   {"Functional*silu*0": [gradients of outputs]}             ->  Functional.silu.0.backward
    stack_info      {"Functional*silu*0": [frames]}                           ->  Functional.silu.0.forward

Later versions have dots for stars, and `.forward` or `.backward` behind the name. Tensors may have a `datapath`, the
file of their data.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ulpscope.dialects.msprobe.arguments import Found, encode
from ulpscope.dialects.msprobe.identity import wrong_field
from ulpscope.dialects.msprobe.json_files import shortened
from ulpscope.records.errors import TraceError

Entries: TypeAlias = dict[str, Any]

_KEY = re.compile(r"([^.*]+[.*].*[.*]\d{1,9})(?:[.*](?:forward|backward))?")


def forward_entries(path: Path, content: Mapping[str, Any]) -> Entries:
    """Calls with their arguments."""
    entries: Entries = {}
    for key, call in content.items():
        if not isinstance(call, dict):
            raise bad_field(path, shortened(key), call, 'an object with "args" and "kwargs"')
        args, kwargs = call.get("args") or [], call.get("kwargs") or {}
        if not isinstance(args, list):
            raise bad_field(path, f"args of {shortened(key)}", args, "a list")
        if not isinstance(kwargs, dict):
            raise bad_field(path, f"kwargs of {shortened(key)}", kwargs, "an object")
        _check_tensors(path, key, {"args": args, "kwargs": kwargs})
        entries[f"{_dotted(path, key)}.forward"] = {"input_args": args, "input_kwargs": kwargs}
    return entries


def backward_entries(path: Path, content: Mapping[str, Any]) -> Entries:
    """Backwards with the gradients that they received."""
    entries: Entries = {}
    for key, gradients in content.items():
        received = [gradients] if isinstance(gradients, dict) else gradients
        if not isinstance(received, list):
            raise bad_field(path, shortened(key), gradients, "a list of gradients")
        _check_tensors(path, key, {"grad_outputs": received})
        entries[f"{_dotted(path, key)}.backward"] = {"input": received, "output": []}
    return entries


def stack_entries(path: Path, content: Mapping[str, Any]) -> Entries:
    """Frames of calls."""
    for key, frames in content.items():
        if not isinstance(frames, list) or not all(isinstance(frame, str) for frame in frames):
            raise bad_field(path, shortened(key), frames, "a list of frames")
    return {f"{_dotted(path, key)}.forward": frames for key, frames in content.items()}


def _dotted(path: Path, key: str) -> str:
    name = _KEY.fullmatch(key)
    if name is None:
        raise bad_field(path, "of a call", key, "a name such as Functional*silu*0")
    return name[1].replace("*", ".")


def _check_tensors(path: Path, key: str, places: dict[str, Any]) -> None:
    found: Found = []
    for place, item in places.items():
        encode(item, place, found)
    for place, tensor in found:
        wrong = wrong_field(tensor)
        if wrong is not None:
            raise bad_field(path, f"{place}.{wrong[0]} of {shortened(key)}", wrong[1], wrong[2])
        data = tensor.pop("datapath", None)
        if data is not None and (not isinstance(data, str) or "\0" in data or not data):
            raise bad_field(path, f"{place}.datapath of {shortened(key)}", data, "the path of a file")
        if data is not None:
            tensor["data_name"] = data


def bad_field(path: Path, field: str, found: object, wanted: str) -> TraceError:
    return bad_file(path, f"field {field} holds {shortened(found)}, not {wanted}")


def bad_file(path: Path, problem: str) -> TraceError:
    return _error(f"{path} {problem}")


def reworded(error: TraceError) -> TraceError:
    """What went wrong in code that reads msprobe's files as well, with advice about these."""
    return _error(error.seen)


def _error(seen: str) -> TraceError:
    return TraceError(
        seen,
        expected="the file as the API accuracy checker wrote it",
        next_step="copy the files again, or capture again: see docs/api-accuracy-checker.md",
    )
