"""A trace of a million calls: memory of the captured run, opening it, and looking up one call.

    python benchmarks/scale.py                                  captures three runs of 1,000,000 calls: half an hour
    python benchmarks/scale.py --shape training --calls 50000   one of them, and smaller
    python benchmarks/scale.py --trace DIR                      times a trace that is there

training: 1,000 calls a step, whose losses are kept; evaluation: 500 calls a step, without an optimizer, whose outputs
are kept; loop: one step without modules. Each script also runs plain: memory that the script itself keeps does not
count. Processes are timed from outside, lookups in a trace that was opened anew. Exit code 1 if a bar is missed.
"""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ulpscope.records.calls import Call
from ulpscope.records.runs import IntRanges
from ulpscope.trace.overview import overview_of
from ulpscope.trace.query import CallFilter, find_call, neighbours
from ulpscope.trace.reader import RankTrace, Trace, open_trace
from ulpscope.workflows.show.command import show

CALLS = 1_000_000
# A third of the smallest Python object with a reference to it: nothing may be kept for each call.
GROWTH_BAR = 16.0
OPEN_BAR = 2.0
LOOKUP_BAR = 0.2
TRIES = 3
SAMPLES = 200
ULPSCOPE = (sys.executable, "-m", "ulpscope")

SCRIPT = """
import os, sys
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
times, samples = int(sys.argv[1]), open(sys.argv[2], "w", buffering=1)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

kept = []
%(before)s
for time in range(times):
%(work)s
    if time %% max(1, times // %(samples)d) == 0:
        with open("/proc/self/statm") as memory:
            samples.write(f"{int(memory.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')}\\n")
"""


@dataclass(frozen=True)
class Shape:
    """A script, and how many calls one turn of its loop makes."""

    name: str
    calls: int
    before: str
    work: str

    @property
    def script(self) -> str:
        work = "\n".join(f"    {line}" for line in self.work.strip().splitlines())
        return SCRIPT % {"before": self.before.strip(), "work": work, "samples": SAMPLES}


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "training",
            998,
            """
model = nn.Sequential(*(Block() for _ in range(55)))
optimizer = torch.optim.AdamW(model.parameters())
""",
            """
loss = model(torch.randn(8, 16)).square().mean()
optimizer.zero_grad()
loss.backward()
optimizer.step()
kept.append(loss.detach())
""",
        ),
        Shape(
            "evaluation",
            498,
            """
model = nn.Sequential(*(Block() for _ in range(55))).eval()
torch.set_grad_enabled(False)
""",
            """
kept.append(model(torch.randn(8, 16)).argmax(-1))
""",
        ),
        Shape(
            "loop",
            6,
            """
x = torch.randn(8, 16)
""",
            """
x = torch.sin(x * 3 + 1)
x = nn.functional.layer_norm(x, (16,))
x = (x * 0.9).clamp(-3, 3)
""",
        ),
    )
}


@dataclass(frozen=True)
class Row:
    """One figure, and the most that it may be."""

    what: str
    measured: float
    unit: str
    bar: float | None = None

    @property
    def missed(self) -> bool:
        return self.bar is not None and not self.measured <= self.bar

    def __str__(self) -> str:
        bar = "" if self.bar is None else f"{self.bar:10.3g} {'MISSED' if self.missed else 'holds'}"
        return f"  {self.what:58}{self.measured:12.4g} {self.unit:8}{bar}"


@dataclass
class Made:
    """A captured run."""

    trace: Path
    rows: list[Row] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    with tempfile.TemporaryDirectory(prefix="ulpscope-scale-") as folder:
        out = arguments.out or Path(folder)
        made = [Made(arguments.trace)] if arguments.trace else make_all(arguments.shape, arguments.calls, out)
        missed = [row for one in made for row in tell(one)]
    print(f"{len(missed)} bars missed" if missed else "all bars hold")
    return 1 if missed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=CALLS, help=f"calls of a trace (default: {CALLS:,})")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--out", type=Path, help="keep the traces in this directory")
    parser.add_argument("--trace", type=Path, help="time this trace; make none")
    return parser.parse_args(argv)


def make_all(names: Sequence[str], calls: int, out: Path) -> Iterator[Made]:
    for name in names:
        yield make(SHAPES[name], calls, out)


def make(shape: Shape, calls: int, out: Path) -> Made:
    """Capture a script, and run it plain."""
    out.mkdir(parents=True, exist_ok=True)
    script, samples, trace = (out / f"{shape.name}{ending}" for ending in (".py", ".txt", ""))
    script.write_text(shape.script)
    program = [sys.executable, str(script), str(max(1, calls // shape.calls)), str(samples)]
    subprocess.run(program, check=True)
    plain = growth(read_samples(samples))
    began = time.perf_counter()
    command = [*ULPSCOPE, "run", "-o", str(trace), "--overwrite", "--", *program]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    info = open_trace(trace).ranks[0].info
    if info.errors:
        raise SystemExit(f"scale: the capture had errors of its own: {info.errors}")
    recorded, memory = info.coverage.calls_recorded, read_samples(samples)
    nbytes = sum(file.stat().st_size for file in trace.rglob("*") if file.is_file())
    return Made(
        trace,
        [
            Row("calls recorded", recorded, ""),
            Row("calls a second, of the whole run", recorded / seconds, "/s"),
            Row("memory, median of the last fifth", statistics.median(fifth(memory, 4)) / 2**20, "MiB"),
            Row("growth of memory, above the plain run's", (growth(memory) - plain) / recorded, "B/call", GROWTH_BAR),
            Row("on disk", nbytes / info.coverage.values, "B/value"),
        ],
    )


def read_samples(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def fifth(samples: Sequence[int], which: int) -> Sequence[int]:
    """Of equal parts in time; each has at least one sample."""
    begin, end = len(samples) * which // 5, len(samples) * (which + 1) // 5
    return samples[begin : max(end, begin + 1)]


def growth(samples: Sequence[int]) -> float:
    """Bytes by which a run's memory grows from its begin to its end, judged by what it does after its first fifth."""
    return (statistics.median(fifth(samples, 4)) - statistics.median(fifth(samples, 1))) / 3 * 5


def tell(made: Made) -> list[Row]:
    """Print what was measured; gives the bars that were missed."""
    print(made.trace.name, flush=True)
    missed = []
    for row in (*made.rows, *process_rows(made.trace), *lookup_rows(made.trace)):
        print(row, flush=True)
        missed += [row] if row.missed else []
    return missed


def process_rows(trace: Path) -> Iterator[Row]:
    """Whole processes, and how long one takes only to begin."""
    middle = middle_call(open_trace(trace).ranks[0])
    yield Row("process: ulpscope show TRACE", of_process("show", str(trace)), "s", OPEN_BAR)
    yield Row("process: ulpscope show TRACE CALL", of_process("show", str(trace), str(middle.id)), "s")
    begin = [sys.executable, "-c", "import ulpscope.workflows.show.command"]
    yield Row("of these, to start and import", best(lambda: subprocess.run(begin, check=True)), "s")


def of_process(*words: str) -> float:
    return best(lambda: subprocess.run([*ULPSCOPE, *words], check=True, stdout=subprocess.DEVNULL))


def lookup_rows(path: Path) -> Iterator[Row]:
    yield Row("open_trace", best(lambda: open_trace(path)), "s")
    yield Row("overview_of", best(lambda: overview_of(open_trace(path))), "s", OPEN_BAR)
    ids = sample_ids(open_trace(path).ranks[0])
    for where, number in ids.items():
        yield Row(f"rank.call, {where}", anew(path, lambda rank, number=number: rank.call(number)), "s", LOOKUP_BAR)
        yield Row(f"rank.uses, {where}", anew(path, lambda rank, number=number: rank.uses(number)), "s", LOOKUP_BAR)
        around = anew(path, lambda rank, number=number: neighbours(rank, rank.call(number)))
        yield Row(f"a call and all around it, {where}", around, "s", LOOKUP_BAR)
    call = middle_call(open_trace(path).ranks[0])
    for words, name in (("name", call.name), ("the end of a name", ".".join(call.name.split(".")[-2:]))):
        found = anew(path, lambda rank, name=name: named(rank, name, call))
        yield Row(f"find_call by {words}, step and phase", found, "s", LOOKUP_BAR)
    for wanted in (
        CallFilter(op="relu"),
        CallFilter(module="*.5.*"),
        CallFilter(text="relu"),
        CallFilter(step=IntRanges(((call.step, call.step),))),
    ):
        yield Row(f"show {wanted}", best(lambda wanted=wanted: show(path, wanted)), "s")


def sample_ids(rank: RankTrace) -> dict[str, int]:
    last = int(rank.collect(rank.calls().select("id").max()).item())
    return {"first": 0, "middle": middle_call(rank).id, "last": last}


def middle_call(rank: RankTrace) -> Call:
    ids = rank.collect(rank.calls(rank.steps[len(rank.steps) // 2]).select("id"))["id"]
    return rank.call(ids[len(ids) // 2])


def anew(path: Path, look: Callable[[RankTrace], object]) -> float:
    """The best of some lookups, each in a trace that nothing was read of."""
    ranks = [open_trace(path).ranks[0] for _ in range(TRIES)]
    return min(seconds(lambda rank=rank: look(rank)) for rank in ranks)


def named(rank: RankTrace, name: str, call: Call) -> object:
    return find_call(Trace(rank.directory, [rank]), name, step=call.step, phase=call.phase)


def best(work: Callable[[], object]) -> float:
    return min(seconds(work) for _ in range(TRIES))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
