"""Perturbations: one call executed twice, with something changed in between that should change little."""

from dataclasses import dataclass
from enum import Enum

from ulpscope.records.checks import OutputEvidence


class Perturbation(str, Enum):
    """What is changed between two executions of a call."""

    BIT_NOISE = "bit_noise"
    """The last bit of every element of its inputs."""
    ADD_NOISE = "add_noise"
    """A small constant is added to every element of its inputs."""
    IMPROVE_PRECISION = "improve_precision"
    """The dtype of its inputs: the next wider one."""
    CHANGE_VALUE = "change_value"
    """The first and the last element of its inputs change places."""
    NO_CHANGE = "no_change"
    """Nothing: the same result is expected, bit by bit."""
    TO_CPU = "to_cpu"
    """The device: the CPU."""


class PerturbStandard(str, Enum):
    """By which rule the movement of an output is judged."""

    CONDITION = "condition"
    """As far as the exact result moves, and what rounding adds."""
    FREE_BENCHMARK = "free-benchmark"
    """The ratio of both results within a fixed limit of the dtype."""


@dataclass(frozen=True, slots=True)
class PerturbedEvidence:
    """One output or gradient before and after the change, each beside the truth for what it was computed from."""

    mode: Perturbation
    before: OutputEvidence
    after: OutputEvidence
