"""Compiled callables run as compiled: capture steps aside, and records them as one call."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ulpscope.capture.recording.replacing import Replacement
from ulpscope.capture.torch.watching.apis import Action, Api
from ulpscope.capture.torch.watching.calls import Before, CallWatcher
from ulpscope.records.enums import Kind

_DYNAMO = "torch._dynamo.eval_frame"
_WRAPPERS = ("compile_wrapper", "_fn")


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calling this module runs compiled code."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    dynamo = sys.modules.get(_DYNAMO)
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


class EagerForm:
    """Lets compiled callables run their eager form while a capture runs."""

    def __init__(self) -> None:
        self._stance: Any = None

    def install(self) -> None:
        self._stance = torch.compiler.set_stance("force_eager")

    def uninstall(self) -> None:
        self._stance.__exit__(None, None, None)


class CompiledFunctions:
    """Steps aside whenever a compiled function runs, however and whenever it was compiled.

    The wrapper that torch.compile makes of a function sets the frame evaluator before it runs the function, and resets
    it after; both go through one function of dynamo's. Its caller's frame tells what is being called.
    """

    def __init__(self, watcher: CallWatcher, *, steps_aside: Callable[[], bool], records: Callable[[], bool]) -> None:
        self._watcher = watcher
        self._steps_aside = steps_aside
        self._records = records
        self._entry = Replacement(torch, "compile", self._compiling)
        self._set_evaluator: Callable[..., Any] | None = None
        self._running: list[_Running] = []

    def install(self) -> None:
        self._entry.install()
        if _DYNAMO in sys.modules:
            self._intercept()

    def uninstall(self) -> None:
        self._entry.uninstall()
        if self._set_evaluator is not None:
            sys.modules[_DYNAMO]._maybe_set_eval_frame = self._set_evaluator  # type: ignore[attr-defined]
            self._set_evaluator = None

    def _compiling(self, entry: Replacement) -> Callable[..., Any]:
        original = entry.original

        @functools.wraps(original)
        def compile_unwatched(*args: Any, **kwargs: Any) -> Any:
            if not entry.is_on:
                return original(*args, **kwargs)
            import torch._dynamo.eval_frame  # noqa: F401

            self._intercept()
            # What is compiled keeps a reference to nn.Module.__call__: it must be torch's own.
            with self._watcher.suspended():
                return original(*args, **kwargs)

        return compile_unwatched

    def _intercept(self) -> None:
        dynamo: Any = sys.modules[_DYNAMO]
        if self._set_evaluator is not None:
            return
        self._set_evaluator = original = dynamo._maybe_set_eval_frame

        def set_evaluator(callback: Any) -> Any:
            frame = sys._getframe(1)
            if self._running and self._running[-1].frame is frame:
                set_back = original(callback)
                self._leave(self._running.pop())
                return set_back
            if frame.f_code.co_name in _WRAPPERS and callable(callback) and self._steps_aside():
                self._enter(frame)
            return original(callback)

        dynamo._maybe_set_eval_frame = set_evaluator

    def _enter(self, frame: FrameType) -> None:
        function, args, kwargs = (frame.f_locals.get(name) for name in ("fn", "args", "kwargs"))
        original = getattr(function, "_torchdynamo_orig_callable", function)
        name = f"{getattr(original, '__module__', '?')}.{getattr(original, '__qualname__', repr(original))}"
        api = Api(name, Action.RECORD, may_write=True)
        before = self._watcher.begin(api, Kind.COMPILED, args or (), kwargs or {}) if self._records() else None
        suspension = self._watcher.suspended()
        suspension.__enter__()
        self._running.append(_Running(frame, api, before, suspension))

    def _leave(self, running: _Running) -> None:
        running.suspension.__exit__(None, None, None)
        if running.before is None:
            return
        recorder = self._watcher.recorder
        recorder.unobserved("compiled")
        recorder.values.storages.forget_all()
        seen = running.frame.f_locals
        if "result" in seen:
            self._watcher.end(running.api, running.before, seen["args"], seen["kwargs"], seen["result"])
        else:
            self._watcher.fail(running.before, "the compiled function raised")


@dataclass(frozen=True, slots=True)
class _Running:
    frame: FrameType
    api: Api
    before: Before | None
    suspension: AbstractContextManager[None]
