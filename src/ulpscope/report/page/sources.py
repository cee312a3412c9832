"""What a page is made from: the files of a result, read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of one result."""

    summary: Mapping[str, Any]
    """summary.json."""
    told: Mapping[str, Any]
    """told.json: sentences in every language, stacks of findings."""
    tables: Mapping[str, pl.DataFrame]
    """Tables by the name of their file without its ending."""
    plan: Mapping[str, Any] | None = None
    """plan.json of a comparison."""

    def told_of(self, *parts: str) -> dict[str, Any]:
        """Sentences of parts of the answer, and of what is missing: told.json of earlier versions lacks these."""
        return {part: self.told[part] for part in parts} | {"missing": self.told.get("missing")}
