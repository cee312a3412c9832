"""Whether a run repeats itself: the call at which two runs of one command part, and what was tried to prevent it."""

from dataclasses import dataclass
from enum import Enum

from ulpscope.records.findings import Place


class Part(str, Enum):
    """How the first call differs at which two runs of one command part."""

    GENERATOR = "generator"
    """It draws from another state of the generator."""
    RANDOM = "random"
    """It draws from the same state of the generator, or of none that is known."""
    ARGUMENT = "argument"
    """It is given other numbers that are no tensors."""
    OUTSIDE = "outside"
    """It makes a tensor of what is none: of a file, of numpy, of the clock."""
    GIVEN = "given"
    """It reads what no recorded call has made."""
    COLLECTIVE = "collective"
    STRUCTURE = "structure"
    """The runs make other calls from here on."""
    COMPUTATION = "computation"
    """The same bits go in, others come out."""


class Switch(str, Enum):
    """What may make a run repeatable, without a change to its script."""

    SEED = "seed"
    HASH_SEED = "hash_seed"
    DETERMINISTIC = "deterministic"
    ONE_THREAD = "one_thread"


@dataclass(frozen=True, slots=True)
class Parting:
    """The first call of one rank whose output bits differ though its inputs' bits agree."""

    part: Part
    place: Place
    differing: int
    """Calls of that rank that give other bits."""
    calls: int


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs under switches."""

    switches: tuple[Switch, ...]
    runs: int
    seconds: float
    """Of one run, in the mean."""
    parting: Parting | None
    """Where its runs part; None if they repeat."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """What came of running a command again."""

    command: tuple[str, ...]
    runs: int
    seconds: float
    """Of one run, in the mean, captured."""
    calls: int
    tensors: int
    """Compared in each further run."""
    partings: tuple[Parting, ...] = ()
    """One a rank; that which the others follow from comes first."""
    trials: tuple[Trial, ...] = ()
    traces: tuple[str, ...] = ()
    """The two runs that part, or the first two, where they were kept."""

    @property
    def repeats(self) -> bool:
        return not self.partings

    @property
    def cure(self) -> Trial | None:
        """The trial whose runs repeat."""
        return next((trial for trial in self.trials if trial.parting is None), None)
