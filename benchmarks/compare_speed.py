"""How long `ulpscope compare` takes, and how much memory: two traces of about 112,000 tensors, or two dumps of msprobe.

    python benchmarks/compare_speed.py                 traces of ours, captured here: a deep, narrow network, four steps
    python benchmarks/compare_speed.py --growth        the same, then four times as deep (one optimizer call of 5,810
                                                       parameters) and four times as many steps: times as long each
    python benchmarks/compare_speed.py REF TARGET      any two runs, for example those of make_msprobe_dump.py

The command runs as a user would run it, Python's start included; the best of several runs counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

LAYERS, WIDTH, STEPS, ROWS = 242, 16, 4, 8
GROWTH = 4
EPS, WRONG_EPS = 1e-5, 1e-2


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of the command."""

    seconds: float
    user_seconds: float
    """Of the processors: on a machine with other work only this can be compared."""
    megabytes: float
    summary: dict[str, object]


def capture_pair(directory: Path, *, layers: int = LAYERS, steps: int = STEPS) -> tuple[Path, Path]:
    """Capture a healthy run and one with a fault in the middle."""
    paths = directory / "reference", directory / "target"
    for path, eps in zip(paths, (EPS, WRONG_EPS), strict=True):
        _train(path, eps, number_of_layers=layers, steps=steps)
    return paths


def _train(path: Path, eps: float, *, number_of_layers: int, steps: int) -> None:
    import torch
    from torch import nn

    import ulpscope

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [
        nn.Sequential(
            nn.LayerNorm(WIDTH, eps=eps if number == number_of_layers // 2 else EPS),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.GELU(),
            nn.Linear(2 * WIDTH, WIDTH),
        )
        for number in range(number_of_layers)
    ]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randn(steps, ROWS, WIDTH)
    with ulpscope.capture(path, model=model):
        for batch in data:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


def time_compare(reference: Path, target: Path) -> Timed:
    """Run `ulpscope compare --json` once."""
    command = [sys.executable, "-m", "ulpscope", "compare", str(reference), str(target), "--json"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"{' '.join(command)} failed")
    return Timed(seconds, usage.ru_utime, usage.ru_maxrss / 1024, json.loads(output))


def measure_growth(directory: Path, *, repeat: int) -> dict[str, tuple[float, float]]:
    """For more layers and for more steps: times as many tensors, and times as long (processor time, runs in turn)."""
    sizes = {"as captured": {}, "layers": {"layers": GROWTH * LAYERS}, "steps": {"steps": GROWTH * STEPS}}
    pairs = {name: capture_pair(directory / name, **size) for name, size in sizes.items()}
    timed: dict[str, list[Timed]] = {name: [] for name in sizes}
    for _ in range(repeat):
        for name, pair in pairs.items():
            timed[name].append(time_compare(*pair))
    seconds = {name: min(run.user_seconds for run in runs) for name, runs in timed.items()}
    tensors = {name: runs[0].summary["counts"]["tensors_compared"] for name, runs in timed.items()}  # type: ignore[index]
    first = "as captured"
    return {name: (tensors[name] / tensors[first], seconds[name] / seconds[first]) for name in sizes if name != first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--growth", action="store_true")
    arguments = parser.parse_args()
    if arguments.growth:
        with tempfile.TemporaryDirectory() as directory:
            for name, (tensors, longer) in measure_growth(Path(directory), repeat=arguments.repeat).items():
                print(f"more {name:8} {tensors:.2f} times as many tensors, {longer:.2f} times as long (bar 4.5)")
        return
    with tempfile.TemporaryDirectory() as directory:
        pair = tuple(arguments.runs) or capture_pair(Path(directory))
        timed = [time_compare(*pair) for _ in range(arguments.repeat)]
    best = min(timed, key=lambda run: run.seconds)
    counts = best.summary["counts"]
    assert isinstance(counts, dict)
    findings = best.summary["findings"]
    assert isinstance(findings, list)
    print(f"tensors compared   {counts['tensors_compared']:,}")
    print(f"calls              {counts['calls_target']:,}")
    print(
        f"processor          {min(run.user_seconds for run in timed):.2f} s\n"
        f"seconds            {best.seconds:.2f} (best of {len(timed)}: {', '.join(f'{t.seconds:.2f}' for t in timed)})"
    )
    print(f"peak memory        {max(run.megabytes for run in timed):.0f} MB")
    print(f"answer             {findings[0]['sentence'][:150] if findings else best.summary['verdict']}")


if __name__ == "__main__":
    main()
