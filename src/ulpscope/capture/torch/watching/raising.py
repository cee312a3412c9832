"""Chosen calls run in float32, or on the CPU: the only place where a capture changes the numbers of a run.

Their operands are cast, autocast is off inside, and their results get the types that the call would have given, which
torch is asked for on tensors without data. A backward goes the same way, since casts have one. What only moves numbers
(views, casts) is left as it is.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.calls import OpenCall, matches
from ulpscope.capture.torch.watching.apis import Api
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.enums import Phase
from ulpscope.records.runs import CaptureSettings

_MOVES = (Trait.MOVING, Trait.VIEW, Trait.PLACING, Trait.METADATA, Trait.UNWRITTEN)
_COARSER = frozenset(dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and dtype.itemsize < 4)


class Place(str, Enum):
    """Where a call runs in the place of where it would."""

    FLOAT32 = "float32"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class _Copy:
    """An operand, and what the call is given for it."""

    original: Tensor
    given: Tensor
    version: int


class RaisedCalls:
    """Decides which calls of forward and updates are meant, and runs them; what set-up makes stays."""

    def __init__(self, settings: CaptureSettings, counts: dict[str, int]) -> None:
        self._patterns = {Place.FLOAT32: settings.in_float32, Place.CPU: settings.on_cpu}
        self.is_asked = any(self._patterns.values())
        self._counts = counts

    def places(self, api: Api, call: OpenCall) -> list[Place]:
        """Where this call is to run; nowhere else if it computes nothing, or is no call of one process."""
        if call.phase is Phase.SETUP or api.collective or api.computed_later or operation(api.name).has(*_MOVES):
            return []
        where = (call.op, call.module, call.name)
        return [place for place, wanted in self._patterns.items() if any(matches(each, *where) for each in wanted)]

    def run(
        self,
        places: Sequence[Place],
        api: Api,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """The call, with other operands; its results as it would have given them."""
        raised = _Raised(places, api)
        told = raised.told(function, args, kwargs)
        with torch._C.DisableTorchFunction():
            given_args, given_kwargs = raised.given(args), raised.given(dict(kwargs))
        devices = _autocast_devices((args, kwargs)) if Place.FLOAT32 in places else set()
        with contextlib.ExitStack() as stack:
            for device in devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            result = function(*given_args, **given_kwargs)
        for place in places if raised.copies or devices else ():
            self._counts[place.value] = self._counts.get(place.value, 0) + 1
        with torch._C.DisableTorchFunction():
            return raised.taken(result, told)


class _Raised:
    """One call that runs elsewhere."""

    def __init__(self, places: Sequence[Place], api: Api) -> None:
        self._widens = Place.FLOAT32 in places
        self._moves = Place.CPU in places
        self._api = api
        self.copies: list[_Copy] = []

    def given(self, content: Any) -> Any:
        return tree_map(self._given, content)

    def _given(self, item: Any) -> Any:
        if isinstance(item, torch.device) and self._moves:
            return torch.device("cpu")
        if isinstance(item, torch.dtype) and self._widens and item in _COARSER and item.is_floating_point:
            return torch.float32
        if not isinstance(item, Tensor) or item.layout is not torch.strided:
            return item
        known = next((copy.given for copy in self.copies if copy.original is item), None)
        if known is not None:
            return known
        widened = item.float() if self._widens and item.is_floating_point() and item.dtype in _COARSER else item
        given = widened.cpu() if self._moves else widened
        if given is not item:
            self.copies.append(_Copy(item, given, given._version))
        return given

    def told(self, function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any] | None:
        """Results without data, of the types and devices that the call would give; None if torch cannot say."""
        if not self._api.name.startswith("torch."):  # what is a script's own must not run twice
            return None
        from torch._subclasses.fake_tensor import FakeTensorMode

        try:
            mode = FakeTensorMode()
            fakes = tree_map(lambda each: mode.from_tensor(each) if isinstance(each, Tensor) else each, (args, kwargs))
            with mode, torch.no_grad(), torch._C.DisableTorchFunction():
                return list(_tensors(function(*fakes[0], **fakes[1])))
        except Exception as error:
            pass_on_interruption(error)
            return None

    def taken(self, result: Any, told: Sequence[Tensor] | None) -> Any:
        """The result as the call would have given it; what it wrote is written where it would have."""
        for copy in self.copies:
            if self._was_written(copy):
                copy.original.copy_(copy.given)
        found = list(_tensors(result))
        usual = self._usual() if told is None or len(told) != len(found) else None
        types = iter(told or ()) if usual is None else iter([usual] * len(found))
        return tree_map(lambda each: self._as(each, next(types)) if isinstance(each, Tensor) else each, result)

    def _was_written(self, copy: _Copy) -> bool:
        if copy.given._version != copy.version:
            return True
        # A batch norm writes its running statistics and tells nobody.
        silent = self._api.may_write and not copy.original.requires_grad and copy.original.is_floating_point()
        return silent and not torch.equal(copy.given, copy.original.to(copy.given))

    def _usual(self) -> Tensor | None:
        """The coarsest operand, where torch cannot say what the results would be."""
        floats = [copy.original for copy in self.copies if copy.original.is_floating_point()]
        return min(floats, key=lambda each: each.dtype.itemsize, default=None)

    def _as(self, result: Tensor, told: Tensor | None) -> Tensor:
        original = next((copy.original for copy in self.copies if copy.given is result), None)
        if original is not None:
            return original
        if told is None:
            return result
        dtype = told.dtype if result.is_floating_point() == told.is_floating_point() else result.dtype
        return result.to(device=told.device, dtype=dtype)


def _autocast_devices(content: Any) -> set[str]:
    """Kinds of devices of these tensors on which autocast is on."""
    found = {tensor.device.type for tensor in _tensors(content)}
    return {each for each in found if torch.amp.is_autocast_available(each) and torch.is_autocast_enabled(each)}


def _tensors(content: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(content) if isinstance(leaf, Tensor))
