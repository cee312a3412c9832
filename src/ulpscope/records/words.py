"""Words of the closed vocabularies as plain texts, for inner loops over tables.

Looked up as members of their enums, they would cost more there than what is done with them.
"""

from ulpscope.records.enums import Kind, Phase, Role

BUFFER_ROLE = Role.BUFFER.value
GRADIENT_ROLE = Role.GRADIENT.value
GRAD_INPUT_ROLE = Role.GRAD_INPUT.value
GRAD_OUTPUT_ROLE = Role.GRAD_OUTPUT.value
INPUT_ROLE = Role.INPUT.value
LOSS_ROLE = Role.LOSS.value
OUTPUT_ROLE = Role.OUTPUT.value
PARAMETER_AFTER_ROLE = Role.PARAMETER_AFTER.value
PARAMETER_ROLE = Role.PARAMETER.value
STATE_AFTER_ROLE = Role.STATE_AFTER.value
STATE_ROLE = Role.STATE.value

BACKWARD_KIND = Kind.BACKWARD.value
COLLECTIVE_KIND = Kind.COLLECTIVE.value
COMPILED_KIND = Kind.COMPILED.value
MODULE_BACKWARD_KIND = Kind.MODULE_BACKWARD.value
MODULE_KIND = Kind.MODULE.value
OPTIMIZER_KIND = Kind.OPTIMIZER.value

BACKWARD_PHASE = Phase.BACKWARD.value
FORWARD_PHASE = Phase.FORWARD.value
SETUP_PHASE = Phase.SETUP.value
UPDATE_PHASE = Phase.UPDATE.value
