"""Checks: one recorded call executed again as a unit test, and what came of it.

Perturbations: one call executed twice, with something changed in between that should change little.
Reproductions: one recorded call as a script of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from numpy.typing import NDArray


class Verdict(str, Enum):
    """What one executed call is worth; from best to worst."""

    PASS = "PASS"
    """As good as a sound kernel."""
    SKIP = "SKIP"
    """Not executed, for a stated reason."""
    UNTESTED = "UNTESTED"
    """Executed, but the data could not have told right from wrong."""
    WARN = "WARN"
    """Backward stable at the precision of its dtype, but worse than it needs to be."""
    FAIL = "FAIL"
    """No rounding explains it."""
    TIMEOUT = "TIMEOUT"
    CRASH = "CRASH"

    @property
    def severity(self) -> int:
        return list(Verdict).index(self)


class Direction(str, Enum):
    FORWARD = "forward"
    BACKWARD = "backward"


class DataSource(str, Enum):
    """Where a case's tensors come from."""

    REAL = "real"
    RANDOM = "random"


RECORDED = "recorded."
"""How the places of results begin that the run itself got, where these are judged: `recorded.output.0`."""
GRADIENT = "grad."
"""How the places of gradients begin: `grad.args.0`."""


class Variant(str, Enum):
    """How a case's data was changed to provoke what ordinary data hides."""

    RECORDED = "recorded"
    TINY = "tiny"
    """Scaled down, so that an epsilon matters."""
    OFFSET = "offset"
    """A mean much larger than the spread."""
    LARGE = "large"
    """Sums come near the largest number of the dtype."""
    LONG = "long"
    """A long reduction."""


class Rule(str, Enum):
    """How an output is to be judged."""

    ROUNDED = "rounded"
    """A result of arithmetic: within what rounding explains."""
    EXACT = "exact"
    """Moved, chosen or whole numbers: the correctly rounded truth and nothing else."""
    NORMWISE = "normwise"
    """An invariant of a factorisation: small beside the norm of the whole."""


@dataclass(frozen=True, slots=True)
class CaseId:
    """One test: a call of a trace with one kind of data."""

    process: str
    """The directory of the rank."""
    call: int
    name: str
    op: str
    variant: Variant
    source: DataSource

    @property
    def text(self) -> str:
        return f"{self.process}/{self.call}/{self.name}/{self.variant.value}/{self.source.value}"


@dataclass(frozen=True, slots=True)
class OutputEvidence:
    """One output or gradient of an executed call: what the device gave, and what is known of the truth.

    Elements of floats are float64 (complex: a last axis of two more); of integers and bools their own.
    """

    place: str
    """`output.0`, `grad.args.1`, or an invariant: `invariant.reconstruction`."""
    direction: Direction
    rule: Rule
    dtype: str
    """The type that the result was rounded to: the device's, or what autocast computed a gradient in."""
    computed: NDArray[Any]
    exact: NDArray[Any]
    """The call in high precision from the device's own inputs; not rounded to `dtype`."""
    reduction: float
    """About how many products or summands an element is made of."""
    accumulation: float
    """Unit roundoff of the sums inside."""
    input_roundoff: float
    """Unit roundoff of the coarsest float among the inputs and this output."""
    ordinary: NDArray[Any] | None = None
    """The same call by another sound kernel of the same dtype; none where only the tested one is at hand."""
    sensitivity: NDArray[Any] | None = None
    """RMS change of each element per unit relative change of the inputs; none until it is asked for."""
    intermediate_sensitivity: NDArray[Any] | None = None
    """RMS change of each element per unit relative change of the results that kernels inside the call hand on."""
    scale: float | None = None
    """Of a normwise rule: the norm that errors are small beside."""
    violation: str | None = None
    """What is wrong whatever the numbers are: another shape, an index out of range."""


@dataclass(frozen=True, slots=True)
class ShareEvidence:
    """How often a random call did what it does with a stated probability."""

    place: str
    direction: Direction
    successes: int
    trials: int
    probability: float


@dataclass(frozen=True, slots=True)
class OutputResult:
    """The judgement of one output or gradient, and the figures behind it."""

    place: str
    direction: Direction
    verdict: Verdict
    statistic: str
    """What decided: identical, outlier, noise, bias, structure, not_finite, unequal, share, ..."""
    message: str
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    worst: tuple[int, ...] | None = None
    """Index of the worst element."""
    worst_computed: float | None = None
    worst_exact: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    """Every figure by name, also those that did not decide."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of one test."""

    case: CaseId
    forward: Verdict | None
    """None where there is nothing to judge in that direction."""
    backward: Verdict | None
    message: str
    outputs: tuple[OutputResult, ...] = ()
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        return max((each for each in (self.forward, self.backward) if each), key=lambda each: each.severity)


class Perturbation(str, Enum):
    """What is changed between two executions of a call."""

    ROUNDING = "rounding"
    """Its inputs, as one more rounding in their types moves them: now and then to a neighbour, as in a noise twin."""
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
class OpReproduction:
    """The same of an op of TensorFlow's."""

    name: str
    function: str
    """`tf.raw_ops.MatMul`."""
    operands: tuple[tuple[str, tuple[str, ...] | str], ...]
    """By the names that the function has for them, each with its place, or with those of a list."""
    attributes: Mapping[str, Any]
    """As recorded."""
    differentiated: tuple[str, ...]
    sent: tuple[str, ...]
    """Outputs that a gradient is sent back from."""
    places: tuple[str, ...]
    """Outputs and gradients that are judged."""
    several: bool
    """It gives more than one output."""
    stored: Mapping[str, str]
    """Dtypes by the names that the file has for them: `BF16: bfloat16`."""
    device: str
    """Where it runs if its user names no other."""
    has_float64: bool
    """Whether TensorFlow has a float64 kernel of it; if not, the truth lies in the file."""


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
