"""All detectors, in the order in which they are asked."""

from collections.abc import Callable, Sequence

from ulpscope.diagnose.detectors import notes
from ulpscope.diagnose.detectors.asking import Computation, Detector, Overflowing
from ulpscope.diagnose.detectors.continuity import changed_unseen
from ulpscope.diagnose.detectors.inputs import Data, LoneRandomness, Outside, Randomness
from ulpscope.diagnose.detectors.parameters import (
    OptimizerState,
    OptimizerUpdate,
    Parameter,
    StaleGradient,
    TiedWeight,
    WrittenParameter,
)
from ulpscope.diagnose.detectors.siblings import odd_sibling
from ulpscope.diagnose.detectors.structure import (
    LoneStructure,
    Skip,
    left_out_step,
    lone_update,
    missing_module,
    other_program,
    skipped_update,
    unshared_parameters,
    untrained_parameters,
)
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.states import Flow
from ulpscope.records.findings import Counts, Finding

OF_A_DIFFERENCE: tuple[type[Detector], ...] = (
    Randomness,
    WrittenParameter,
    Parameter,
    OptimizerState,
    Data,
    LoneRandomness,
    Overflowing,
    Outside,
    LoneStructure,
    OptimizerUpdate,
    TiedWeight,
    StaleGradient,
    Computation,
)
"""Asked of each difference that began somewhere: the first that knows it names it, and the last knows all."""

OF_THE_PROGRAMS: tuple[Callable[[Sequence[RankEvidence], Counts], Finding | None], ...] = (other_program,)
OF_THE_MODELS: tuple[Callable[[RankEvidence], Finding | None], ...] = (missing_module, unshared_parameters)
"""Asked where numbers differ, of all ranks together and of each: the first answer comes before all that differs."""

OF_THE_STEPS: tuple[Callable[[RankEvidence, Finding], Skip | None], ...] = (skipped_update, left_out_step)
"""Asked of each rank, with the first finding: a step that only one run makes explains all that comes after it."""

OF_THE_TRAINING: tuple[Callable[[RankEvidence, Flow], Finding | None], ...] = (
    untrained_parameters,
    lone_update,
    changed_unseen,
)
"""Asked of each rank, whatever its numbers say."""

OF_THE_LAYERS: tuple[Callable[[RankEvidence, Flow], Finding | None], ...] = (odd_sibling,)
"""Asked of each rank where nothing else was found."""

OF_WHAT_IS_NOT_WRONG: tuple[Callable[[RankEvidence, Flow], list[Finding]], ...] = (
    notes.arguments,
    notes.accumulation,
    notes.loss_scale,
    notes.dtypes,
    notes.unmatched_calls,
    notes.flipped_choices,
    notes.starting_parameters,
)
"""Asked of each rank; all answers are notes."""
