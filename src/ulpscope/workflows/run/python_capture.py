"""`ulpscope.capture(...)`: capture a part of a Python program.

with ulpscope.capture("runs/ref", model=model) as cap:
    for batch in data:
        train_step(batch)
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from ulpscope.capture.processes import refuse_old_version
from ulpscope.capture.settings import parse_ranges
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import CaptureSettings, IntRanges
from ulpscope.workflows.results import held_destination, prepare_destination

Options = TypeVar("Options")

if TYPE_CHECKING:
    from ulpscope.capture.torch.session import Session


def _framework() -> str:
    """What the program computes with: torch, unless TensorFlow alone is imported."""
    return "tensorflow" if "tensorflow" in sys.modules and "torch" not in sys.modules else "torch"


class Capture:
    """A capture of the code inside a `with` statement."""

    def __init__(self, settings: CaptureSettings, *, models: Mapping[str, Any], overwrite: bool) -> None:
        self.path = settings.out
        self.settings = settings
        self._models = models
        self._overwrite = overwrite
        self._session: Session | None = None
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Capture:
        framework = _framework()
        refuse_old_version(framework)
        room = importlib.import_module(f"ulpscope.capture.{framework}.session")
        self._session = room.Session(self.settings)
        assert self._session is not None
        rank = self._session.rank if self._session.world_size > 1 else None
        with contextlib.ExitStack() as held:
            held.enter_context(held_destination(self.path, shared=rank is not None))
            prepare_destination(self.path, overwrite=self._overwrite, rank=rank)
            self._session.claim()
            self._session.start(self._models)
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is None:
            return
        with self._held:
            self._session.close("ended" if error is None else f"{type(error).__name__}: {error}")
        for problem in self._session.recorder.errors:
            warnings.warn(f"ulpscope: {problem}", stacklevel=2)
        if self.is_empty:
            warnings.warn(f"ulpscope captured nothing: {self.path} holds no trace", stacklevel=2)

    @property
    def is_empty(self) -> bool:
        """Whether no call has been recorded."""
        return self._session is None or not self._session.recorder.counts.recorded

    def step(self) -> None:
        """A new step begins now; from the first use on, only this begins steps."""
        if self._session is not None:
            self._session.step()

    def begin_at(self, step: int) -> None:
        """The running step has this number; from now on, only step() begins steps."""
        if self._session is not None:
            self._session.begin_at(step)

    def pause(self) -> None:
        """Record nothing until resume()."""
        if self._session is not None:
            self._session.pause()

    def resume(self, model: Any = None) -> None:
        """Record again; `model` is named as the one that `capture` takes."""
        if self._session is not None:
            self._session.resume(named_models(model))

    def record(self, op: str, name: str, content: Any, *, gradients: bool = True) -> None:
        """Put tensors (also in lists and dictionaries) into the trace as a call `name.N`, and their gradients later."""
        if self._session is not None:
            self._session.record(op, name, content, gradients=gradients)


def capture(
    out: str | Path,
    *,
    level: str = "api",
    save: str = "stats",
    model: Any = None,
    steps: str | Sequence[int] | None = None,
    ranks: str | Sequence[int] | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    max_disk: int | None = None,
    compiled: str = "compiled",
    verify: bool = False,
    overwrite: bool = False,
) -> Capture:
    """Capture what runs inside `with`; `model` (a module, a list or a dict of them) gives dotted paths their root."""
    settings = options_of(
        CaptureSettings,
        next_step="ulpscope.capture(..., {}=...)",
        out=out,
        level=level,
        save=save,
        steps=steps,
        ranks=ranks,
        only=only,
        skip=skip,
        max_disk=max_disk,
        compiled=compiled,
        verify=verify,
    )
    return Capture(settings, models=named_models(model), overwrite=overwrite)


_USUAL = "leave it out for the usual one"


def options_of(
    kind: type[Options],
    /,
    *,
    named: str = "{}",
    called: Mapping[str, str] | None = None,
    next_step: str = _USUAL,
    **given: Any,
) -> Options:
    """The options of a workflow from what a user gives: words, numbers and paths become what the fields' types want.

    Errors name an option by `named`, with what the user calls it if that is not the field's name.
    """
    hints = get_type_hints(kind)
    names = {name: (called or {}).get(name, name) for name in given}
    return kind(
        **{
            name: converted(hints[name], value, option=named.format(names[name]), next_step=next_step.format(name))
            for name, value in given.items()
        }
    )


def converted(hint: Any, value: Any, *, option: str, next_step: str = _USUAL) -> Any:
    """What a user gave, as a type wants it; what fits already stays as it is."""
    kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and get_origin(kind) is None]
    words = next((kind for kind in kinds if issubclass(kind, Enum)), None)
    if value is None or (words is not None and isinstance(value, words)):
        return value
    if words is not None:
        try:
            return words(value)
        except ValueError:
            known = ", ".join(str(word.value) for word in words)
            raise UlpscopeError(f"{option}={value!r}", expected=f"one of {known}", next_step=next_step) from None
    if IntRanges in kinds:
        return parse_ranges(value, option=option) if isinstance(value, str) else _ranges(value)
    if get_origin(hint) is tuple:
        return tuple(Path(each) if Path in kinds else each for each in value)
    return Path(value) if Path in kinds else value


def _ranges(numbers: IntRanges | Sequence[int]) -> IntRanges:
    return numbers if isinstance(numbers, IntRanges) else IntRanges(tuple((number, number) for number in numbers))


def named_models(model: Any) -> dict[str, Any]:
    """Models by what their paths begin with: one is `model`, a list model0, model1, ..., a dictionary says it."""
    if model is None:
        return {}
    if isinstance(model, Mapping):
        return dict(model)
    if isinstance(model, list | tuple):
        return {f"model{number}": item for number, item in enumerate(model)}
    return {"model": model}
