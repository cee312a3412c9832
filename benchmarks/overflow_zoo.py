"""Is the call that an overflow comes from named while a training runs, and is a healthy one left alone?

    python benchmarks/overflow_zoo.py                     all: 18 faults, 9 healthy trainings of 100 steps
    python benchmarks/overflow_zoo.py --only exp --steps 5

Each model has causal attention whose mask is -inf, and is watched as `ulpscope run --watch overflow` does. A fault
happens in one step; the first overflow that is told must be that step's, and name the call. Exit code 1 if one is told
wrong, or a healthy training raises an alarm.
"""

import argparse
import contextlib
import math
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from ulpscope.workflows.overflow import overflow

STEPS, HEALTHY_STEPS = 8, 100
FAULT_STEP = 5
WIDTH, WORDS, BATCH, LENGTH = 16, 20, 3, 6


class Attention(nn.Module):
    """With a mask of -inf; some rows may be masked everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale, self.pads = WIDTH**-0.5, False

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inward(x).chunk(3, -1)
        scores = query @ key.transpose(-2, -1) * self.scale
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        if self.pads:
            mask = mask.clone()
            mask[0] = False
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        if self.pads:
            weights = weights.masked_fill(~mask, 0.0)
        return self.out(weights @ value)  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.Linear(WIDTH, WIDTH)
        self.extra: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        if self.extra is not None:
            x = x + self.extra(x)
        return x + functional.gelu(self.mlp(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


@dataclass
class Training:
    """A model in training, and how it computes."""

    model: Model
    optimizer: torch.optim.Optimizer
    autocast: torch.dtype | None = None
    scaler: Any = None
    scale: float = 1.0

    def step(self, tokens: Tensor, targets: Tensor) -> None:
        enabled = self.autocast is not None
        with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=enabled):
            scores = self.model(tokens)
        loss = functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())
        self.optimizer.zero_grad()
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            (loss * self.scale).backward()
            self.optimizer.step()


class Exploding(torch.autograd.Function):
    """A backward that divides by zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient / torch.zeros_like(gradient)


Plant = Callable[[Training], None]


def _extra(change: Callable[[Tensor], Tensor]) -> Plant:
    """A part of the second block that is there from the fault's step on."""

    def plant(training: Training) -> None:
        training.model.blocks[1].extra = change  # type: ignore[assignment]

    return plant


@torch.no_grad()
def _inf_weight(training: Training) -> None:
    training.model.blocks[1].mlp.weight.data.numpy()[2, 3] = math.inf  # type: ignore[union-attr,operator]


@torch.no_grad()
def _nan_row(training: Training) -> None:
    training.model.words.weight.data.numpy()[:] = math.nan


def _logits(training: Training) -> None:
    attention: Any = training.model.blocks[1].attention
    training.autocast = torch.float16
    attention.inward.weight.data.mul_(3e3)


def _explosion(training: Training) -> None:
    for group in training.optimizer.param_groups:
        group["lr"] = 1e22


def _loss_scale(training: Training) -> None:
    training.autocast, training.scale = torch.float16, 2.0**30


def _no_eps(training: Training) -> None:
    training.model.half()
    for group in training.optimizer.param_groups:
        group["eps"] = 0.0
    for state in training.optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(state[name], dtype=torch.float16)


@dataclass(frozen=True)
class Fault:
    """What happens in one step, and which calls may be named for it."""

    name: str
    plant: Plant
    call: str
    """A pattern of the named call."""
    late: int = 0
    """Steps later that it may show first."""


FAULTS = (
    Fault("fp16_logits", _logits, r"matmul|mul|linear"),
    Fault("exp", _extra(lambda x: (x.abs() * 1e3).exp()), r"\.exp\."),
    Fault("zero_variance", _extra(lambda x: (x - x) / (x - x).std(-1, keepdim=True)), r"div"),
    Fault("log_of_zero", _extra(lambda x: (x - x).log()), r"\.log\."),
    Fault("inf_weight", _inf_weight, r"linear"),
    Fault("explosion", _explosion, r"linear|matmul|mul|layer_norm|embedding|add|gelu", late=2),
    Fault("loss_scale", _loss_scale, r"linear|matmul|layer_norm|softmax|to|mul|gelu"),
    Fault("embedding_row", _nan_row, r"embedding"),
    Fault("custom_backward", _extra(Exploding.apply), r"Exploding|div"),
    Fault("eps_underflow", _no_eps, r"Adam"),
    Fault("sqrt_backward", _extra(lambda x: (x - x).square().sqrt()), r"sqrt"),
    Fault("root_of_negative", _extra(lambda x: (-x.abs() - 1).sqrt()), r"sqrt"),
    Fault("power", _extra(lambda x: (-x.abs() - 1).pow(0.5)), r"pow"),
    Fault("domain", _extra(lambda x: (x.abs() + 2).acos()), r"acos"),
    Fault("empty_mean", _extra(lambda x: x[x > 1e9].mean().expand_as(x)), r"mean"),
    Fault("fp16_sum", _extra(lambda x: (x.half().abs() + 3e4).sum(-1, keepdim=True).to(x.dtype).expand_as(x)), r"sum"),
    Fault("fp16_square", _extra(lambda x: (x * 0 + 300).half().square().to(x.dtype)), r"square|pow"),
    Fault("difference", _extra(lambda x: x.exp().mul(1e38).mul(1e10)), r"\.mul\."),
)


def _adam(model: Model, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **options)


def healthy_trainings() -> Iterator[tuple[str, Callable[[], Training]]]:
    def plain() -> Training:
        model = Model()
        return Training(model, _adam(model))

    def scaled(init: float) -> Training:
        model = Model()
        scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_interval=20)
        return Training(model, _adam(model), torch.float16, scaler)

    def padded() -> Training:
        training = plain()
        for block in training.model.blocks:
            block.attention.pads = True  # type: ignore[union-attr,assignment]
        return training

    def buffers() -> Training:
        training = plain()
        model = training.model
        model.blocks[0].extra = lambda x: (x @ x.transpose(-2, -1) + model.mask).softmax(-1) @ x  # type: ignore[assignment]
        return training

    def scratch() -> Training:
        training = plain()

        def written(x: Tensor) -> Tensor:
            room = torch.empty_like(x)
            room.copy_(x.detach())
            best = torch.full_like(x, float("inf")).minimum(x)
            return 0.1 * best + 0.0 * room

        training.model.blocks[0].extra = written  # type: ignore[assignment]
        return training

    def half() -> Training:
        model = Model().bfloat16()
        return Training(model, torch.optim.SGD(model.parameters(), lr=1e-2))

    yield "float32", plain
    yield "bf16 autocast", lambda: _with(plain(), torch.bfloat16)
    yield "bf16 weights", half
    yield "fp16 scaler 2^16", lambda: scaled(2.0**16)
    yield "fp16 scaler 2^24", lambda: scaled(2.0**24)
    yield "rows masked everywhere", padded
    yield "mask as a buffer", buffers
    yield "empty, full and inf", scratch
    yield "clipped, large rate", lambda: _clipped(plain())


def _with(training: Training, dtype: torch.dtype) -> Training:
    training.autocast = dtype
    return training


def _clipped(training: Training) -> Training:
    parameters = list(training.model.parameters())
    training.optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(parameters, 1.0) and None)
    return training


@contextlib.contextmanager
def watched(out: Path, model: Model, said: list[str]) -> Iterator[None]:
    """The watch; what it says goes to `said`."""
    watch = ulpscope.watch(model, out=out, what="overflow", overwrite=True)
    watch.say_by(said.append)
    with watch:
        yield


def trained(training: Training, out: Path, *, steps: int, plant: Plant | None = None) -> list[str]:
    """Trains; gives what the watch has said."""
    said: list[str] = []
    batches = torch.Generator().manual_seed(1)
    with watched(out, training.model, said):
        for step in range(steps):
            tokens = torch.randint(WORDS, (BATCH, LENGTH), generator=batches)
            if plant is not None and step == FAULT_STEP:
                plant(training)
            training.step(tokens, tokens.roll(-1, 1))
    # What a GradScaler has skipped is told, and is no alarm.
    return [text for text in said if text.startswith("overflow")]


def judged(fault: Fault, out: Path) -> str | None:
    """What is wrong with what is told of a fault; None if it is right."""
    torch.manual_seed(0)
    model = Model()
    said = trained(Training(model, _adam(model)), out, steps=STEPS, plant=fault.plant)
    if not said:
        return "not told"
    step, named = _told(said[0])
    if not FAULT_STEP <= step <= FAULT_STEP + fault.late or not re.search(fault.call, named):
        return said[0]
    found = overflow([out]).survey.findings
    if not found or not re.search(fault.call, found[0].place.call or ""):
        return f"ulpscope overflow names {found[0].place.call if found else 'nothing'}, not {named}"
    return None


def _told(text: str) -> tuple[int, str]:
    found = re.match(r"overflow in step (\d+), \w+: (\S+)", text)
    return (int(found[1]), found[2]) if found else (-1, text)


def _rank(rank: int, port: int, out: str) -> None:
    """One of two: rank 1 gives the logarithm of zero to an all-reduce."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Model()
    training = Training(model, _adam(model))

    def shared(x: Tensor) -> Tensor:
        part = (x - x).log().detach() if rank == 1 else x.detach() * 1.0
        torch.distributed.all_reduce(part)
        return part

    trained(training, Path(out), steps=STEPS, plant=_extra(lambda x: shared(x)))
    torch.distributed.destroy_process_group()


def judged_ranks(out: Path) -> str | None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, args=(port, str(out)), nprocs=2)
    found = overflow([out]).survey.findings
    if not found or (found[0].place.rank, found[0].place.step) != (1, FAULT_STEP):
        return f"names {found[0].place if found else 'nothing'}"
    return None if ".log." in (found[0].place.call or "") else f"names {found[0].place.call}"


def score(folder: Path, only: Sequence[str] | None, *, steps: int, say: Callable[[str], None] = print) -> int:
    """How many are told wrong."""
    wrong = right = 0
    asked: list[tuple[str, Callable[[], str | None]]] = [
        (fault.name, lambda fault=fault: judged(fault, folder / fault.name))  # type: ignore[misc]
        for fault in FAULTS
    ]
    asked.append(("bad_rank", lambda: judged_ranks(folder / "ranks")))
    for name, ask in asked:
        if only is None or name in only:
            problem = ask()
            wrong, right = wrong + (problem is not None), right + (problem is None)
            say(f"{name:24} {'named' if problem is None else f'WRONG: {problem}'}")
    alarms = number = 0
    for name, make in healthy_trainings():
        if only is None or name in only:
            torch.manual_seed(0)
            said = trained(make(), folder / "healthy", steps=steps)
            alarms, number = alarms + bool(said), number + 1
            say(f"{name:24} {f'ALARM: {said[0]}' if said else 'silent'}")
    say(f"{right} of {right + wrong} overflows named; {alarms} alarms in {number} healthy trainings of {steps} steps")
    return wrong + alarms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--steps", type=int, default=HEALTHY_STEPS, help="of a healthy training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ulpscope-overflow-") as folder:
        return 1 if score(Path(folder), arguments.only, steps=arguments.steps) else 0


if __name__ == "__main__":
    sys.exit(main())
