"""What may make a run repeatable, how it is switched on from outside, and which is tried first."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ulpscope.records.repeats import Part, Switch
from ulpscope.records.runs import CaptureSettings

SEED = 0
_VARIABLES: Mapping[Switch, Mapping[str, str]] = {
    Switch.HASH_SEED: {"PYTHONHASHSEED": "0"},
    Switch.DETERMINISTIC: {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HCCL_DETERMINISTIC": "true",
        "TF_DETERMINISTIC_OPS": "1",
    },
    Switch.ONE_THREAD: {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
    },
}
_DRAWN = (Switch.SEED, Switch.HASH_SEED)
_COMPUTED = (Switch.DETERMINISTIC, Switch.ONE_THREAD)
_FIRST: Mapping[Part, Sequence[Switch]] = {
    Part.GENERATOR: _DRAWN,
    Part.ARGUMENT: (*_DRAWN, *_COMPUTED),
    Part.OUTSIDE: (*_DRAWN, *_COMPUTED),
    Part.GIVEN: (*_DRAWN, *_COMPUTED),
    Part.STRUCTURE: (Switch.HASH_SEED, Switch.SEED, *_COMPUTED),
    Part.RANDOM: (*_DRAWN, *_COMPUTED),
    Part.COMPUTATION: _COMPUTED,
    Part.COLLECTIVE: _COMPUTED,
}
"""What computes otherwise from the same bits has no seed to set; no kernel sets a generator to another state."""


def candidates(part: Part) -> Sequence[Switch]:
    """What may help against a call that differs so, the likeliest first."""
    return _FIRST[part]


def switched(settings: CaptureSettings, switches: Sequence[Switch]) -> CaptureSettings:
    """Settings of a capture that also switches these on, where that is done inside of the process."""
    seed = SEED if Switch.SEED in switches else None
    return replace(settings, seed=seed, deterministic=Switch.DETERMINISTIC in switches)


def variables_of(switches: Sequence[Switch]) -> dict[str, str]:
    return {name: value for switch in switches for name, value in _VARIABLES.get(switch, {}).items()}
