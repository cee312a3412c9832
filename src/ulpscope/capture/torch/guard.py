"""Our own work never reaches the run: nobody sees its torch calls, and its errors are noted in the trace."""

from collections.abc import Callable
from typing import Any

from ulpscope.capture.torch.quiet import quiet
from ulpscope.capture.torch.recorder import Recorder


def guarded(recorder: Recorder, where: str, work: Callable[..., Any], *args: Any) -> Any:
    """What `work` gives, or None if it raised.

    Summaries that it asked for are on their way when this returns: the run may write into the tensors then.
    """
    try:
        with quiet():
            try:
                return work(*args)
            finally:
                recorder.settle()
    except Exception as error:
        recorder.own_error(where, error)
        return None
