"""All detectors, in the order in which they are asked."""

from collections.abc import Callable

from ulpscope.diagnose.detectors import notes
from ulpscope.diagnose.detectors.asking import Computation, Detector
from ulpscope.diagnose.detectors.gradients import StaleGradient, TiedWeight
from ulpscope.diagnose.detectors.inputs import Data, Outside
from ulpscope.diagnose.detectors.optimizers import OptimizerState, OptimizerUpdate
from ulpscope.diagnose.detectors.overflows import Overflowing
from ulpscope.diagnose.detectors.parameters import Parameter, WrittenParameter
from ulpscope.diagnose.detectors.randomness import LoneRandomness, Randomness
from ulpscope.diagnose.detectors.structure import LoneStructure, missing_module, unshared_parameters
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.states import Flow
from ulpscope.records.findings import Finding

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

OF_THE_MODELS: tuple[Callable[[RankEvidence], Finding | None], ...] = (missing_module, unshared_parameters)
"""Asked of each rank where numbers differ: the first answer comes before all that differs."""

OF_WHAT_IS_NOT_WRONG: tuple[Callable[[RankEvidence, Flow], list[Finding]], ...] = (
    notes.arguments,
    notes.accumulation,
    notes.loss_scale,
    notes.dtypes,
    notes.unmatched_calls,
    notes.flipped_choices,
    notes.starting_parameters,
)
"""Asked of each rank; all answers are notes. Skipped steps are asked for when findings are finished."""
