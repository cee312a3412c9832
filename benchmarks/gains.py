"""How errors grow in sound calls: output error over what came in, each with its rounding, measured over healthy runs.

    cd benchmarks && python -m sealed --packages DIR --kind healthy --only a --keep RUNS      capture runs and keep them
    python gains.py RUNS                                                                      what their calls pass on

Counted are calls of healthy pairs in another precision, whose operands differ by rounding only. Left out is what has a
rule of its own: updates and what they do along the inputs they were made of, gradients behind a kink, operands that are
half wrong, sums in a coarse type, calls whose result is measured on numbers like their operands', and what is computed
another way. A model counts as one, with the largest gain of all of its calls; the limits that compare uses
(src/ulpscope/judge/rounding/limits.py) stand beside the quantiles of these over the models. docs/gains.md is this
table.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ulpscope.align.plan import make_plan
from ulpscope.align.tensors import BACKWARD_KINDS
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot, gather
from ulpscope.diagnose.flow.exits import left_of
from ulpscope.diagnose.flow.judging import Follower
from ulpscope.diagnose.flow.spans import healed
from ulpscope.diagnose.flow.states import State
from ulpscope.diagnose.flow.trying.elements import element_error
from ulpscope.diagnose.limits import DRAWN_GAIN
from ulpscope.dialects.opening import open_run
from ulpscope.judge.rounding.limits import LIMITS, default_gain
from ulpscope.operations.registry import Trait
from ulpscope.records.enums import OPTIMIZER_KIND
from ulpscope.records.pairs import Pair
from ulpscope.workflows.compare.command import paired_values

QUANTILES = (0.5, 0.9)
FAMILY = """| family | direction | calls | models | median call | largest of a model: median | 90 % | largest | limit |
|---|---|---|---|---|---|---|---|---|"""
HERE = Path(__file__).resolve().parent / "sealed"


def healthy_pairs(runs: Path) -> Iterator[Path]:
    for group in sorted(runs.iterdir()):
        for number, case in enumerate(json.loads((HERE / group.name / "cases.json").read_text())):
            folder = group / str(number)
            if case["kind"] == "healthy" and case["noise"] and (folder / "reference").exists():
                yield folder


def evidence_of(reference: Path, target: Path) -> Iterator[RankEvidence]:
    plan = make_plan(Pair(open_run(reference), open_run(target)))
    for rank in plan.ranks:
        yield gather(rank, *paired_values(rank))


def gains_of(evidence: RankEvidence) -> Iterator[tuple[str, str, str, float, float]]:
    """Family, direction, operation, gain and limit of each judged output of a call whose operands are sound."""
    follower = Follower(evidence)
    flow = follower.follow()
    flow.put_inside(healed(evidence, flow, follower.sources, follower.gaps))
    if flow.births and left_of(evidence, flow) is not None:
        flow.put_inside(flow.births)
    makes = {(slot.pair, slot.place): slot for slot in evidence.slots if slot.makes}
    for gain in flow.gains:
        slot = makes.get((gain.pair, gain.place))
        if gain.sound and slot is not None and 0 < gain.gain < np.inf and is_judged_by_gain(follower, slot, gain.gain):
            operation = evidence.operations[gain.pair]
            direction = "backward" if evidence.calls["kind"][gain.pair] in BACKWARD_KINDS else "forward"
            yield operation.family.value, direction, operation.name, gain.gain, default_gain(operation)


def is_judged_by_gain(follower: Follower, slot: Slot, gain: float) -> bool:
    """Whether nothing else says what this output may differ by."""
    evidence, flow = follower.evidence, follower.flow
    kind = evidence.calls["kind"][slot.pair]
    kinked = kind in BACKWARD_KINDS and evidence.operations[slot.pair].has(Trait.KINKED)
    another_way = flow.states[slot.values] is State.ANOTHER_WAY
    if kind == OPTIMIZER_KIND or kinked or another_way or not np.isfinite(flow.expected.get(slot.row, np.inf)):
        return False
    if gain < LIMITS.least_outlier:
        return True
    sources = follower.sources[slot.values]
    nothing = follower.explainer.explain(slot, sources, 0.0, None)
    own_rules = follower.allowances.applied(slot, follower.explainer.floats(sources), nothing, 0.0).expected
    return evidence.error(slot) > max(own_rules, DRAWN_GAIN * element_error(evidence, slot))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--operations", action="store_true", help="a line an operation, not a family")
    args = parser.parse_args()
    found: dict[tuple[str, ...], dict[Path, list[float]]] = defaultdict(lambda: defaultdict(list))
    limits: dict[tuple[str, ...], float] = {}
    for folder in healthy_pairs(args.runs):
        for evidence in evidence_of(folder / "reference", folder / "target"):
            for family, direction, name, gain, limit in gains_of(evidence):
                key = (family, direction, name) if args.operations else (family, direction)
                found[key][folder].append(gain)
                limits[key] = max(limits.get(key, 0.0), limit)
    print(FAMILY)
    for key, models in sorted(found.items()):
        everything = np.concatenate([np.array(gains) for gains in models.values()])
        largest = np.array([max(gains) for gains in models.values()])
        quantiles = [
            f"{number:.2f}" for number in (np.median(everything), *np.quantile(largest, QUANTILES), largest.max())
        ]
        cells = [*key[:1], " ".join(key[1:]), f"{len(everything):,}", str(len(models)), *quantiles, f"{limits[key]:g}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
