"""The one way from records to JSON: values that json.dumps(allow_nan=False) takes.

Floats that JSON has no number for are texts: "nan", "inf", "-inf"; `ulpscope show` marks them: {"$float": "nan"}.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # `ulpscope run` prints JSON, too, and loads nothing heavy.
    from ulpscope.records.findings import FindingKind, Place

SCHEMA = 1

NoNumber = Callable[[float], Any]
"""What stands for a float that JSON has no number for."""


def marked(number: float) -> dict[str, str]:
    return {"$float": str(number)}


def to_json(content: Any, no_number: NoNumber = str) -> Any:
    """A record, or what is made of records."""
    if isinstance(content, Enum):
        return content.value
    if isinstance(content, float):
        return content if math.isfinite(content) else no_number(content)
    if isinstance(content, complex):
        return {"real": to_json(content.real, no_number), "imag": to_json(content.imag, no_number)}
    if is_dataclass(content):
        content = fields_of(content)
    if isinstance(content, Mapping):
        return {str(key): to_json(item, no_number) for key, item in content.items()}
    if isinstance(content, list | tuple):
        return [to_json(item, no_number) for item in content]
    return str(content) if isinstance(content, PurePath) else content


def fields_of(record: Any, *names: str) -> dict[str, Any]:
    """Fields of a record by name, as they are: these, or all."""
    return {name: getattr(record, name) for name in names or [field.name for field in fields(record)]}


def answer_json(
    command: str, content: Mapping[str, Any] | None = None, no_number: NoNumber = str, /, **more: Any
) -> dict[str, Any]:
    """The object that a command prints with --json."""
    told: dict[str, Any] = to_json({"schema": SCHEMA, "command": command, **(content or {}), **more}, no_number)
    return told


def finding_entry(
    kind: "FindingKind", place: "Place", *, evidence: dict[str, Any], sentence: str, next_command: str
) -> dict[str, Any]:
    """What every command's findings have."""
    where = fields_of(place, "rank", "step", "phase", "call", "op", "module", "tensor", "source")
    return {"kind": kind, **where, "evidence": evidence, "sentence": sentence, "next": next_command}
