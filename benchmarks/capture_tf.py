"""What a capture of TensorFlow costs: training steps, plain and captured by turns, each beside its bar.

    python benchmarks/capture_tf.py                       all figures with their bars, in about five minutes
    python benchmarks/capture_tf.py transformer --ways plain api present --rounds 12
    python benchmarks/capture_tf.py one transformer api --profile

Each way of running a model lives in a process of its own. The processes take turns, a few steps each, so that all of
them see the same machine. Told are the best step of all turns by the clock, and two kinds of processor time of the
whole process, which other people's load changes least: `step` is the best step's, `all` that of the best turn, by its
steps, with what threads write after them. Bars are held by `all`; by `step` where nothing is written. Ways:

    plain     without ulpscope
    api       ulpscope.capture at level api with stats; also module, kernel; tensors is api with data
    outside   a capture whose --steps are others
    present   the capture has ended: what it has left in graphs
    tfdbg2    TensorFlow's own debugger, FULL_HEALTH

Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

WAYS: dict[str, tuple[str, ...]] = {
    "eager": ("plain", "api", "outside"),
    "convolutions": ("plain", "api", "outside", "module", "tfdbg2"),
    "transformer": ("plain", "api", "outside", "module", "tfdbg2"),
}
BARS = {("eager", "api"): 2.5, ("convolutions", "api"): 3.0, ("transformer", "api"): 3.0}
OUTSIDE_BAR = 1.02
WARM_UP, STEPS, ROUNDS = 4, 5, 8
SLOW_STEPS, SLOW_ROUNDS = 2, 2
# Threads that write what a turn has recorded end before the next process's turn begins.
REST_SECONDS = 0.3


class Running:
    """A process that does steps when it is asked to."""

    def __init__(self, model: str, way: str) -> None:
        self.way = way
        self.wall: list[float] = []
        self.step: list[float] = []
        self.all: list[float] = []
        command = [sys.executable, str(Path(__file__).resolve()), "one", model, way]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL, **pipes)  # type: ignore[call-overload]

    def turn(self, steps: int) -> None:
        """Do so many steps, and note how long the best one took."""
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline()
        if not told:
            raise SystemExit(f"{self.way} has ended with exit code {self._process.wait()}")
        wall, step, all_of_it = json.loads(told)
        self.wall += wall
        self.step += step
        self.all.append(all_of_it)

    def end(self) -> None:
        """Let it go."""
        self._process.stdin.close()
        self._process.wait()


def serve(model: str, way: str, *, profile: bool) -> None:
    """What such a process does: prints the times of each turn."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if way == "tfdbg2":
            tf.debugging.experimental.enable_dump_debug_info(folder, "FULL_HEALTH", circular_buffer_size=-1)
        step = _step(model, way, Path(folder))
        for line in ["5"] if profile else sys.stdin:
            if profile:
                _profile(step)
            _turn(step, int(line))


def _step(model: str, way: str, folder: Path) -> Any:
    import tensorflow_models as models
    import ulpscope

    level = {"outside": "api", "present": "api", "tensors": "api"}.get(way, way)
    if way not in ("plain", "tfdbg2"):
        steps = [10**6] if way == "outside" else None
        save = "tensors" if way == "tensors" else "stats"
        capture = ulpscope.capture(folder / "trace", level=level, save=save, steps=steps)
        capture.__enter__()
    step = models.MODELS[model]()
    for _ in range(WARM_UP):
        step()
    if way == "present":
        capture.__exit__(None, None, None)
    return step


def _turn(step: Any, steps: int) -> None:
    step()  # what the others have left in the caches
    wall, processor = [], []
    began = time.process_time()
    for _ in range(steps):
        before, worked = time.perf_counter(), time.process_time()
        step()
        wall.append(1e3 * (time.perf_counter() - before))
        processor.append(1e3 * (time.process_time() - worked))
    time.sleep(REST_SECONDS)
    print(json.dumps([wall, processor, 1e3 * (time.process_time() - began) / steps]), flush=True)


def _profile(step: Any) -> None:
    import cProfile
    import pstats

    profile = cProfile.Profile(time.thread_time)
    profile.runcall(step)
    pstats.Stats(profile).sort_stats("tottime").print_stats(35)


def measure(model: str, ways: tuple[str, ...], rounds: int) -> bool:
    """All ways of running a model, by turns; whether each held its bar."""
    running = [Running(model, way) for way in ways]
    for number in range(rounds):
        for one in running:
            is_slow = one.way == "tfdbg2"
            if not is_slow or number < SLOW_ROUNDS:
                one.turn(SLOW_STEPS if is_slow else STEPS)
    for one in running:
        one.end()
    best = {one.way: {"clock": min(one.wall), "step": min(one.step), "all": min(one.all)} for one in running}
    held = True
    for way in ways:
        kind = "step" if way == "outside" else "all"
        bar = OUTSIDE_BAR if way == "outside" else BARS.get((model, way))
        held &= bar is None or best[way][kind] <= bar * best["plain"][kind]
        if way == "api" and "tfdbg2" in best:
            held &= best["api"]["all"] < best["tfdbg2"]["all"]
        told = "  ".join(f"{kind} {ms:7.1f} ms x{ms / best['plain'][kind]:5.2f}" for kind, ms in best[way].items())
        print(f"{model:13} {way:8} {told}" + (f"  bar {bar} ({kind})" if bar is not None else ""), flush=True)
    return held


def main() -> int:
    """Measure and tell."""
    if sys.argv[1:2] == ["one"]:
        serve(sys.argv[2], sys.argv[3], profile="--profile" in sys.argv)
        return 0
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="*", choices=[[], *WAYS])
    options.add_argument("--ways", nargs="+")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    given = options.parse_args()
    held = [measure(model, tuple(given.ways or WAYS[model]), given.rounds) for model in given.models or WAYS]
    return int(not all(held))


if __name__ == "__main__":
    raise SystemExit(main())
