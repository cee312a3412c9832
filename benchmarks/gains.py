"""How errors grow in sound calls: output error over what came in, each with its rounding, measured over healthy runs.

    cd benchmarks && python -m sealed --packages DIR --kind healthy --only a --keep RUNS    capture runs and keep them
    python gains.py RUNS                                                                    what their calls pass on

Counted are calls of healthy pairs in another precision, whose operands differ by rounding only. The limits of
compare (src/ulpscope/judge/rounding/limits.py) stand beside what was measured. A model counts as one: per family and
direction, the least gain that 99.9 % of its calls keep, and of these the median and the largest over all models.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ulpscope.align.plan import make_plan
from ulpscope.align.tensors import BACKWARD_KINDS
from ulpscope.diagnose.flow.evidence import RankEvidence, gather
from ulpscope.diagnose.flow.judging import Follower
from ulpscope.dialects.opening import open_run
from ulpscope.judge.rounding.limits import default_gain
from ulpscope.records.pairs import Pair
from ulpscope.workflows.compare.command import paired_values

SHARE = 0.999
HERE = Path(__file__).resolve().parent / "sealed"


def healthy_pairs(runs: Path) -> Iterator[Path]:
    for group in sorted(runs.iterdir()):
        for number, case in enumerate(json.loads((HERE / group.name / "cases.json").read_text())):
            folder = group / str(number)
            if case["kind"] == "healthy" and case["noise"] and (folder / "target").exists():
                yield folder


def evidence_of(folder: Path) -> Iterator[RankEvidence]:
    plan = make_plan(Pair(open_run(folder / "reference"), open_run(folder / "target")))
    for rank in plan.ranks:
        yield gather(rank, *paired_values(rank))


def gains_of(evidence: RankEvidence) -> Iterator[tuple[str, str, str, float, float]]:
    """Family, direction, operation, gain and limit of each judged output of a call whose operands are sound."""
    follower = Follower(evidence)
    flow = follower.follow()
    makes = {(slot.pair, slot.place) for slot in evidence.slots if slot.makes}
    for gain in flow.gains:
        if gain.sound and (gain.pair, gain.place) in makes and 0 < gain.gain < np.inf:
            operation = evidence.operations[gain.pair]
            kind = evidence.calls["kind"][gain.pair]
            direction = "backward" if kind in BACKWARD_KINDS else kind if kind == "optimizer" else "forward"
            yield operation.family.value, direction, operation.name, gain.gain, default_gain(operation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--operations", action="store_true", help="a line an operation, not a family")
    args = parser.parse_args()
    found: dict[tuple[str, ...], dict[Path, list[float]]] = defaultdict(lambda: defaultdict(list))
    limits: dict[tuple[str, ...], float] = {}
    for folder in healthy_pairs(args.runs):
        for evidence in evidence_of(folder):
            for family, direction, name, gain, limit in gains_of(evidence):
                key = (family, direction, name) if args.operations else (family, direction)
                found[key][folder].append(gain)
                limits[key] = max(limits.get(key, 0.0), limit)
    heads = f"{'calls':>8} {'models':>6} {'median':>7} {'99.9 %: median':>15} {'largest':>8} {'max':>8} {'limit':>6}"
    print(f"{'':44} {heads}")
    for key, models in sorted(found.items()):
        everything = np.concatenate([np.array(gains) for gains in models.values()])
        shares = np.array([np.quantile(gains, SHARE) for gains in models.values()])
        print(
            f"{' '.join(key):44} {len(everything):8} {len(models):6} {np.median(everything):7.2f} "
            f"{np.median(shares):15.2f} {shares.max():8.2f} {everything.max():8.2f} {limits[key]:6g}"
        )


if __name__ == "__main__":
    main()
