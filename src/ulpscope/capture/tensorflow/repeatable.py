"""What makes a script of TensorFlow repeatable, switched on from outside where `ulpscope repeat` tries it."""

import tensorflow as tf

from ulpscope.capture.recording.environment import seed_all
from ulpscope.records.runs import CaptureSettings

_ANY = 0


def make_repeatable(settings: CaptureSettings) -> None:
    """Before the script begins, which may still do otherwise. Determinism alone refuses random ops without a seed."""
    if settings.seed is not None or settings.deterministic:
        seed_all(settings.seed or _ANY)
        tf.random.set_seed(settings.seed or _ANY)
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
