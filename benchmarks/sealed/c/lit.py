"""A probabilistic forecaster trained by Lightning."""

from __future__ import annotations

import logging
import math
import warnings

import lightning
import torch
from common import Options, generator, recipe, report
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class DeepAr(lightning.LightningModule):
    """An autoregressive network that predicts mean and spread of the next value."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.rnn = nn.RNN(3, 40, num_layers=2, batch_first=True, nonlinearity="tanh")
        self.mean = nn.Linear(40, 1)
        self.spread = nn.Linear(40, 1)

    def forward(self, series: torch.Tensor, covariates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = 1 + series.abs().mean(1, keepdim=True)
        lag = (series / scale)[:, :-1, None]
        states, _ = self.rnn(torch.cat([lag, covariates], dim=-1))
        mean = self.mean(states).squeeze(-1) * scale
        spread = F.softplus(self.spread(states)).squeeze(-1)
        if self.options.fault != "spread_unscaled":
            spread = spread * scale
        return mean, spread + 1e-4

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        series, covariates = batch
        mean, spread = self(series, covariates)
        target = series[:, 1:]
        nll = 0.5 * ((target - mean) / spread) ** 2 + torch.log(spread) + 0.5 * math.log(2 * math.pi)
        loss = nll.mean()
        report(index, loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def covariates_of(length: int, late: int) -> torch.Tensor:
    """Hour of the day of every value that is to be predicted."""
    hour = torch.arange(1 - late, length - late, dtype=torch.float32) % 24
    return torch.stack([torch.sin(hour / 24 * 2 * math.pi), torch.cos(hour / 24 * 2 * math.pi)], dim=-1)


@recipe("deepar", faults=("spread_unscaled", "late_covariates"))
def deepar(options: Options) -> None:
    """Lightning's own loop, with its mixed precision."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(31, verbose=False)
    source = generator(7)
    count, length = 8 * options.steps, 25
    time = torch.arange(length)
    phase = torch.rand(count, 1, generator=source) * 6
    level = 2 + 20 * torch.rand(count, 1, generator=source)
    series = level * (1 + 0.4 * torch.sin(time / 4 + phase)) + torch.randn(count, length, generator=source)
    covariates = covariates_of(length, 1 if options.fault == "late_covariates" else 0).expand(count, -1, -1)
    model = DeepAr(options)
    precision = {"fp32": "32-true", "bf16-autocast": "bf16-mixed", "bf16": "bf16-true", "fp64": "64-true"}
    trainer = lightning.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        precision=precision[options.precision],
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(series, covariates), batch_size=8))
