"""Is what a run reads what was last written there? Asked of each run on its own, so that no noise hides it.

A parameter, buffer or state of one run may have another content than when it was last seen, though the last call that
wrote it is still the same one: something has changed it that nobody recorded. Where the other run reads there what it
read before, this is a difference of the runs, however small. Where that one has written it, too, they only do it each
in their own way, and the numbers decide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl

from ulpscope.align.tensors import KEPT_ROLES
from ulpscope.diagnose.detectors.parameters import REFERENCE, TARGET
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import Flow
from ulpscope.diagnose.limits import NAMES_LISTED
from ulpscope.diagnose.places import full_name, place_of_parameter
from ulpscope.judge.rounding.values import Values
from ulpscope.operations.registry import Trait, is_torchs_own, operation
from ulpscope.records.enums import (
    COLLECTIVE_KIND,
    COMPILED_KIND,
    MODULE_KIND,
    OPERATION_KINDS,
    PARAMETER_AFTER_ROLE,
    STATE_AFTER_ROLE,
    STATE_ROLE,
)
from ulpscope.records.evidence import Amount, Evidence, Numbers, ParameterHistory
from ulpscope.records.findings import Finding, FindingKind
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace

SAME = ("storage", "dtype", "shape")
"""What two contents have in common of which one took the place of the other."""
SHOWING_ROLES = (*KEPT_ROLES, PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE)


def changed_unseen(evidence: RankEvidence, flow: Flow) -> Finding | None:
    """Parameters, buffers and states that change in one run alone, though no recorded call writes them."""
    if not evidence.complete:
        return None
    runs = Pair(
        *(_Run(*side, evidence.plan.steps) for side in zip(evidence.plan.traces, evidence.plan.calls, strict=True))
    )
    if any(run.has_unseen_writers for run in runs):
        return None
    for in_target, (changing, other) in ((True, (runs.target, runs.reference)), (False, runs)):
        found = list(_changed_alone(evidence, changing, other, in_target=in_target))
        if found:
            return _told(evidence, found, TARGET if in_target else REFERENCE)
    return None


def _changed_alone(evidence: RankEvidence, changing: "_Run", other: "_Run", *, in_target: bool) -> Iterator[Slot]:
    """Where one run reads another content than it has left there, and the other what it has."""
    ids = "id" if in_target else "reference_id", "reference_id" if in_target else "id"
    sides: Sequence[Values] = (evidence.sides.target, evidence.sides.reference)
    own, others = sides if in_target else sides[::-1]
    for slot in evidence.slots:
        if slot.role not in KEPT_ROLES or slot.row in evidence.moved:
            continue
        here, there = (evidence.calls[name][slot.pair] for name in ids)
        last = changing.changed.get((here, int(own.id[slot.values])))
        kept = (there, int(others.id[slot.values])) in other.kept
        if last is not None and kept and not changing.may_be_written(int(own.storage[slot.values]), last, here):
            yield slot


def _told(evidence: RankEvidence, found: Sequence[Slot], run: str) -> Finding:
    first = found[0]
    step = evidence.calls["step"][first.pair]
    together = [slot for slot in found if evidence.calls["step"][slot.pair] == step]
    places = [place_of_parameter(evidence, slot) for slot in together]
    names = tuple(dict.fromkeys(name for name in map(full_name, places) if name))
    kind = FindingKind.OPTIMIZER if first.role == STATE_ROLE else FindingKind.PARAMETER
    history = ParameterHistory(changed_unseen=True, changed_in=run, parameters=names[:NAMES_LISTED])
    error = evidence.worst_error(slot.values for slot in together)
    told = Evidence(Numbers(error_out=error), history=history, amount=Amount(count=len(names)))
    return Finding(kind, replace(places[0], tensor=first.place), told)


@dataclass(frozen=True)
class _Run:
    """What became of the kept tensors of one run, by their names."""

    trace: RankTrace
    calls: pl.DataFrame
    steps: Sequence[int]

    @property
    def has_unseen_writers(self) -> bool:
        """Whether calls ran that were not recorded, or of which nobody knows what they write."""
        level, coverage = self.trace.info.capture.get("level"), self.trace.info.coverage
        unseen = coverage.calls_filtered or coverage.other_threads or any(coverage.calls_unobserved.values())
        return bool(unseen) or level == "module" or (self.calls["kind"] == COMPILED_KIND).any()

    @cached_property
    def changed(self) -> dict[tuple[int, int], int]:
        """Uses (call, value) of a content that nobody wrote, with the call that showed the last one before it."""
        same_writer = pl.col("producer").eq_missing(pl.col("last_producer"))
        found = self._uses.filter(pl.col("digest") != pl.col("last_digest"), same_writer)
        return {(call, value): last for call, value, last in found.select("call", "value", "last_call").iter_rows()}

    @cached_property
    def kept(self) -> set[tuple[int, int]]:
        """Uses (call, value) of a content that is what was there before."""
        return set(self._uses.filter(pl.col("digest") == pl.col("last_digest")).select("call", "value").iter_rows())

    @cached_property
    def _uses(self) -> pl.DataFrame:
        """Uses of kept tensors beside what was there when they were shown before, in the same memory."""
        owner = pl.when(pl.col("kind") == MODULE_KIND).then(pl.col("module") + "." + pl.col("place"))
        shown = self.trace.tensors(self.steps).filter(pl.col("role").is_in(SHOWING_ROLES))
        contents = self.trace.values().select("storage", "producer", "digest", "dtype", "shape", value="id")
        known = shown.select("call", "place", "value").join(contents, on="value", maintain_order="left")
        owners = self.calls.lazy().select("kind", "module", call="id")
        named = known.join(owners, on="call", maintain_order="left").with_columns(name=pl.coalesce(owner, "place"))
        last = {
            f"last_{column}": pl.col(column).shift().over("name") for column in (*SAME, "producer", "digest", "call")
        }
        uses = self.trace.collect(named.sort("call", maintain_order=True).with_columns(**last))
        return uses.filter(*(pl.col(column) == pl.col(f"last_{column}") for column in SAME))

    def may_be_written(self, storage: int, last: int, here: int) -> bool:
        """Whether a call between these had the memory at hand, and may write it without saying so."""
        contents = self.trace.values().filter(pl.col("storage") == storage).select(value="id")
        between = pl.col("call").is_between(last, here, closed="left")
        users = self.trace.tensors(self.steps).filter(between).join(contents, on="value", how="semi")
        ids = self.trace.collect(users.select("call").unique())["call"]
        calls = self.calls.filter(pl.col("id").is_in(ids.implode()))
        return any(_may_write(kind, op) for kind, op in calls.select("kind", "op").iter_rows())


def _may_write(kind: str, op: str) -> bool:
    """Whether a call may write what it is given unsaid: running statistics, and functions of the run's own."""
    if kind == COLLECTIVE_KIND:
        return True
    if kind not in OPERATION_KINDS:
        return False
    return operation(op).has(Trait.RUNNING_STATS) or not is_torchs_own(op)
