"""Our own torch calls must be seen by nobody: neither by our modes nor by the user's."""

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run torch calls past every function and dispatch mode."""
    with torch._C.DisableTorchFunction():
        if torch._C._len_torch_dispatch_stack() == 0:
            yield
        else:
            with _disable_current_modes():
                yield
