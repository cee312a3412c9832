"""Anomalies beside a rank's tables: a line of JSON each, as soon as it is found."""

import json
import os
from dataclasses import asdict, fields
from enum import Enum
from pathlib import Path
from typing import Any

from ulpscope.records.anomalies import Anomaly, AnomalyKind, Quantity
from ulpscope.trace.schema import ANOMALIES_FILE


def add_anomaly(directory: Path, anomaly: Anomaly) -> None:
    """One line, which is whole or not there."""
    line = (json.dumps(anomaly_fields(anomaly)) + "\n").encode()
    file = os.open(directory / ANOMALIES_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def read_anomalies(directory: Path) -> list[Anomaly]:
    """Those of a rank, in their order; lines that nobody wrote so are left out."""
    try:
        lines = (directory / ANOMALIES_FILE).read_bytes().splitlines()
    except OSError:
        return []
    return [found for line in lines if (found := _read(line)) is not None]


def anomaly_fields(anomaly: Anomaly) -> dict[str, Any]:
    """As JSON has it: numbers that it has no words for become texts."""
    return {name: _plain(part) for name, part in asdict(anomaly).items()}


def anomaly_from(found: dict[str, Any]) -> Anomaly:
    known = {field.name: found[field.name] for field in fields(Anomaly) if field.name in found}
    numbers = {name: float(known[name]) for name in ("value", "usual") if known.get(name) is not None}
    kinds = {"kind": AnomalyKind(known["kind"]), "quantity": Quantity(known["quantity"])}
    return Anomaly(**known | numbers | kinds)


def _plain(part: Any) -> Any:
    if isinstance(part, Enum):
        return part.value
    return str(part) if isinstance(part, float) and part - part != 0 else part


def _read(line: bytes) -> Anomaly | None:
    try:
        return anomaly_from(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
