"""What every command's findings have in JSON."""

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
