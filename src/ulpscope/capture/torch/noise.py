"""Noise of a twin: a run again, in which every result moves as far as another run's precision rounds it.

The mode lies below autograd and below all that records: forward, backward and updates have the noise, and what is
recorded has it. It follows in which precision the other run holds each tensor, by its memory. Results of arithmetic are
moved by that precision's rounding; copies and views only carry it on. A contraction's operands are moved, too: that is
what autocast does to them, and in the run's own precision it stands for sums in another order. Not touched: what set-up
makes, integers, what a program writes down (masks, positions), what is drawn, and numbers that the precision holds.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ulpscope.capture.recording.calls import Scopes
from ulpscope.capture.recording.steps import Steps
from ulpscope.capture.torch.moving import MOVED, move
from ulpscope.capture.torch.tensors import LowestMode
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import Family, Operation, Trait, is_collective, operation
from ulpscope.records.enums import Phase
from ulpscope.records.runs import Noise
from ulpscope.trace.twins import PARAMETERS, TwinPrecision, carries, coarsest, precision_key, read_precision

_HALVES = (torch.float16, torch.bfloat16)
# Seeds of twins lie so far apart, in the 32 bits that count, that the results of one do not come to another one's.
_APART = 0x9E3779B1
_CONTRACTING = frozenset((Family.CONTRACTION, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT))
_UNTOUCHED = (Trait.CONSTANT, Trait.UNWRITTEN, Trait.RANDOM, Trait.METADATA, Trait.REACHING_OUT)
# What torch.tensor makes of a program's numbers: nobody has seen it made, and other numbers may have lain there before.
_WRITTEN_DOWN = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What is done about the results of an operator."""

    operation: Operation
    touched: bool
    """Whether its results have precision at all."""
    computes: bool
    """Whether its results are moved; else they are what went in."""
    contracts: bool
    written: frozenset[int | str]
    """Places and names of the arguments that it writes into."""


@cache
def kernel_of(func: Any) -> _Kernel:
    known = operation(str(func))
    contracts = known.family in _CONTRACTING
    # Attention draws its dropout and computes all the same.
    drawn = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()) and not contracts
    computes = not carries(known) and not is_collective(str(func))
    touched = not known.has(*_UNTOUCHED) and not drawn and func not in _WRITTEN_DOWN
    return _Kernel(known, touched, computes, contracts, _written(func))


def _written(func: Any) -> frozenset[int | str]:
    arguments = getattr(getattr(func, "_schema", None), "arguments", ())
    written = ((place, one.name) for place, one in enumerate(arguments) if one.alias_info and one.alias_info.is_write)
    return frozenset(itertools.chain.from_iterable(written))


class NoiseMode(LowestMode):
    """Moves results. Compiled code may do its work (host/noise.py)."""

    def __init__(self, noise: Noise, steps: Steps, scopes: Scopes) -> None:
        super().__init__()
        self._steps = steps
        self._scopes = scopes
        self.autocast = noise.precision
        told = TwinPrecision(None, {}) if noise.table is None else read_precision(noise.table)
        self.results, self.loss_scale = told.results, told.loss_scale
        self.parameters = self.results.get(PARAMETERS)
        self.first_seed = noise.seed * _APART % 2**32
        self._seeds = itertools.count(self.first_seed)
        self._held: dict[int, str] = {}
        """The precision in which the other run holds what lies at an address, where that is coarser than its dtype."""
        self._taken: dict[int, str] = {}
        """The precision in which a contraction has taken what lies there: its backward takes it so, too."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            if self._steps.phase is Phase.SETUP:
                return func(*args, **kwargs)
            kernel = kernel_of(func)
            given = list(_floats((args, kwargs))) if kernel.touched else []
            if given:
                return self._run(kernel, func, given, args, kwargs)
            result = func(*args, **kwargs)
            for tensor in _floats((result,)):
                self._held.pop(_address(tensor), None)
            return result

    def _run(self, kernel: _Kernel, func: Any, given: list[Tensor], args: Any, kwargs: Any) -> Any:
        precision = self._precision(kernel, given)
        if kernel.contracts:
            args, kwargs = self._operands(kernel, precision, args, kwargs)
        result = func(*args, **kwargs)
        written = set() if kernel.computes else set(map(_address, given))
        # A parameter is what set-up made: what is moved out of it was not yet rounded.
        held = None if kernel.computes else coarsest(self._held.get(_address(tensor)) for tensor in given)
        for tensor in _floats((result,)):
            address = _address(tensor)
            if address in written:
                continue
            coarser = _coarser(precision, tensor)
            if kernel.computes or (coarser is not None and held != coarser):
                self._move(tensor, coarser)
            if coarser is None:
                self._held.pop(address, None)
            else:
                self._held[address] = coarser
        return result

    def _operands(self, kernel: _Kernel, precision: str | None, args: Any, kwargs: Any) -> Any:
        """A contraction's arguments, with its operands as it takes them. What it writes into must be the run's own."""

        def taken(place: int | str, argument: Any) -> Any:
            if place in kernel.written:
                return argument
            return tree_map_only(Tensor, lambda tensor: self._taken_as(tensor, precision), argument)

        args = tuple(itertools.starmap(taken, enumerate(args)))
        return args, {name: taken(name, argument) for name, argument in kwargs.items()}

    def _precision(self, kernel: _Kernel, given: list[Tensor]) -> str | None:
        """In which precision the other run has the results; None: in their own."""
        forward = self._steps.phase is Phase.FORWARD
        if forward and self.results:
            known = self.results.get((self._scopes.innermost.path or "", precision_key(kernel.operation)))
            if known is not None:
                return known
        if kernel.contracts:
            taken = [self._taken.get(_address(tensor)) for tensor in given]
            return coarsest([self._coarsest(given), *taken, self.autocast if forward else None])
        wide = any(self._held_as(tensor) is None and tensor.dim() for tensor in given)
        return None if wide else self._coarsest(given)

    def _held_as(self, tensor: Tensor) -> str | None:
        held = self._held.get(_address(tensor))
        return self.parameters if held is None and isinstance(tensor, torch.nn.Parameter) else held

    def _coarsest(self, given: Iterable[Tensor]) -> str | None:
        return coarsest(map(self._held_as, given))

    def _taken_as(self, tensor: Tensor, precision: str | None) -> Tensor:
        """An operand of a contraction, as that takes it."""
        if not _is_float(tensor):
            return tensor
        coarser = _coarser(precision, tensor)
        if coarser is not None:
            self._taken[_address(tensor)] = coarser
            if self._held.get(_address(tensor)) == coarser:
                return tensor
        elif tensor.dtype in _HALVES:
            return tensor  # summed in float32, in whichever order
        copy = tensor.detach().clone()
        self._move(copy, coarser)
        return copy

    def _move(self, tensor: Tensor, coarser: str | None) -> None:
        # The other run's gradients underflow later, by as much as they are scaled.
        scale = self.loss_scale if self._steps.phase is Phase.BACKWARD else 0
        # A rounding is the same wherever it is made; another order of a sum is none.
        seed = next(self._seeds) if coarser is None else self.first_seed
        move(tensor, coarser or MOVED[tensor.dtype], seed, scale=scale)


def _floats(things: Any) -> Iterator[Tensor]:
    """All plain tensors of real numbers among what an operator was given or gave."""
    for thing in things.values() if isinstance(things, Mapping) else things:
        if isinstance(thing, Tensor):
            if _is_float(thing):
                yield thing
        elif isinstance(thing, list | tuple | dict):
            yield from _floats(thing)


def _is_float(tensor: Tensor) -> bool:
    """Whether this is a plain tensor of real numbers, in memory: a sparse one has none of its own."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    return tensor.dtype in MOVED and tensor.layout is torch.strided


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _coarser(precision: str | None, tensor: Tensor) -> str | None:
    """A precision, if it is coarser than the tensor's own."""
    own = DTYPES[MOVED[tensor.dtype]]
    return precision if precision is not None and DTYPES[precision].unit_roundoff > own.unit_roundoff else None
