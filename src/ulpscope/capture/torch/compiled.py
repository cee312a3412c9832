"""Compiled callables run as compiled: capture steps aside, and records them as one call."""

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ulpscope.capture.torch.apis import Action, Api
from ulpscope.records.enums import Kind

_DYNAMO = "torch._dynamo.eval_frame"


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
    """Wraps what torch.compile makes of plain functions while a capture runs."""

    def __init__(
        self,
        observe: Callable[[Api, Kind, Callable[..., Any], tuple[Any, ...], Any], Any],
        suspended: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._observe = observe
        self._suspended = suspended
        self._compile = torch.compile
        self._context_call: Callable[..., Any] | None = None

    def install(self) -> None:
        torch.compile = self._compiling
        if _DYNAMO in sys.modules:
            self._wrap_context()

    def uninstall(self) -> None:
        torch.compile = self._compile
        if self._context_call is not None:
            del sys.modules[_DYNAMO].OptimizeContext.__call__
            self._context_call = None

    @property
    def _compiling(self) -> Callable[..., Any]:
        @functools.wraps(self._compile)
        def compile_and_watch(*args: Any, **kwargs: Any) -> Any:
            import torch._dynamo.eval_frame  # noqa: F401

            self._wrap_context()
            with self._suspended():
                return self._compile(*args, **kwargs)

        return compile_and_watch

    def _wrap_context(self) -> None:
        context = sys.modules[_DYNAMO].OptimizeContext
        if self._context_call is not None:
            return
        self._context_call = original = context.__call__

        def call(context_self: Any, function: Any) -> Any:
            # What is compiled keeps a reference to nn.Module.__call__: it must be torch's own.
            with self._suspended():
                made = original(context_self, function)
            if isinstance(made, torch.nn.Module | type) or not callable(made):
                return made
            return self._watched(made, function)

        context.__call__ = call

    def _watched(self, made: Callable[..., Any], function: Any) -> Callable[..., Any]:
        name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
        api = Api(name, Action.RECORD, may_write=True)

        @functools.wraps(made)
        def watched(*args: Any, **kwargs: Any) -> Any:
            return self._observe(api, Kind.COMPILED, made, args, kwargs)

        return watched
