"""Runs benchmarks that have a bar in docs/benchmarks.md, and prints each figure beside its bar.

    python benchmarks/bars.py                        all that are joined here
    python benchmarks/bars.py --only start metrics   some
    python benchmarks/bars.py --list                 which there are, and which are run by hand and why

Exit code 1 if a bar is missed. Figures of time are those of the machine as it is: close other work, or read ratios.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import compare_speed
import make_msprobe_dump
import start
import tensor_metrics

REPEAT = 5
METRICS_BYTES, METRICS_SECONDS = 128 << 20, 3.0


@dataclass(frozen=True, slots=True)
class Figure:
    """What came out, beside what is asked for."""

    what: str
    figure: float
    unit: str
    bar: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.figure >= self.bar if self.at_least else self.figure <= self.bar


def starting() -> Iterator[Figure]:
    yield Figure("ulpscope --help", min(start.help_seconds() for _ in range(start.TRIES)), "s", start.BAR)


def comparing() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        pair = compare_speed.capture_pair(Path(directory))
        yield Figure("compare, two traces of 112,000 tensors", _best(*pair), "s", 3.0)


def growing() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        for name, (_, longer) in compare_speed.measure_growth(Path(directory), repeat=2).items():
            yield Figure(f"compare, four times as many {name}", longer, "times as long", 4.5)


def comparing_dumps() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        list(make_msprobe_dump.make(Path(directory), 242))
        seconds = _best(Path(directory) / "reference", Path(directory) / "target")
        yield Figure("compare, two statistics dumps of msprobe, 112,000 rows", seconds, "s", 4.0)


def metrics() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        for name, reference, target, *bars in tensor_metrics.CASES:
            for detailed, bar in zip((False, True), bars, strict=True):
                if bar is None:
                    continue
                pair = tensor_metrics.write_pair(Path(directory), name, (reference, target), METRICS_BYTES)
                _, cpu = tensor_metrics.best_seconds(
                    lambda pair=pair, detailed=detailed: pair.compare(detailed), METRICS_SECONDS
                )
                what = f"metrics of {name}{', detailed' if detailed else ''}, a core"
                yield Figure(what, pair.bytes / cpu / 1e9, "GB/s", bar, at_least=True)


def _best(reference: Path, target: Path) -> float:
    return min(compare_speed.time_compare(reference, target).seconds for _ in range(REPEAT))


BENCHMARKS: dict[str, Callable[[], Iterator[Figure]]] = {
    "start": starting,
    "compare": comparing,
    "growth": growing,
    "dumps": comparing_dumps,
    "metrics": metrics,
}
BY_HAND = {
    "needs an accelerator": "fused.py device.py check_device.py compare_device.py, capture.py --device cuda",
    "needs msprobe or msaccucmp beside it": "capture.py saving.py msprobe_roundtrip.py ascend_compare.py",
    "takes long": "same_numbers.py breadth.py check_sound.py check_faults.py python -m zoo ledger_scan.py "
    "scale.py ascend_hostile.py",
    "not joined to this table yet": "summaries.py pairing.py crash.py check_breadth.py check_speed.py call_cost.py "
    "ascend.py ascend_graph.py report.py",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        print("run here:", *BENCHMARKS)
    missed = 0
    for name in () if arguments.list else arguments.only:
        for found in BENCHMARKS[name]():
            missed += not found.met
            least = "at least" if found.at_least else "at most"
            bar = f"bar {least} {found.bar:g}"
            print(f"{found.what:58} {found.figure:8.2f} {found.unit:14} {bar:18} {'met' if found.met else 'MISSED'}")
    for why, scripts in BY_HAND.items():
        print(f"not run here, {why}: {scripts}")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
