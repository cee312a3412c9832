"""What two watches of gradients of very many steps cost who reads them: files, bytes, seconds, memory.

    python benchmarks/watched_traces.py                       10,000 steps of 100 parameters
    python benchmarks/watched_traces.py --single              each step in a directory of its own, as before version 1.3

The traces are made without a training: gradients and weights are small arrays of noise, those of the second trace the
same but for rounding, and another batch in a step near the end. Then each command runs in a process of its own. Exit
code 1 if a command fails, the parting is not found where it is, or comparing takes more than a minute of a processor
or 2 GB.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ulpscope.capture.recording.rows import RowColumns
from ulpscope.capture.recording.writing_process import StepEnd, StepWriter
from ulpscope.capture.watch.together import StepGatherer
from ulpscope.numerics.summaries.compiled import summarize_into
from ulpscope.numerics.summaries.constants import ROW_LENGTH
from ulpscope.records.runs import RankInfo
from ulpscope.trace.schema import CALLS, VALUES
from ulpscope.trace.writer import RankWriter

ELEMENTS = 64
NOISE = 1e-7
MOST_SECONDS, MOST_BYTES = 60.0, 2 * 10**9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--parameters", type=int, default=100)
    parser.add_argument("--single", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ulpscope-watched-") as folder:
        paths = [Path(folder) / name for name in ("reference", "target")]
        for path in paths:
            began = time.perf_counter()
            make(path, arguments, is_target=path.name == "target")
            seconds = time.perf_counter() - began
            print(f"{path.name}: {files_of(path):,} files, {size_of(path) / 1e6:,.0f} MB, made in {seconds:.0f} s")
        shown, _, _ = measured("show", paths[0])
        code, answer, (seconds, memory) = measured("compare", *paths, "--json")
    found = json.loads(answer)["findings"][:1] if code in (0, 1) and answer else []
    step = found[0]["step"] if found else None
    print(f"parted at step {step}, planted at {fault_of(arguments)}")
    return int(shown != 0 or step != fault_of(arguments) or seconds > MOST_SECONDS or memory > MOST_BYTES)


def fault_of(arguments: argparse.Namespace) -> int:
    return int(arguments.steps * 0.9)


def make(path: Path, arguments: argparse.Namespace, *, is_target: bool) -> None:
    directory = path / "rank0"
    directory.mkdir(parents=True)
    writer = RankWriter(directory, info(None))
    single, gathering = StepWriter(writer), StepGatherer(writer)
    for step, rows in enumerate(steps_of(arguments, is_target=is_target)):
        if arguments.single:
            single.write(step, rows.tables(), StepEnd(0.1))
        else:
            gathering.receive(rows.described() | {"step": step, "end": {"seconds": 0.1}}, [rows.rows.tobytes()])
    gathering.settle()
    writer.close(info("2026-01-01"))


def info(closed: str | None) -> RankInfo:
    capture = {"watch": "gradients"}
    nothing: dict[str, object] = {}
    return RankInfo(0, 1, nothing, {"name": "torch"}, {}, ("cpu",), nothing, nothing, capture, "2026-01-01", closed)


def steps_of(arguments: argparse.Namespace, *, is_target: bool) -> Iterator[RowColumns]:
    names = [f"layers.{number}.weight" for number in range(arguments.parameters)]
    places = ["loss.0", *names, *names]
    roles = ["loss", *("gradient" for _ in names), *("parameter" for _ in names)]
    for step in range(arguments.steps):
        numbers = np.random.default_rng(step).standard_normal((len(places), ELEMENTS))
        if is_target:
            numbers *= 1 + NOISE * np.random.default_rng([step, 1]).standard_normal(numbers.shape)
            if step == fault_of(arguments):
                numbers[: 1 + len(names)] += np.random.default_rng([step, 2]).standard_normal((1 + len(names), 1))
        yield columns(step, roles, places, numbers.astype(np.float32))


def columns(step: int, roles: list[str], places: list[str], numbers: NDArray[np.float32]) -> RowColumns:
    count = len(places)
    rows = np.zeros((count, ROW_LENGTH))
    for content, row in zip(numbers, rows, strict=True):
        summarize_into(content, "float32", row)
    call = dict.fromkeys(CALLS) | {"id": step, "name": f"AdamW.{step}", "kind": "optimizer", "op": "AdamW"}
    call |= {"phase": "update", "step": step, "micro_step": 0, "recompute": False, "random": False, "arguments": "{}"}
    same = {"dtype": "float32", "shape": (ELEMENTS,), "strides": (1,), "device": "cpu", "layout": "strided"}
    same |= {"storage": 0, "version": 0, "requires_grad": False, "initialized": True}
    values = {name: [same.get(name)] * count for name in VALUES} | {"id": list(range(step * count, (step + 1) * count))}
    tensors = {"call": [step] * count, "role": roles, "place": places, "value": values["id"]}
    return RowColumns({name: [entry] for name, entry in call.items()}, values, tensors, [], [True] * count, rows)


def files_of(path: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(path))


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def measured(command: str, *arguments: object) -> tuple[int, str, tuple[float, int]]:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began, before = time.perf_counter(), used.ru_utime + used.ru_stime
    done = subprocess.run(
        [sys.executable, "-m", "ulpscope", command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, memory = used.ru_utime + used.ru_stime - before, used.ru_maxrss * 1024
    clock = time.perf_counter() - began
    print(f"ulpscope {command}: {seconds:.1f} s of a processor ({clock:.1f} s), {memory / 1e6:,.0f} MB at most")
    return done.returncode, done.stdout, (seconds, memory)


if __name__ == "__main__":
    sys.exit(main())
