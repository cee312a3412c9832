"""Training loops of transformers, Lightning and accelerate."""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import accelerate
import lightning
import torch
import torch.nn.functional as F
import transformers
from accelerate.state import AcceleratorState, GradientState
from common import Script, script
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def fresh() -> None:
    """As in a new process: accelerate remembers the precision it was first asked for."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


class Texts(Dataset):
    def __init__(self, random: torch.Generator, rows: int, shift: int) -> None:
        start, pace = (torch.randint(*s, (rows, 1), generator=random) for s in ((3, 60), (1, 6)))
        self.ids = 3 + (start + pace * torch.arange(16) + torch.randint(0, 2, (rows, 16), generator=random)) % 57
        self.shift = shift

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[i], "labels": self.ids[i].roll(self.shift)}


@script("trainer")
class WithTrainer(Script):
    """GPT-NeoX with the Trainer of transformers."""

    faults = ("shifted_twice", "weight_decay", "adam_epsilon", "label_smoothing")
    variants = ("accumulate_two", "checkpointing")

    def build(self) -> None:
        config = transformers.GPTNeoXConfig(
            vocab_size=60,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            max_position_embeddings=32,
            initializer_range=0.14,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            use_cache=False,
        )
        self.net = self.add(transformers.GPTNeoXForCausalLM(config))

    def run(self) -> None:
        fresh()
        parts = 2 if self.way("accumulate_two") else 1
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder,
                max_steps=self.options.steps,
                per_device_train_batch_size=8 // parts,
                gradient_accumulation_steps=parts,
                gradient_checkpointing=self.way("checkpointing"),
                gradient_checkpointing_kwargs={"use_reentrant": False},
                learning_rate=2e-3,
                lr_scheduler_type="constant",
                weight_decay=0.0 if self.has("weight_decay") else 0.3,
                adam_epsilon=1e-3 if self.has("adam_epsilon") else 1e-8,
                label_smoothing_factor=0.1 if self.has("label_smoothing") else 0.0,
                bf16=self.precision == "bf16-autocast",
                optim="adamw_torch",
                use_cpu=True,
                report_to=[],
                save_strategy="no",
                logging_steps=1,
                disable_tqdm=True,
                log_level="error",
                seed=7,
            )
            texts = Texts(self.random, 64, -1 if self.has("shifted_twice") else 0)
            trainer = transformers.Trainer(self.net, arguments, train_dataset=texts)
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
        self.losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        for number, loss in enumerate(self.losses):
            print(f"step {number} loss {loss:.9g}")


@script("lightning")
class WithLightning(Script):
    """A regression by convolutions with Lightning."""

    faults = ("clip_by_value", "nesterov", "eval_mode")
    variants = ("manual",)

    def build(self) -> None:
        self.net = self.add(
            nn.Sequential(
                nn.Conv1d(2, 24, 5, padding=2),
                nn.InstanceNorm1d(24, affine=True),
                nn.ELU(),
                nn.Conv1d(24, 24, 5, padding=2, groups=4),
                nn.BatchNorm1d(24),
                nn.ELU(),
                nn.Flatten(),
                nn.Linear(24 * 20, 1),
            )
        )

    def module(self) -> Any:
        script = self

        class Regression(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = script.net
                self.automatic_optimization = not script.way("manual")

            def training_step(self, batch: list[Tensor], _: int) -> Tensor:
                loss = F.l1_loss(self.net(batch[0]).squeeze(-1).float(), batch[1])
                script.losses.append(float(loss.detach()))
                print(f"step {len(script.losses) - 1} loss {script.losses[-1]:.9g}")
                if script.way("manual"):
                    optimizer = self.optimizers()
                    optimizer.zero_grad()
                    self.manual_backward(loss)
                    self.clip_gradients(optimizer, 0.2, "norm")
                    optimizer.step()
                return loss

            def on_train_epoch_start(self) -> None:
                if script.has("eval_mode"):
                    self.net.eval()

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=script.has("nesterov"))

        return Regression()

    def run(self) -> None:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        x = torch.randn(64, 2, 20, generator=self.random)
        y = x[:, 0].cumsum(-1).amax(-1) + x[:, 1, 3] * x[:, 0, 5]
        precision = {"bf16-autocast": "bf16-mixed", "bf16": "bf16-true", "fp64": "64-true"}.get(
            self.precision, "32-true"
        )
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            torch.manual_seed(5)
            clip: dict[str, Any] = {"gradient_clip_val": 0.2, "gradient_clip_algorithm": "norm"}
            if self.has("clip_by_value"):
                clip["gradient_clip_algorithm"] = "value"
            trainer = lightning.Trainer(
                max_steps=self.options.steps,
                accelerator="cpu",
                precision=precision,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=folder,
                **({} if self.way("manual") else clip),
            )
            trainer.fit(self.module(), DataLoader(TensorDataset(x, y), batch_size=16))


@script("accelerate")
class WithAccelerate(Script):
    """GRU over events with accelerate, gradients of two batches in each step."""

    faults = ("not_divided", "schedule_each_batch", "pooling")
    variants = ("one_batch",)

    def build(self) -> None:
        parts = {
            "events": nn.EmbeddingBag(50, 32, mode="sum" if self.has("pooling") else "mean"),
            "rnn": nn.GRU(32, 48, batch_first=True, bidirectional=True),
            "norm": nn.LayerNorm(96),
            "head": nn.Linear(96, 3),
        }
        self.net = self.add(nn.ModuleDict(parts))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3)

    def loss(self, net: Any, events: Tensor, labels: Tensor) -> Tensor:
        rows, times = events.shape[:2]
        seen = net["events"](events.flatten(0, 1)).view(rows, times, -1)
        hidden, _ = net["rnn"](seen)
        return F.cross_entropy(net["head"](net["norm"](hidden.mean(1))), labels)

    def run(self) -> None:
        fresh()
        parts = 1 if self.way("one_batch") else 2
        given = 1 if self.has("not_divided") else parts
        mixed = "bf16" if self.precision == "bf16-autocast" else "no"
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=mixed, gradient_accumulation_steps=given)
        warm = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: min(1.0, (n + 1) / 4))
        net, optimizer = accelerator.prepare(self.net, self.optimizer)
        for number in range(self.options.steps):
            events, labels = self.integers(0, 50, 8, 10, 4), self.integers(0, 3, 8)
            value = 0.0
            for part, (rows, wanted) in enumerate(zip(events.chunk(parts), labels.chunk(parts), strict=True)):
                with accelerator.accumulate(net):
                    with accelerator.autocast():
                        loss = self.loss(net, rows, wanted)
                    accelerator.backward(loss)
                    value += float(loss.detach()) / parts
                    if part == parts - 1:
                        optimizer.step()
                        optimizer.zero_grad()
                        warm.step()
                    elif self.has("schedule_each_batch"):
                        warm.step()
            self.losses.append(value)
            print(f"step {number} loss {value:.9g}")
