"""What operations compute that torch itself computes in float32 only, in plain torch."""

import torch
from torch import Tensor

from ulpscope.replay.operations import bare
from ulpscope.replay.registry import registered
from ulpscope.replay.torch.functions import Function, find_function

UNSCALE = "amp_foreach_non_finite_check_and_unscale"
LARGEST_SCALE = torch.finfo(torch.float32).max


def find_reference(op: str) -> Function:
    """The function that stands for this one in high precision on the CPU."""
    own = registered(op)
    return own.reference if own is not None else _REFERENCES.get(bare(op)) or find_function(op)


def unscale(gradients: list[Tensor], found_inf: Tensor, inverse_scale: Tensor) -> None:
    """GradScaler: divide gradients by the scale, and note whether one of them is not finite."""
    for gradient in gradients:
        if not gradient.isfinite().all():
            found_inf.fill_(1.0)
        gradient.mul_(inverse_scale)


def update_scale(
    scale: Tensor, tracker: Tensor, found_inf: Tensor, growth_factor: float, backoff_factor: float, interval: int
) -> Tensor:
    """GradScaler: a smaller scale after an overflow, a larger one after `interval` steps without."""
    if found_inf.item():
        scale.mul_(backoff_factor)
        tracker.zero_()
        return scale
    tracker.add_(1)
    if tracker.item() == interval:
        if scale.item() * growth_factor <= LARGEST_SCALE:
            scale.mul_(growth_factor)
        tracker.zero_()
    return scale


_REFERENCES: dict[str, Function] = {
    UNSCALE: unscale,
    "amp_update_scale": update_scale,
}
