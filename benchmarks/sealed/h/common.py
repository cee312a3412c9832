"""The training loops, precisions and the base class of all tasks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

Batch = dict[str, Tensor]


@dataclass
class Options:
    model: str
    precision: str = "float32"
    fault: str = ""
    variants: tuple[str, ...] = ()
    steps: int = 2
    losses: list[float] = field(default_factory=list)


TASKS: dict[str, type[Task]] = {}
DTYPES = {"float64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
AUTOCAST = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}
LOOPS = ("lightning", "accelerate", "workers", "threads", "foreach", "fused", "own_adamw", "channels_last", "compile")


def task(name: str) -> Callable[[type[Task]], type[Task]]:
    def register(cls: type[Task]) -> type[Task]:
        TASKS[name] = cls
        return cls

    return register


def full(x: Tensor) -> Tensor:
    """Losses are computed at float32 at least."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def swap(model: nn.Module, old: type[nn.Module], new: type[nn.Module]) -> None:
    """Our own version of a layer in the place of the library's."""
    for module in model.modules():
        if type(module) is old:
            module.__class__ = new


class OwnAdamW(torch.optim.Optimizer):
    """AdamW written out, as in the project this was ported from."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float, correct: bool) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": 1e-8})
        self.correct = correct

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                state["step"] += 1
                m, v = state["m"], state["v"]
                m.mul_(first).add_(p.grad, alpha=1 - first)
                v.mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                one, two = 1.0, 1.0
                if self.correct:
                    one = 1 - first ** state["step"]
                    two = 1 - second ** state["step"]
                denominator = v.sqrt().div_(math.sqrt(two)).add_(group["eps"])
                p.addcdiv_(m, denominator, value=-group["lr"] / one)


class Task:
    """One model with its data, loss and optimizer; subclasses list their faults and ways."""

    faults: ClassVar[tuple[str, ...]] = ()
    ways: ClassVar[tuple[str, ...]] = ()
    lr = 1e-3
    decay = 0.01
    momentum: float | None = None
    micro = 1
    inference = False

    def __init__(self, options: Options) -> None:
        self.options = options
        self.fault = options.fault
        self.autocast = AUTOCAST.get(options.precision)
        self.dtype = DTYPES.get(options.precision, torch.float32)
        if self.fault and self.fault not in self.faults:
            raise SystemExit(f"no fault {self.fault!r}; there are: {', '.join(self.faults)}")
        for way in options.variants:
            if way not in (*self.ways, *LOOPS):
                raise SystemExit(f"no variant {way!r}; there are: {', '.join((*self.ways, *LOOPS))}")

    def has(self, way: str) -> bool:
        return way in self.options.variants

    def build(self) -> nn.Module:
        raise NotImplementedError

    def data(self, g: torch.Generator) -> Batch:
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        raise NotImplementedError

    def parameters(self, model: nn.Module) -> Any:
        return [p for p in model.parameters() if p.requires_grad]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        params = self.parameters(model)
        kind = {"foreach": self.has("foreach"), "fused": True if self.has("fused") else None}
        if self.momentum is not None:
            return torch.optim.SGD(params, lr=self.lr, momentum=self.momentum, weight_decay=self.decay, **kind)
        if self.has("own_adamw") or self.fault == "no_correction":
            return OwnAdamW(params, self.lr, (0.9, 0.999), self.decay, correct=self.fault != "no_correction")
        if self.fault == "coupled_decay":
            return torch.optim.Adam(params, lr=self.lr, weight_decay=self.decay, **kind)
        betas = (0.999, 0.9) if self.fault == "betas" else (0.9, 0.999)
        return torch.optim.AdamW(params, lr=self.lr, betas=betas, weight_decay=self.decay, **kind)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        return None

    def begin(self, model: nn.Module, step: int) -> None:
        """Called before every step."""

    def end(self, model: nn.Module, step: int) -> None:
        """Called after every step of the optimizer."""

    def cast(self, batch: Batch) -> Batch:
        return {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in batch.items()}

    def generator(self, step: int) -> torch.Generator:
        return torch.Generator().manual_seed(1000 + step)

    def batches(self, step: int) -> list[Batch]:
        g = self.generator(step)
        return [self.cast(self.data(g)) for _ in range(self.micro)]

    def amp(self) -> Any:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast("cpu", dtype=self.autocast)

    def run(self) -> None:
        model = self.build().to(self.dtype)
        if self.has("channels_last"):
            model = model.to(memory_format=torch.channels_last)
        if self.inference:
            self.infer(model)
        elif self.has("lightning"):
            lightning_fit(self, model)
        elif self.has("accelerate"):
            accelerate_fit(self, model)
        else:
            self.fit(model)

    def say(self, value: Tensor | float) -> None:
        number = float(value)
        self.options.losses.append(number)
        print(f"step {len(self.options.losses) - 1} loss {number:.9g}", flush=True)

    def infer(self, model: nn.Module) -> None:
        """Evaluation: the loss of some batches."""
        model.eval()
        with torch.no_grad():
            for step in range(self.options.steps):
                with self.amp():
                    value = self.loss(model, self.batches(step)[0])
                self.say(value)

    def fit(self, model: nn.Module) -> None:
        optimizer = self.optimizer(model)
        scheduler = self.scheduler(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=self.autocast is torch.float16)
        called = torch.compile(model, backend="aot_eager") if self.has("compile") else model
        source: Iterator[list[Batch]] = iter(
            loader(self) if self.has("workers") else (self.batches(s) for s in range(self.options.steps))
        )
        for step, batches in enumerate(source):
            self.begin(model, step)
            if self.fault == "scheduler_first" and scheduler is not None:
                scheduler.step()
            total = 0.0
            for batch in batches:
                with self.amp():
                    loss = self.loss(called, batch)
                scaled = loss if self.fault == "accumulate_sum" else loss / len(batches)
                scaler.scale(scaled).backward()
                total += float(loss.detach()) / len(batches)
            scaler.step(optimizer)
            scaler.update()
            if self.fault != "no_zero_grad":
                optimizer.zero_grad()
            if scheduler is not None and self.fault != "scheduler_first":
                scheduler.step()
            self.end(model, step)
            self.say(total)


class Steps(Dataset):
    def __init__(self, of: Task) -> None:
        self.of = of

    def __len__(self) -> int:
        return self.of.options.steps

    def __getitem__(self, step: int) -> list[Batch]:
        return self.of.batches(step)


def loader(of: Task) -> DataLoader:
    workers = 1 if of.has("workers") else 0
    return DataLoader(Steps(of), batch_size=None, num_workers=workers, collate_fn=lambda x: x)


def lightning_fit(of: Task, model: nn.Module) -> None:
    import logging
    import warnings

    import lightning

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: list[Batch], index: int) -> Tensor:
            of.begin(self.model, index)
            losses = [of.loss(self.model, micro) / len(batch) for micro in batch]
            loss = torch.stack(losses).sum()
            of.say(loss.detach())
            return loss

        def on_train_batch_end(self, outputs: Any, batch: list[Batch], index: int) -> None:
            of.end(self.model, index)

        def configure_optimizers(self) -> Any:
            optimizer = of.optimizer(self.model)
            scheduler = of.scheduler(optimizer)
            if scheduler is None:
                return optimizer
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    precision = {"bf16-autocast": "bf16-mixed", "float64": "64-true", "bf16": "bf16-true"}.get(of.options.precision, 32)
    trainer = lightning.Trainer(
        max_steps=of.options.steps,
        accelerator="cpu",
        devices=1,
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        barebones=False,
    )
    trainer.fit(Module(), loader(of))


def accelerate_fit(of: Task, model: nn.Module) -> None:
    from accelerate import Accelerator

    mixed = {"bf16-autocast": "bf16"}.get(of.options.precision, "no")
    accelerator = Accelerator(cpu=True, mixed_precision=mixed)
    optimizer = of.optimizer(model)
    scheduler = of.scheduler(optimizer)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    for step in range(of.options.steps):
        of.begin(model, step)
        total = 0.0
        batches = of.batches(step)
        for batch in batches:
            with accelerator.autocast():
                loss = of.loss(prepared, batch)
            accelerator.backward(loss / len(batches))
            total += float(loss.detach()) / len(batches)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        of.end(model, step)
        of.say(total)
