"""Whose error is it? What a run's call gave, beside the truth for its own inputs and beside this machine's own kernel.

A verdict on one result knows what rounding can do at all. This machine's kernel, given the same inputs, shows what a
sound one does here: a run that is much worse is to blame although some rounding might explain it, and one that errs
just so is not, although none does.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.diagnose.limits import (
    ALIKE,
    AS_GOOD,
    FEW_STRANGE,
    LARGEST_ROUNDING,
    LOST_BY_UNDERFLOW,
    MANY_ELEMENTS,
    MUCH_WORSE,
    WORSE,
)
from ulpscope.judge.soundness.exact import output_result
from ulpscope.judge.soundness.grid import Grid
from ulpscope.judge.soundness.verdicts import judge_output
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.checks import OutputEvidence, OutputResult, Verdict
from ulpscope.records.ledger import Maker, Part
from ulpscope.records.pairs import Pair

if TYPE_CHECKING:
    from ulpscope.replay.torch.ledger import ReplayedCall, ReplayedPair

SOUND = "sound"
SUSPICIOUS = frozenset((Verdict.WARN, Verdict.FAIL))
# Statistics of errors that all go one way, as no sum of roundings does.
ONE_SIDED = frozenset(("bias", "structure"))


def verdicts_of(call: "ReplayedCall") -> dict[str, OutputResult]:
    """Of each of a call's results; the dear judgement only where this machine's own kernel does better."""
    found = {place: _as_good_as_native(call, each) for place, each in call.evidence().items()}
    if any(result is None for result in found.values()):
        call.executed.refine()
    return {place: result for place, each in call.evidence().items() if (result := found[place] or judge_output(each))}


def _as_good_as_native(call: "ReplayedCall", each: OutputEvidence) -> OutputResult | None:
    cheap = judge_output(each)
    if cheap is not None and cheap.verdict is Verdict.PASS:
        return cheap
    native = call.native().get(each.place)
    if native is None or each.violation is not None:
        return None
    if not np.array_equal(each.computed, native.computed, equal_nan=True) and not _is_as_good(each, native):
        return None
    return output_result(each, Verdict.PASS, "native", "as near to the truth as this machine's own kernel")


def _is_as_good(each: OutputEvidence, native: OutputEvidence) -> bool:
    if not np.array_equal(np.isfinite(as_floats(each.computed)), np.isfinite(as_floats(native.computed))):
        return False
    made, usual = _made(each), _made(native)
    if made.norm > AS_GOOD * usual.norm or made.worst > ALIKE * usual.worst:
        return False
    return not strange_elements(each, native).any()


def strange_elements(each: OutputEvidence, native: OutputEvidence) -> NDArray[np.bool_]:
    """Elements with an error far beyond any that this machine's own kernel makes, each beside what it may have."""
    if not _is_rounded(each):
        return np.zeros(each.exact.shape, dtype=np.bool_)
    may = _expected(each)
    usual = float((_errors(native) / may).max(initial=0.0))
    found: NDArray[np.bool_] = _errors(each) / may > MUCH_WORSE * max(usual, LARGEST_ROUNDING)
    return found


def _errors(each: OutputEvidence) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return np.abs(finite_part(each.computed - each.exact))


def _is_rounded(each: OutputEvidence) -> bool:
    known = DTYPES.get(each.dtype)
    return known is not None and known.unit_roundoff > 0 and each.exact.dtype == np.float64


def _expected(each: OutputEvidence) -> NDArray[np.float64]:
    """RMS error of each element of a sound kernel: it rounds its result, and adds up in its accumulator's precision."""
    grid = Grid.of(each.dtype)
    exact = np.abs(finite_part(np.atleast_1d(each.exact)))
    rounding: NDArray[np.float64] = grid.spacing(grid.exponents(exact)) / 12.0**0.5
    if each.sensitivity is None:
        return rounding
    inside = each.accumulation * np.sqrt(1.0 + each.reduction / 2.0) * finite_part(np.atleast_1d(each.sensitivity))
    found: NDArray[np.float64] = np.hypot(rounding, inside)
    return found


def _made(each: OutputEvidence) -> Part:
    return Measure(each).part(each.computed, each.exact)


def maker_of(made: Pair[Part], verdicts: Pair[OutputResult], replayed: "ReplayedPair") -> Maker:
    """Whose call gave what no rounding of its own inputs explains, by what each made itself."""
    # Unless it is as good as this machine's own kernel, or within half a unit of the truth everywhere.
    wrong = verdicts.map(lambda result: result.verdict in SUSPICIOUS or result.statistic == SOUND)
    smaller, larger = sorted(part.norm for part in made)
    if wrong.reference and wrong.target and larger <= ALIKE * smaller:
        return Maker.BOTH
    if wrong.target and (not wrong.reference or made.target.norm > made.reference.norm):
        return _blamed(Maker.TARGET, replayed.sides.target, verdicts.target, made.target)
    if wrong.reference:
        return _blamed(Maker.REFERENCE, replayed.sides.reference, verdicts.reference, made.reference)
    return Maker.NEITHER


def _blamed(run: Maker, call: "ReplayedCall", result: OutputResult, made: Part) -> Maker:
    """The run, unless this machine's own kernel errs as much with the same inputs: then no run is to blame."""
    failed = result.verdict is Verdict.FAIL
    if _underflows(call.evidence()[result.place]) and made.norm < LOST_BY_UNDERFLOW:
        return Maker.KERNEL if failed else Maker.NEITHER
    each = call.native().get(result.place)
    native = None if each is None else judge_output(each)
    if each is None or native is None:
        return run if failed else Maker.NEITHER
    usual = _made(each)
    if failed:
        return Maker.KERNEL if native.verdict in SUSPICIOUS and made.norm <= ALIKE * usual.norm else run
    if each.exact.size < MANY_ELEMENTS:
        return Maker.NEITHER
    # How much worse than this machine's kernel a run may be; another device may compose a call of other kernels.
    limit = ALIKE if result.statistic in ONE_SIDED else (WORSE if call.on_cpu else np.inf)
    if result.verdict is Verdict.WARN and made.norm > limit * usual.norm:
        return run
    return run if _has_few_strange(call.evidence()[result.place], each) else Maker.NEITHER


def _underflows(each: OutputEvidence) -> bool:
    """Whether most of it lies below the normal numbers of its type: what its kernels hand on may be lost there."""
    known = DTYPES.get(each.dtype)
    exact = finite_part(each.exact)
    return known is not None and bool(np.linalg.norm(exact) < known.smallest_normal * max(exact.size, 1) ** 0.5)


def _has_few_strange(each: OutputEvidence, native: OutputEvidence) -> bool:
    """Whether all is as this machine's kernel gives it, but for a few elements: a rounding that is stored hits many."""
    strange = np.reshape(strange_elements(each, native), each.exact.shape)
    few = 0 < int(strange.sum()) <= max(1.0, FEW_STRANGE * strange.size)
    if not few:
        return False
    rest = replace(each, computed=np.where(strange, each.exact, each.computed))
    return _made(rest).norm <= AS_GOOD * _made(native).norm


class Measure:
    """Sizes of parts beside one output."""

    def __init__(self, beside: OutputEvidence, *, norm: float | None = None) -> None:
        exact = np.atleast_1d(np.abs(finite_part(beside.exact)))
        own = float(np.linalg.norm(exact))
        self._norm = own if norm is None else norm
        self._spacing: NDArray[np.float64] | float = 1.0
        if _is_rounded(beside):
            grid = Grid.of(beside.dtype)
            # Of elements near zero the last place says little: at least that of a typical element counts.
            size = np.maximum(exact, own / max(exact.size, 1) ** 0.5)
            self._spacing = grid.spacing(grid.exponents(size))

    def part(self, of: NDArray[Any], beside: NDArray[Any]) -> Part:
        with np.errstate(invalid="ignore"):
            apart = finite_part(as_floats(of) - as_floats(beside))
        norm = float(np.linalg.norm(apart))
        units = np.atleast_1d(np.abs(apart)) / self._spacing
        return Part(norm / self._norm if self._norm else norm, float(units.max(initial=0.0)))


def as_floats(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.astype(np.float64, copy=False)


def finite_part(array: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        floats = as_floats(array)
        return np.where(np.isfinite(floats), floats, 0.0)
