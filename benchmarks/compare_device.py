"""Does comparing with replay tell an accelerator's rounding from faults? Runs on the device against the CPU's.

    python benchmarks/compare_device.py --device cuda

Healthy: float32, TF32, bfloat16 and float16 autocast and bfloat16 weights on the device against float32 on the CPU;
none may have a finding. Faulty: on the device one kernel's result is wrong by a little. Every call is executed again on
the CPU. Exit code 1 at a finding without a fault, or a fault whose call is not named first.
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import ulpscope  # noqa: E402
from check_device import Transformer  # noqa: E402
from ledger_scan import Site, WrongKernel, column, element, scale  # noqa: E402
from sound_models import CNN  # noqa: E402
from ulpscope.records.evidence import Replay  # noqa: E402
from ulpscope.workflows.compare.command import CompareOptions, compare  # noqa: E402

HEALTHY = ("float32", "tf32", "bf16", "fp16", "bf16-weights")
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]] = {
    "transformer": (Transformer, lambda: (torch.randint(0, 4000, (2, 64)), torch.randint(0, 4000, (2, 64)))),
    "cnn": (CNN, lambda: (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,)))),
}
FAULTS: dict[str, tuple[str, Site, Callable[[Tensor], None]]] = {
    "linear x1.004": ("bf16-weights", Site(1, "fc1"), scale),
    "layer_norm column x1.05": ("bf16-weights", Site(1, "ln"), column),
    "gelu element x1.2": ("bf16-weights", Site(0, "gelu"), lambda output: element(output[0])),
}


def train(model: str, out: Path, device: str, setting: str, fault: Any = None) -> None:
    torch.manual_seed(0)
    make, data = MODELS[model]
    net, (inputs, labels) = make(), data()
    net.train().to(device)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # devices draw different numbers from the same seed
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = setting == "tf32"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(setting)
    if setting == "bf16-weights":
        net = net.to(torch.bfloat16)
        inputs = inputs.to(torch.bfloat16) if inputs.is_floating_point() else inputs
    inputs, labels = inputs.to(device), labels.to(device)
    casting = torch.autocast(torch.device(device).type, dtype=dtype) if dtype else contextlib.nullcontext()
    with ulpscope.capture(out, level="api", save="tensors", model=net), fault or contextlib.nullcontext():
        with casting:
            loss = F.cross_entropy(net(inputs).flatten(0, -2), labels.flatten())
        loss.backward()


def judge(reference: Path, target: Path) -> tuple[str | None, str]:
    began = time.monotonic()
    found = compare(reference, target, CompareOptions(replay=Replay.ON)).comparison
    ledger = found.ledger
    finals = [] if ledger is None else [f"{final.closure:.4f}" for final in ledger.finals if final.closure is not None]
    told = [
        (finding.place.call, finding.place.tensor, finding.evidence.ledger and finding.evidence.ledger.message)
        for finding in found.findings
    ]
    left = {} if ledger is None else dict(ledger.left)
    text = (
        f"closure {' '.join(finals)}, {0 if ledger is None else ledger.calls} calls, {time.monotonic() - began:.0f} s"
    )
    return (found.findings[0].place.call if found.findings else None), f"{text} {told or ''} {left or ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        work = Path(folder)
        for model in MODELS:
            train(model, work / f"{model}-cpu", "cpu", "float32")
            for setting in HEALTHY:
                train(model, work / f"{model}-{setting}", options.device, setting)
                named, text = judge(work / f"{model}-cpu", work / f"{model}-{setting}")
                wrong += named is not None
                print(f"{model} {setting}: {'agree' if named is None else 'DIVERGED'}, {text}", flush=True)
        for name, (setting, site, fault) in FAULTS.items():
            train("transformer", work / name, options.device, setting, WrongKernel(site, fault))
            named, text = judge(work / "transformer-cpu", work / name)
            wrong += named is None or not named.startswith(site.call.rpartition(".")[0])
            print(f"transformer {name}: {named}, {text}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
