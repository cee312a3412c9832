"""Does the ledger name the call at fault where comparing outputs cannot? Small faults at 48 places of a bf16 model.

    python benchmarks/ledger_scan.py                 12 layers x 4 operations x 3 faults, replay on
    python benchmarks/ledger_scan.py --replay auto
    python benchmarks/ledger_scan.py --sites 6       the first 6 places

A kernel inside of one call gives a wrong result: all elements times 1.004, one column times 1.05, or one element times
1.2. The reference is the float32 run. A case passes if the first finding is that call. Without a fault nothing may be
found. The contributions of all calls must add up to the difference of the loss. Exit code 1 below 95 %, at any finding
without a fault, or where the closure is off by more than 1 %.
"""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import contextlib
import multiprocessing
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import ulpscope
from ulpscope.records.evidence import Replay
from ulpscope.workflows.compare.command import CompareOptions, compare

LAYERS, WIDTH, BATCH, CLASSES = 12, 128, 64, 50
BAR, CLOSURE = 0.95, 0.01
KERNELS = {"ln": "native_layer_norm", "fc1": "addmm", "gelu": "gelu", "fc2": "addmm"}
OPS = {"ln": "layer_norm", "fc1": "linear", "gelu": "gelu", "fc2": "linear"}


def scale(output: Tensor) -> None:
    output.mul_(1.004)


def column(output: Tensor) -> None:
    output[..., 7].mul_(1.05)


def element(output: Tensor) -> None:
    output[5, 7].mul_(1.2)


FAULTS: dict[str, Callable[[Tensor], None]] = {"scale": scale, "column": column, "element": element}


@dataclass(frozen=True, slots=True)
class Site:
    layer: int
    part: str

    @property
    def number(self) -> int:
        """Which call of its operation it is."""
        return {"fc1": 2 * self.layer, "fc2": 2 * self.layer + 1}.get(self.part, self.layer)

    @property
    def call(self) -> str:
        return f"torch.nn.functional.{OPS[self.part]}.{self.number}"


class WrongKernel(TorchDispatchMode):
    """Changes what one execution of one kernel gives."""

    def __init__(self, site: Site, fault: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._kernel = f"aten::{KERNELS[site.part]}"
        self._left = site.number
        self._fault = fault

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function._schema.name == self._kernel:
            if self._left == 0:
                self._fault(result[0] if isinstance(result, tuple) else result)
            self._left -= 1
        return result


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(F.gelu(self.fc1(self.ln(x))))


def train(trace: Path, dtype: torch.dtype, fault: contextlib.AbstractContextManager[Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Residual() for _ in range(LAYERS)), nn.Linear(WIDTH, CLASSES)).to(dtype)
    inputs, labels = torch.randn(BATCH, WIDTH).to(dtype), torch.randint(0, CLASSES, (BATCH,))
    with ulpscope.capture(trace, level="api", save="tensors", model=model), fault:
        F.cross_entropy(model(inputs), labels).backward()


@dataclass(frozen=True, slots=True)
class Outcome:
    fault: str
    call: str | None
    named: str | None
    closure: float | None

    @property
    def passed(self) -> bool:
        return self.named == self.call


def judge(work: Path, fault: str, site: Site | None, replay: Replay) -> Outcome:
    wrong = contextlib.nullcontext() if site is None else WrongKernel(site, FAULTS[fault])
    with tempfile.TemporaryDirectory(dir=work) as folder:
        train(Path(folder) / "target", torch.bfloat16, wrong)
        result = compare(work / "reference", Path(folder) / "target", CompareOptions(replay=replay)).comparison
    named = result.findings[0].place.call if result.findings else None
    finals = result.ledger.finals if result.ledger is not None else ()
    return Outcome(fault, None if site is None else site.call, named, finals[0].closure if finals else None)


def cases(sites: int) -> Iterator[tuple[str, Site | None]]:
    yield "none", None
    places = [Site(layer, part) for layer in range(LAYERS) for part in KERNELS][:sites]
    yield from ((fault, site) for fault in FAULTS for site in places)


def one(arguments: tuple[Path, str, Site | None, Replay]) -> Outcome:
    torch.set_num_threads(1)
    return judge(*arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replay", type=Replay, default=Replay.ON, choices=[Replay.ON, Replay.AUTO])
    parser.add_argument("--sites", type=int, default=LAYERS * len(KERNELS))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        work = Path(folder)
        train(work / "reference", torch.float32, contextlib.nullcontext())
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            tasks = [(work, fault, site, options.replay) for fault, site in cases(options.sites)]
            outcomes = pool.map(one, tasks, chunksize=1)
    return tell(outcomes)


def tell(outcomes: list[Outcome]) -> int:
    by_fault: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_fault[outcome.fault].append(outcome)
    for fault, found in by_fault.items():
        print(f"{fault:<8} named {sum(each.passed for each in found)} of {len(found)}")
        for each in found:
            if not each.passed:
                print(f"    {each.call}: {each.named}")
    closures = [each.closure for each in outcomes if each.closure is not None]
    off = max((abs(closure - 1) for closure in closures), default=0.0)
    print(f"closure  {len(closures)} cases, off by at most {off:.2g}")
    planted = [each for each in outcomes if each.call is not None]
    share = sum(each.passed for each in planted) / max(len(planted), 1)
    clean = all(each.passed for each in by_fault["none"])
    print(f"{share:.1%} of {len(planted)} faults named, without a fault {'nothing' if clean else 'something'} found")
    return int(share < BAR or not clean or off > CLOSURE)


if __name__ == "__main__":
    sys.exit(main())
