"""Operations on single elements, looked at a second time before they are blamed: what do they make of such errors?"""

from typing import Any

import numpy as np

from ulpscope.align.tensors import BACKWARD_KINDS
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.limits import NUMBERS_DRAWN
from ulpscope.judge.rounding.elementwise import FUNCTIONS, Drawn, gradient_error, result_error
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.regenerate.floats import regenerate_numbers
from ulpscope.operations.registry import own_word
from ulpscope.records.calls import Value
from ulpscope.records.enums import GRAD_OUTPUT_ROLE, INPUT_ROLE, OPERATION_KINDS
from ulpscope.trace.objects import parse_arguments


def element_error(evidence: RankEvidence, slot: Slot) -> float:
    """The error that a result, or a gradient, of an operation on single elements has by its operands' errors, measured
    on numbers like theirs; 0 for other operations, and where nothing is known of an operand."""
    is_backward = evidence.calls["kind"][slot.pair] in BACKWARD_KINDS
    pair = evidence.forwards[slot.pair] if is_backward else slot.pair
    known = FUNCTIONS.get(evidence.operations[pair].name) if pair >= 0 else None
    if known is None or evidence.calls["kind"][pair] not in OPERATION_KINDS:
        return 0.0
    arity, function = known
    sizes = (evidence.operands[row].elements for row in (slot.values, *evidence.given(pair)))
    operands = _operands(evidence, pair, arity, int(min(max(sizes), NUMBERS_DRAWN)))
    if len(operands) < arity:
        return 0.0
    places = list(operands)
    if own_word(evidence.calls["op"][pair]) == f"__r{evidence.operations[pair].name}__":
        places.reverse()
    given = [operands[place] for place in places]
    if not is_backward:
        return result_error(function, given)
    sent = next(iter(evidence.in_role(slot.pair, GRAD_OUTPUT_ROLE)), None)
    gradient = None if sent is None else drawn(evidence, sent.values, len(given[0].numbers))
    if gradient is None or slot.place not in places:
        return 0.0
    return gradient_error(function, given, gradient, places.index(slot.place))


def _operands(evidence: RankEvidence, pair: int, arity: int, count: int) -> dict[str, Drawn]:
    """The first tensors and numbers that a call was given, by place, as far as they are known."""
    slots = {slot.place: slot.values for slot in evidence.in_role(pair, INPUT_ROLE)}
    found: dict[str, Drawn] = {}
    for index, entry in enumerate(arguments_of(evidence.calls["arguments"][pair]).get("args", [])[:arity]):
        place = f"args.{index}"
        known = drawn(evidence, slots[place], count) if place in slots else _constant(entry, count)
        if known is not None:
            found[place] = known
    return found


def arguments_of(text: str | None) -> dict[str, Any]:
    """What a call was told; nothing if that cannot be read."""
    try:
        return parse_arguments(text or None)
    except ValueError:
        return {}


def _constant(entry: object, count: int) -> Drawn | None:
    if isinstance(entry, bool) or not isinstance(entry, int | float):
        return None
    return Drawn(np.full(count, float(entry)), 0.0, (float(entry), float(entry)))


def drawn(evidence: RankEvidence, row: int, count: int) -> Drawn | None:
    """Numbers like those of the reference's value; None if nothing, or no distance, is known of it."""
    value = evidence.plan.traces.reference.value(int(evidence.sides.reference.id[row]))
    return drawn_like(value, evidence, row, count)


def drawn_like(value: Value, evidence: RankEvidence, row: int, count: int) -> Drawn | None:
    """The same, of a value of the reference that was read already."""
    dtype, error = DTYPES.get(value.dtype), evidence.operands[row].error
    if value.stats is None or dtype is None or not dtype.has_sketch or dtype.real or not np.isfinite(error):
        return None
    numbers = regenerate_numbers(value.stats, count, dtype, np.random.Generator(np.random.PCG64(row)))
    ends = [float(getattr(side.summaries, end)[row]) for side in evidence.sides for end in ("min", "max")]
    known = [end for end in ends if np.isfinite(end)]
    return Drawn(numbers, error, (min(known), max(known))) if known else None
