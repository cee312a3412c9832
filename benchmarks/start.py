"""How long ulpscope keeps one waiting: its help, the first and second capture of one step, and 100,000 tiny calls.

    python benchmarks/start.py                  everything; a few minutes, most of them for the compiled host part
    python benchmarks/start.py help step        some of it

Whole processes, wall time, best of several rounds in which all kinds take turns; processor time stands beside it, for
machines that others use as well. `first` is a fresh installation: every cache of compiled code is empty. `second` finds
what the first has left. Bytecode is there for all, as an installer leaves it. Tiny calls are x + 1 on four elements, at
level api with statistics, recorded by the Python code and by the compiled host part, as a multiple of their plain time;
what it takes to start is taken off both. Exit code 1 above a bar.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HELP_BAR = 0.4
"""Seconds."""
FIRST_BAR, SECOND_BAR = 3.0, 1.0
"""Seconds more than without capture."""
TINY_BAR = 10.0
"""Times the plain time."""
ROUNDS = 5
TINY_CALLS = 100_000

ONE_STEP = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(8, 16)).square().mean().backward()
optimizer.step()
"""
TINY = """
import sys
import torch
x = torch.zeros(4)
for _ in range(int(sys.argv[1])):
    y = x + 1
"""


@dataclass(frozen=True, slots=True, order=True)
class Took:
    """Seconds of a process and its children."""

    wall: float
    processor: float

    def __sub__(self, other: "Took") -> "Took":
        return Took(self.wall - other.wall, self.processor - other.processor)

    def __str__(self) -> str:
        return f"{self.wall:6.2f} s ({self.processor:.2f} s of processor)"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ulpscope-start-") as folder:
        work = Path(folder)
        held = [PARTS[name](work, arguments.rounds) for name in arguments.what or PARTS]
    return 0 if all(held) else 1


def measure_help(work: Path, rounds: int) -> bool:
    took = min(timed([sys.executable, "-m", "ulpscope", "--help"], kept_in(work)) for _ in range(rounds))
    return tell("ulpscope --help", took, took.wall, HELP_BAR, "s")


def measure_step(work: Path, rounds: int) -> bool:
    script = written(work / "step.py", ONE_STEP)
    plain, first, second = [], [], []
    timed(plainly(script), kept_in(work))  # bytecode and files are read
    timed(captured(work, script), kept_in(work))
    for number in range(rounds):
        fresh = kept_in(work, caches=f"fresh{number}")
        plain.append(timed(plainly(script), fresh))
        first.append(timed(captured(work, script), fresh))
        second.append(timed(captured(work, script), fresh))
    print(f"one step, plain            {min(plain)}")
    held = [
        tell(f"{name} capture, on top", least - min(plain), (least - min(plain)).wall, bar, "s")
        for name, least, bar in (("first", min(first), FIRST_BAR), ("second", min(second), SECOND_BAR))
    ]
    return all(held)


def measure_tiny(work: Path, rounds: int) -> bool:
    script = written(work / "tiny.py", TINY)
    python = kept_in(work) | {"ULPSCOPE_HOST": "python"}
    compiled = kept_in(work) | {"ULPSCOPE_HOST": "compiled"}
    for environment in (python, compiled):
        timed(captured(work, script, "1"), environment)
    kinds = {
        "plain": lambda calls: timed(plainly(script, calls), python),
        "python": lambda calls: timed(captured(work, script, calls), python),
        "compiled": lambda calls: timed(captured(work, script, calls), compiled),
    }
    began: dict[str, list[Took]] = {name: [] for name in kinds}
    ended: dict[str, list[Took]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, run in kinds.items():
            began[name].append(run("1"))
            ended[name].append(run(str(TINY_CALLS)))
    took = {name: min(ended[name]) - min(began[name]) for name in kinds}
    print(f"{TINY_CALLS:,} tiny calls, plain    {took['plain']}")
    print(f"captured by Python         {took['python']}: {took['python'].wall / took['plain'].wall:.1f} x")
    ratio = took["compiled"].wall / took["plain"].wall
    return tell("captured, compiled part", took["compiled"], ratio, TINY_BAR, "x")


def tell(what: str, took: Took, figure: float, bar: float, unit: str) -> bool:
    held = figure <= bar
    print(f"{what:26} {took}: {figure:.2f} {unit}, at most {bar}: {'holds' if held else 'MISSED'}", flush=True)
    return held


def plainly(script: Path, *words: str) -> list[str]:
    return [sys.executable, str(script), *words]


def captured(work: Path, script: Path, *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "ulpscope",
        "run",
        "--overwrite",
        "-o",
        str(work / "trace"),
        "--",
        *plainly(script, *words),
    ]


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def kept_in(work: Path, caches: str = "caches") -> dict[str, str]:
    """Every cache in one place, and bytecode in another."""
    folder = work / caches
    places = {"XDG_CACHE_HOME": str(folder), "NUMBA_CACHE_DIR": str(folder / "numba")}
    environment = {
        name: text for name, text in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "ULPSCOPE_HOST")
    }
    threads = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    return environment | threads | places | {"PYTHONPYCACHEPREFIX": str(work / "bytecode")}


def timed(command: list[str], environment: dict[str, str]) -> Took:
    before, began = _processor_seconds(), time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Took(time.perf_counter() - began, _processor_seconds() - before)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


PARTS: dict[str, Callable[[Path, int], bool]] = {"help": measure_help, "step": measure_step, "tiny": measure_tiny}


if __name__ == "__main__":
    sys.exit(main())
