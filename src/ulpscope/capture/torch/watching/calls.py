"""Observes one call: what goes in, what comes out, what it wrote, and its backward."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ulpscope.capture.exceptions import describe_error
from ulpscope.capture.recording.arguments import Encodings, with_entry
from ulpscope.capture.recording.calls import INPUT, OUTPUT, OpenCall
from ulpscope.capture.recording.session import Session
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.torch.recorder import TORCH_FILES, TorchRecorder
from ulpscope.capture.torch.tensors import (
    ARGUMENTS,
    encode_call,
    encode_scalar,
    find_tensors,
    generator_digest,
    versions_of,
    word_of,
)
from ulpscope.capture.torch.watching.apis import Api, describe_group, written_by
from ulpscope.capture.torch.watching.pairing import InputEdges, Pairing, autocast_dtype, note_inputs
from ulpscope.records.enums import Kind, Level, Phase, Role

if TYPE_CHECKING:
    from ulpscope.capture.torch.watching.raising import RaisedCalls

_API, _COMPILED = Kind.API, Kind.COMPILED
_BACKWARD, _OTHER = Phase.BACKWARD, Phase.OTHER
UPDATE_FILES = frozenset(
    TORCH_FILES + file for file in ("nn/utils/clip_grad.py", "amp/grad_scaler.py", "cuda/amp/grad_scaler.py")
)


class Before(NamedTuple):
    """What was noted before a call ran."""

    call: OpenCall
    tensors: Placed
    versions: list[int | None]
    arguments: str
    edges: InputEdges | None
    generator: str | None


class CallWatcher:
    """Runs functions for the function mode and its kin, and records what they did."""

    def __init__(self, session: Session, recorder: TorchRecorder) -> None:
        self.suspended: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """How to run code as if no capture existed; whoever installs the capture sets it."""
        self.session = session
        self.recorder = recorder
        self.pairing = Pairing(recorder)
        self.scopes = session.scopes
        self.pending: dict[int, tuple[Any, OpenCall, Placed]] = {}
        """Collectives under way, by the id of the handle that waits for them."""
        self._in_flight: list[torch.Tensor] = []
        self.encodings = Encodings(ARGUMENTS)
        self.records_calls = recorder.settings.level is not Level.MODULE
        self._raised = _raised_calls(recorder) if recorder.settings.changes_numbers else None

    def watch(
        self, api: Api, kind: Kind, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run `function(*args, **kwargs)` and record it."""
        if not self.records_calls and kind is _API:
            return self._track_writes(api, function, args, kwargs)
        before = self.begin(api, kind, args, kwargs)
        if before is None:
            return function(*args, **kwargs)
        calls = self.scopes.calls
        depth = len(calls)
        try:
            calls.append(before.call)
            result = self._run(api, before.call, function, args, kwargs)
        except BaseException as error:
            self.fail(before, describe_error(error))
            raise
        finally:
            del calls[depth:]
        self.end(api, before, args, kwargs, result)
        return result

    def _run(
        self, api: Api, call: OpenCall, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        places = self._raised.places(api, call) if self._raised is not None else ()
        if self._raised is None or not places:
            return function(*args, **kwargs)
        return self._raised.run(places, api, function, args, kwargs)

    def begin(self, api: Api, kind: Kind, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Before | None:
        """Note what goes into a call; None if that failed."""
        before: Before | None = self.recorder.guarded(
            "before a call", self._before, api, kind, args, kwargs, sys._getframe(1)
        )
        return before

    def end(self, api: Api, before: Before, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note what came out of it."""
        self.recorder.guarded("after a call", self._after, api, before, args, kwargs, result)

    def fail(self, before: Before, error: str) -> None:
        """Note that it raised."""
        before.call.error = error
        self.guard(self.recorder.close, before.call, before.arguments)

    def watch_kernel(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run an ATen operator and record it; pairing belongs to the level above."""
        before = self.guard(self._before_kernel, api, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            if before is not None:
                self.fail(before, describe_error(error))
            raise
        if before is not None:
            self.end(api, before, args, kwargs, result)
        return result

    @property
    def records(self) -> bool:
        """Whether calls that are made now are recorded."""
        return self.recorder.capturing and not self.scopes.hidden

    def hide_backward(self, nodes: list[Any]) -> None:
        """Let the backward of these nodes run as if nobody watched: it is compiled code."""
        for node in nodes:
            node.register_prehook(lambda _gradients: self._hide())
            node.register_hook(lambda _leaving, _arriving: self._unhide())

    def _hide(self) -> None:
        hiding = self.suspended()
        hiding.__enter__()
        self.scopes.hidings.append(hiding)

    def _unhide(self) -> None:
        if self.scopes.hidings:
            self.scopes.hidings.pop().__exit__(None, None, None)
            self.recorder.values.forget_all()

    def expose(self, args: tuple[Any, ...]) -> None:
        """The first argument's memory is given to somebody outside of torch."""
        if args and isinstance(args[0], torch.Tensor):
            self.guard(self.recorder.values.expose, args[0])

    def finish_collective(self, handle: Any) -> None:
        """Somebody has waited for a collective: its result may be read now."""
        known = self.pending.pop(id(handle), None)
        if known is not None:
            _, call, tensors = known
            for _, tensor in tensors:
                self.guard(self.recorder.values.initialized, tensor)
            self.guard(self.recorder.use_all, call, OUTPUT, tensors)

    def drop_pending(self) -> None:
        """Nobody waited for these in this step."""
        self.guard(self._land)
        if self.pending:
            self.recorder.unobserved("collective without wait", len(self.pending))
            self.pending.clear()

    def finish_backward(self) -> None:
        """A backward pass has ended, perhaps by an exception."""
        while self.scopes.hidings:
            self._unhide()
        self.guard(self._land)
        self.guard(self.pairing.finish)

    def record_loss(self, api: Api, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A backward pass is about to start from these tensors."""
        scopes = self.scopes
        call = self.recorder.open(Kind.API, api.name, scopes.innermost, parent=scopes.parent, phase=Phase.BACKWARD)
        tensors, arguments = self.encodings.encode(args, kwargs)
        if call.wanted:
            for place, tensor in tensors:
                is_loss = place == "args.0" or place.startswith("args.0.")
                self.recorder.use(call, Role.LOSS.value if is_loss else INPUT, place, tensor)
        self.recorder.close(call, arguments)
        scopes.backward = call

    def guard(self, work: Callable[..., Any], *args: Any) -> Any:
        """Our own work, seen by nobody; an error in it is noted and the run goes on."""
        return self.recorder.guarded(getattr(work, "__name__", "capture"), work, *args)

    def _parent(self) -> int | None:
        calls = self.scopes.calls
        if calls:
            return calls[-1].id
        return self.pairing.current_parent() if self.recorder.steps.in_backward else None

    def _before_kernel(self, api: Api, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Before:
        call = self.recorder.open(Kind.KERNEL, api.name, self.scopes.innermost, parent=self._parent())
        tensors, arguments = self.encodings.encode(args, kwargs)
        generator = generator_digest(tensors, kwargs) if api.may_draw else None
        if call.wanted:
            self.recorder.use_all(call, INPUT, tensors)
        return Before(call, tensors, versions_of(tensors), arguments, None, generator)

    def _before(
        self, api: Api, kind: Kind, args: tuple[Any, ...], kwargs: Mapping[str, Any], frame: FrameType
    ) -> Before:
        recorder = self.recorder
        phase = recorder.steps.phase
        recompute = phase is _BACKWARD and torch.is_grad_enabled() and not recorder.steps.creates_graph
        if phase is _OTHER and _is_updating():
            phase = Phase.UPDATE
        call = recorder.open(
            Kind.COLLECTIVE if api.collective else kind,
            api.name,
            self.scopes.innermost,
            parent=self._parent(),
            phase=phase,
            recompute=recompute,
            frame=frame,
        )
        tensors, arguments = self.encodings.encode(args, kwargs)
        if api.collective:
            arguments = with_entry(arguments, "group", describe_group(args, kwargs))
        generator = generator_digest(tensors, kwargs) if api.may_draw else None
        if call.wanted:
            dtype = autocast_dtype(tensors)
            call.autocast = None if dtype is None else word_of(dtype)
            recorder.use_all(call, INPUT, tensors)
        edges = note_inputs(tensors, writes=_writes(api, args, kwargs))
        return Before(call, tensors, versions_of(tensors), arguments, edges, generator)

    def _after(self, api: Api, before: Before, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        call, arguments = before.call, before.arguments
        outputs = self._outputs(api, args, kwargs, result)
        written = self._note_writes(api, before, args, kwargs, outputs)
        if before.edges is not None:
            nodes = self.pairing.attach(call, outputs, before.edges, inputs=before.tensors, written=written)
            if call.kind is _COMPILED:
                self.hide_backward(nodes)
        if not call.wanted:
            return
        if before.generator is not None:
            call.generator = before.generator
            call.random = generator_digest(before.tensors, kwargs) != before.generator
        is_handle = api.collective and hasattr(result, "wait") and not isinstance(result, torch.Tensor)
        if outputs and is_handle:
            self.pending[id(result)] = (result, call, outputs)
            for _, tensor in outputs:
                self.recorder.values.uninitialized(tensor)
        elif not api.computed_later:
            self.recorder.use_all(call, OUTPUT, outputs)
        if not outputs and (returned := encode_scalar(result)) is not None:
            arguments = with_entry(arguments, "returned", returned)
        self.recorder.close(call, arguments)

    def _outputs(self, api: Api, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Placed:
        if api.collective and not api.computed_later and not isinstance(result, torch.Tensor):
            return find_tensors(written_by(api.name, args, kwargs), "output")
        outputs = find_tensors(result, "output")
        if not outputs and api.in_place and args:
            outputs = find_tensors(args[0], "output")
        return outputs

    def _note_writes(
        self, api: Api, before: Before, args: tuple[Any, ...], kwargs: Mapping[str, Any], outputs: Placed
    ) -> AbstractSet[int]:
        """Tell the table of values what was written; gives the ids of the tensors."""
        values, call = self.recorder.values, before.call
        if api.uninitialized:
            for _, tensor in outputs:
                values.uninitialized(tensor)
        written: dict[int, torch.Tensor] = {}
        versions = versions_of(before.tensors)
        if versions != before.versions:
            for (_, tensor), old, new in zip(before.tensors, before.versions, versions, strict=True):
                if old != new:
                    written[id(tensor)] = tensor
        if api.may_write:
            for _, tensor in before.tensors:
                if id(tensor) not in written and not _is_read_only(api, tensor, args):
                    values.suspect(tensor)
        if api.computed_later:  # these are written after the call: until then they hold nothing that can be compared
            for _, tensor in before.tensors:
                values.expose(tensor)
            for _, tensor in outputs:
                values.uninitialized(tensor)
                self._in_flight.append(tensor)
        elif api.waits:
            for _, tensor in outputs:
                values.initialized(tensor)
        if api.in_place or "out" in kwargs or (api.collective and not api.computed_later):
            written.update((id(tensor), tensor) for _, tensor in outputs)
        for tensor in written.values():
            values.wrote(tensor, call.id, nbytes=_elements_written(api, args, tensor) * tensor.element_size())
        return written.keys()

    def _land(self) -> None:
        """A backward pass waits for the collectives that it started."""
        for tensor in self._in_flight:
            self.recorder.values.initialized(tensor)
        self._in_flight.clear()

    def _track_writes(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """At module level single calls are not recorded; what they write still ends the life of a summary."""
        if not (api.in_place or api.may_write or api.uninitialized or "out" in kwargs):
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        self.guard(self._forget_written, api, args, kwargs, result)
        return result

    def _forget_written(self, api: Api, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        values = self.recorder.values
        for _, tensor in encode_call(args, kwargs)[0]:
            values.suspect(tensor)
        if api.uninitialized:
            for _, tensor in find_tensors(result, "output"):
                values.uninitialized(tensor)
        elif api.in_place and args:
            for _, tensor in find_tensors(args[0], "output"):
                values.initialized(tensor)


def _raised_calls(recorder: TorchRecorder) -> "RaisedCalls":
    from ulpscope.capture.torch.watching.raising import RaisedCalls  # of no use to other runs

    return RaisedCalls(recorder.settings, recorder.counts.raised)


def _is_updating(depth: int = 12) -> bool:
    """Whether torch's own code that belongs to an update is on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and depth:
        if frame.f_code.co_filename in UPDATE_FILES:
            return True
        frame = frame.f_back
        depth -= 1
    return False


def _writes(api: Api, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may write into its inputs as far as its name and arguments tell."""
    if api.in_place or api.may_write or "out" in kwargs or kwargs.get("inplace") is True:
        return True
    return api.functional and any(item is True for item in args)


def _elements_written(api: Api, args: tuple[Any, ...], tensor: torch.Tensor) -> int:
    """How many elements of the tensor a write has reached, as far as that can be told without looking at data."""
    if api.name.endswith("__setitem__") and len(args) == 3 and args[0] is tensor:
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        if all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts):
            return int(tensor[args[1]].numel())
    return tensor.numel()


def _is_read_only(api: Api, tensor: torch.Tensor, args: tuple[Any, ...]) -> bool:
    """Normalisations write their running statistics, not what they normalise."""
    normalises = api.name.startswith("torch.") and ("batch_norm" in api.name or "instance_norm" in api.name)
    return normalises and (tensor.requires_grad or (bool(args) and tensor is args[0]))
