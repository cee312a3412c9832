"""All definitions, by the types that a GE graph has."""

from ulpscope.replay.ascend.defining import Definitions
from ulpscope.replay.ascend.definitions import (
    contractions,
    elementwise,
    moving,
    normalisations,
    pooling,
    reductions,
)

DEFINITIONS: Definitions = {
    **elementwise.DEFINITIONS,
    **contractions.DEFINITIONS,
    **reductions.DEFINITIONS,
    **normalisations.DEFINITIONS,
    **pooling.DEFINITIONS,
    **moving.DEFINITIONS,
}
