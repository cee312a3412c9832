"""Our own torch calls must be seen by nobody: neither by our modes nor by the user's, nor by a function transform."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes


def quiet() -> AbstractContextManager[Any]:
    """Run torch calls past every function and dispatch mode, and outside of every function transform."""
    if torch._C._functorch.peek_interpreter_stack() is None and torch._C._len_torch_dispatch_stack() == 0:
        return torch._C.DisableTorchFunction()
    return _quiet_everywhere()


@contextlib.contextmanager
def _quiet_everywhere() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), contextlib.ExitStack() as others:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            others.enter_context(temporarily_clear_interpreter_stack())
        if torch._C._len_torch_dispatch_stack() > 0:
            others.enter_context(_disable_current_modes())
        yield
