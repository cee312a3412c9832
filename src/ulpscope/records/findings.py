"""Findings and notes: what a comparison has to say, as values. report.words makes sentences of them."""

from dataclasses import dataclass
from enum import Enum

from ulpscope.records.enums import ExitCode, Phase
from ulpscope.records.environments import EnvironmentDifference
from ulpscope.records.evidence import Evidence, Ledger
from ulpscope.records.pairs import Measured


class FindingKind(str, Enum):
    """The cause of a difference."""

    COMPUTATION = "computation"
    OPTIMIZER = "optimizer"
    INPUT = "input"
    PARAMETER = "parameter"
    RANDOMNESS = "randomness"
    OVERFLOW = "overflow"
    STRUCTURE = "structure"
    DTYPE = "dtype"
    CHOICE = "choice"


class Outcome(str, Enum):
    """How a comparison ended."""

    AGREE = "agree"
    DIVERGED = "diverged"
    NOTHING_COMPARED = "nothing_compared"
    INCOMPLETE = "incomplete"
    """What was compared agrees, and all of both runs was asked for."""

    @property
    def code(self) -> ExitCode:
        if self is Outcome.NOTHING_COMPARED:
            return ExitCode.NOTHING
        return ExitCode.OK if self is Outcome.AGREE else ExitCode.DIFFERENCE


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the target something is; names are those of the target, or of the reference if only that has it."""

    rank: int
    step: int
    phase: Phase
    call: str | None = None
    call_id: int | None = None
    """Id of that call in the target; none if only the reference makes it."""
    op: str | None = None
    module: str | None = None
    tensor: str | None = None
    """`output.0`, `args.1`, a parameter's name."""
    source: str | None = None
    """`model.py:57`, the innermost line of the user's code."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (in findings) or differs and is not wrong (in notes)."""

    kind: FindingKind
    place: Place
    evidence: Evidence


class AdviceKind(str, Enum):
    """What an expert would say to this result."""

    SAME_ARGUMENT = "same_argument"
    RAISE_PRECISION = "raise_precision"
    RUN_ON_CPU = "run_on_cpu"
    UNFUSE = "unfuse"
    COMPARE_LOGIC = "compare_logic"
    SAME_DATA = "same_data"
    SAME_WEIGHTS = "same_weights"
    SAME_SEED = "same_seed"
    SAME_SETTING = "same_setting"
    FP16_OVERFLOW = "fp16_overflow"
    INPUT_INCONSISTENT = "input_inconsistent"
    GLOBAL_CONSISTENCY = "global_consistency"
    PROBLEM_NODE = "problem_node"
    SINGLE_POINT_ERROR = "single_point_error"
    SAVE_TENSORS = "save_tensors"
    CUSTOM_OPERATOR = "custom_operator"
    KEEP_DTYPE = "keep_dtype"
    SWITCH_PASS_OFF = "switch_pass_off"
    GIVE_GRAPH = "give_graph"
    SAME_TRAINED = "same_trained"
    ZERO_GRADIENTS = "zero_gradients"
    SAME_STEPS = "same_steps"
    SAME_MODEL = "same_model"
    FIND_WRITER = "find_writer"
    COMPARE_SPAN = "compare_span"


@dataclass(frozen=True, slots=True)
class Advice:
    kind: AdviceKind
    subject: str | None = None
    """The call, tensor or setting it is about."""


class Nearness(str, Enum):
    """Where a call stands beside the answer."""

    BEFORE = "before"
    HERE = "here"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A call around the answer, with the error that came in and went out."""

    nearness: Nearness
    call: str
    op: str
    module: str | None
    error_in: float | None
    error_out: float | None
    judgement: str
    """A word of Judgement; `between` where a call before it, which was not compared, may have made the error."""


@dataclass(frozen=True, slots=True)
class AnchorPart:
    """What both runs started from: whether it was the same."""

    what: str
    """inputs, parameters, embedding, or a module's path."""
    compared: int
    identical: int
    worst: float | None
    """Largest relative distance among those that are not identical."""


@dataclass(frozen=True, slots=True)
class Counts:
    calls_reference: int = 0
    calls_target: int = 0
    matched: int = 0
    unmatched_reference: int = 0
    unmatched_target: int = 0
    tensors_compared: int = 0
    identical: int = 0
    rounding: int = 0
    inherited: int = 0
    made_here: int = 0
    after_choice: int = 0
    another_way: int = 0
    unresolved: int = 0


@dataclass(frozen=True, slots=True)
class Scope:
    """What of the two traces was compared, and what was not."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    ranks_reference_only: tuple[int, ...] = ()
    ranks_target_only: tuple[int, ...] = ()
    steps_reference_only: tuple[int, ...] = ()
    steps_target_only: tuple[int, ...] = ()
    levels: tuple[str, str] = ("api", "api")
    measured: tuple[tuple[Measured, int], ...] = ()
    """How many tensors were compared from what."""
    not_compared: tuple[tuple[str, int], ...] = ()
    """Tensor pairs left out, by reason."""
    unresolved: tuple[tuple[str, int], ...] = ()
    """Tensor pairs that differ by an amount that cannot be told, by reason."""
    standard: str = "rounding"
    filters: tuple[str, str] | None = None
    """Which calls were captured in reference and target, where that differs: `--only torch.relu`."""
    same_run: bool = False
    """Whether both are one run, or one rank of it: compared with itself."""


@dataclass(frozen=True, slots=True)
class Share:
    """How many were compared, of how many either run has."""

    compared: int
    of: int

    @property
    def is_all(self) -> bool:
        return self.compared == self.of


NEVER_COMPARED = ("memory that nobody has written", "inside of a judged backward")
"""Reasons that leave nothing open: there is no content, or what was made of it was judged."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of two runs was compared."""

    ranks: Share
    steps: Share
    calls: Share
    tensors: Share
    """Of paired calls; those that cannot be resolved do not count as compared."""
    alike: bool
    """Whether both were captured alike, and are whole."""

    @property
    def is_all(self) -> bool:
        return self.alike and all(share.is_all for share in (self.ranks, self.steps, self.calls, self.tensors))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that `ulpscope compare` found."""

    reference: str
    target: str
    outcome: Outcome
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    counts: Counts
    scope: Scope
    anchor: tuple[AnchorPart, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    advice: tuple[Advice, ...] = ()
    missing: tuple[str, ...] = ()
    """What the traces themselves lack, one sentence each."""
    ledger: Ledger | None = None
    """None where no call was executed again."""
    graph: str | None = None
    """The graph file by which the operators of a network were paired."""
    graph_options: tuple[str, ...] = ()
    """What else a command needs to pair them so: `--steps 3`."""
    environment: tuple[EnvironmentDifference, ...] = ()
    """What the runs' processes had otherwise, what is most likely to matter first."""


def extent_of(comparison: Comparison) -> Extent:
    """How much was compared, counted."""
    counts, scope = comparison.counts, comparison.scope
    left_out = sum(number for reason, number in scope.not_compared if reason not in NEVER_COMPARED)
    resolved = counts.tensors_compared - counts.unresolved
    return Extent(
        ranks=_share(scope.ranks, scope.ranks_reference_only, scope.ranks_target_only),
        steps=_share(scope.steps, scope.steps_reference_only, scope.steps_target_only),
        calls=Share(counts.matched, counts.matched + counts.unmatched_reference + counts.unmatched_target),
        tensors=Share(resolved, counts.tensors_compared + left_out),
        alike=scope.filters is None and scope.levels[0] == scope.levels[1] and not comparison.missing,
    )


def _share(common: tuple[int, ...], *others: tuple[int, ...]) -> Share:
    return Share(len(common), len({*common, *(number for numbers in others for number in numbers)}))
