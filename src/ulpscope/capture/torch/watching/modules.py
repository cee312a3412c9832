"""Module calls: their dotted paths from the roots that the run calls, inputs, outputs, parameters and gradients."""

import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.overrides import TorchFunctionMode

from ulpscope.capture.exceptions import describe_error, pass_on_interruption
from ulpscope.capture.recording.calls import (
    BUFFER,
    INPUT,
    OUTPUT,
    PARAMETER,
    ModuleScope,
    NumberedCall,
    OpenCall,
)
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.torch.tensors import encode_call, find_tensors, versions_of
from ulpscope.capture.torch.watching.calls import Before, CallWatcher
from ulpscope.capture.torch.watching.functions import is_compiled
from ulpscope.capture.torch.watching.mode import is_bare, run_without
from ulpscope.capture.torch.watching.pairing import note_inputs
from ulpscope.records.enums import Compiled, Kind, Role

SCRIPT = "script"
_MODULE, _MODULE_BACKWARD = Kind.MODULE, Kind.MODULE_BACKWARD
_NO_SCOPE = ModuleScope("", "")

FAST_PATH = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


class _ModuleKind(NamedTuple):
    """What is the same for all modules of a class."""

    name: str
    where: str
    """Where an error of ours was made."""
    is_ordinary: bool
    """Whether it runs observed, unless somebody has compiled it."""


class ModuleBefore(NamedTuple):
    """What was noted before a module's forward ran."""

    scope: ModuleScope
    call: OpenCall | NumberedCall
    noted: Any
    """A Before; of a numbered call, what compiled code wants to have back."""


class ModuleWatcher:
    """Stands in for nn.Module.__call__ while a capture runs."""

    def __init__(
        self, watcher: CallWatcher, mode: TorchFunctionMode, *, begin_outermost: Callable[[nn.Module], None]
    ) -> None:
        self.paths = ModulePaths()
        self._watcher = watcher
        self._mode = mode
        self._recorder = watcher.recorder
        self._scopes = watcher.scopes
        self._begin_outermost = begin_outermost
        self._backward_calls: dict[int | None, dict[int, OpenCall]] = {}
        """By pass, by number of the module."""
        self._modules: dict[int, weakref.ref[nn.Module]] = {}
        """By number: an id is used again when its module is gone."""
        self._numbers: dict[int, int] = {}
        """By id."""
        self._numbered = itertools.count()
        self._kinds: dict[type[nn.Module], _ModuleKind] = {}
        self._recorder.stacks.module_call = ModuleWatcher.call.__code__

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a module's __call__ and record it."""
        recorder, scopes, frame = self._recorder, self._scopes, sys._getframe(1)
        if not scopes.modules and not recorder.steps.in_backward and not isinstance(module, ParametrizationList):
            self._begin_outermost(module)
        unseen = self._why_unseen(module, args, kwargs)
        before: ModuleBefore | None = None
        if recorder.capturing and not scopes.hidden:
            if unseen is None and recorder.records_modules:
                before = self._before_by_core(module, args, kwargs, frame)
            if before is None:
                before = self._guarded(self._before, module, args, kwargs, unseen, frame)
        if before is None:
            return self._run(_NO_SCOPE, unseen, original, module, args, kwargs)
        depth = len(scopes.calls)
        try:
            scopes.calls.append(before.call)
            result = self._run(before.scope, unseen, original, module, args, kwargs)
        except BaseException as error:
            if isinstance(before.call, NumberedCall):
                recorder.fail_module(before.noted, describe_error(error))
            else:
                before.call.error = describe_error(error)
                recorder.guarded(self._kind_of(module).where, recorder.close, before.call, before.noted.arguments)
            raise
        finally:
            del scopes.calls[depth:]
        if isinstance(before.call, NumberedCall):
            try:
                recorder.end_module(before.noted, self._number_of(module), result)
            except Exception as error:
                self._note_error(module, error)
        else:
            self._guarded(self._after, module, before.noted, result, unseen)
        return result

    def _before_by_core(self, module: nn.Module, args: Any, kwargs: Any, frame: FrameType) -> ModuleBefore | None:
        """What compiled code notes before a module's forward; None if it does not record this call."""
        class_name, path = self._kind_of(module).name, self.paths.of(module, self._scopes.innermost.path, frame)
        try:
            begun = self._recorder.begin_module(
                class_name, path, module.training, args, kwargs, module._parameters, module._buffers, frame
            )
        except Exception as error:
            self._note_error(module, error)
            return None
        if begun is NotImplemented:
            return None
        number, stack, noted = begun
        return ModuleBefore(ModuleScope(path, class_name, stack), NumberedCall(number), noted)

    def _note_error(self, module: nn.Module, error: Exception) -> None:
        pass_on_interruption(error)
        self._recorder.own_error(self._kind_of(module).where, error)

    def record_parameter_gradients(self) -> None:
        """After a backward pass: the gradients that its modules' own parameters hold now.

        Those of another thread's pass are left to that thread: a gradient that it drops must not be read meanwhile.
        """
        self._recorder.guarded("gradients", self._record_compiled_gradients)
        calls = self._backward_calls.pop(self._recorder.steps.backward_pass, {})
        for number, call in calls.items():
            module = self._module_of(number)
            if module is not None and call.wanted:
                self._guarded(self._use_gradients, module, call)

    def _record_compiled_gradients(self) -> None:
        last = dict(self._recorder.take_ran())  # of several backward calls of a module the last has them
        for number, call in last.items():
            module = self._module_of(number)
            if module is not None:
                self._recorder.use_gradients(call, Role.GRADIENT.value, module._parameters)

    def _module_of(self, number: int) -> nn.Module | None:
        reference = self._modules.get(number)
        return None if reference is None else reference()

    def _run(
        self,
        scope: ModuleScope,
        unseen: str | None,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Any,
    ) -> Any:
        outer = self._scopes.modules
        depth = len(outer)
        try:
            outer.append(scope)
            if unseen is None and not self._watcher.records_calls and is_bare(module):
                result = run_without(self._mode, original, module, args, kwargs)
            elif unseen is None or unseen == SCRIPT:
                result = original(module, *args, **kwargs)
            else:
                with self._watcher.suspended():
                    result = original(module, *args, **kwargs)
        finally:
            del outer[depth:]
            if unseen is not None:
                self._recorder.unobserved(unseen)
                self._recorder.values.forget_all()
        if not outer and not isinstance(module, ParametrizationList):  # that gives a parameter: no forward of the run's
            steps = self._recorder.steps
            if scope.path and not steps.in_backward:
                self._guarded(self._watcher.session.roots.note, module, scope.path, sys._getframe())
            if steps.asks_for_graphs:
                self._recorder.guarded("end of a forward", steps.note_graph, result)
        return result

    def _why_unseen(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> str | None:
        """Why this module must run as if nobody watched, or None."""
        is_ordinary = self._kind_of(module).is_ordinary and module._compiled_call_impl is None
        unseen: str | None = None if is_ordinary else self._guarded(self._look_why_unseen, module, args, kwargs)
        return unseen

    def _look_why_unseen(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> str | None:
        if is_compiled(module) and self._recorder.settings.compiled is Compiled.AS_COMPILED:
            return "compiled"
        if isinstance(module, FAST_PATH) and not module.training and not _builds_graph(module, args, kwargs):
            return "transformer fast path"
        if isinstance(module, torch.jit.ScriptModule):
            return SCRIPT
        return None

    def _kind_of(self, module: nn.Module) -> "_ModuleKind":
        kind = type(module)
        known = self._kinds.get(kind)
        if known is None:
            special = isinstance(module, (*FAST_PATH, torch.jit.ScriptModule)) or is_compiled(module)
            name = f"{kind.__module__}.{kind.__qualname__}"
            known = self._kinds[kind] = _ModuleKind(name, f"module {kind.__name__}", not special)
        return known

    def _guarded(self, work: Callable[..., Any], module: nn.Module, *args: Any) -> Any:
        return self._recorder.guarded(self._kind_of(module).where, work, module, *args)

    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, unseen: str | None, frame: FrameType
    ) -> ModuleBefore:
        recorder, scopes, steps = self._recorder, self._scopes, self._recorder.steps
        outer, class_name = scopes.innermost, self._kind_of(module).name
        scope = ModuleScope(self.paths.of(module, outer.path, frame), class_name, outer.stack)
        kind = Kind.COMPILED if unseen == "compiled" else _MODULE
        recompute = steps.in_backward and torch.is_grad_enabled() and not steps.creates_graph
        call = recorder.open(kind, class_name, scope, parent=scopes.parent, recompute=recompute, frame=frame)
        scope.stack = call.stack
        tensors, arguments = self._watcher.encodings.encode(args, kwargs, training=module.training)
        parameters = _parameters(module, unseen)
        if call.wanted:
            recorder.use_all(call, INPUT, tensors)
            recorder.use_all(call, PARAMETER, parameters)
            recorder.use_all(call, BUFFER, _own(module._buffers))
        edges = note_inputs(tensors + parameters, writes=False)
        return ModuleBefore(scope, call, Before(call, tensors, versions_of(tensors), arguments, edges, None))

    def _after(self, module: nn.Module, before: Before, result: Any, unseen: str | None) -> None:
        call, recorder = before.call, self._recorder
        outputs = find_tensors(result, "output")
        if call.wanted:
            recorder.use_all(call, OUTPUT, outputs)
            recorder.close(call, before.arguments)
        if before.edges is None:
            return
        pairs = zip(before.tensors, before.versions, versions_of(before.tensors), strict=True)
        written = {id(tensor) for (_, tensor), old, new in pairs if old != new}
        roots = self._watcher.pairing.attach(
            call,
            outputs,
            before.edges,
            inputs=before.tensors,
            written=written,
            kind=_MODULE_BACKWARD,
            on_run=self._remember(module),
        )
        if unseen == "compiled":
            self._watcher.hide_backward(roots)

    def _number_of(self, module: nn.Module) -> int:
        earlier = self._numbers.get(id(module))
        if earlier is not None and self._modules[earlier]() is module:
            return earlier
        number = next(self._numbered)
        # In this order: an interruption in between leaves no number without its module.
        self._modules[number] = weakref.ref(module)
        self._numbers[id(module)] = number
        if earlier is not None:
            del self._modules[earlier]  # of one that is gone and had the same id
        return number

    def _remember(self, module: nn.Module) -> Callable[[OpenCall], None]:
        number = self._number_of(module)

        def remember(call: OpenCall) -> None:
            running = self._recorder.steps.backward_pass
            if running is not None:  # else autograd was started past us, and nobody knows where it ends
                self._backward_calls.setdefault(running, {})[number] = call

        return remember

    def _use_gradients(self, module: nn.Module, call: OpenCall) -> None:
        parameters = _parameters(module, "compiled" if is_compiled(module) else None)
        gradients = [(name, parameter.grad) for name, parameter in parameters if parameter.grad is not None]
        self._recorder.use_all(call, Role.GRADIENT.value, gradients)


def _parameters(module: nn.Module, unseen: str | None) -> Placed:
    """A module's own parameters; all of them if nothing inside it will be seen."""
    return _own(module._parameters) if unseen is None else list(module.named_parameters())


def _own(tensors: Mapping[str, torch.Tensor | None]) -> Placed:
    return [(name, tensor) for name, tensor in tensors.items() if tensor is not None]


def _builds_graph(module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> bool:
    if not torch.is_grad_enabled():
        return False
    inputs = (tensor for _, tensor in encode_call(args, kwargs)[0])
    return any(tensor.requires_grad for tensor in itertools.chain(inputs, module.parameters()))


ROOT = "model"


class ModulePaths:
    """Knows where each module is."""

    def __init__(self) -> None:
        self._paths: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._roots: list[tuple[weakref.ref[nn.Module], str]] = []
        self._parameter_names: dict[int, str] = {}
        self._named_parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        """Those that were asked for last."""

    def add_root(self, root: nn.Module, name: str | None = None) -> str:
        """Name a module and everything in it."""
        name = name or self._root_name(root)
        self._roots = [(known, path) for known, path in self._roots if path != name]
        self._roots.append((weakref.ref(root), name))
        self._named_parameters = {}
        self._walk(root, name)
        return name

    def of(self, module: nn.Module, parent: str | None, frame: FrameType) -> str:
        """The path of a module that is called from this frame, inside of the module that has the parent's path."""
        known = self._find(module)
        if known is None and parent is not None:
            for root, name in self._roots:  # modules that were added after the first call
                alive = root()
                if alive is not None:
                    self._walk(alive, name)
            known = self._find(module)
        if known is None and parent is None:
            self.add_root(_whole(module, frame))
            known = self._find(module)
        return known or f"{parent}.<{type(module).__name__}>"

    def parameter_names(self, parameters: Iterable[torch.Tensor]) -> dict[int, str]:
        """Full names of the parameters of all roots, by identity; these parameters' own are wanted."""
        named = self._named_parameters
        if not all((known := named.get(id(wanted))) is not None and known() is wanted for wanted in parameters):
            names = self._find_parameter_names()
            self._named_parameters = {id(wanted): weakref.ref(wanted) for wanted in parameters if id(wanted) in names}
            self._parameter_names = {number: names[number] for number in self._named_parameters}
        return self._parameter_names

    def _find_parameter_names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for root, path in self._roots:
            alive = root()
            for prefix, module in _inside(alive) if alive is not None else ():
                for name, parameter in module._parameters.items():
                    if parameter is not None:
                        names.setdefault(id(parameter), f"{path}.{prefix}.{name}" if prefix else f"{path}.{name}")
        return names

    def _find(self, module: nn.Module) -> str | None:
        entry = self._paths.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def _walk(self, root: nn.Module, name: str) -> None:
        for path, module in _inside(root):
            self._paths[id(module)] = (weakref.ref(module), f"{name}.{path}" if path else name)

    def _root_name(self, root: nn.Module) -> str:
        self._roots = [(ref, path) for ref, path in self._roots if ref() is not None]
        inside = {id(module) for _, module in _inside(root)}
        known = [(ref(), path) for ref, path in self._roots]
        replaced = [path for module, path in known if module is not None and id(module) in inside]
        if not known or ROOT in replaced:
            return ROOT
        taken, kind = {path for _, path in known}, type(root).__name__
        names = itertools.chain([kind], (f"{kind}-{number}" for number in itertools.count(2)))
        return next(name for name in names if name not in taken)


def _inside(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A module and those inside of it, with their paths, each once: by identity, a module need not have a hash."""
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield path, module
            prefix = f"{path}." if path else ""
            inner = [(f"{prefix}{name}", child) for name, child in module._modules.items() if child is not None]
            waiting.extend(reversed(inner))


def _whole(module: nn.Module, frame: FrameType | None) -> nn.Module:
    """The module that this one is part of, if one of that module's own methods is calling it."""
    while frame is not None:
        code = frame.f_code
        caller: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if issubclass(type(caller), nn.Module) and "_modules" in vars(caller):
            module = caller if any(inner is module for _, inner in _inside(caller)) else module
        frame = frame.f_back
    return module
