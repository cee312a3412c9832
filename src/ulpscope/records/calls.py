"""Calls, where in the user's source they were made, and values: contents of tensors, which calls read and make."""

from dataclasses import dataclass
from typing import Any

from ulpscope.records.enums import Kind, Phase, Role


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


@dataclass(frozen=True, slots=True)
class Stats:
    """Summary numbers of a value. Sums leave out what is set aside (nan, inf, |x| >= 2**29)."""

    min: float | None
    max: float | None
    mean: float | None
    norm: float | None
    abs_sum: float | None
    nan: int
    pos_inf: int
    neg_inf: int
    set_aside: int
    zero: int | None
    """None where another tool's dump does not tell."""
    subnormal: int
    exponents: tuple[int, ...]
    """Counts of finite nonzero elements in 32 bins of 8 binary exponents, from 2**-127 up."""


@dataclass(frozen=True, slots=True)
class DataPlace:
    """Where a value's elements lie: a tensor of a safetensors file, seen through offset and strides."""

    file: str
    """Relative to the rank's directory."""
    key: str
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One content of a tensor: a storage at a version, seen through one view."""

    id: int
    storage: int | None
    """None for what has no memory of its own here (sparse, meta, a wrapper)."""
    version: int | None
    producer: int | None
    """The call that made this content; none if it came from outside the trace."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    layout: str
    requires_grad: bool
    initialized: bool
    """False for memory nobody has written yet (torch.empty): never compared."""
    stats: Stats | None
    sketch: tuple[float, ...] | None
    digest: int | None
    data: DataPlace | None


@dataclass(frozen=True, slots=True)
class Use:
    """A call reads or makes a value."""

    call: int
    role: Role
    place: str
    """Where in the call: `args.0`, `kwargs.mask`, `output.1`, a parameter's name."""
    value: int
