"""ulpscope finds the operation where a deep-learning run's numbers went wrong.

`ulpscope.capture(...)` captures from Python, `ulpscope.compare(...)` compares two traces, `ulpscope.open_trace(...)`
reads one, `ulpscope.reference_for(...)` says how an operation of one's own is checked. Importing this package imports
no framework and no table library; the first use of a name does.
"""

from types import ModuleType
from typing import TYPE_CHECKING, Any

from ulpscope._version import __version__

if TYPE_CHECKING:
    from ulpscope.replay.registry import reference_for
    from ulpscope.trace.reader import open_trace
    from ulpscope.workflows.capture import capture
    from ulpscope.workflows.python import compare
else:
    import ulpscope.capture as _room

    class _CallableRoom(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            from ulpscope.workflows.capture import capture

            return capture(*args, **kwargs)

    # The room and the function share a name, and importing anything from the room binds that name here to the
    # module. This file runs before any import of the room, so the module itself answers calls in every order.
    _room.__class__ = _CallableRoom

    def __getattr__(name: str) -> Any:
        if name == "open_trace":
            from ulpscope.trace.reader import open_trace

            return open_trace
        if name == "compare":
            from ulpscope.workflows.python import compare

            return compare
        if name == "reference_for":
            from ulpscope.replay.registry import reference_for

            return reference_for
        raise AttributeError(f"module 'ulpscope' has no attribute {name!r}")


__all__ = ["__version__", "capture", "compare", "open_trace", "reference_for"]
