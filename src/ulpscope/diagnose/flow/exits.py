"""What leaves a step: its losses, the gradients that its optimizer is given, or else what its outermost modules return.

Two runs may compute the same thing another way: a batch in another order, in chunks, with a cache or without. Inner
values then differ by nature. Where all that leaves agrees, and by far more than they do, their difference is gone. In
noise, too, if no gradient stands out of the others.
"""

import math
from collections.abc import Container, Sequence
from statistics import median

import polars as pl

from ulpscope.align.plan import RankPlan
from ulpscope.align.tensors import KEPT_ROLES, reference_place
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot, grouped
from ulpscope.diagnose.flow.mathematics import is_asked_otherwise
from ulpscope.diagnose.flow.states import WRONG, Birth, Flow, State
from ulpscope.diagnose.flow.unpaired import GapFinder
from ulpscope.diagnose.limits import (
    ANOTHER_NUMBER,
    EXIT_ROUNDOFFS,
    GONE,
    LAST_BITS,
    SINGLE_GRADIENT,
    SMALL_GRADIENT,
)
from ulpscope.operations.registry import LEAVES_GRADIENTS, STARTS_BACKWARD
from ulpscope.records.enums import (
    GRADIENT_ROLE,
    LOSS_ROLE,
    OPTIMIZER_KIND,
    OUTPUT_ROLE,
)
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace


def left_of(evidence: RankEvidence, flow: Flow, gaps: GapFinder) -> float | None:
    """By how much differs what leaves the steps, if nothing of the differences that began in them is seen in it."""
    if not evidence.complete:
        return None
    births, read = flow.births, _used(evidence)
    by_anyone = read | gaps.used
    if any(_is_told_anyway(evidence, birth, by_anyone) for birth in births) or not _leave_alike(evidence):
        return None
    most = LAST_BITS if _only_results_leave(evidence) else max(LAST_BITS, EXIT_ROUNDOFFS * evidence.precision.coarsest)
    left = _worst_exit(evidence, flow.states, read, most)
    # What is as small as the last bits where it began needs no more to be gone.
    gone = left is not None and all(left * GONE <= _size(birth) or _size(birth) <= LAST_BITS for birth in births)
    return left if gone else None


def _used(evidence: RankEvidence) -> set[int]:
    """Rows of values that a call goes on with. What Python alone looks at, as a number to print, leaves there."""
    goes_on = [
        bool(evidence.made(pair)) or op in STARTS_BACKWARD or kind == OPTIMIZER_KIND
        for pair, (op, kind) in enumerate(zip(evidence.calls["op"], evidence.calls["kind"], strict=True))
    ]
    return {slot.values for slot in evidence.slots if not slot.makes and goes_on[slot.pair]} | _losses(evidence)


def _losses(evidence: RankEvidence) -> set[int]:
    """Rows of values that either run goes back from, with a partner or without."""
    found: set[int] = set()
    for trace, side in zip(evidence.plan.traces, evidence.sides, strict=True):
        shown = trace.tensors(evidence.plan.steps).filter(pl.col("role") == LOSS_ROLE).select("value")
        known = set(trace.collect(shown)["value"])
        found |= {row for row, value in enumerate(side.id.tolist()) if value in known}
    return found


def _size(birth: Birth) -> float:
    return birth.error_out if birth.error_out > 0 else math.inf


def _is_told_anyway(evidence: RankEvidence, birth: Birth, read: Container[int]) -> bool:
    """Whether it is kept from step to step, a result that no other call reads, an update, or made by an argument that
    asks for something else, unless two numbers stand beside each other that are not meant to be the same."""
    pair = birth.slot.pair
    # What was made of no tensor is data.
    computed = birth.slot.makes and bool(evidence.given(pair))
    if birth.slot.role in KEPT_ROLES or (computed and birth.slot.values not in read):
        return True
    is_asked = is_asked_otherwise(evidence, pair) and _size(birth) < ANOTHER_NUMBER
    return is_asked or evidence.calls["kind"][pair] == OPTIMIZER_KIND


def _only_results_leave(evidence: RankEvidence) -> bool:
    """Whether a step has no gradients: in noise, what a model returns says little about a small part of it."""
    trained = {evidence.calls["step"][slot.pair] for slot in _given_gradients(evidence)}
    return not trained.issuperset(evidence.plan.steps)


def _given_gradients(evidence: RankEvidence) -> list[Slot]:
    """What optimizers are given."""
    shown = evidence.by_role.get(GRADIENT_ROLE, [])
    return [slot for slot in shown if evidence.calls["kind"][slot.pair] == OPTIMIZER_KIND]


def _leave_alike(evidence: RankEvidence) -> bool:
    """Whether both runs make the same updates, of as many gradients."""
    updates = pl.col("kind") == OPTIMIZER_KIND
    if not all(frame.filter(updates).is_empty() for frame in evidence.plan.unmatched):
        return False
    shown = len(_given_gradients(evidence))
    if not shown and not same_backwards(evidence):
        return False
    return all(given.height == shown for given in given_gradients(evidence.plan))


def same_backwards(evidence: RankEvidence) -> bool:
    """Whether both runs make the same backwards; else their losses are of other parts of the data."""
    starts = pl.col("op").is_in(list(LEAVES_GRADIENTS))
    return all(frame.filter(starts).is_empty() for frame in evidence.plan.unmatched)


def given_gradients(plan: RankPlan) -> Pair[pl.DataFrame]:
    """Gradients that the optimizers of either run were given, in order: call, place (the parameter), name, norm, shape.

    The name is the parameter's in the reference.
    """

    def given(trace: RankTrace, calls: pl.DataFrame, name: pl.Expr) -> pl.DataFrame:
        optimizers = calls.lazy().filter(pl.col("kind") == OPTIMIZER_KIND).select(call="id")
        shown = trace.tensors(plan.steps).filter(pl.col("role") == GRADIENT_ROLE).select("call", "place", "value")
        norms = trace.values().select("norm", "shape", value="id")
        uses = shown.join(optimizers, on="call", how="semi").join(norms, on="value", how="left")
        return trace.collect(uses.sort("call", maintain_order=True).select("call", "place", name, "norm", "shape"))

    names = pl.col("place").alias("name"), reference_place(plan).alias("name")
    return Pair(*(given(*side) for side in zip(plan.traces, plan.calls, names, strict=True)))


def _worst_exit(evidence: RankEvidence, states: Sequence[State], read: Container[int], most: float) -> float | None:
    """The largest error of what leaves, if it is at most this; none if not, or if something was not compared."""
    steps = evidence.calls["step"]
    losses = evidence.by_role.get(LOSS_ROLE, []) if same_backwards(evidence) else []
    gradients = _given_gradients(evidence)
    trained = {steps[slot.pair] for slot in (*losses, *gradients)}
    made = [slot for slot in evidence.by_role.get(OUTPUT_ROLE, []) if steps[slot.pair] not in trained]
    outermost = [slot for slot in made if evidence.calls["parent"][slot.pair] is None]
    results = [slot for slot in outermost if evidence.is_outermost_module(slot.pair)]
    wrong_at_last = any(states[slot.values] in WRONG for slot in outermost if slot.values not in read)
    leaving = (*losses, *gradients, *results)
    if not leaving or wrong_at_last or not all(evidence.values.compared[slot.values] for slot in leaving):
        return None
    single = max((evidence.error(slot) for slot in (*losses, *results)), default=0.0)
    by_step = grouped(gradients, lambda slot: steps[slot.pair])
    together = max((_error_of_all(evidence, slots) for slots in by_step.values()), default=0.0)
    return max(single, together) if max(single, together) <= most else None


def _error_of_all(evidence: RankEvidence, gradients: list[Slot]) -> float:
    """Of the gradients of one step together, or what the worst single one comes to."""
    operands = [evidence.operands[slot.values] for slot in gradients]
    norm = math.sqrt(sum(operand.norm**2 for operand in operands))
    if not norm > 0:
        return max((operand.error for operand in operands), default=0.0)
    together = math.sqrt(sum(operand.distance**2 for operand in operands)) / norm
    # One that is next to nothing beside the others may be all rounding.
    singles = [operand.distance / max(operand.norm, SMALL_GRADIENT * norm) for operand in operands]
    if together > LAST_BITS and max(singles) > SINGLE_GRADIENT * median(singles):
        return math.inf  # in noise, what is wrong in a part of a model is seen in the gradients of that part
    return max(together, max(singles) / SINGLE_GRADIENT)
