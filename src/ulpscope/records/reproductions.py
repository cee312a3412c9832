"""Reproductions: one recorded call as a script of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What the text of a script is made of; the tensors lie in a file beside it."""

    name: str
    """Of the call, with its process, step and source line."""
    function: str
    """A Python expression that leads to the function: names and dots, nothing else."""
    arguments: Mapping[str, Any]
    """As recorded, plain numbers rounded to what kernels get."""
    firsts: Mapping[str, str]
    """Places of tensors, each with the first place of the same tensor."""
    differentiated: tuple[str, ...]
    sent: tuple[str, ...]
    """Outputs that a gradient is sent back from."""
    places: tuple[str, ...]
    """Outputs, written inputs and gradients that are judged."""
    dtypes: tuple[str, ...]
    """Of these."""
    outputs: int
    """How many tensors the call returns; 0 where it returns nothing and writes its first argument."""
    writes: bool
    """It writes what it is given."""
    stored: Mapping[str, str]
    """Dtypes by the names that the file has for them: `BF16: bfloat16`."""
    axes: Mapping[str, tuple[int, ...]]
    """Orders of axes that make an input lie in memory as it did; none for what is contiguous."""
    autocast: str | None
    device: str
    """Where it runs if its user names no other."""
    full_float32: bool
    """Whether the device must be kept from rounding float32 operands."""
    imports: tuple[str, ...] = ()
    """Packages beside torch that the function needs."""


@dataclass(frozen=True, slots=True)
class ScriptLimits:
    """What a script tolerates of n elements. Errors count in those that a sound kernel is expected to make."""

    largest: float
    floor: float
    """Share of the largest element below which a single error does not count; many of them do."""
    rms: float
    rms_scatter: float
    """Over the root of n, added to the limit."""
    one_sided: float
    """Surplus of elements that are off towards one side, as a share of all."""
    one_sided_scatter: float
    """Over the root of n, the least that this limit is."""
