"""Pair metrics in one read of both arrays, compiled by numba. Import only through metrics.py: this imports numba.

A block of both arrays is widened to float64 in scratch memory; short loops run over it while it lies in the near
caches, each written so that LLVM vectorises it. Largest numbers are found among bits, since sizes are ordered like
their bits and LLVM does not vectorise the maximum of floats that may be nan. The arrays come as bytes with a form, so
that one compilation serves all pairs of types.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import math

import numpy as np

from ulpscope.numerics.dtypes import Bytes, Dtype, Floats
from ulpscope.numerics.pairs import metric_state as at
from ulpscope.numerics.pairs.metric_loading import FLOAT64, INT64, UINT64, compiled, given, load
from ulpscope.records.pairs import Pair

BLOCK = 4096

_SIZE_64 = np.int64(0x7FFFFFFFFFFFFFFF)
_FIELD_64 = np.int64(0x7FF) << np.int64(52)
_SQRT_HALF = np.int64(0x3FE6A09E667F3BCD)
_LN2 = math.log(2.0)
_SIGN, _NO_SIGN = np.uint64(1 << 63), np.uint64(0)

_exponent_for = compiled(at.exponent_for)
_raise_exponent = compiled(at.raise_exponent)
_merge_side = compiled(at.merge_side)


@compiled
def _subtract_integers(sides, forms, start, n, numbers, apart):
    """|target - reference| of 64-bit integers: the larger minus the smaller fits in 64 bits, but for a negative number
    beside one of a type without signs."""
    left = sides[0].view(np.uint64)[start : start + n]
    right = sides[1].view(np.uint64)[start : start + n]
    # So that the bits of signed numbers are ordered as they are.
    turned = _SIGN if forms[0] == INT64 and forms[1] == INT64 else _NO_SIGN
    mixed = forms[0] != forms[1]
    for i in range(n):
        a = left[i] ^ turned
        b = right[i] ^ turned
        near = np.float64(max(a, b) - min(a, b))
        far = mixed and min(numbers[0, i], numbers[1, i]) < 0.0
        apart[i] = abs(numbers[1, i] - numbers[0, i]) if far else near


@compiled
def _subtract(reference, target, apart, n, known):
    """Writes |target - reference|, unless it is known. Of these: sum, squares, how many are not 0; of the sides: sums
    and product."""
    total = 0.0
    squares = 0.0
    different = 0
    left = 0.0
    right = 0.0
    product = 0.0
    for i in range(n):
        a = reference[i]
        b = target[i]
        size = apart[i] if known else abs(b - a)
        apart[i] = size
        total += size
        squares += size * size
        different += size != 0.0
        left += a
        right += b
        product += a * b
    return total, squares, different, left, right, product


@compiled
def _keep_finite(reference, target, n, places, state):
    """Moves the pairs that are finite to the front; gives how many there are."""
    kept = 0
    mismatched = 0
    for i in range(n):
        a = reference[i]
        b = target[i]
        finite = abs(a) < np.inf and abs(b) < np.inf
        same = a == b or (a != a and b != b)
        mismatched += not (finite or same)
        reference[kept] = a
        target[kept] = b
        places[kept] = i
        kept += finite
    state[at.MISMATCHED] += mismatched
    state[at.DIFFERENT] += mismatched
    return kept


@compiled
def _largest(numbers, n):
    """The largest size."""
    bits = numbers.view(np.int64)
    largest = np.int64(0)
    for i in range(n):
        largest = max(largest, bits[i] & _SIZE_64)
    return np.int64(largest).view(np.float64)


@compiled
def _scale(numbers, n, exponent, scaled):
    factor = 1.0 if exponent == at.UNSET else math.ldexp(1.0, int(-exponent))
    for i in range(n):
        scaled[i] = numbers[i] * factor


@compiled
def _second_look(reference, apart, sides, n, left, right, state):
    """Relative differences, the largest difference, squares of the sides about their means: all behind one division."""
    differences = apart.view(np.int64)
    largest = np.int64(0)
    largest_relative = np.int64(0)
    total = 0.0
    nonzero = 0
    lost = 0
    thousandth = 0
    five = 0
    squares_left = 0.0
    squares_right = 0.0
    for i in range(n):
        size = abs(reference[i])
        some = size != 0.0
        relative = apart[i] / (size if some else 1.0)
        lost += (not some) and relative != 0.0
        relative = relative if some else 0.0
        largest = max(largest, differences[i])
        largest_relative = max(largest_relative, np.float64(relative).view(np.int64))
        total += relative
        nonzero += some
        thousandth += relative < 0.001
        five += relative < 0.005
        a = sides[0, i] - left
        b = sides[1, i] - right
        squares_left += a * a
        squares_right += b * b
    state[at.MAX_REL] = max(state[at.MAX_REL], np.int64(largest_relative).view(np.float64))
    state[at.SUM_REL] += total
    state[at.NONZERO] += nonzero
    state[at.LOST] += lost
    state[at.WITHIN_THOUSANDTH] += thousandth - lost
    state[at.WITHIN_FIVE] += five - lost
    return np.int64(largest).view(np.float64), squares_left, squares_right


@compiled
def _merge(n, sums, squares, exponents, state):
    """Adds a block's sums, which were taken with these exponents."""
    _, factor = _raise_exponent(state, at.DIFFERENCE, exponents[0])
    state[at.DIFFERENCE] += sums[0] * factor
    state[at.DIFFERENCE + 1] += sums[1] * factor * factor
    kept_left, left = _raise_exponent(state, at.REFERENCE, exponents[1])
    kept_right, right = _raise_exponent(state, at.TARGET, exponents[2])
    state[at.PRODUCT] = state[at.PRODUCT] * kept_left * kept_right + sums[5] * left * right
    _merge_side(state, at.REFERENCE, n, sums[3] * left, squares[0] * left * left)
    _merge_side(state, at.TARGET, n, sums[4] * right, squares[1] * right * right)


@compiled
def _find(numbers, wanted):
    i = 0
    while numbers[i] != wanted:
        i += 1
    return i


@compiled
def _add_ulps(reference, target, apart, n, plan, state):
    """Differences times 2**(1 - e), e the exponent of the larger size; a constant factor is left to the end."""
    left = reference.view(np.int64)
    right = target.view(np.int64)
    floor = np.int64(plan[at.FLOOR_FIELD]) << np.int64(52)
    top = np.int64(2047) << np.int64(52)
    largest = np.int64(0)
    total = 0.0
    for i in range(n):
        field = max(left[i] & _FIELD_64, right[i] & _FIELD_64, floor)
        ulps = apart[i] * np.int64(top - field).view(np.float64)
        total += ulps
        largest = max(largest, np.float64(ulps).view(np.int64))
    state[at.MAX_ULP] = max(state[at.MAX_ULP], np.int64(largest).view(np.float64))
    state[at.SUM_ULP] += total


@compiled
def _key(bits):
    """Orders the bits of float64 of either sign like the numbers; its own inverse."""
    return bits ^ ((bits >> np.int64(63)) & _SIZE_64)


@compiled
def _add_range(numbers, n, side, state):
    bits = numbers.view(np.int64)
    low = _SIZE_64
    high = -_SIZE_64
    for i in range(n):
        key = _key(bits[i])
        low = min(low, key)
        high = max(high, key)
    state[at.LOW + side] = min(state[at.LOW + side], np.int64(_key(low)).view(np.float64))
    state[at.HIGH + side] = max(state[at.HIGH + side], np.int64(_key(high)).view(np.float64))


@compiled
def _add_details(numbers, apart, n, plan, state):
    if plan[at.ULPS] != 0.0:
        _add_ulps(numbers[0], numbers[1], apart, n, plan, state)
    for side in range(2):
        _add_range(numbers[side], n, side, state)


@compiled
def _add_block(numbers, apart, n, wide, sums, scaled, state):
    """A block of finite pairs; gives its largest difference."""
    exponents = (0.0, 0.0, 0.0)
    sides = numbers
    if wide:
        # float64 sizes may be such that their squares leave its range.
        exponents = (
            _exponent_for(_largest(apart, n), state[at.DIFFERENCE + 2]),
            _exponent_for(_largest(numbers[0], n), state[at.REFERENCE + 2]),
            _exponent_for(_largest(numbers[1], n), state[at.TARGET + 2]),
        )
        _scale(apart, n, exponents[0], scaled[2])
        _scale(numbers[0], n, exponents[1], scaled[0])
        _scale(numbers[1], n, exponents[2], scaled[1])
        sums = _subtract(scaled[0], scaled[1], scaled[2], n, True)
        sides = scaled
    looked = _second_look(numbers[0], apart, sides, n, sums[3] / n, sums[4] / n, state)
    _merge(n, sums, looked[1:], exponents, state)
    state[at.FINITE] += n
    return looked[0]


@compiled
def _accumulate(reference, target, forms, tables, count, base, plan, state):
    numbers = np.empty((2, BLOCK))
    scaled = np.empty((3, BLOCK))
    apart = np.empty(BLOCK)
    places = np.empty(BLOCK, np.int64)
    sides = (reference, target)
    wide = forms[0] == FLOAT64 or forms[1] == FLOAT64
    exact = forms[0] in (INT64, UINT64) and forms[1] in (INT64, UINT64)
    for start in range(0, count, BLOCK):
        n = min(BLOCK, count - start)
        for k in range(2):
            load(sides[k], forms[k], tables[k], start, n, numbers[k])
        if exact:
            _subtract_integers(sides, forms, start, n, numbers, apart)
        sums = _subtract(numbers[0], numbers[1], apart, n, exact)
        compacted = not (sums[0] < np.inf)
        if compacted:
            n = _keep_finite(numbers[0], numbers[1], n, places, state)
            if n == 0:
                continue
            sums = _subtract(numbers[0], numbers[1], apart, n, False)
        state[at.DIFFERENT] += sums[2]
        largest = _add_block(numbers, apart, n, wide, sums, scaled, state)
        if largest > state[at.MAX_ABS]:
            state[at.MAX_ABS] = largest
            i = _find(apart, largest)
            state[at.WORST] = base + start + (places[i] if compacted else i)
        if plan[at.WANTED] != 0.0:
            _add_details(numbers, apart, n, plan, state)


@compiled
def _log(number):
    """The natural logarithm of a normal number, as in fdlibm (e_log.c), without branches."""
    bits = np.float64(number).view(np.int64)
    power = (bits - _SQRT_HALF) >> np.int64(52)
    fraction = np.int64(bits - (power << np.int64(52))).view(np.float64) - 1.0
    s = fraction / (2.0 + fraction)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half = 0.5 * fraction * fraction
    return np.float64(power) * _LN2 + (fraction - (half - s * (half + even + odd)))


@compiled
def _add_divergence(reference, target, n, shares, floor, sums):
    whole_p = 0.0
    whole_q = 0.0
    total = 0.0
    for i in range(n):
        p = max((reference[i] * shares[0, 0] - shares[0, 1]) * shares[0, 2], floor)
        q = max((target[i] * shares[1, 0] - shares[1, 1]) * shares[1, 2], floor)
        whole_p += p
        whole_q += q
        total += p * _log(p / q)
    sums[0] += whole_p
    sums[1] += whole_q
    sums[2] += total


@compiled
def _divergence(reference, target, forms, tables, count, shares, floor, sums):
    numbers = np.empty((2, BLOCK))
    apart = np.empty(BLOCK)
    counted = np.zeros(at.LENGTH)
    places = np.empty(BLOCK, np.int64)
    sides = (reference, target)
    for start in range(0, count, BLOCK):
        n = min(BLOCK, count - start)
        for k in range(2):
            load(sides[k], forms[k], tables[k], start, n, numbers[k])
        sums_apart = _subtract(numbers[0], numbers[1], apart, n, False)
        if not (sums_apart[0] < np.inf):
            n = _keep_finite(numbers[0], numbers[1], n, places, counted)
        _add_divergence(numbers[0], numbers[1], n, shares, floor, sums)


def accumulate(raw: Pair[Bytes], dtypes: Pair[Dtype], *, base: int, plan: Floats, state: Floats) -> None:
    """As metrics.accumulate."""
    _accumulate(*given(raw, dtypes), base, plan, state)


def divergence(raw: Pair[Bytes], dtypes: Pair[Dtype], *, shares: Floats, floor: float, sums: Floats) -> None:
    """As metrics.divergence."""
    _divergence(*given(raw, dtypes), shares, floor, sums)
