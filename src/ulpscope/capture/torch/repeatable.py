"""What makes a script of torch repeatable, switched on from outside where `ulpscope repeat` tries it."""

import torch

from ulpscope.capture.recording.environment import seed_all
from ulpscope.records.runs import CaptureSettings


def make_repeatable(settings: CaptureSettings) -> None:
    """Before the script begins, which may still do otherwise."""
    if settings.seed is not None:
        seed_all(settings.seed)
        torch.manual_seed(settings.seed)
    if settings.deterministic:
        # An operation that has no such kernel must not end the run.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
