"""ulpscope finds the operation where a deep-learning run's numbers went wrong.

`ulpscope.capture(...)` captures from Python, `watch(...)` the gradients of a long training; `compare`, `check`,
`overflow`, `repro`, `show` and `report` are the commands of the same names; `open_trace(...)` reads a trace,
`reference_for(...)` says how an operation of one's own is checked. Importing this package imports no framework and no
table library; the first use of a name does.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ulpscope._version import __version__

if TYPE_CHECKING:
    from ulpscope.replay.registry import reference_for
    from ulpscope.trace.reader import open_trace
    from ulpscope.workflows.python import check, compare, overflow, report, repro, show
    from ulpscope.workflows.run.python_capture import capture
    from ulpscope.workflows.run.python_watch import watch
else:
    import ulpscope.capture
    import ulpscope.report

    _HOMES = {
        "capture": "ulpscope.workflows.run.python_capture",
        "open_trace": "ulpscope.trace.reader",
        "reference_for": "ulpscope.replay.registry",
        "watch": "ulpscope.workflows.run.python_watch",
        **dict.fromkeys(("check", "compare", "overflow", "report", "repro", "show"), "ulpscope.workflows.python"),
    }

    class _CallableRoom(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            name = self.__name__.rpartition(".")[2]
            return getattr(import_module(_HOMES[name]), name)(*args, **kwargs)

    # These rooms share their names with functions, and importing anything from a room binds its name here to the
    # module. This file runs before any import of a room, so the module itself answers calls in every order.
    ulpscope.capture.__class__ = ulpscope.report.__class__ = _CallableRoom

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'ulpscope' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__


__all__ = [
    "__version__",
    "capture",
    "check",
    "compare",
    "open_trace",
    "overflow",
    "reference_for",
    "report",
    "repro",
    "show",
    "watch",
]
