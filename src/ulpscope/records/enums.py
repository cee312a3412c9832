"""Closed vocabularies of a trace. Each value is the word that stands in files and on the screen.

The same words stand below as plain texts, for inner loops over tables: looked up as members of their enums, they would
cost more there than what is done with them.
"""

from enum import Enum


class Kind(str, Enum):
    """What sort of operation a call is."""

    API = "api"
    BACKWARD = "backward"
    MODULE = "module"
    MODULE_BACKWARD = "module_backward"
    KERNEL = "kernel"
    OPTIMIZER = "optimizer"
    COLLECTIVE = "collective"
    COMPILED = "compiled"


class Phase(str, Enum):
    """Where in a training iteration a call ran."""

    SETUP = "setup"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    OTHER = "other"


class Role(str, Enum):
    """What a call did with a value."""

    INPUT = "input"
    OUTPUT = "output"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    LOSS = "loss"
    GRAD_OUTPUT = "grad_output"
    GRAD_INPUT = "grad_input"
    GRADIENT = "gradient"
    PARAMETER_AFTER = "parameter_after"
    STATE = "state"
    STATE_AFTER = "state_after"


class Level(str, Enum):
    """How deep a capture looks; each level includes the coarser ones."""

    MODULE = "module"
    API = "api"
    KERNEL = "kernel"


class Save(str, Enum):
    """What a trace keeps of each value: its summary, or its data too."""

    STATS = "stats"
    TENSORS = "tensors"


class Compiled(str, Enum):
    """How a compiled callable is run under capture."""

    AS_COMPILED = "compiled"
    EAGER = "eager"


class Watch(str, Enum):
    """What of a long run is recorded in the place of its calls."""

    GRADIENTS = "gradients"
    OVERFLOW = "overflow"
    TRAINING = "training"


class ExitCode(int, Enum):
    """What a command's exit code means; see docs/commands.md."""

    OK = 0
    DIFFERENCE = 1
    USAGE = 2
    NOTHING = 3
    OWN_FAULT = 70
    INTERRUPTED = 130


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
MAKING_ROLES = frozenset((OUTPUT_ROLE, GRAD_INPUT_ROLE, PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE))
"""A call made what it has in these; all else was given to it, or is only shown."""

BACKWARD_KIND = Kind.BACKWARD.value
COLLECTIVE_KIND = Kind.COLLECTIVE.value
COMPILED_KIND = Kind.COMPILED.value
MODULE_BACKWARD_KIND = Kind.MODULE_BACKWARD.value
MODULE_KIND = Kind.MODULE.value
OPTIMIZER_KIND = Kind.OPTIMIZER.value

OPERATION_KINDS = (Kind.API.value, Kind.KERNEL.value)
"""Calls of one operation each, of which arguments and autocast are recorded."""

BACKWARD_PHASE = Phase.BACKWARD.value
FORWARD_PHASE = Phase.FORWARD.value
SETUP_PHASE = Phase.SETUP.value
UPDATE_PHASE = Phase.UPDATE.value
OTHER_PHASE = Phase.OTHER.value
