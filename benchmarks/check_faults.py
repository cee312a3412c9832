"""Does `ulpscope check` find wrong kernels? Faults as real kernels have had them, each in the place of a sound one.

    python benchmarks/check_faults.py                            all faults, three dtypes, saved data and stats
    python benchmarks/check_faults.py --only layer_norm          those whose name holds a word
    python benchmarks/check_faults.py --dtypes float32 --verbose

Every call is also checked unharmed: a FAIL of one is an accusation of a sound kernel, and a fault counts as found only
by outputs whose verdicts are worse with it than without. Exit code 1 if fewer than 95 % of the faults FAIL or WARN, if
fewer than 85 % FAIL, or if an unharmed call FAILs other than by a fault of its own that sound_finds.py proves.
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from faults.catalogue import CATALOGUE
from faults.checking import Job, Outcome, do, made_worse
from faults.making import ALL
from isolated import Died, do_isolated
from sound_finds import find_of
from ulpscope.records.checks import Verdict

SAVES = ("tensors", "stats")
TIMEOUT = 120.0
FOUND_BAR, FAIL_BAR = 0.95, 0.85
FOUND = (Verdict.FAIL, Verdict.WARN)

Judged = dict[Job, Outcome]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    jobs = jobs_of(arguments)
    if not jobs:
        raise SystemExit(f"no fault has {' or '.join(arguments.only)} in its name")
    begun = time.monotonic()
    judged: Judged = {}
    for job, outcome in do_isolated(do, jobs, jobs=arguments.jobs, timeout=TIMEOUT):
        judged[job] = Outcome(Verdict.CRASH, outcome.reason) if isinstance(outcome, Died) else outcome
        if arguments.verbose:
            print(line(job, judged[job]), flush=True)
    return tell(judged, seconds=time.monotonic() - begun)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="faults with one of these in their name")
    parser.add_argument("--dtypes", nargs="+", default=ALL, choices=ALL)
    parser.add_argument("--saves", nargs="+", default=SAVES, choices=SAVES, help="what traces hold")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--verbose", action="store_true", help="tell every verdict as it comes")
    return parser.parse_args(argv)


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    """Each fault in each dtype, and each call of theirs once without a fault."""
    jobs: list[Job] = []
    calls = set()
    for each in CATALOGUE.values():
        if arguments.only and not any(word.replace("_", " ") in each.name.replace("_", " ") for word in arguments.only):
            continue
        for dtype in (dtype for dtype in each.dtypes if dtype in arguments.dtypes):
            for save in arguments.saves:
                job = Job(each.name, dtype, save)
                jobs.append(job)
                if call_of(job) not in calls:
                    calls.add(call_of(job))
                    jobs.append(replace(job, harmed=False))
    return jobs


def tell(judged: Judged, *, seconds: float) -> int:
    told = {job: outcome for job, outcome in judged.items() if job.harmed}
    controls = {job: outcome for job, outcome in judged.items() if not job.harmed}
    faults = earned(told, controls)
    names, ops = {job.fault for job in faults}, {(CATALOGUE[job.fault].op, job.dtype) for job in faults}
    print(f"{len(names)} faults, {len(ops)} ops x dtypes, {len(faults)} checked in {seconds:.0f} s\n")
    print("what the command says of calls with a fault")
    tell_table(told)
    print("\nby outputs that are worse with the fault than without")
    tell_table(faults)
    print("\nunharmed")
    tell_table(controls)
    tell_rest("missed", (job for job in faults if faults[job].verdict not in FOUND), faults)
    tell_rest("WARN only", (job for job in faults if faults[job].verdict is Verdict.WARN), faults)
    tell_rest(
        "unharmed, and not PASS", (job for job in controls if controls[job].verdict is not Verdict.PASS), controls
    )
    return 0 if within_bars(faults, controls) else 1


def earned(told: Judged, controls: Judged) -> Judged:
    """Verdicts that are the faults' own."""
    unharmed = {call_of(job): outcome for job, outcome in controls.items()}
    return {job: replace(outcome, verdict=made_worse(outcome, unharmed[call_of(job)])) for job, outcome in told.items()}


def call_of(job: Job) -> tuple[object, ...]:
    fault = CATALOGUE[job.fault]
    return fault.op, fault.giving, job.dtype, job.save


def tell_table(judged: Judged) -> None:
    print(f"  {'':18} {'checked':>8} {'FAIL':>6} {'WARN':>6} {'other':>6} {'FAIL':>8} {'FAIL or WARN':>13}")
    for title, part in parts_of(judged).items():
        counts = Counter(outcome.verdict for outcome in part)
        failed, warned = counts[Verdict.FAIL], counts[Verdict.WARN]
        shares = f"{failed / len(part):8.1%} {(failed + warned) / len(part):13.1%}"
        print(f"  {title:18} {len(part):8} {failed:6} {warned:6} {len(part) - failed - warned:6} {shares}")


def parts_of(judged: Judged) -> dict[str, list[Outcome]]:
    parts: dict[str, list[Outcome]] = {}
    for job, outcome in judged.items():
        parts.setdefault(f"{job.dtype} {job.save}", []).append(outcome)
    return {**dict(sorted(parts.items())), "all": list(judged.values())} if judged else {}


def tell_rest(title: str, jobs: Iterable[Job], judged: Judged) -> None:
    lines = [line(job, judged[job]) for job in jobs]
    print(f"\n{title}: {len(lines)}")
    for each in lines:
        print(f"  {each}")


def line(job: Job, outcome: Outcome) -> str:
    size = f" (changes {outcome.changed:.2%}, by {outcome.halves:.3g} half ulp at most)"
    missed = job.harmed and outcome.verdict not in FOUND
    name = job.fault if job.harmed else f"unharmed: {job.fault}"
    return f"{outcome.verdict.value} {name}, {job.dtype}, {job.save}{size if missed else ''}: {outcome.told[:240]}"


def within_bars(faults: Judged, controls: Judged) -> bool:
    counts = Counter(outcome.verdict for outcome in faults.values())
    failed = counts[Verdict.FAIL] / len(faults)
    found = failed + counts[Verdict.WARN] / len(faults)
    accused = sum(is_accused(job, outcome) for job, outcome in controls.items())
    print(f"\nFAIL {failed:.1%} (bar {FAIL_BAR:.0%}), FAIL or WARN {found:.1%} (bar {FOUND_BAR:.0%})")
    print(f"{accused} of {len(controls)} unharmed calls FAIL and no find explains it (bar 0)")
    return failed >= FAIL_BAR and found >= FOUND_BAR and not accused


def is_accused(job: Job, unharmed: Outcome) -> bool:
    """Whether a sound kernel FAILs at a place where nothing is known to be wrong with it."""
    failed = [place.split()[-1] for place, verdict in unharmed.verdicts if verdict is Verdict.FAIL]
    unexplained = any(find_of(CATALOGUE[job.fault].op, job.dtype, place) is None for place in failed)
    return unexplained or unharmed.verdict in (Verdict.CRASH, Verdict.TIMEOUT)


if __name__ == "__main__":
    sys.exit(main())
