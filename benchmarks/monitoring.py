"""Does a watched training stay silent while it is healthy, and is what goes wrong told within two steps?

    python benchmarks/monitoring.py                     all: 26 healthy trainings of 120 steps, 14 planted anomalies
    python benchmarks/monitoring.py --only moe dead     some
    python benchmarks/monitoring.py --keep DIR          leave the traces there

Trainings are watched as `ulpscope run --watch training` does. The healthy ones have warm-up, schedules that jump, a
GradScaler whose scale changes, bfloat16, dropout, several optimizers, experts without tokens, losses below zero; those
that are marked as held out were not looked at when the limits of src/ulpscope/trace/trainings/limits.py were set. An
anomaly is planted at one step; the first that is told must be of that step or the one behind it, and of a kind that
fits. Exit code 1 if a healthy training is not silent, or a planted anomaly is missed.
"""

import argparse
import contextlib
import math
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from monitored import HEALTHY, HELD_OUT, STEPS, WIDTH, Training, perceptron, viewer, writer
from ulpscope.records.anomalies import Anomaly

FAULT_STEP, AFTER = 60, 8
LATE = 1
"""Steps behind the planted one in which an anomaly is still told in time."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong at one step of a training, and which kinds of anomaly say so."""

    training: Callable[[], Training]
    plant: Callable[[Training], object]
    kinds: tuple[str, ...]
    name: str = ""
    """What must be in the name that is told."""


def _layer(training: Training) -> Any:
    return training.model.layers[1]  # type: ignore[index, union-attr]


def _hooked(training: Training, change: Callable[[Tensor], Tensor]) -> None:
    _layer(training).fall.register_forward_hook(lambda module, args, output: change(output))


def _nan_output(training: Training) -> None:
    spot = torch.zeros(WIDTH, dtype=torch.bool)
    spot[3] = True
    _hooked(training, lambda output: output.masked_fill(spot, math.nan))


def _scaled_gradient(training: Training) -> None:
    _layer(training).rise.weight.register_hook(lambda gradient: gradient * 100)


def _inf_gradient(training: Training) -> None:
    def spoil() -> None:
        training.model.layers[2].rise.weight.grad[0, 0] = math.inf  # type: ignore[index, union-attr]

    training.change["gradients"] = spoil


def _rate(training: Training) -> None:
    for group in training.optimizers[0].param_groups:
        group["lr"] = 30.0


@torch.no_grad()
def _written(training: Training) -> None:
    _layer(training).rise.weight.mul_(3.0)


@torch.no_grad()
def _dead(training: Training) -> None:
    training.model[7].bias.fill_(-100.0)  # type: ignore[index, operator]


def _detached(training: Training) -> None:
    layer = training.model.layers[0]  # type: ignore[index, union-attr]
    layer.register_forward_hook(lambda module, args, output: output.detach() + 0.0 * output)


def _frozen(training: Training) -> None:
    _layer(training).fall.weight.requires_grad_(False)
    _layer(training).fall.weight.grad = None


def _moment(training: Training) -> None:
    state = training.optimizers[0].state[_layer(training).rise.weight]
    state["exp_avg_sq"].mul_(1e6)


def _batch(training: Training) -> None:
    training.change["batch"] = lambda images: images * 1000.0


def _blank(training: Training) -> None:
    training.change["batch"] = lambda images: torch.zeros_like(images)


def _unnormalised(training: Training) -> None:
    training.model.norm.forward = lambda x: x * 40.0  # type: ignore[union-attr, assignment]


FAULTS: dict[str, Fault] = {
    "nan_output": Fault(writer, _nan_output, ("not_finite",), "layers.1"),
    "inf_gradient": Fault(writer, _inf_gradient, ("not_finite",), "layers.2.rise.weight"),
    "scaled_gradient": Fault(writer, _scaled_gradient, ("jump",), "layers.1.rise.weight"),
    "rate": Fault(writer, _rate, ("jump", "not_finite", "dead")),
    "written": Fault(writer, _written, ("written",), "layers.1.rise.weight"),
    "dead": Fault(viewer, _dead, ("dead", "written", "jump")),
    "detached": Fault(writer, _detached, ("vanished", "jump"), ""),
    "frozen": Fault(writer, _frozen, ("stuck",), "layers.1.fall.weight"),
    "moment": Fault(writer, _moment, ("jump",), "layers.1.rise.weight"),
    "batch": Fault(viewer, _batch, ("jump",)),
    "blank": Fault(viewer, _blank, ("jump", "dead", "vanished")),
    "unnormalised": Fault(writer, _unnormalised, ("jump",), "norm"),
}


def watched(
    out: Path, make: Callable[[], Training], *, steps: int, fault: Fault | None = None, **options: Any
) -> list[Anomaly]:
    """Train; gives what was told."""
    torch.manual_seed(0)
    training = make()
    with open(os.devnull, "w") as nobody, contextlib.redirect_stderr(nobody):  # what is told is in the trace, too
        watching = ulpscope.watch(training.model, out=out, what="training", overwrite=True, **options)
        with watching:
            for step in range(steps):
                if fault is not None and step == FAULT_STEP:
                    fault.plant(training)
                training.step(step)
    return watching.anomalies


def told(anomalies: Sequence[Anomaly]) -> str:
    return "; ".join(f"{each.step} {each.kind.value} {each.quantity.value} {each.name}" for each in anomalies[:4])


def judged(fault: Fault, anomalies: Sequence[Anomaly]) -> str | None:
    """What is wrong with what was told of a planted anomaly; nothing, if it is as it should be."""
    if not anomalies:
        return "not told"
    first = anomalies[0]
    if not FAULT_STEP <= first.step <= FAULT_STEP + LATE:
        return f"told at step {first.step}"
    if first.kind.value not in fault.kinds:
        return f"told as {first.kind.value}"
    return None if fault.name in first.name else f"told of {first.name}"


def _rank(rank: int, port: int, out: str, planted: bool) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(rank)
    with (
        open(os.devnull, "w") as nobody,
        contextlib.redirect_stderr(nobody),
        ulpscope.watch(model, out=out, what="training"),
    ):
        for step in range(FAULT_STEP + AFTER if planted else STEPS):
            if planted and step == FAULT_STEP and rank == 1:
                with torch.no_grad():
                    model.module[0].weight[0, 0] += 1e-3
            x = torch.randn(8, 6, generator=batches)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
            optimizer.step()
    torch.distributed.destroy_process_group()


def parallel(out: Path, *, planted: bool) -> list[Anomaly]:
    """Two ranks; one of them writes into a weight, by as little as an update does."""
    from ulpscope.trace.trainings.written import read_anomalies

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port, str(out), planted), nprocs=2)
    return [each for rank in sorted(out.glob("rank*")) for each in read_anomalies(rank)]


def parted(out: Path) -> list[Anomaly]:
    """The same training as an earlier one, until a batch has other words."""
    watched(out / "earlier", perceptron, steps=FAULT_STEP + AFTER)
    fault = Fault(perceptron, lambda training: training.change.update(batch=lambda x: x.flip(1)), ("like", "jump"))
    return watched(out / "now", perceptron, steps=FAULT_STEP + AFTER, fault=fault, like=out / "earlier")


RANKS = Fault(perceptron, lambda _: None, ("ranks",))
LIKE = Fault(perceptron, lambda _: None, ("like",))
OTHER_FAULTS = {"ranks": RANKS, "like": LIKE}


def healthy(name: str, out: Path) -> bool:
    found = parallel(out, planted=False) if name == "parallel" else watched(out, HEALTHY[name], steps=STEPS)
    mark = "held out" if name in HELD_OUT else ""
    print(f"{'ok' if not found else 'ALARM':6} {name:18} {mark:9} {told(found)}", flush=True)
    return not found


def planted(name: str, out: Path) -> bool:
    fault = FAULTS.get(name) or OTHER_FAULTS[name]
    if name == "ranks":
        found = parallel(out, planted=True)
    elif name == "like":
        found = parted(out)
    else:
        found = watched(out, fault.training, steps=FAULT_STEP + AFTER, fault=fault)
    problem = judged(fault, found)
    print(f"{'ok' if problem is None else 'MISSED':6} {name:18} {problem or '':20} {told(found)}", flush=True)
    return problem is None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trainings, faults = [*HEALTHY, "parallel"], [*FAULTS, *OTHER_FAULTS]
    parser.add_argument("--only", nargs="+", choices=[*trainings, *faults], default=[*trainings, *faults])
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args(argv)
    with contextlib.ExitStack() as held:
        folder = arguments.keep or Path(held.enter_context(tempfile.TemporaryDirectory(prefix="ulpscope-monitoring-")))
        silent = [healthy(name, folder / name) for name in trainings if name in arguments.only]
        found = [planted(name, folder / name) for name in faults if name in arguments.only]
    print(f"silent: {sum(silent)} of {len(silent)}; told: {sum(found)} of {len(found)}")
    return 0 if all(silent) and all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
