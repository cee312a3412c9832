"""Closed vocabularies of a trace. Each value is the word that stands in files and on the screen."""

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


class ExitCode(int, Enum):
    """What a command's exit code means; see docs/commands.md."""

    OK = 0
    DIFFERENCE = 1
    USAGE = 2
    NOTHING = 3
    OWN_FAULT = 70
    INTERRUPTED = 130
