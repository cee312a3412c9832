"""How two arrays of equal shape differ: every metric from one read of both, in pieces, so that memory stays bounded.

Numbers are widened to float64; of complex elements the real and imaginary parts are compared, a bool is 0 or 1, and
64-bit integers are subtracted as integers. Only pairs of finite numbers count, but in `different` and `mismatched`.

- relative error of an element: |t - r| / |r|. Where r is 0 and t is not, it is inf: max_rel says so, the element is
  outside of every thousandth, and mean_rel and accumulated_rel leave it out: they are over elements with r != 0.
- relative_distance: distance / reference_norm, 0 if both are 0, inf if only the norm is.
- cosine: 1 if both arrays are zero, None if one is.
- standard deviations are those of the whole population.
- worst: None if no finite pair differs.
- ulps of an element: |t - r| in units in the last place at the larger of |r| and |t|, of the type that is coarser;
  below a type's smallest normal number its unit stays the same. Within a binade of one type that is how many steps
  through its numbers lead from r to t. Never more than 2**(significand bits + 1), so that an element next to 0 cannot
  drown the mean. None if neither type is a floating-point type.
- kl_divergence: sum of p * ln(p / q), p from the reference and q from the target: each mapped linearly to 0..1 (a
  constant side is uniform), raised to float32's epsilon where below, and divided by its sum. A second read. (msaccucmp
  takes p from the side under test: for its figure swap the arrays.)

Where a difference itself is too large for float64 (1e308 against -1e308), whatever it enters is inf.
"""

import math
from functools import cache
from types import ModuleType

import numpy as np

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.pairs import metric_plain
from ulpscope.numerics.pairs.metric_state import FINITE, HIGH, LOW, finish, new_state, ulp_plan
from ulpscope.numerics.pairs.pieces import AnyArray, Floats, PairPieces
from ulpscope.records.pairs import Pair, PairMetrics

FLOOR = 2.0**-23
"""Share below which no element falls in the KL divergence: float32's epsilon."""


def compare_arrays(
    reference: AnyArray, target: AnyArray, *, reference_dtype: str, target_dtype: str, detailed: bool = False
) -> PairMetrics:
    """All metrics of two arrays of equal shape; with `detailed` also ulps and the KL divergence.

    Arrays hold elements of the named types or integers with their bits; they may be mapped, read-only and strided.
    """
    job = PairPieces.of(reference, target, reference_dtype=reference_dtype, target_dtype=target_dtype)
    plan, state, base = ulp_plan(job.dtypes, detailed=detailed), new_state(), 0
    for raw in job.pieces():
        _engine().accumulate(raw, job.parts, base=base, plan=plan, state=state)
        base += len(raw.reference) // job.parts.reference.item_size
    kl_divergence = _divergence(job, state) if detailed and state[FINITE] else None
    return finish(state, plan, elements=base, parts=job.parts_an_element, kl_divergence=kl_divergence)


@cache
def _engine() -> ModuleType:
    """What reads both arrays: compiled, or plain numpy."""
    try:
        from ulpscope.numerics.pairs import metric_kernels

        one, dtype = np.zeros(8, np.uint8), DTYPES["float64"]
        one.setflags(write=False)
        metric_kernels.accumulate(Pair(one, one), Pair(dtype, dtype), base=0, plan=np.zeros(4), state=new_state())
    except Exception:  # an absent or broken numba (wrong numpy, no LLVM for this machine) must not stop a comparison
        return metric_plain
    return metric_kernels


def compiled_available() -> bool:
    """Whether metrics run compiled here. Loads the kernels, or compiles them: about ten seconds, once a machine."""
    return _engine() is not metric_plain


def _divergence(job: PairPieces, state: Floats) -> float:
    shares, sums = np.stack([_share(state, side) for side in (0, 1)]), np.zeros(3)
    for raw in job.pieces():
        _engine().divergence(raw, job.parts, shares=shares, floor=FLOOR, sums=sums)
    p, q, total = (float(number) for number in sums)
    return max(total / p + math.log(q / p), 0.0)


def _share(state: Floats, side: int) -> Floats:
    """(a, b, c) such that (x * a - b) * c maps the side's range to 0..1; a power of two keeps it within float64."""
    low, high = float(state[LOW + side]), float(state[HIGH + side])
    if low == high:
        return np.array([0.0, -1.0, 1.0])
    # Halves of the smallest numbers are 0, differences of the largest are inf.
    width = high - low if math.isfinite(high - low) else high / 2 - low / 2
    exponent = math.frexp(width)[1]
    a = math.ldexp(1.0, max(-1000, min(1000, -exponent)))
    return np.array([a, low * a, 1.0 / (high * a - low * a)])
