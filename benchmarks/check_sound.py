"""Does `ulpscope check` leave sound kernels alone? PyTorch's own CPU kernels, checked against float64.

    python benchmarks/check_sound.py                        models and the operator database, three dtypes
    python benchmarks/check_sound.py --part models          a GPT, a CNN and an LSTM training step
    python benchmarks/check_sound.py --quick 40             40 operators, spread over the database
    python benchmarks/check_sound.py --ops gelu --verbose   one operator, with what was found

A verdict is counted for each direction of each case. Exit code 1 if a kernel FAILs that is not among the finds (what
these kernels do wrong indeed, each proven by sound_finds.py), if more than 3 % WARN, or if more than 8 % are skipped or
untested.
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
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from isolated import Died, do_isolated
from operator_calls import Wanted, capture_operator, chosen_operators, share
from sound_finds import FINDS, Find, find_of
from sound_models import MODELS, capture_model
from ulpscope.dialects.opening import open_run
from ulpscope.records.check_runs import CheckOptions, CheckStandard
from ulpscope.records.checks import CaseResult, DataSource, Direction, OutputResult, Verdict
from ulpscope.replay.planning import plan_cases
from ulpscope.replay.torch.engine import Engine
from ulpscope.workflows.check.journal import WorkerSettings
from ulpscope.workflows.check.worker import Bench

DTYPES = ("float32", "bfloat16", "float16")
SAMPLES = 4
TIMEOUT = 120.0
WARN_BAR, UNTESTED_BAR = 0.03, 0.08


@dataclass(frozen=True, slots=True)
class Job:
    """One trace to make and to check."""

    name: str
    dtype: str
    source: DataSource | None = None
    """Of a model: its saved data, or data regenerated from stats. None: an operator."""


@dataclass(frozen=True, slots=True)
class Row:
    """One direction of one case."""

    job: str
    op: str
    variant: str
    direction: str
    dtype: str
    verdict: Verdict
    statistic: str
    place: str
    message: str

    @property
    def text(self) -> str:
        where = f"{self.job}: {self.op} {self.variant} {self.place}"
        return f"{self.verdict.value} {self.dtype} {where} [{self.statistic}] {self.message}"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    began = time.monotonic()
    rows: list[Row] = []
    for job, outcome in do_isolated(do, jobs_of(arguments), jobs=arguments.jobs, timeout=TIMEOUT):
        found = [died(job, outcome)] if isinstance(outcome, Died) else outcome
        rows += found
        if arguments.verbose:
            tell_rows(found)
    return tell(rows, seconds=time.monotonic() - began)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("models", "operators"), help="only these")
    parser.add_argument("--ops", nargs="+", default=[], metavar="NAME", help="only these operators of the database")
    parser.add_argument("--quick", type=int, metavar="N", help="only N operators, evenly spread")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--verbose", action="store_true", help="tell what is not PASS as it comes")
    return parser.parse_args(argv)


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    jobs = []
    if arguments.part != "operators" and not arguments.ops:
        jobs += [Job(name, dtype, source) for name in MODELS for dtype in arguments.dtypes for source in DataSource]
    if arguments.part != "models":
        names = chosen_operators(arguments.ops, arguments.quick)
        jobs += [Job(name, dtype) for name in names for dtype in arguments.dtypes]
    return jobs


def do(job: Job) -> list[Row]:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="ulpscope-sound-") as folder:
        path = Path(folder) / "trace"
        if job.source is not None:
            capture_model(job.name, job.dtype, path)
            return check(job, path, CheckOptions(every=True, source=job.source))
        captured = capture_operator(Wanted(job.name, job.dtype, SAMPLES), path)
        return [] if captured.path is None else check(job, path, CheckOptions(stress=False))


def check(job: Job, path: Path, choice: CheckOptions) -> list[Row]:
    """Plan and execute as the command does."""
    rank = open_run(path).ranks[0]
    plan = plan_cases(rank, choice)
    settings = WorkerSettings(str(path), "cpu", seed=0, standard=CheckStandard.ROUNDING)
    bench = Bench(settings, Engine("cpu"))
    rows = [
        Row(job.name, each.op, "recorded", "forward", job.dtype, Verdict.SKIP, "left", "", each.reason)
        for each in plan.left
    ]
    for checked in bench.check(plan.cases):
        rows += rows_of(job, checked.result)
    return rows


def rows_of(job: Job, result: CaseResult) -> Iterable[Row]:
    for direction, verdict in ((Direction.FORWARD, result.forward), (Direction.BACKWARD, result.backward)):
        if verdict is None:
            continue
        decisive = _decisive(result, direction, verdict)
        yield Row(
            job=job.name,
            op=result.case.op,
            variant=f"{result.case.variant.value}/{result.case.source.value}",
            direction=direction.value,
            dtype=job.dtype,
            verdict=verdict,
            statistic=decisive.statistic if decisive else "",
            place=decisive.place if decisive else "",
            message=decisive.message if decisive else result.message,
        )


def _decisive(result: CaseResult, direction: Direction, verdict: Verdict) -> OutputResult | None:
    outputs = (each for each in result.outputs if each.direction is direction and each.verdict is verdict)
    return next(outputs, None)


def died(job: Job, outcome: Died) -> Row:
    verdict = Verdict.TIMEOUT if outcome.reason.startswith("took") else Verdict.CRASH
    return Row(job.name, job.name, "recorded", "forward", job.dtype, verdict, "", "", outcome.reason)


def tell_rows(rows: Iterable[Row]) -> None:
    for row in rows:
        if row.verdict is not Verdict.PASS:
            print(row.text, flush=True)


def tell(rows: Sequence[Row], *, seconds: float) -> int:
    print(f"{len(rows)} verdicts in {seconds:.0f} s\n")
    for title, part in parts_of(rows).items():
        print(f"{title}")
        for dtype in DTYPES:
            tell_counts(dtype, [row for row in part if row.dtype == dtype])
    unexplained = tell_wrong(rows)
    tell_reasons(rows)
    return 1 if unexplained or not within_bars(rows) else 0


def parts_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    models = [row for row in rows if row.job in MODELS]
    operators = [row for row in rows if row.job not in MODELS]
    return {title: part for title, part in (("models", models), ("operator database", operators)) if part}


def tell_counts(dtype: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    counts = Counter(row.verdict for row in rows)
    shown = "  ".join(f"{verdict.value} {counts[verdict]}" for verdict in Verdict if counts[verdict])
    left = counts[Verdict.SKIP] + counts[Verdict.UNTESTED]
    shares = f"WARN {share(counts[Verdict.WARN], len(rows)):.1%}, left {share(left, len(rows)):.1%}"
    print(f"  {dtype:9} {len(rows):5}  {shown}   ({shares})")


def tell_wrong(rows: Sequence[Row]) -> int:
    """FAILs by find, and those that none explains, which are counted."""
    failed = [row for row in rows if row.verdict in (Verdict.FAIL, Verdict.CRASH, Verdict.TIMEOUT)]
    explained: dict[Find, list[Row]] = {find: [] for find in FINDS}
    alone = []
    for row in failed:
        find = find_of(row.op, row.dtype, row.place)
        (alone if find is None else explained[find]).append(row)
    print()
    for find, found in explained.items():
        if found:
            print(f"find ({len(found)} FAIL): {find.sentence}")
    for row in alone:
        print(row.text)
    print(f"{len(alone)} FAIL that no find explains")
    return len(alone)


def tell_reasons(rows: Sequence[Row]) -> None:
    print("\nWARN")
    for (op, dtype, place, statistic), count in Counter(
        (row.op, row.dtype, row.place, row.statistic) for row in rows if row.verdict is Verdict.WARN
    ).most_common():
        print(f"  {count:3} {op} {dtype} {place} {statistic}")
    print("\nSKIP and UNTESTED, by reason")
    left = [row for row in rows if row.verdict in (Verdict.SKIP, Verdict.UNTESTED)]
    for (verdict, reason), count in Counter((row.verdict, row.statistic or row.message) for row in left).most_common():
        ops = sorted({row.op for row in left if (row.verdict, row.statistic or row.message) == (verdict, reason)})
        print(f"  {count:4} {verdict.value} {reason}: {', '.join(ops[:8])}")


def within_bars(rows: Sequence[Row]) -> bool:
    counts = Counter(row.verdict for row in rows)
    warned = share(counts[Verdict.WARN], len(rows))
    left = share(counts[Verdict.SKIP] + counts[Verdict.UNTESTED], len(rows))
    print(f"\nWARN {warned:.2%} (bar {WARN_BAR:.0%}), SKIP and UNTESTED {left:.2%} (bar {UNTESTED_BAR:.0%})")
    return warned <= WARN_BAR and left <= UNTESTED_BAR and bool(rows)


if __name__ == "__main__":
    sys.exit(main())
