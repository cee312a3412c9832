"""Module calls: their dotted paths, inputs, outputs, parameters and gradients."""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ulpscope.capture.torch.arguments import Placed, encode_call, find_tensors
from ulpscope.capture.torch.compiled import is_compiled
from ulpscope.capture.torch.edges import InputEdges, note_inputs
from ulpscope.capture.torch.guard import guarded
from ulpscope.capture.torch.recorder import OpenCall
from ulpscope.capture.torch.scopes import ModuleScope
from ulpscope.capture.torch.watching import CallWatcher, describe_error, version_of
from ulpscope.records.enums import Compiled, Kind, Role

ROOT = "model"

SCRIPT = "script"
_NO_SCOPE = ModuleScope("", "")

FAST_PATH = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


class ModulePaths:
    """Dotted paths of modules, found from the roots that the run calls."""

    def __init__(self) -> None:
        self._paths: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._roots: list[tuple[weakref.ref[nn.Module], str]] = []

    def add_root(self, root: nn.Module, name: str | None = None) -> str:
        """Name a module and everything in it."""
        name = name or self._root_name(root)
        self._roots = [(known, path) for known, path in self._roots if path != name]
        self._roots.append((weakref.ref(root), name))
        self._walk(root, name)
        return name

    def of(self, module: nn.Module, parent: str | None) -> str:
        known = self._find(module)
        if known is None and parent is not None:
            for root, name in self._roots:  # modules that were added after the first call
                alive = root()
                if alive is not None:
                    self._walk(alive, name)
            known = self._find(module)
        if known is None:
            known = self.add_root(module) if parent is None else f"{parent}.<{type(module).__name__}>"
        return known

    def parameter_names(self) -> dict[int, str]:
        """Full names of the parameters of all roots, by identity of the parameter."""
        names: dict[int, str] = {}
        for root, path in self._roots:
            alive = root()
            if alive is not None:
                for name, parameter in alive.named_parameters():
                    names.setdefault(id(parameter), f"{path}.{name}")
        return names

    def _find(self, module: nn.Module) -> str | None:
        entry = self._paths.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def _walk(self, root: nn.Module, name: str) -> None:
        for path, module in root.named_modules():
            self._paths[id(module)] = (weakref.ref(module), f"{name}.{path}" if path else name)

    def _root_name(self, root: nn.Module) -> str:
        self._roots = [(ref, path) for ref, path in self._roots if ref() is not None]
        inside = {id(module) for module in root.modules()}
        known = [(ref(), path) for ref, path in self._roots]
        replaced = [path for module, path in known if module is not None and id(module) in inside]
        if not known or ROOT in replaced:
            return ROOT
        taken = {path for _, path in known}
        name = type(root).__name__
        number = 2
        while name in taken:
            name = f"{type(root).__name__}-{number}"
            number += 1
        return name


@dataclass(slots=True)
class ModuleBefore:
    """What was noted before a module's forward ran."""

    call: OpenCall
    encoded: dict[str, Any]
    tensors: Placed
    versions: list[int | None]
    edges: InputEdges | None


class ModuleWatcher:
    """Stands in for nn.Module.__call__ while a capture runs."""

    def __init__(self, watcher: CallWatcher, *, begin_outermost: Callable[[nn.Module], None]) -> None:
        self.paths = ModulePaths()
        self._watcher = watcher
        self._recorder = watcher.recorder
        self._scopes = watcher.scopes
        self._begin_outermost = begin_outermost
        self._backward_calls: dict[int, tuple[weakref.ref[nn.Module], OpenCall]] = {}

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a module's __call__ and record it."""
        scopes = self._scopes
        if not scopes.modules and not self._recorder.steps.in_backward:
            self._begin_outermost(module)
        unseen = self._guarded(self._why_unseen, module, args, kwargs)
        if not self._recorder.capturing or scopes.hidden:
            return self._run(_NO_SCOPE, unseen, original, module, args, kwargs)
        scope = self._guarded(self._scope_of, module) or _NO_SCOPE
        before = self._guarded(self._before, module, scope, args, kwargs, unseen)
        if before is None:
            return self._run(scope, unseen, original, module, args, kwargs)
        scopes.calls.append(before.call)
        try:
            result = self._run(scope, unseen, original, module, args, kwargs)
        except BaseException as error:
            before.call.error = describe_error(error)
            self._guarded(self._close, module, before)
            raise
        finally:
            scopes.calls.pop()
        self._guarded(self._after, module, before, result, unseen)
        return result

    def record_parameter_gradients(self) -> None:
        """After a backward pass: the gradients that its modules' own parameters hold now."""
        calls, self._backward_calls = self._backward_calls, {}
        for reference, call in calls.values():
            module = reference()
            if module is not None and call.wanted:
                self._guarded(self._use_gradients, module, call)

    def _run(
        self,
        scope: ModuleScope,
        unseen: str | None,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Any,
    ) -> Any:
        self._scopes.modules.append(scope)
        try:
            if unseen is None or unseen == SCRIPT:
                return original(module, *args, **kwargs)
            with self._watcher.suspended():
                return original(module, *args, **kwargs)
        finally:
            self._scopes.modules.pop()
            if unseen is not None:
                self._recorder.unobserved(unseen)
                self._recorder.values.storages.forget_all()

    def _scope_of(self, module: nn.Module) -> ModuleScope:
        return ModuleScope(self.paths.of(module, self._scopes.module), _class_name(module))

    def _close(self, module: nn.Module, before: ModuleBefore) -> None:
        self._recorder.close(before.call, before.encoded)

    def _why_unseen(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> str | None:
        """Why this module must run as if nobody watched, or None."""
        if is_compiled(module) and self._recorder.settings.compiled is Compiled.AS_COMPILED:
            return "compiled"
        if isinstance(module, FAST_PATH) and not module.training and not _builds_graph(module, args, kwargs):
            return "transformer fast path"
        if isinstance(module, torch.jit.ScriptModule):
            return SCRIPT
        return None

    def _guarded(self, work: Callable[..., Any], *args: Any) -> Any:
        return guarded(self._recorder, f"module {type(args[0]).__name__}", work, *args)

    def _before(
        self, module: nn.Module, scope: ModuleScope, args: tuple[Any, ...], kwargs: Any, unseen: str | None
    ) -> ModuleBefore:
        recorder, scopes = self._recorder, self._scopes
        steps = recorder.steps
        call = recorder.open(
            Kind.COMPILED if unseen == "compiled" else Kind.MODULE,
            scope.class_name,
            module=scope.path,
            module_class=scope.class_name,
            parent=scopes.parent,
            recompute=steps.in_backward and torch.is_grad_enabled() and not steps.creates_graph,
        )
        tensors, encoded = encode_call(args, kwargs)
        encoded["training"] = module.training
        if call.wanted:
            recorder.use_all(call, Role.INPUT, tensors)
            recorder.use_all(call, Role.PARAMETER, _parameters(module, unseen))
            recorder.use_all(call, Role.BUFFER, _own(module._buffers))
        edges = note_inputs(tensors + _parameters(module, unseen), writes=False)
        return ModuleBefore(call, encoded, tensors, [version_of(tensor) for _, tensor in tensors], edges)

    def _after(self, module: nn.Module, before: ModuleBefore, result: Any, unseen: str | None) -> None:
        call, recorder = before.call, self._recorder
        outputs = find_tensors(result, "output")
        if call.wanted:
            recorder.use_all(call, Role.OUTPUT, outputs)
            recorder.close(call, before.encoded)
        if before.edges is None:
            return
        pairs = zip(before.tensors, before.versions, strict=True)
        written = {id(tensor) for (_, tensor), version in pairs if version != version_of(tensor)}
        roots = self._watcher.pairing.attach(
            call,
            outputs,
            before.edges,
            untouched={id(tensor) for _, tensor in before.tensors} - written,
            written=written,
            kind=Kind.MODULE_BACKWARD,
            on_run=self._remember(module),
        )
        if unseen == "compiled":
            self._watcher.hide_backward(roots)

    def _remember(self, module: nn.Module) -> Callable[[OpenCall], None]:
        identity, reference = id(module), weakref.ref(module)

        def remember(call: OpenCall) -> None:
            self._backward_calls[identity] = (reference, call)

        return remember

    def _use_gradients(self, module: nn.Module, call: OpenCall) -> None:
        for name, parameter in _parameters(module, "compiled" if is_compiled(module) else None):
            if parameter.grad is not None:
                self._recorder.use(call, Role.GRADIENT, name, parameter.grad)


def _parameters(module: nn.Module, unseen: str | None) -> Placed:
    """A module's own parameters; all of them if nothing inside it will be seen."""
    return _own(module._parameters) if unseen is None else list(module.named_parameters())


def _own(tensors: Mapping[str, torch.Tensor | None]) -> Placed:
    return [(name, tensor) for name, tensor in tensors.items() if tensor is not None]


def _class_name(module: nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"


def _builds_graph(module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> bool:
    if not torch.is_grad_enabled():
        return False
    inputs = encode_call(args, kwargs)[0]
    return any(tensor.requires_grad for _, tensor in inputs) or any(
        parameter.requires_grad for parameter in module.parameters()
    )
