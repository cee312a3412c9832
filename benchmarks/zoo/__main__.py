"""How often `ulpscope compare` names the right fault: captures every run of the zoo, compares, prints the score.

    cd benchmarks && python -m zoo                         the whole zoo, from summaries
    python -m zoo --save tensors                           from saved data; suspects are executed again
    python -m zoo --save tensors --replay on               every call is
    python -m zoo --only 'gpt.*' --only '*norm*'           some cases; patterns of FAMILY.NAME
    python -m zoo --traces DIR                             keep traces and results in DIR; what is there is used again
    python -m zoo --list                                   what there is
    python -m zoo --measure                                how large each fault is beside the noise; compares nothing

Faults are captured on top of fp32 and of bf16 autocast, always against the fp32 run. Those that change what their own
calls make by less than 4 times what bf16 alone does are scored apart. Exit code 1 below the bar: 95 % of the faults
named, no finding on a clean pair.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from zoo.captures import FAMILIES, Asked, Case, Run, capture_all, case_of_clean_pair, case_of_fault, missing_runs
from zoo.clean_pairs import CLEAN_PAIRS
from zoo.effects import measured
from zoo.expectations import CleanPair, Fault
from zoo.faults import FAULTS
from zoo.measuring import Effect
from zoo.printing import print_cases, print_effects, print_scores
from zoo.scoring import Score, compare, total
from zoo.stripping import strip

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Zoo:
    """What is captured and compared."""

    program: str
    description: str | None
    faults: Sequence[Fault]
    clean_pairs: Sequence[CleanPair]
    families: Path = FAMILIES
    prepared: str = "zoo.prepared"
    measures: bool = True
    """Whether faults are measured beside the noise, for which every run is captured with its data."""


ZOO = Zoo("python -m zoo", __doc__, FAULTS, CLEAN_PAIRS)


def main(zoo: Zoo) -> int:
    options = parse(zoo)
    cases = chosen_cases(zoo, options.only)
    if options.list:
        print_cases(cases)
        return 0
    with working_directory(options.traces) as work:
        prepare(cases, work, options, zoo)
        effects = measured(cases, work, jobs=options.jobs) if zoo.measures else {}
        if options.measure:
            print_effects(cases, effects)
            return 0
        scores = scored(cases, effects, work, options)
    print_scores(scores, save=options.save)
    return 0 if total(scores).is_passed else 1


def parse(zoo: Zoo) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=zoo.program, description=zoo.description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--save", choices=["stats", "tensors"], default="stats")
    parser.add_argument("--level", choices=["module", "api", "kernel"], default="api")
    parser.add_argument("--replay", choices=["auto", "on", "off"], default="auto", help="with --save tensors")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="may be repeated")
    parser.add_argument("--traces", "--keep", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--measure", action="store_true")
    return parser.parse_args()


def chosen_cases(zoo: Zoo, patterns: Sequence[str] | None) -> list[Case]:
    faults = [case_of_fault(fault, variant, zoo.families) for fault in zoo.faults for variant in fault.variants]
    cases = [*faults, *(case_of_clean_pair(pair, zoo.families) for pair in zoo.clean_pairs)]
    if not zoo.measures:
        cases = [replace(case, baseline=None) for case in cases]
    if not patterns:
        return cases
    return [case for case in cases if any(fnmatch.fnmatch(case.subject.name, pattern) for pattern in patterns)]


@contextlib.contextmanager
def working_directory(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="zoo-") as directory:
        yield Path(directory)


def prepare(cases: Sequence[Case], work: Path, options: argparse.Namespace, zoo: Zoo) -> None:
    """Every run is captured once, with data; what `--save stats` would have left is made of that."""
    save = "tensors" if zoo.measures else options.save
    missing = missing_runs(cases, work / save)
    count = Countdown("captured", len(missing))
    asked = Asked(save, options.level)
    capture_all(missing, work / save, asked=asked, jobs=options.jobs, done=count, prepared=zoo.prepared)
    if options.save != save:
        (work / "stats").mkdir(exist_ok=True)
        missing = missing_runs(cases, work / "stats")
        spread(lambda run: strip(work / "tensors" / run.name, work / "stats" / run.name), missing, options.jobs)


def scored(cases: Sequence[Case], effects: dict[str, Effect], work: Path, options: argparse.Namespace) -> list[Score]:
    count = Countdown("compared", len(cases))
    results = work / "results" / options.save

    def score(case: Case) -> Score:
        found = compare(case, work / options.save, results, replay=options.replay)
        effect = effects.get(case.name) if case.baseline is not None else None
        count(case)
        return Score(case, found.findings, found.problem, effect)

    results.mkdir(parents=True, exist_ok=True)
    return spread(score, cases, options.jobs)


def spread(work: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> list[Result]:
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(work, items))


class Countdown:
    """Tells progress on stderr, on a terminal only."""

    def __init__(self, verb: str, count: int) -> None:
        self.verb, self.count, self.done = verb, count, 0

    def __call__(self, item: Run | Case) -> None:
        self.done += 1
        if sys.stderr.isatty():
            print(f"{self.verb} {self.done} of {self.count}: {item.name}", file=sys.stderr)


if __name__ == "__main__":
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    sys.exit(main(ZOO))
