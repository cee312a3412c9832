"""Runs the benchmarks that have a bar in docs/benchmarks.md, and prints each figure beside its bar.

    python benchmarks/bars.py                        all that end within minutes
    python benchmarks/bars.py --all                  those that take up to hours, too
    python benchmarks/bars.py --only start metrics   some
    python benchmarks/bars.py --list                 which there are, and which are run by hand and why

Each is run as docs/benchmarks.md says, in a process of its own, and its figures are read from what it prints. Exit code
1 if a bar is missed or a figure is not there. Figures of time are those of the machine as it is: close other work, or
read ratios.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
NUMBER = r"([\d.,]*\d)"


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure that a benchmark prints, and what is asked of it."""

    what: str
    pattern: str
    """The figure is its group, added up where there are several; without a group, how often it is there."""
    unit: str
    bar: float
    at_least: bool = False

    def figure(self, printed: str) -> float | None:
        pattern = re.compile(self.pattern.replace("NUMBER", NUMBER), re.MULTILINE)
        found = pattern.findall(printed)
        if not pattern.groups:
            return float(len(found))
        return sum(float(number.replace(",", "")) for number in found) if found else None

    def met(self, figure: float | None) -> bool:
        return figure is not None and (figure >= self.bar if self.at_least else figure <= self.bar)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Commands without Python's name, one after the other in one empty FOLDER, and the bars of what they print."""

    commands: tuple[str, ...]
    bars: tuple[Bar, ...]
    long: bool = False
    host: str | None = None
    """Who records calls, where that matters."""

    def run(self) -> str:
        environment = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1", **os.environ}
        if self.host is not None:
            environment["ULPSCOPE_HOST"] = self.host
        printed = []
        with tempfile.TemporaryDirectory(prefix="ulpscope-bars-") as folder:
            for command in self.commands:
                words = [sys.executable, *(word.replace("FOLDER", folder) for word in command.split())]
                done = subprocess.run(words, cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True, check=False)
                if done.returncode not in (0, 1):
                    print(f"{command}: exit code {done.returncode}", flush=True)
                    return ""
                printed.append(done.stdout)
        return "".join(printed)


def _failed(what: str) -> Bar:
    return Bar(what, r"passed, NUMBER failed", "failed", 0)


BENCHMARKS = {
    "start": Benchmark(
        ("start.py help step",),
        (
            Bar("ulpscope --help", r"--help .*: NUMBER s, at most", "s", 0.4),
            Bar("first capture of one step, on top", r"^first capture.*: NUMBER s, at most", "s", 3.0),
            Bar("second capture of one step, on top", r"^second capture.*: NUMBER s, at most", "s", 1.0),
        ),
    ),
    "tiny": Benchmark(
        ("start.py tiny",),
        (Bar("100,000 tiny calls, compiled host part", r"compiled part.*: NUMBER x, at most", "times plain", 10.0),),
    ),
    "calls": Benchmark(
        ("call_cost.py",),
        (
            Bar("a captured call without its summaries", r"^bare +NUMBER us", "us", 25.0),
            Bar("steps outside of --steps", r"^outside +NUMBER x", "times plain", 1.02),
        ),
        host="compiled",
    ),
    "compare": Benchmark(
        ("compare_speed.py",), (Bar("compare, two traces of 112,000 tensors", r"^seconds +NUMBER", "s", 3.0),)
    ),
    "growth": Benchmark(
        ("compare_speed.py --growth --repeat 2",),
        (
            Bar("compare, four times as many layers", r"^more layers.*, NUMBER times as long", "times as long", 4.5),
            Bar("compare, four times as many steps", r"^more steps.*, NUMBER times as long", "times as long", 4.5),
        ),
    ),
    "dumps": Benchmark(
        ("make_msprobe_dump.py make FOLDER", "compare_speed.py FOLDER/reference FOLDER/target"),
        (Bar("compare, two statistics dumps of msprobe, 112,000 rows", r"^seconds +NUMBER", "s", 4.0),),
    ),
    "metrics": Benchmark(
        ("tensor_metrics.py --megabytes 128",),
        tuple(
            Bar(f"metrics of {name}, {kind}, a core", rf"^{name} +{kind} +NUMBER", "GB/s", bar, at_least=True)
            for name, *bars in (("float32", 2.0, 0.5), ("bfloat16", 2.0, 0.5), ("float32 transposed", 1.0, 0.4))
            for kind, bar in zip(("default", "detailed"), bars, strict=True)
        ),
    ),
    "summaries": Benchmark(
        ("summaries.py",),
        (
            Bar("estimates by width and kind of error that hold", r" ok$", "of 80", 80, at_least=True),
            Bar("estimates that do not", r" MISSED$", "of 80", 0),
        ),
    ),
    "pairing": Benchmark(("pairing.py",), (_failed("scenarios with another gradient than autograd's"),)),
    "parting": Benchmark(
        ("parting.py",), (Bar("pairs of trainings that are told wrong", r" WRONG: ", "of 34", 0),), long=True
    ),
    "overflow_zoo": Benchmark(
        ("overflow_zoo.py",),
        (
            Bar("overflows that are named", r" named$", "of 19", 19, at_least=True),
            Bar("alarms in healthy trainings", r" ALARM: ", "of 9", 0),
        ),
        long=True,
    ),
    "monitoring": Benchmark(
        ("monitoring.py",),
        (
            Bar("planted anomalies that are missed", r"^MISSED ", "of 14", 0),
            Bar("healthy trainings that are not silent", r"^ALARM ", "of 26", 0),
        ),
        long=True,
    ),
    "crash": Benchmark(("crash.py",), (_failed("deaths and full disks after which something is lost"),)),
    "speed": Benchmark(
        ("check_speed.py", "check_speed.py --dtype bfloat16"),
        tuple(
            Bar(f"check, {dtype}", rf"^{dtype}: .* APIs, NUMBER a second", "APIs a second", 20.0, at_least=True)
            for dtype in ("float32", "bfloat16")
        ),
    ),
    "ascend": Benchmark(
        ("ascend.py --gigabytes 2",),
        (
            Bar("convert, 2 GB of dumps", r"^convert --to npy  .* NUMBER GB/s", "GB/s", 0.3, at_least=True),
            Bar("convert to another layout", r"^convert .*--layout ND .* NUMBER GB/s", "GB/s", 0.3, at_least=True),
        ),
    ),
    "size": Benchmark(
        ("size.py",),
        (
            Bar("modules of the package", r"^NUMBER modules, ", "modules", 380),
            Bar("its lines of code, without imports", r"of them imports, NUMBER without", "lines", 36_000),
        ),
    ),
    "graph": Benchmark(
        ("ascend_graph.py",), (Bar("a graph of 10,000 operators, opened", r"^parsed NUMBER s", "s", 15.0),)
    ),
    "report": Benchmark(
        ("report.py",),
        tuple(
            Bar(
                f"page of {tensors} tensors, {what}",
                rf"^\| {tensors} \|.* NUMBER \((?:at most|MISSES) {bar:g}\)",
                unit,
                bar,
            )
            for tensors, what, unit, bar in (
                ("5,000", "size", "MB", 8.0),
                ("5,000", "first view", "s", 2.0),
                ("200,000", "size", "MB", 40.0),
                ("200,000", "first view", "s", 6.0),
                ("200,000", "filter by text", "s", 0.3),
            )
        ),
    ),
    "replay": Benchmark(
        ("check_breadth.py",),
        (Bar("operators that replay", r"operators replay \(NUMBER%", "%", 95.0, at_least=True),),
        long=True,
    ),
    "breadth": Benchmark(
        ("breadth.py",),
        (Bar("operators that are captured truly", r"operators pass \(NUMBER%", "%", 99.0, at_least=True),),
        long=True,
    ),
    "same": Benchmark(("same_numbers.py",), (_failed("captured runs that differ from the plain one"),), long=True),
    "scale": Benchmark(
        ("scale.py",), (Bar("a million calls, bars missed", r"^\d+ bars missed", "runs", 0),), long=True
    ),
    "ledger": Benchmark(
        ("ledger_scan.py",),
        (Bar("guilty call named first", r"^NUMBER% of \d+ faults named", "%", 95.0, at_least=True),),
        long=True,
    ),
    "sound": Benchmark(
        ("check_sound.py",),
        (
            Bar("sound kernels accused", r"^NUMBER FAIL that no find explains", "FAIL", 0),
            Bar("sound kernels, WARN", r"^WARN NUMBER%", "%", 3.0),
            Bar("sound kernels, SKIP and UNTESTED", r"UNTESTED NUMBER% \(bar", "%", 8.0),
        ),
        long=True,
    ),
    "wrong": Benchmark(
        ("check_faults.py",),
        (
            Bar("wrong kernels, FAIL", r"^FAIL NUMBER% \(bar", "%", 85.0, at_least=True),
            Bar("wrong kernels, FAIL or WARN", r"FAIL or WARN NUMBER% \(bar", "%", 95.0, at_least=True),
            Bar("unharmed calls accused", r"^NUMBER of [\d,]+ unharmed calls FAIL", "FAIL", 0),
        ),
        long=True,
    ),
    **{
        name: Benchmark(
            (f"-m zoo --save {save}",),
            (
                Bar(f"faults named, from {save}", r"faults named .*\(NUMBER%\), bar", "%", 95.0, at_least=True),
                Bar(f"findings on clean pairs, from {save}", r"false alarms +NUMBER of", "pairs", 0),
            ),
            long=True,
        )
        for name, save in (("zoo", "stats"), ("zoo-tensors", "tensors"))
    },
    "repeat": Benchmark(
        ("repeating.py",),
        (
            Bar(
                "scripts of nine, named with what makes them repeatable",
                r"^NUMBER of \d+ right",
                "scripts",
                9,
                at_least=True,
            ),
        ),
        long=True,
    ),
    "investigate": Benchmark(
        ("investigating.py",),
        (Bar("pairs of commands that end at another finding", r" WRONG: ", "of 12", 0),),
        long=True,
    ),
    "hostile": Benchmark(
        ("hostile.py --files 2000",),
        (Bar("mutations without an answer or a clear error", r", NUMBER wrong in", "wrong", 0),),
        long=True,
    ),
}
BY_HAND = {
    "needs an accelerator": "fused.py device.py check_device.py compare_device.py, capture.py --device cuda",
    "needs an environment with TensorFlow": "capture_tf.py coverage_tf.py same_numbers_tf.py check_sound_tf.py",
    "needs msprobe or msaccucmp beside it": "capture.py saving.py msprobe_roundtrip.py ascend_compare.py",
    "needs kept runs of the sealed sets": "gains.py twin_power.py",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS)
    parser.add_argument("--all", action="store_true", help="also those that take long")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = arguments.only or [name for name, each in BENCHMARKS.items() if arguments.all or not each.long]
    left = [name for name in BENCHMARKS if name not in chosen]
    missed = 0
    if arguments.list:
        print("run here:", *chosen)
    else:
        missed = sum(not met for name in chosen for met in _told(BENCHMARKS[name]))
    if left:
        print("left out:", *left)
    for why, scripts in BY_HAND.items():
        print(f"run by hand, {why}: {scripts}")
    return 1 if missed else 0


def _told(benchmark: Benchmark) -> Iterator[bool]:
    printed = benchmark.run()
    for bar in benchmark.bars:
        figure = bar.figure(printed) if printed else None
        number = "no figure" if figure is None else f"{figure:.2f}"
        asked = f"bar {'at least' if bar.at_least else 'at most'} {bar.bar:g}"
        met = bar.met(figure)
        print(f"{bar.what:58} {number:>9} {bar.unit:14} {asked:18} {'met' if met else 'MISSED'}", flush=True)
        yield met


if __name__ == "__main__":
    sys.exit(main())
