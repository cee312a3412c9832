"""What all runs share: precision, data, the plain loop, and the loops of accelerate and of the Trainer."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler

Batch = dict[str, Any]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "float64": torch.float64}
AUTOCAST = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}
VOCABULARY = 160


def tokens(seed: int, *shape: int, low: int = 5, high: int = VOCABULARY) -> Tensor:
    """Token ids of a text in which a token tells something of the next one."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(low, high, shape, generator=generator)
    keep = torch.rand(shape, generator=generator) < 0.4
    follower = low + (ids.roll(1, -1) * 7 + 3) % (high - low)
    return torch.where(keep, ids, follower)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def images(seed: int, count: int, size: int) -> Tensor:
    """Smooth pictures with values from 0 to 1."""
    coarse = torch.rand(count, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    smooth = nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return (smooth + 0.05 * normal(seed + 1, count, 3, size, size)).clamp(0, 1)


def waves(seed: int, count: int, length: int) -> Tensor:
    """Sums of a few tones with noise."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(length) / 16000
    tones = 80 + 900 * torch.rand(count, 3, 1, generator=generator)
    phases = 6.28 * torch.rand(count, 3, 1, generator=generator)
    wave = torch.sin(6.2832 * tones * time + phases).mean(1)
    return wave + 0.05 * torch.randn(count, length, generator=generator)


class Task:
    """One model with its data and its loop. Subclasses say what their faults and equivalent ways are."""

    faults: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    lr = 2e-3
    init_scale = 256.0

    def __init__(self, precision: str, fault: str | None, variants: set[str], steps: int) -> None:
        self.precision, self.fault, self.chosen, self.steps = precision, fault, variants, steps

    def has(self, variant: str) -> bool:
        return variant in self.chosen

    def model(self) -> nn.Module:
        raise NotImplementedError

    def batch(self, step: int) -> Batch:
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(**batch).loss

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        how = {"foreach": True} if self.has("foreach") else {"fused": True} if self.has("fused") else {"foreach": False}
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=self.lr, **how)

    def prepare(self, model: nn.Module) -> nn.Module:
        if self.precision in DTYPES:
            model = model.to(DTYPES[self.precision])
        if self.has("channels_last"):
            model = model.to(memory_format=torch.channels_last)
        if self.has("checkpoint"):
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if self.has("compile"):
            model.compile(backend="aot_eager")
        return model

    def cast(self, batch: Batch) -> Batch:
        dtype = DTYPES.get(self.precision)
        if dtype is None:
            return batch
        return {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in batch.items()}

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision in AUTOCAST:
            return torch.autocast("cpu", AUTOCAST[self.precision])
        return contextlib.nullcontext()

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=self.init_scale, enabled=self.precision == "fp16-autocast")

    def run(self) -> Iterator[float]:
        model = self.prepare(self.model())
        model.train()
        optimizer, scaler = self.optimizer(model), self.scaler()
        for step in range(self.steps):
            with self.autocast():
                loss = self.loss(model, self.cast(self.batch(step)))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield loss.item()


class AccelerateTask(Task):
    """The loop of accelerate; the variant `plain` is the loop above."""

    def run(self) -> Iterator[float]:
        if self.has("plain"):
            yield from super().run()
            return
        from accelerate import Accelerator

        mixed = {"bf16-autocast": "bf16"}.get(self.precision, "no")
        accelerator = Accelerator(cpu=True, mixed_precision=mixed)
        model = self.prepare(self.model())
        model.train()
        model, optimizer = accelerator.prepare(model, self.optimizer(model))
        for step in range(self.steps):
            with accelerator.autocast():
                loss = self.loss(model, self.cast(self.batch(step)))
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            yield loss.item()


class Samples(Dataset):
    def __init__(self, rows: list[Batch]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Batch:
        return self.rows[index]


class TrainerTask(Task):
    """The loop of transformers' Trainer; the variant `plain` is one by hand that does the same."""

    size = 4

    def samples(self) -> Samples:
        batches = [self.batch(step) for step in range(self.steps)]
        return Samples([{k: v[i] for k, v in b.items()} for b in batches for i in range(self.size)])

    def run(self) -> Iterator[float]:
        yield from self.by_hand() if self.has("plain") else self.by_trainer()

    def by_trainer(self) -> list[float]:
        from transformers import Trainer, TrainingArguments

        class InOrder(Trainer):
            def _get_train_sampler(self, *_: Any) -> SequentialSampler:
                return SequentialSampler(self.train_dataset)

        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                use_cpu=True,
                bf16=self.precision == "bf16-autocast",
                per_device_train_batch_size=self.size,
                max_steps=self.steps,
                learning_rate=self.lr,
                lr_scheduler_type="constant",
                optim="adamw_torch",
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                dataloader_num_workers=2 if self.has("workers") else 0,
            )
            trainer = InOrder(self.prepare(self.model()), arguments, train_dataset=self.samples())
            trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    def by_hand(self) -> Iterator[float]:
        model = self.prepare(self.model())
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=0.0)
        for batch in DataLoader(self.samples(), batch_size=self.size):
            with self.autocast():
                loss = self.loss(model, self.cast(batch))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield loss.item()
