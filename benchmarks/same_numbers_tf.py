"""Does a capture change nothing of TensorFlow? Every loop plain and captured, compared bit for bit.

    python benchmarks/same_numbers_tf.py                     every loop, level and way of saving
    python benchmarks/same_numbers_tf.py --only gan --quick  level api, save stats

Compared are losses, gradients and weights after three steps, with deterministic ops. Exit code 1 if any bit differs, a
reused summary was wrong, or the capture erred.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import tensorflow_loops as loops  # noqa: E402
import ulpscope  # noqa: E402
from ulpscope.trace.reader import open_trace  # noqa: E402

VARIANTS = tuple(itertools.product(("module", "api", "kernel"), ("stats", "tensors")))


def try_one(name: str, plain: list[bytes], *, level: str, save: str) -> str:
    """What went wrong in a captured run; empty if nothing did."""
    with tempfile.TemporaryDirectory() as out:
        with ulpscope.capture(Path(out) / "trace", level=level, save=save, verify=save == "stats"):
            captured = loops.run(name)
        (trace,) = open_trace(Path(out) / "trace").ranks
        wrong = trace.info.coverage.summaries_wrong
        errors = "; ".join(trace.info.errors)
    differing = sum(one != other for one, other in zip(plain, captured, strict=True))
    told = (f"{differing} arrays differ" if differing else "", f"{wrong} summaries wrong" if wrong else "", errors)
    return ", ".join(part for part in told if part)


def main() -> int:
    """Try all, and tell."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=loops.LOOPS)
    options.add_argument("--quick", action="store_true")
    given = options.parse_args()
    loops.prepare()
    failed = 0
    for name in [given.only] if given.only else loops.LOOPS:
        plain = loops.run(name)
        if plain != loops.run(name):
            print(f"{name:24} does not repeat itself")
            failed += 1
            continue
        for level, save in (("api", "stats"),) if given.quick else VARIANTS:
            wrong = try_one(name, plain, level=level, save=save)
            failed += bool(wrong)
            print(f"{name:24} {level:7} {save:8} {wrong or 'identical'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
