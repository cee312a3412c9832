"""Healthy pairs of unseen models on two devices, CPU against accelerator: how many raise an alarm, and which.

    cd benchmarks && python -m sealed.devices --device cuda [--jobs 16] [--out FILE]

The models are those of the opened sets e and g, none of which was run on an accelerator before. The reference is the
float32 run on the CPU, the target runs on the device in float32, under bfloat16 autocast and with bfloat16 weights;
faults are scored there, too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sealed.__main__ import HERE, is_accepted

GROUPS = {"e": "fp32", "g": "float32"}
"""Which of the opened sets, and what they call float32."""
PRECISIONS = ("float32", "bf16-autocast", "bf16")
SECONDS = 240


@dataclass(frozen=True)
class Case:
    group: str
    reference: tuple[str, ...]
    target: tuple[str, ...]
    expect: dict[str, Any] | None

    @property
    def name(self) -> str:
        return " ".join((self.group, *self.target))


def cases() -> Iterator[Case]:
    for group, plain in GROUPS.items():
        known = json.loads((HERE / group / "cases.json").read_text())
        for model in sorted({case["reference"][0] for case in known}):
            for precision in PRECISIONS:
                target = (model, "--precision", plain if precision == "float32" else precision)
                yield Case(group, (model,), target, None)
        for case in known:
            if case["kind"] != "healthy":
                yield Case(group, tuple(case["reference"]), tuple(case["target"]), case["expect"])


class Runs:
    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._device = folder, device
        quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        limited = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        self._environment = {**os.environ, **quiet, **limited}

    def captured(self, device: str, group: str, arguments: Sequence[str]) -> Path:
        out = self._folder / f"{device}-{group}-{'_'.join(arguments).replace('/', '_')}"
        words = [sys.executable, str(HERE / "on_device.py"), device, group, *arguments]
        if device == "cpu":
            words = [sys.executable, str(HERE / group / "train.py"), *arguments]
        done = self._ulpscope("run", "-o", str(out), "--", *words)
        if done.returncode:
            raise RuntimeError(done.stderr[-600:])
        return out

    def answer(self, case: Case, references: dict[tuple[str, ...], Path]) -> tuple[str, str]:
        """How it was answered, and the first sentence."""
        try:
            target = self.captured(self._device, case.group, case.target)
            reference = references[(case.group, *case.reference)]
            answer = json.loads(self._ulpscope("compare", str(reference), str(target), "--json").stdout)
        except (RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            return "not run", str(error)[-600:]
        findings = answer["findings"]
        told = f"{findings[0]['call']} in {findings[0]['module']}: {findings[0]['sentence']}" if findings else ""
        if case.expect is None:
            return ("alarm" if findings else "right"), told
        accepted = [is_accepted(finding, case.expect) for finding in findings]
        if not findings:
            return "agree", ""
        return ("right" if accepted[0] else "half" if any(accepted) else "wrong"), told

    def _ulpscope(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "ulpscope", *words]
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )


def kind_of(case: Case) -> str:
    if case.expect is None:
        return f"healthy {PRECISIONS[0] if case.target[-1] in GROUPS.values() else case.target[-1]}"
    return "faults"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", help="cases whose words contain this")
    parser.add_argument("--out", type=Path, help="a line a case, as JSON")
    args = parser.parse_args()
    wanted = [case for case in cases() if not args.only or args.only in case.name]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as workers:
        runs = Runs(Path(folder), args.device)

        def reference(key: tuple[str, ...]) -> tuple[tuple[str, ...], Path | None]:
            try:
                return key, runs.captured("cpu", key[0], key[1:])
            except (RuntimeError, subprocess.TimeoutExpired):
                return key, None

        keys = dict.fromkeys((case.group, *case.reference) for case in wanted)
        references = {key: path for key, path in workers.map(reference, keys) if path is not None}
        answers = list(workers.map(lambda case: runs.answer(case, references), wanted))
    counts = Counter((kind_of(case), answer) for case, (answer, _) in zip(wanted, answers, strict=True))
    for (kind, answer), count in sorted(counts.items()):
        print(f"{kind:24} {count:4} {answer}")
    if args.out:
        told = zip(wanted, answers, strict=True)
        args.out.write_text("".join(json.dumps([case.name, *answer]) + "\n" for case, answer in told))


if __name__ == "__main__":
    main()
