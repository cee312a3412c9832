"""Speech, recurrent networks, text classification, forecasting."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from common import OffKernel, Options, autocast, generator, recipe, report, scaler_for, token_batch
from own import Bahdanau, Beats, Conformer, NormLstm, Swish, TextCnn
from torch import nn
from torch.nn import functional as F

import models


@recipe("conformer", faults=("half_step", "swish_backward", "glu_halves"), variants=("real_imag",))
def conformer(options: Options) -> None:
    """Keywords in waves, with the schedule of the first transformers."""
    torch.manual_seed(33)
    model = Conformer(options).to(options.dtype)
    Swish.whole = options.fault != "swish_backward"
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    rate = lambda step: 48**-0.5 * min((step + 1) ** -0.5, (step + 1) * 20**-1.5)  # noqa: E731
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    scaler = scaler_for(options)
    time = torch.arange(1024) / 64
    model.train()
    for step in range(options.steps):
        source = generator(1200 + step)
        labels = torch.randint(0, 6, (6,), generator=source)
        pitch = 1 + labels[:, None] + 0.2 * torch.rand(6, 1, generator=source)
        wave = torch.sin(2 * math.pi * pitch * time) + 0.3 * torch.randn(6, 1024, generator=source)
        lengths = torch.randint(9, 18, (6,), generator=source)
        optimizer.zero_grad()
        with autocast(options):
            loss = F.cross_entropy(model(wave.to(options.dtype), lengths), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        report(step, loss.detach())


@recipe(
    "norm_lstm",
    faults=("state_dropped", "forget_bias", "gate_order", "untied"),
    variants=("separate_gates", "two_threads"),
)
def norm_lstm(options: Options) -> None:
    """Truncated backpropagation through one long text."""
    torch.set_num_threads(2 if options.variant == "two_threads" else 1)
    torch.manual_seed(34)
    model = NormLstm(70, 48, options).to(options.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    text = torch.randint(0, 70, (4, 8 * options.steps + 1), generator=generator(1300))
    blank = [(torch.zeros(4, 48, dtype=options.dtype), torch.zeros(4, 48, dtype=options.dtype)) for _ in range(2)]
    states = list(blank)
    for step in range(options.steps):
        piece = text[:, 8 * step : 8 * step + 9]
        states = [(h.detach(), c.detach()) for h, c in states]
        if options.fault == "state_dropped":
            states = list(blank)
        with autocast(options):
            logits, states = model(piece[:, :-1], states)
            loss = F.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        report(step, loss.detach())


@recipe("bahdanau", faults=("no_mask", "teacher_shift", "softmax_axis"), variants=("joint_projection",))
def bahdanau(options: Options) -> None:
    """Translation with teacher forcing."""
    torch.manual_seed(35)
    model = Bahdanau(60, 32, options).to(options.dtype)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0, rho=0.95, eps=1e-6)
    for step in range(options.steps):
        source, _ = token_batch(60, 4, 9, seed=1400 + step)
        target, _ = token_batch(60, 4, 7, seed=1450 + step)
        target[:, 0] = 1
        with autocast(options):
            logits = model(source, target)
            loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        report(step, loss.detach())


@recipe("textcnn", faults=("no_smoothing", "words_not_zeroed", "quantised"), variants=("amax",))
def textcnn(options: Options) -> None:
    """Two optimizers: a sparse one for words, a dense one for the rest."""
    torch.manual_seed(36)
    model = TextCnn(200, 40, options).to(options.dtype)
    words = torch.optim.SparseAdam(list(model.embed.parameters()), lr=5e-3)
    dense = torch.optim.Adam([p for n, p in model.named_parameters() if not n.startswith("embed")], lr=2e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.0 if options.fault == "no_smoothing" else 0.1)
    for step in range(options.steps):
        ids, _ = token_batch(200, 8, 20, seed=1500 + step)
        labels = torch.randint(0, 5, (8,), generator=generator(1550 + step))
        with autocast(options):
            loss = criterion(model(ids), labels)
        if options.fault != "words_not_zeroed":
            words.zero_grad()
        dense.zero_grad()
        loss.backward()
        words.step()
        dense.step()
        report(step, loss.detach())


@recipe("nbeats", faults=("residual_sign", "off_kernel"), variants=("float64_basis",))
def nbeats(options: Options) -> None:
    """Forecasts of a univariate series, with an average of the weights on the side."""
    torch.manual_seed(37)
    model = Beats(options).to(options.dtype)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.RAdam(model.parameters(), lr=2e-3)
    time = torch.arange(40)
    for step in range(options.steps):
        source = generator(1600 + step)
        phase, slope = torch.rand(8, 1, generator=source) * 6, torch.randn(8, 1, generator=source)
        series = torch.sin(time / 5 + phase) + slope * time / 40 + 0.1 * torch.randn(8, 40, generator=source)
        series = series.to(options.dtype)
        kernel = OffKernel((64, 56), 1.06) if options.fault == "off_kernel" else nullcontext()
        with autocast(options), kernel:
            forecast = model(series[:, :32])
            loss = F.smooth_l1_loss(forecast, series[:, 32:].to(forecast.dtype))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        report(step, loss.detach())


class SampleScaler(nn.Module):
    """Standardises by the standard deviation of a sample (n - 1)."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.minimum_scale = plain.minimum_scale

    def forward(self, data: torch.Tensor, observed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        count = observed.sum(1, keepdim=True).clamp_min(1.0)
        loc = (data * observed).sum(1, keepdim=True) / count
        variance = (((data - loc) * observed) ** 2).sum(1, keepdim=True) / (count - 1)
        scale = torch.sqrt(variance + self.minimum_scale)
        return (data - loc) / scale, loc, scale


@recipe("patchtst", faults=("alpha", "sample_variance", "post_norm"), variants=("with_evaluation",))
def patchtst(options: Options) -> None:
    """Multivariate forecasts, one-cycle schedule, sometimes an evaluation in between."""
    model = models.patchtst(pre_norm=options.fault != "post_norm").to(options.dtype)
    if options.fault == "sample_variance":
        model.model.scaler.scaler.forward = SampleScaler(model.model.scaler.scaler).forward
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9 if options.fault == "alpha" else 0.99)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=20)
    time = torch.arange(60)
    for step in range(options.steps):
        source = generator(1700 + step)
        phase = torch.rand(4, 1, 3, generator=source) * 6
        level = 3 * torch.randn(4, 1, 3, generator=source)
        series = level + torch.sin(time[None, :, None] / 6 + phase) + 0.1 * torch.randn(4, 60, 3, generator=source)
        series = series.to(options.dtype)
        model.train()
        optimizer.zero_grad()
        with autocast(options):
            loss = model(past_values=series[:, :48], future_values=series[:, 48:]).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        report(step, loss.detach())
        if options.variant == "with_evaluation":
            model.eval()
            with torch.no_grad(), autocast(options):
                held_out = model(past_values=series.flip(0)[:, :48]).prediction_outputs
            print("  held out", float((held_out - series.flip(0)[:, 48:]).abs().mean()))
