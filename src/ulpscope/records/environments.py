"""What can change numbers beside the script: of one process, and how two differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ulpscope.records.pairs import Pair


class Likelihood(str, Enum):
    """How likely a difference changes numbers by more than rounding; in this order differences are told."""

    LIKELY = "likely"
    POSSIBLE = "possible"
    UNLIKELY = "unlikely"


@dataclass(frozen=True, slots=True)
class Environment:
    """What a process ran in: by part (`switches`, `packages`, ...) names with what they had."""

    parts: Mapping[str, Mapping[str, Any]]
    unread: tuple[str, ...] = ()
    """Names of variables whose values nobody kept."""


@dataclass(frozen=True, slots=True)
class EnvironmentDifference:
    """One thing that two environments have otherwise; None where one has not got it."""

    part: str
    name: str
    reference: str | None
    target: str | None
    likelihood: Likelihood
    reason: str
    """The key of the sentence that says why it matters."""
    more: int = 0
    """How many of the same part differ with it, of which each alone says no more."""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvironmentDiff:
    """How two environments differ, what is most likely to matter first."""

    paths: Pair[str]
    differences: tuple[EnvironmentDifference, ...]
    compared: int
    """Entries that both have, or one has where the other tells of that part at all."""
    one_sided: Pair[tuple[str, ...]]
    """Names of variables that one side alone had, of values that nobody kept."""
    untold: tuple[str, ...]
    """Parts of which one side tells nothing."""

    @property
    def agrees(self) -> bool:
        return not self.differences
