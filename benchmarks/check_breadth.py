"""How many of PyTorch's operators can be executed again from a trace, forward and backward.

    python benchmarks/check_breadth.py                    every operator of torch.testing's database, CPU
    python benchmarks/check_breadth.py --ops add lu       some of them
    python benchmarks/check_breadth.py --quick 40         40 of them, spread over the database
    python benchmarks/check_breadth.py --dtype complex64  in another dtype

An operator is called as a function, as a method, in place and as an operator, as far as it has these forms. It passes
if every call that was recorded can be executed again, in its own dtype and in high precision, and gives the recorded
outputs and gradients bit for bit (of random ones: gives something whose law is known). Exit code 1 below 95 %.
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from breadth import UNDEFINED, elements_of, plain_array, same_elements
from isolated import Died, do_isolated
from operator_calls import FORMS, Wanted, capture_operator, chosen_operators, find_operator, share
from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.checks import DataSource
from ulpscope.replay.planning import plan_cases
from ulpscope.replay.recorded import CannotReplayError, RecordedCall, find_repeated, read_calls
from ulpscope.replay.torch.engine import Engine, Executed
from ulpscope.trace.reader import RankTrace, open_trace

BAR = 0.95
SAMPLES = 6
TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one operator."""

    calls: int = 0
    backwards: int = 0
    excluded: str | None = None
    failures: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    began = time.monotonic()
    names = chosen_operators(arguments.ops, arguments.quick)
    jobs = [(name, arguments.dtype) for name in names]
    outcomes = {
        name: Outcome(failures=(outcome.reason,)) if isinstance(outcome, Died) else outcome
        for (name, _), outcome in do_isolated(do, jobs, jobs=arguments.jobs, timeout=TIMEOUT)
    }
    return tell(outcomes, seconds=time.monotonic() - began)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", default=[], metavar="NAME", help="only these operators")
    parser.add_argument("--quick", type=int, metavar="N", help="only N operators, evenly spread")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    return parser.parse_args(argv)


def do(job: tuple[str, str]) -> Outcome:
    """Capture one operator and execute its calls again."""
    name, dtype = job
    warnings.simplefilter("ignore")
    if find_operator(name).name in UNDEFINED:
        return Outcome(excluded="contents undefined")
    with tempfile.TemporaryDirectory(prefix="ulpscope-breadth-") as folder:
        captured = capture_operator(Wanted(name, dtype, SAMPLES, FORMS), Path(folder) / "trace")
        if captured.path is None:
            return Outcome(excluded=captured.reason)
        return replay_all(open_trace(captured.path).ranks[0])


def replay_all(rank: RankTrace) -> Outcome:
    plan = plan_cases(rank, CheckOptions(every=True, stress=False, source=DataSource.REAL))
    recorded = read_calls(rank, {case.call for case in plan.cases})
    engine = Engine("cpu")
    failures = [f"{left.op}: {left.reason}" for left in plan.left if "raised" not in left.reason]
    for case in plan.cases:
        try:
            failures += differences(engine.execute(case, recorded[case.call], rank), recorded[case.call], rank)
        except (CannotReplayError, RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            failures.append(f"{case.op}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
    backwards = sum(bool(recorded[case.call].grad_outputs) for case in plan.cases)
    return Outcome(len(plan.cases), backwards, failures=tuple(dict.fromkeys(failures)))


def differences(executed: Executed, recorded: RecordedCall, rank: RankTrace) -> list[str]:
    """Where the call gives something else than it gave in the run."""
    if not executed.evidence:
        return [f"{recorded.call.op}: nothing to judge came out"]
    if recorded.call.random:
        return []
    wanted = [("", recorded.outputs, executed.ran.outputs)]
    if recorded.differentiated:
        wanted.append(("gradient of ", recorded.grad_inputs, executed.ran.gradients))
    found = []
    again = dict(find_repeated(recorded.call.arguments))
    for kind, places, tensors in wanted:
        for place, value in places.items():
            if place in again:
                continue
            data = rank.data(value)
            if place not in tensors:
                found.append(f"{recorded.call.op}: no {kind}{place}")
            elif data is not None and not equal(np.asarray(data), tensors[place]):
                found.append(f"{recorded.call.op}: {kind}{place} differs from the recorded one")
    return found


def equal(recorded: np.ndarray, tensor: Tensor) -> bool:
    elements = elements_of(tensor)
    return elements is not None and same_elements(plain_array(recorded), elements)


def tell(outcomes: dict[str, Outcome], *, seconds: float) -> int:
    counted = {name: outcome for name, outcome in outcomes.items() if outcome.excluded is None}
    failed = {name: outcome for name, outcome in counted.items() if outcome.failures}
    excluded = defaultdict(list)
    for name, outcome in outcomes.items():
        if outcome.excluded is not None:
            excluded[outcome.excluded].append(name)
    calls, backwards = (sum(getattr(each, part) for each in counted.values()) for part in ("calls", "backwards"))
    print(f"{len(outcomes)} operators, {calls} calls, {backwards} of them with a backward, {seconds:.0f} s\n")
    for reason, names in excluded.items():
        print(f"not counted, {reason}: {len(names)}: {', '.join(names)}")
    for name, outcome in failed.items():
        print(f"FAILED {name}: {'; '.join(outcome.failures[:3])}")
    passed = len(counted) - len(failed)
    print(f"\n{passed} of {len(counted)} operators replay ({share(passed, len(counted)):.2%}); bar {BAR:.0%}")
    return 0 if counted and share(passed, len(counted)) >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
