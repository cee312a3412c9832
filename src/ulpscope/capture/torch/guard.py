"""Our own work never reaches the run: nobody sees its torch calls, and its errors are noted in the trace."""

from collections.abc import Callable
from typing import Any

from ulpscope.capture.exceptions import is_interruption
from ulpscope.capture.recording.recorder import Recorder
from ulpscope.capture.torch.tensors import quiet


def guarded(recorder: Recorder, where: str, work: Callable[..., Any], *args: Any) -> Any:
    """What `work` gives, or None if it raised.

    Summaries that it asked for are on their way when this returns: the run may write into the tensors then. What
    interrupts it is the run's own.
    """
    try:
        with quiet():
            try:
                return work(*args)
            finally:
                recorder.settle()
    except BaseException as error:
        if is_interruption(error):
            recorder.unobserved("interrupted")
            raise
        recorder.own_error(where, error)
        return None


def guarded_in_hook(recorder: Recorder, where: str, work: Callable[..., Any], *args: Any) -> None:
    """As guarded, in a hook of autograd's: without us no code of Python's would run there, and nothing could interrupt.

    An exception would end the pass with half of its gradients, so it waits for the end.
    """
    try:
        guarded(recorder, where, work, *args)
    except BaseException as error:
        if not recorder.postpone(error):
            raise
