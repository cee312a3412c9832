"""Sets what a device dumped of an operator beside what the operator computes by its definition.

A definition is also run as a vector unit would that stores the result of every step: arithmetic on a `Stored` array
moves its result a little, at random; that of the last step is left to the rounding of the result itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ulpscope.dialects.ascend.dump_file.records import DumpTensor
from ulpscope.dialects.ascend.logical import Preferred, has_data
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.records.checks import Direction, OutputEvidence, Rule
from ulpscope.records.graphs import Operator, TensorDesc
from ulpscope.replay.ascend.defining import (
    Array,
    Defined,
    Form,
    KnownTensor,
    Operand,
    Setting,
    known_tensor,
    unlike,
    without_ones,
)
from ulpscope.replay.ascend.recipes import Disturbed, Recipe, recipe_of, run_recipe
from ulpscope.replay.recorded import CannotReplayError

PERTURBATIONS = 6
"""As for calls of torch: fewer have tails."""
HF32_ROUNDOFF = 2.0**-12
"""Ascend's matrix unit may round float32 operands to HF32, which keeps 11 bits of the fraction."""
HF32_NOISE = 2.0**-18
"""Between the roundoffs of float32 and HF32: errors of most elements are beyond it if operands were so rounded."""
_ROUNDOFF_32, _ROUNDOFF_64 = (DTYPES[name].unit_roundoff for name in ("float32", "float64"))


ARITHMETIC = frozenset((
    np.add, np.subtract, np.multiply, np.true_divide, np.power, np.square, np.sqrt, np.reciprocal, np.exp, np.expm1,
    np.log, np.log1p, np.tanh, np.sin, np.cos,
))  # fmt: skip
"""Steps that round; those that choose, compare or change a sign give their operands."""


@dataclass(slots=True)
class Steps:
    """Counts steps, and moves the results of those before the last."""

    moved: Callable[[Array], Array]
    last: int | None = None
    """The number of the last step; none while they are only counted."""
    count: int = 0

    def stored(self, result: Array) -> Array:
        self.count += 1
        return result if self.last is None or self.count >= self.last else self.moved(result)


class Stored(np.ndarray[Any, np.dtype[Any]]):
    """An array whose arithmetic is a sequence of stored steps."""

    steps: Steps | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.steps = getattr(source, "steps", None)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        steps = self.steps
        out = settings.pop("out", None)
        result = getattr(ufunc, method)(*map(_plain, inputs), **{name: _plain(each) for name, each in settings.items()})
        if not isinstance(result, np.ndarray | np.generic) or steps is None:
            return result
        if ufunc in ARITHMETIC and result.dtype.kind == "f":
            result = steps.stored(np.asarray(result))
        if out is not None:
            _plain(out[0])[...] = result
            return out[0]
        return stored(np.asarray(result), steps)


def stored(array: Array, steps: Steps) -> Array:
    """The array, taking part in counted steps."""
    view = array.view(Stored)
    view.steps = steps
    return view


def _plain(each: Any) -> Any:
    return each.view(np.ndarray) if isinstance(each, Stored) else each


@dataclass(frozen=True, slots=True)
class Dumped:
    """One execution of an operator: what a dump has of it."""

    inputs: tuple[DumpTensor, ...]
    outputs: tuple[DumpTensor, ...]


class ExecutedOperator:
    """An operator computed again, with what can be told of its outputs."""

    def __init__(self, operator: Operator, dumped: Dumped, preferred: Preferred) -> None:
        """CannotReplayError if its definition, an operand or an attribute is not known."""
        inputs = [known_tensor(tensor, desc, preferred) for tensor, desc in _operands(operator, dumped.inputs)]
        self._recipe: Recipe = recipe_of(operator, len(inputs))
        made = {tensor.index: tensor for tensor in dumped.outputs if has_data(tensor)}
        if not made:
            raise CannotReplayError("no output of it is in the dump")
        self._outputs = {
            index: known_tensor(tensor, _desc(operator.outputs, index), preferred) for index, tensor in made.items()
        }
        self._operands = [each.operand() for each in inputs]
        forms = [
            self._outputs[tensor.index].form if tensor.index in made else Form(tensor.shape or (), "", "")
            for tensor in dumped.outputs
        ]
        self._setting = self._nearest(Setting(operator.attributes, tuple(forms)))
        self.saturated = 0
        """Elements whose truth is beyond the largest number of their type."""
        defined = self._run(self._operands)
        self.evidence = [
            self._evidence(self._outputs[index], exact, defined.length)
            for index, exact in enumerate(defined.results)
            if exact is not None and index in self._outputs
        ]

    def refine(self) -> None:
        """Measure how much each element moves with the operands, and with what fused steps hand on."""
        unit = self._unit()
        moved = _mover(unit)
        inputs = self._movement(
            lambda _: self._run([replace(each, array=moved(each.array)) for each in self._operands]), unit
        )
        handed: list[Array | None] = [None] * len(inputs)
        if len(self._recipe.steps) > 1:
            handed = self._movement(lambda _: self._run(self._operands, between=moved), unit)
        self.evidence = [
            replace(each, sensitivity=first, intermediate_sensitivity=second)
            for each, first, second in zip(self.evidence, inputs, handed, strict=True)
        ]

    def excuses(self) -> Iterator[tuple[str, Sequence[OutputEvidence]]]:
        """What a device may do that makes results less precise, and the evidence if it did; after `refine`."""
        rounded = [each for each in self.evidence if each.rule is Rule.ROUNDED and each.sensitivity is not None]
        if not rounded:
            return
        if not self._recipe.multiplies:
            # For a vector unit, which keeps no sums in an accumulator.
            unit, counting = self._unit(), Steps(lambda array: array)
            self._run_stored(counting)
            moves = self._movement(
                lambda seed: self._run_stored(Steps(_mover(unit, seed=seed), last=counting.count)), unit
            )
            moved = [replace(each, intermediate_sensitivity=by) for each, by in zip(self.evidence, moves, strict=True)]
            yield f"storing the result of every step in {rounded[0].dtype}", moved
        elif any(operand.dtype == "float32" for operand in self._operands) and all(map(_is_noisy, rounded)):
            with_hf32 = [replace(each, input_roundoff=HF32_ROUNDOFF) for each in self.evidence]
            yield "rounding float32 operands to HF32", with_hf32

    def _run_stored(self, steps: Steps) -> Defined:
        return self._run([replace(each, array=stored(each.array, steps)) for each in self._operands])

    def _unit(self) -> float:
        return max([float(_ROUNDOFF_64**0.5), *(each.input_roundoff for each in self.evidence)])

    def tensors(self) -> dict[str, Array]:
        """Everything that was read and made."""
        found = {f"args.{place}": operand.array for place, operand in enumerate(self._operands)}
        for each in self.evidence:
            found |= {each.place: each.computed, f"exact.{each.place}": each.exact}
        return found

    def _nearest(self, told: Setting) -> Setting:
        """Of all that the graph leaves open, what is nearest to the output: it is wrong only if it fits none."""
        readings = self._recipe.readings(self._operands, told)
        if len(readings) == 1:
            return readings[0]
        if 0 not in self._outputs:
            raise CannotReplayError("its first output is not in the dump")
        made = self._outputs[0].result()

        def distance(setting: Setting) -> float:
            exact = self._run(self._operands, setting=setting).results[0]
            with np.errstate(all="ignore"):
                return float(np.nansum(np.abs(_fitted(exact, made.shape) - made)))

        return min(readings, key=distance)

    def _run(
        self,
        operands: Sequence[Operand],
        *,
        setting: Setting | None = None,
        between: Disturbed = lambda array: array,
    ) -> Defined:
        with np.errstate(all="ignore"):
            try:
                return run_recipe(self._recipe, operands, setting or self._setting, between=between)
            except (ValueError, IndexError, TypeError) as error:
                shapes = ", ".join(str(list(operand.array.shape)) for operand in operands)
                raise CannotReplayError(f"operands of {shapes} do not fit {self._recipe}") from error

    def _movement(self, perturbed: Callable[[int], Defined], unit: float) -> list[Array | None]:
        """RMS change of each output's elements over some runs, per unit; none where it does not matter."""
        totals = [
            np.zeros(each.exact.shape) if each.rule is Rule.ROUNDED and each.exact.dtype.kind == "f" else None
            for each in self.evidence
        ]
        for number in range(PERTURBATIONS):
            run = perturbed(number)
            for each, total in zip(self.evidence, totals, strict=True):
                if total is None:
                    continue
                result = _fitted(run.results[int(each.place.removeprefix("output."))], each.exact.shape)
                with np.errstate(all="ignore"):
                    change = (np.asarray(result) - each.exact) / unit
                    total += np.where(np.isfinite(change), np.square(change), 0.0)
        return [None if total is None else np.sqrt(total / PERTURBATIONS) for total in totals]

    def _evidence(self, known: KnownTensor, exact: Array, length: float) -> OutputEvidence:
        form, computed, violation = known.form, known.result(), None
        dtype = form.dtype
        exact = self._as_result(_fitted(exact, form.shape), computed, form)
        if self._recipe.last.chosen is not None:
            choose, dtype = self._recipe.last.chosen, self._operands[0].dtype
            try:
                computed, exact = (choose(self._operands, self._setting, each) for each in (computed, exact))
            except IndexError as error:
                violation = str(error)
        whole = DTYPES[dtype].kind in (DtypeKind.INT, DtypeKind.BOOL)
        return OutputEvidence(
            place=f"output.{known.tensor.index}",
            direction=Direction.FORWARD,
            rule=Rule.EXACT if whole else self._recipe.rule,
            dtype=dtype,
            computed=computed,
            exact=exact,
            reduction=length,
            accumulation=_ROUNDOFF_64 if dtype == "float64" else _ROUNDOFF_32,
            input_roundoff=max(DTYPES[each].unit_roundoff for each in (dtype, *(one.dtype for one in self._operands))),
            violation=violation,
        )

    def _as_result(self, exact: Array, computed: Array, form: Form) -> Array:
        """In the output's type; what is beyond it is what the device has, for an overflow is no wrong computation."""
        dtype = DTYPES[form.dtype]
        if not dtype.unit_roundoff and exact.dtype.kind == "f":
            raise CannotReplayError(f"its output is {form.dtype}, by its definition a float")
        if dtype.kind is DtypeKind.BOOL:
            return exact.astype(form.dtype)
        if dtype.unit_roundoff:
            wanted = exact.astype(np.float64)
            # Floats are cut off at the largest number, or infinite, which the judge knows.
            cut_off = (np.abs(computed) == dtype.largest) & (np.sign(computed) == np.sign(wanted))
            beyond = cut_off & (np.abs(wanted) > dtype.largest)
        else:
            # Whole numbers are cut off or wrapped around: that depends on a register of the device.
            limits = np.iinfo(form.dtype)
            wanted, beyond = exact.astype(form.dtype), (exact < limits.min) | (exact > limits.max)
        self.saturated += int(np.count_nonzero(beyond))
        return np.where(beyond, computed, wanted)


def _mover(unit: float, *, seed: int = PERTURBATIONS) -> Disturbed:
    """Moves floats by chance, uniformly, one unit in the root mean square."""
    generator = np.random.default_rng(seed)

    def moved(array: Array) -> Array:
        noise = (generator.random(array.shape, np.float32) - 0.5) * 12**0.5
        return np.asarray(array * (1.0 + unit * noise)) if array.dtype.kind == "f" else array

    return moved


def _is_noisy(evidence: OutputEvidence) -> bool:
    """Whether most elements are off by more than float32 explains: a unit that rounds operands does so for all."""
    assert evidence.sensitivity is not None
    errors = np.abs(evidence.computed - evidence.exact)
    return bool(np.count_nonzero(errors > HF32_NOISE * evidence.sensitivity) * 2 > errors.size)


def _operands(operator: Operator, dumped: Sequence[DumpTensor]) -> list[tuple[DumpTensor, TensorDesc | None]]:
    """Inputs that were read, with what the graph says; a dump counts all of them, or only those that are connected."""
    places = list(range(max(len(operator.inputs), len(dumped))))
    connected = [place for place, each in enumerate(operator.inputs) if each.source is not None]
    if len(dumped) == len(connected):
        places = connected
    found = [(places[tensor.index], tensor) for tensor in dumped if has_data(tensor)]
    if [place for place, _ in found] != list(range(len(found))):
        raise CannotReplayError(f"no definition of {operator.type} without an operand before its last")
    return [(tensor, _desc([each.desc for each in operator.inputs], place)) for place, tensor in found]


def _desc(told: Sequence[TensorDesc | None], index: int) -> TensorDesc | None:
    return told[index] if index < len(told) else None


def _fitted(exact: Array | None, shape: tuple[int, ...]) -> Array:
    """In the device's shape, axes of length 1 aside."""
    assert exact is not None
    if exact.shape == shape:
        return exact
    if without_ones(exact.shape) != without_ones(shape):
        raise unlike(shape, exact.shape)
    return exact.reshape(shape)
