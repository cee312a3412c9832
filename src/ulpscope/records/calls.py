"""Calls: executed operations, and where in the user's source they were made."""

from dataclasses import dataclass
from typing import Any

from ulpscope.records.enums import Kind, Phase


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a call stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Call:
    """One executed operation of one rank."""

    id: int
    """Position in execution order, counted per rank over all steps."""
    name: str
    """`op.N`, N counted per rank, step and phase; a recomputed call ends in `@recompute`."""
    kind: Kind
    op: str
    module: str | None
    module_class: str | None
    phase: Phase
    rank: int
    step: int
    micro_step: int
    parent: int | None
    forward: int | None
    """The forward call that this backward belongs to."""
    stack: int | None
    autocast: str | None
    recompute: bool
    random: bool
    generator: str | None
    """Digest of the generator's state before a random call."""
    arguments: dict[str, Any]
    error: str | None
    """What the operation itself raised, or what kept ulpscope from observing it fully."""
