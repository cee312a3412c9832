"""Our own torch calls must be seen by nobody: neither by our modes nor by the user's, nor by a function transform."""

import contextlib
from types import TracebackType

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes


class quiet:  # noqa: N801 a context manager, written as a class because it is entered several times a call
    """Run torch calls past every function and dispatch mode, and outside of every function transform."""

    __slots__ = ("_functions", "_others")

    def __enter__(self) -> None:
        self._functions = torch._C.DisableTorchFunction()
        self._functions.__enter__()
        self._others: contextlib.ExitStack | None = None
        transformed = torch._C._functorch.peek_interpreter_stack() is not None
        dispatching = torch._C._len_torch_dispatch_stack() > 0
        if transformed or dispatching:
            self._others = contextlib.ExitStack()
            if transformed:
                self._others.enter_context(temporarily_clear_interpreter_stack())
            if dispatching:
                self._others.enter_context(_disable_current_modes())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._others is not None:
            self._others.close()
        self._functions.__exit__(None, None, None)
