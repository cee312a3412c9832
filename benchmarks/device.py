"""Does capture keep its promises on an accelerator? A small GPT's training steps, captured on the device.

    python benchmarks/device.py --device cuda

Checked for every level and way of saving: no synchronisation inside a captured step (torch's own check raises on one),
no own error, no wrong reused summary, saved data with the digest that was made on the device. Printed besides: seconds
a step and peak memory against the plain run. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import torch  # noqa: E402

import ulpscope  # noqa: E402
from models import Setting, make_gpt  # noqa: E402
from ulpscope.numerics.summaries.rows import raw_digest_of_row  # noqa: E402
from ulpscope.numerics.summaries.summary import finish_digest, summarize  # noqa: E402
from ulpscope.trace.reader import RankTrace, open_trace  # noqa: E402

STEPS = 5
LEVELS, SAVES = ("module", "api", "kernel"), ("stats", "tensors")
VARIANTS = [(level, save, False) for level, save in itertools.product(LEVELS, SAVES)] + [
    ("api", "stats", True),
    ("kernel", "stats", True),
]


@dataclass(frozen=True)
class Seen:
    """One captured run."""

    name: str
    seconds: float
    memory: int
    problems: tuple[str, ...]


class Training:
    """A GPT on the device, with a fused optimizer and nothing that synchronises by itself."""

    def __init__(self, device: str) -> None:
        self.model, self.tokens, self.targets = make_gpt(Setting(device=device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)

    def step(self) -> None:
        self.optimizer.zero_grad()
        logits = self.model(self.tokens)
        torch.nn.functional.cross_entropy(logits.flatten(0, -2), self.targets.flatten()).backward()
        self.optimizer.step()


def timed_steps(training: Training, device: str, *, strict: bool) -> tuple[float, int]:
    """Best seconds of a step and peak bytes; the first step may make constants and compile."""
    module = torch.get_device_module(device)
    training.step()
    module.synchronize()
    module.reset_peak_memory_stats()
    best = float("inf")
    for _ in range(STEPS):
        began = time.perf_counter()
        if strict:
            module.set_sync_debug_mode("error")
        training.step()
        if strict:
            module.set_sync_debug_mode("default")
        module.synchronize()
        best = min(best, time.perf_counter() - began)
    return best, module.max_memory_allocated()


def capture_steps(device: str, level: str, save: str, *, verify: bool) -> Seen:
    name = f"{level}/{save}" + ("/verify" if verify else "")
    with tempfile.TemporaryDirectory() as folder:
        training = Training(device)
        out = Path(folder) / "trace"
        try:
            with ulpscope.capture(out, level=level, save=save, verify=verify):
                seconds, memory = timed_steps(training, device, strict=True)
        except RuntimeError as error:
            torch.get_device_module(device).set_sync_debug_mode("default")
            return Seen(name, 0.0, 0, (f"synchronised: {error}",))
        trace = open_trace(out).ranks[0]
        return Seen(name, seconds, memory, tuple(problems_of(trace)))


def problems_of(trace: RankTrace) -> list[str]:
    coverage = trace.info.coverage
    found = list(trace.info.errors)
    if coverage.summaries_wrong:
        found.append(f"{coverage.summaries_wrong} of {coverage.summaries_verified} reused summaries wrong")
    if not coverage.calls_recorded:
        found.append("nothing was recorded")
    return found + wrong_digests(trace)


def wrong_digests(trace: RankTrace) -> list[str]:
    """Saved elements, summarised again by the plain reference on the host, against what the device said."""
    ids = trace.values(1).collect()["id"].to_list()
    wrong = []
    for value in trace.find_values(ids).values():
        data = trace.data(value)
        if data is None or value.digest is None:
            continue
        row = summarize(data, value.dtype)
        if finish_digest(raw_digest_of_row(row), value.dtype, value.shape) != value.digest:
            wrong.append(f"value {value.id} ({value.dtype} {value.shape}): other digest on the host")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    seconds, memory = timed_steps(Training(device), device, strict=False)
    print(f"plain            {seconds * 1e3:8.2f} ms a step  {memory / 2**20:8.0f} MiB")
    failed = 0
    for level, save, verify in VARIANTS:
        seen = capture_steps(device, level, save, verify=verify)
        ratio, more = seen.seconds / seconds, seen.memory / memory
        figures = f"{seen.seconds * 1e3:8.2f} ms  {ratio:5.1f}x  memory {more:4.2f}x"
        print(f"{seen.name:20} {figures}  {len(seen.problems)} problems")
        for problem in seen.problems[:5]:
            print(f"    {problem}")
        failed += bool(seen.problems)
    print(f"{len(VARIANTS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
