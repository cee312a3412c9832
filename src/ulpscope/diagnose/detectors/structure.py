"""Are the models built alike?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from ulpscope.diagnose.detectors.asking import Answer, Detector
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.states import Birth
from ulpscope.diagnose.flow.unpaired import Gap, calls_in
from ulpscope.diagnose.limits import FEW_PAIRED
from ulpscope.diagnose.places import place_of_birth, place_of_pair, place_of_row
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.records.evidence import Evidence, OneRun
from ulpscope.records.findings import Counts, Finding, FindingKind, Place
from ulpscope.trace.reader import RankTrace


class LoneStructure(Detector):
    """Did it come through a collective or a whole module that only one run has?"""

    def ask(self, birth: Birth) -> Answer | None:
        if birth.gap is None or not self._is_structural(birth.gap):
            return None
        return Answer(FindingKind.STRUCTURE, place_of_birth(self.evidence, birth))

    def _is_structural(self, gap: Gap) -> bool:
        calls = calls_in(self.evidence, gap)
        if any((frame["kind"] == Kind.COLLECTIVE.value).any() for frame in calls):
            return True
        if self.evidence.has_compiled:
            return False
        sides = zip(calls, self.evidence.plan.shared_modules, strict=True)
        return any(module not in known for frame, known in sides for module in frame["module"].drop_nulls())


def other_program(ranks: Sequence[RankEvidence], counts: Counts) -> Finding | None:
    """Where hardly any call has a partner: what differs between two models is no fault of any call.

    Of what other tools have dumped, networks with fused operators for one, many may have none.
    """
    fewer = min(counts.calls_reference, counts.calls_target)
    if counts.matched >= FEW_PAIRED * fewer or not all(evidence.complete for evidence in ranks):
        return None
    plans = [evidence.plan for evidence in ranks]
    first_step = min(step for plan in plans for step in plan.steps)
    place = Place(rank=plans[0].rank, step=first_step, phase=Phase.FORWARD)
    return Finding(FindingKind.STRUCTURE, place, Evidence(one_run=OneRun(paired=(counts.matched, fewer))))


def unshared_parameters(evidence: RankEvidence) -> Finding | None:
    """The first pair of modules that do not own the same parameters and buffers."""
    plan, calls = evidence.plan, evidence.calls
    names = [_owned(trace, plan.steps) for trace in plan.traces]
    for pair, kind in enumerate(calls["kind"]):
        if kind != Kind.MODULE.value:
            continue
        reference = names[0].get(calls["reference_id"][pair], set())
        target = names[1].get(calls["id"][pair], set())
        if reference != target:
            only = OneRun(tuple(sorted(reference - target)), tuple(sorted(target - reference)))
            place = replace(place_of_pair(evidence, pair), tensor=(only.only_target or only.only_reference)[0])
            return Finding(FindingKind.STRUCTURE, place, Evidence(one_run=only))
    return None


def missing_module(evidence: RankEvidence) -> Finding | None:
    """The first module with parameters that one run calls in every step and the other never."""
    plan = evidence.plan
    if evidence.has_compiled:
        return None
    sides = zip(plan.calls, plan.traces, plan.shared_modules, strict=True)
    for number, (calls, trace, shared) in enumerate(sides):
        owned = _owned(trace, plan.steps)
        modules = calls.filter(pl.col("kind") == Kind.MODULE.value)
        steps = dict(modules.group_by("module").agg(pl.col("step").n_unique()).iter_rows())
        for row in modules.sort("id").iter_rows(named=True):
            absent = row["module"] not in shared and steps[row["module"]] == len(plan.steps)
            if absent and owned.get(row["id"]):
                outermost, in_target = _outermost(modules, row["module"], shared), number == 1
                place, names = place_of_row(evidence, outermost, in_target=in_target), (outermost["name"],)
                only = OneRun(only_target=names) if in_target else OneRun(only_reference=names)
                return Finding(FindingKind.STRUCTURE, place, Evidence(one_run=only))
    return None


def _outermost(modules: pl.DataFrame, path: str, shared: frozenset[str]) -> dict[str, Any]:
    """The first call of the outermost module around this one that the other run has not."""
    names = path.split(".")
    paths = [".".join(names[: length + 1]) for length in range(len(names))]
    called = set(modules["module"].to_list())
    found = next(outer for outer in paths if outer not in shared and outer in called)
    return modules.filter(pl.col("module") == found).sort("id").row(0, named=True)


def _owned(trace: RankTrace, steps: Sequence[int]) -> dict[int, set[str]]:
    if not steps:
        return {}
    owned = trace.tensors(steps[0]).filter(pl.col("role") == Role.PARAMETER.value)
    rows = trace.collect(owned.group_by("call").agg("place"))
    return {call: set(places) for call, places in rows.iter_rows()}
