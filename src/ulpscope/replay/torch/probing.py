"""First steps of a worker: does this CPU do what torch thinks it can, and is everything loaded that cases need?"""

import torch

SIDE = 64


def probe() -> None:
    """Use torch once, so that no case pays for what it loads late, or dies of what this machine cannot do."""
    # oneDNN may choose instructions for this that the operating system forbids: SIGILL.
    square = torch.ones(SIDE, SIDE, dtype=torch.bfloat16)
    square @ square
    # A first backward with a given gradient imports a computer algebra system: a second or more.
    leaf = torch.ones(2, requires_grad=True)
    torch.autograd.grad(leaf * 2, leaf, torch.ones(2))
