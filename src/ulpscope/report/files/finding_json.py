"""What every command's findings have in JSON.

Values as JSON can write them; floats that it has no number for are texts: "nan", "inf", "-inf".
"""

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from ulpscope.records.findings import FindingKind, Place


def finding_entry(
    kind: FindingKind, place: Place, *, evidence: dict[str, Any], sentence: str, next_command: str
) -> dict[str, Any]:
    return {
        "kind": kind,
        "rank": place.rank,
        "step": place.step,
        "phase": place.phase,
        "call": place.call,
        "op": place.op,
        "module": place.module,
        "tensor": place.tensor,
        "source": place.source,
        "evidence": evidence,
        "sentence": sentence,
        "next": next_command,
    }


def strict(content: Any) -> Any:
    """What json.dumps(allow_nan=False) takes."""
    if isinstance(content, Enum):
        return content.value
    if isinstance(content, float):
        return content if math.isfinite(content) else str(content)
    if isinstance(content, complex):
        return {"real": strict(content.real), "imag": strict(content.imag)}
    if isinstance(content, Mapping):
        return {str(key): strict(item) for key, item in content.items()}
    if isinstance(content, list | tuple):
        return [strict(item) for item in content]
    return content
