"""Is one of several layers computed otherwise in one run only? Asked of the calls, whatever the numbers say.

Layers that make the same calls in one run make the same calls in the other, too, however these are written there. Where
all of them do but one, that one is computed otherwise: below the noise of two precisions no number tells whether it
gives the same.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import polars as pl

from ulpscope.diagnose.flow.evidence import RankEvidence, grouped
from ulpscope.diagnose.flow.states import Flow
from ulpscope.diagnose.limits import LAST_BITS, NAMES_LISTED, SIBLINGS
from ulpscope.diagnose.places import place_of_row
from ulpscope.judge.rounding.limits import layer_pattern
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.enums import FORWARD_PHASE, Kind
from ulpscope.records.evidence import Evidence, OneRun
from ulpscope.records.findings import Finding, FindingKind
from ulpscope.records.pairs import Pair

Work = dict[str, Counter[str]]
"""By module, in the reference's names: which operations it makes, and how often."""


def odd_sibling(evidence: RankEvidence, flow: Flow) -> Finding | None:
    """The first module that makes other calls in the two runs, among siblings that all make the same in either.

    Not without noise, or where data was saved: then numbers tell. Nor behind a choice that flipped: an expert without a
    token does nothing.
    """
    plan = evidence.plan
    told_by_numbers = evidence.precision.coarsest < LAST_BITS or any(side.has_data.any() for side in evidence.sides)
    if told_by_numbers or flow.choices or not evidence.complete or not plan.steps:
        return None
    first = pl.col("step") == plan.steps[0]
    computing = plan.calls.map(lambda calls: _computing(calls.filter(first)))
    alone = plan.unmatched.map(lambda calls: _computing(calls.filter(first)))
    works = Pair(_works(computing.reference, {}), _works(computing.target, plan.modules))
    touched = set(_works(alone.reference, {})) | set(_works(alone.target, plan.modules))
    kinds, of_kind = grouped(touched, layer_pattern), grouped(works.reference, layer_pattern)
    for kind, (path, *others) in sorted(kinds.items()):
        siblings = [other for other in of_kind.get(kind, ()) if other != path]
        if not others and _is_odd(path, siblings, works):
            lone = Pair(_of_module(alone.reference, {}, path), _of_module(alone.target, plan.modules, path))
            return _told(evidence, lone)
    return None


def _computing(calls: pl.DataFrame) -> pl.DataFrame:
    """Calls of a forward that compute something."""
    own = calls.filter(pl.col("kind") == Kind.API.value, pl.col("phase") == FORWARD_PHASE, ~pl.col("recompute"))
    moving = (Trait.MOVING, Trait.VIEW, Trait.METADATA, Trait.EXPOSING, Trait.REACHING_OUT, Trait.CONSTANT)
    ops = [op for op in own["op"].unique() if not operation(op).has(*moving)]
    return own.filter(pl.col("op").is_in(ops), pl.col("module").is_not_null())


def _works(calls: pl.DataFrame, names: dict[str, str]) -> Work:
    found: Work = defaultdict(Counter)
    for module, op in calls.select("module", "op").iter_rows():
        found[names.get(module, module)][operation(op).name] += 1
    return found


def _is_odd(path: str, siblings: Sequence[str], works: Pair[Work]) -> bool:
    """Whether a module makes other calls in one run, and as many siblings as say something make what it should."""
    usual = works.reference.get(path)
    if usual is None or path not in works.target or usual == works.target[path]:
        return False
    if len(siblings) < SIBLINGS - 1:
        return False
    common = [works.reference[other] for other in siblings]
    return all(each == common[0] for each in common) and common[0] in (usual, works.target[path])


def _of_module(calls: pl.DataFrame, names: dict[str, str], path: str) -> pl.DataFrame:
    own = [module for module in calls["module"].unique() if names.get(module, module) == path]
    return calls.filter(pl.col("module").is_in(own))


def _told(evidence: RankEvidence, alone: Pair[pl.DataFrame]) -> Finding:
    in_target = not alone.target.is_empty()
    row = (alone.target if in_target else alone.reference).sort("id").row(0, named=True)
    names = alone.map(lambda frame: tuple(frame.sort("id")["name"].head(NAMES_LISTED)))
    only = OneRun(only_reference=names.reference, only_target=names.target)
    place = place_of_row(evidence, row, in_target=in_target)
    return Finding(FindingKind.STRUCTURE, place, Evidence(one_run=only))
