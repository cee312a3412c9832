"""The modules that a run calls from outside of any other: what they are named, and where that happens first."""

import weakref
from dataclasses import dataclass
from types import FrameType

from torch import nn

from ulpscope.capture.recording.stacks import is_of_the_user
from ulpscope.records.runs import Root


@dataclass(slots=True)
class _Known:
    module: weakref.ref[nn.Module]
    module_class: str
    source: str | None
    calls: int


class RootLog:
    """Counts the recorded calls of each root."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def note(self, module: nn.Module, name: str, frame: FrameType) -> None:
        """A root of this name was called from `frame`."""
        known = self._known.get(name)
        if known is None or _is_other(known, module):
            self._known[name] = _Known(weakref.ref(module), _class_of(module), _source(frame), 1)
        else:
            known.calls += 1

    @property
    def roots(self) -> tuple[Root, ...]:
        """In the order of their first calls."""
        return tuple(
            Root(name=name, module_class=known.module_class, source=known.source, calls=known.calls)
            for name, known in self._known.items()
        )


def _is_other(known: _Known, module: nn.Module) -> bool:
    """Whether a name was given to another module; one that is made anew for every call stays what it was."""
    return known.module_class != _class_of(module) or (known.module() is not None and known.module() is not module)


def _class_of(module: nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"


def _source(frame: FrameType | None) -> str | None:
    while frame is not None and not is_of_the_user(frame.f_code):
        frame = frame.f_back
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
