"""Forecasting: temporal fusion, TimesNet, Autoformer, N-HiTS."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import OPTIONS, Script, dtype, fault, full, generator, noise, variant
from torch import Tensor, nn


class Grn(nn.Module):
    """Gated residual network."""

    def __init__(self, inputs: int, dim: int, outputs: int | None = None, context: int = 0) -> None:
        super().__init__()
        outputs = outputs or dim
        self.skip = nn.Linear(inputs, outputs) if inputs != outputs else nn.Identity()
        self.fc1 = nn.Linear(inputs, dim)
        self.context = nn.Linear(context, dim, bias=False) if context else None
        self.fc2 = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, 2 * outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        h = self.fc1(x)
        if self.context is not None and context is not None:
            h = h + self.context(context)
        h = self.fc2(F.elu(h))
        if variant("glu"):
            a, b = self.gate(h).chunk(2, -1)
            h = a * torch.sigmoid(b)
        else:
            h = F.glu(self.gate(h), -1)
        return self.norm(self.skip(x) + h)


class Selection(nn.Module):
    def __init__(self, variables: int, dim: int, context: int) -> None:
        super().__init__()
        self.lift = nn.ModuleList(nn.Linear(1, dim) for _ in range(variables))
        self.grns = nn.ModuleList(Grn(dim, dim) for _ in range(variables))
        self.weights = Grn(variables * dim, dim, variables, context)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        lifted = [f(x[..., i : i + 1]) for i, f in enumerate(self.lift)]
        axis = 1 if fault("selection_axis") else -1
        weight = self.weights(torch.cat(lifted, -1), context[:, None]).softmax(axis)
        parts = torch.stack([g(z) for g, z in zip(self.grns, lifted, strict=True)], -1)
        return (parts * weight[..., None, :]).sum(-1)


class FusionTransformer(nn.Module):
    def __init__(self, variables: int = 4, dim: int = 24, heads: int = 4, horizon: int = 6) -> None:
        super().__init__()
        self.heads, self.horizon = heads, horizon
        self.static = nn.Embedding(5, dim)
        self.selection = Selection(variables, dim, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.enrich = Grn(dim, dim, context=dim)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        # One value for all heads, so that the attention can be read.
        self.value = nn.Linear(dim, dim // heads)
        self.merge = nn.Linear(dim // heads, dim)
        self.final = Grn(dim, dim)
        self.out = nn.Linear(dim, 3)

    def attend(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.query, self.key))
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        weight = scores.masked_fill(future, -1e4 if scores.dtype == torch.float16 else -1e9).softmax(-1)
        weight = weight.sum(1) if fault("head_sum") else weight.mean(1)
        return self.merge(weight @ self.value(x))

    def forward(self, x: Tensor, static: Tensor) -> Tensor:
        context = self.static(static)
        z = self.selection(x, context)
        h, _ = self.lstm(z)
        h = self.enrich(h + z, context[:, None])
        h = self.final(h + self.attend(h))
        return self.out(h[:, -self.horizon :])


class FusionScript(Script):
    faults = ("selection_axis", "head_sum", "pinball")
    variants = ("glu", "lightning")

    def setup(self) -> None:
        self.model = self.net(FusionTransformer())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        t = torch.arange(20.0)[None, :, None] + step
        x = torch.sin(0.4 * t * torch.arange(1.0, 5.0)) + 0.3 * noise(10, 20, 4, seed=400 + step).float()
        y = x[:, -6:].mean(-1) + 0.2
        return x.to(dtype()), torch.arange(10) % 5, y.to(dtype())

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, static, y = batch
        error = y[..., None] - self.model(x, static)
        q = torch.tensor([0.1, 0.5, 0.9], dtype=y.dtype)
        if fault("pinball"):
            q = 1 - q
        return torch.maximum(q * error, (q - 1) * error).sum(-1).mean()

    def run(self) -> None:
        if not variant("lightning"):
            return super().run()
        import logging
        import warnings

        import lightning

        warnings.filterwarnings("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        script = self

        class Lit(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = script.model

            def training_step(self, batch: tuple[Tensor, ...], index: int) -> Tensor:
                loss = script.loss(batch)
                script.report(index, loss)
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return script.optimizer

        batches = [self.batch(step) for step in range(OPTIONS.steps)]
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Lit(), torch.utils.data.DataLoader(batches, batch_size=None))
        return None


class TimesBlock(nn.Module):
    """Folds a series by its strongest periods and convolves it in two dimensions."""

    def __init__(self, dim: int, top: int = 2) -> None:
        super().__init__()
        self.top = top
        self.first = nn.ModuleList(nn.Conv2d(dim, 2 * dim, 2 * i + 1, padding=i) for i in range(2))
        self.second = nn.ModuleList(nn.Conv2d(2 * dim, dim, 2 * i + 1, padding=i) for i in range(2))

    def convolve(self, x: Tensor) -> Tensor:
        x = torch.stack([f(x) for f in self.first], -1).mean(-1)
        x = F.gelu(x, approximate="tanh" if fault("tanh_gelu") else "none")
        return torch.stack([f(x) for f in self.second], -1).mean(-1)

    def forward(self, x: Tensor, periods: list[int], weight: Tensor) -> Tensor:
        b, t, c = x.shape
        outs = []
        for period in periods:
            length = -(-t // period) * period
            padded = F.pad(x, (0, 0, 0, length - t))
            if fault("fold_axis"):
                grid = padded.view(b, period, length // period, c)
            else:
                grid = padded.view(b, length // period, period, c)
            y = self.convolve(grid.permute(0, 3, 1, 2))
            outs.append(y.permute(0, 2, 3, 1).reshape(b, length, c)[:, :t])
        mixed = (torch.stack(outs, -1) * weight[:, None, None]).sum(-1)
        return mixed + x


class TimesNet(nn.Module):
    def __init__(self, channels: int = 5, dim: int = 16, length: int = 48, horizon: int = 12) -> None:
        super().__init__()
        self.embed = nn.Conv1d(channels, dim, 3, padding=1, padding_mode="zeros" if fault("zero_pad") else "circular")
        self.grow = nn.Linear(length, length + horizon)
        self.blocks = nn.ModuleList(TimesBlock(dim) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, channels)
        self.horizon = horizon

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        std = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        h = (x - mean) / std
        # The periods of the input, found once; they are whole numbers and the same for a batch.
        spectrum = torch.fft.rfft(full(h), dim=1).abs()
        strength = spectrum.mean((0, 2))
        strength = strength.index_fill(0, torch.tensor([0]), 0.0)
        top = strength.topk(2).indices
        periods = [x.shape[1] // int(i) for i in top]
        weight = spectrum.mean(-1)[:, top].softmax(-1).to(x.dtype)
        if fault("uniform_mix"):
            weight = torch.full_like(weight, 0.5)
        h = self.embed(h.transpose(1, 2)).transpose(1, 2)
        h = self.grow(h.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            h = self.norm(block(h, periods, weight.to(h.dtype)))
        y = self.out(h) * std + mean
        return y[:, -self.horizon :]


class TimesScript(Script):
    faults = ("tanh_gelu", "fold_axis", "zero_pad", "uniform_mix")
    variants = ("channels_last",)

    def setup(self) -> None:
        self.model = self.net(TimesNet())
        if variant("channels_last"):
            self.model = self.model.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        g = generator(410 + step)
        t = torch.arange(60.0)[None, :, None] + torch.arange(8.0)[:, None, None]
        x = 2 * torch.sin(2 * math.pi * t / 12 + torch.arange(5.0)) + torch.cos(2 * math.pi * t / 8)
        x = (x + 0.2 * torch.randn(8, 60, 5, generator=g)).to(dtype())
        return x[:, :48], x[:, 48:]

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(self.model(batch[0]), batch[1])


class Decomposition(nn.Module):
    """Splits a series into its moving average and the rest."""

    def __init__(self, size: int = 7) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        side = (self.size - 1) // 2
        if fault("zero_trend"):
            padded = F.pad(x, (0, 0, side, side))
        else:
            padded = torch.cat([x[:, :1].expand(-1, side, -1), x, x[:, -1:].expand(-1, side, -1)], 1)
        if variant("unfold"):
            trend = padded.unfold(1, self.size, 1).mean(-1)
        else:
            trend = F.avg_pool1d(padded.transpose(1, 2), self.size, stride=1).transpose(1, 2)
        return x - trend, trend


class AutoCorrelation(nn.Module):
    def __init__(self, dim: int, heads: int = 2, top: int = 3) -> None:
        super().__init__()
        self.heads, self.top = heads, top
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        n, d = x.shape[1:]
        q, k, v = (f(x) for f in (self.query, self.key, self.value))
        if variant("direct"):
            shifted = torch.stack([torch.roll(full(k), i, 1) for i in range(n)], 1)
            corr = torch.einsum("btd,bitd->bid", full(q), shifted)
        else:
            spectrum = torch.fft.rfft(full(q), dim=1)
            other = torch.fft.rfft(full(k), dim=1)
            product = spectrum * other if fault("no_conj") else spectrum * other.conj()
            corr = torch.fft.irfft(product, n=n, dim=1)
        mean = corr.mean(-1)
        # All lags take part, weighted by their correlation: nothing is picked.
        weight = (mean / math.sqrt(d)).softmax(-1).to(v.dtype)
        out = torch.zeros_like(v)
        for lag in range(n):
            shift = lag if fault("roll_sign") else -lag
            out = out + torch.roll(v, shift, 1) * weight[:, lag, None, None]
        return self.out(out)


class AutoformerLayer(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention = AutoCorrelation(dim)
        self.split1 = Decomposition()
        self.conv1 = nn.Conv1d(dim, 2 * dim, 1, bias=False)
        self.conv2 = nn.Conv1d(2 * dim, dim, 1, bias=False)
        self.split2 = Decomposition()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, t1 = self.split1(x + self.attention(x))
        y = self.conv2(F.gelu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)
        x, t2 = self.split2(x + y)
        return x, t1 + t2


class Autoformer(nn.Module):
    def __init__(self, channels: int = 4, dim: int = 24) -> None:
        super().__init__()
        self.embed = nn.Linear(channels, dim)
        self.layers = nn.ModuleList(AutoformerLayer(dim) for _ in range(2))
        self.trend = nn.Linear(dim, channels)
        self.season = nn.Linear(dim, channels)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        trends: Tensor | float = 0.0
        for layer in self.layers:
            h, t = layer(h)
            trends = trends + t
        return self.season(h) + self.trend(trends)


class AutoformerScript(Script):
    faults = ("zero_trend", "no_conj", "roll_sign")
    variants = ("unfold", "direct")

    def setup(self) -> None:
        self.model = self.net(Autoformer())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        t = torch.arange(33.0)[None, :, None] + torch.arange(6.0)[:, None, None] + step
        x = torch.sin(0.5 * t + torch.arange(4.0)) + 0.02 * t
        x = (x + 0.1 * noise(6, 33, 4, seed=420 + step).float()).to(dtype())
        return x[:, :-1], x[:, 1:]

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(self.model(batch[0]), batch[1])


class HiBlock(nn.Module):
    def __init__(self, length: int, horizon: int, pool: int, coarse: int) -> None:
        super().__init__()
        self.length, self.horizon, self.coarse = length, horizon, coarse
        self.pool = nn.MaxPool1d(pool, stride=pool, ceil_mode=True)
        size = -(-length // pool)
        self.layers = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.theta = nn.Linear(64, length + coarse)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pooled = self.pool(x[:, None]).squeeze(1)
        theta = self.theta(self.layers(pooled))
        back, knots = theta[:, : self.length], theta[:, self.length :]
        if variant("matrix"):
            place = ((torch.arange(self.horizon) + 0.5) * self.coarse / self.horizon - 0.5).clamp(0, self.coarse - 1)
            matrix = (1 - (place[:, None] - torch.arange(self.coarse)).abs()).clamp(min=0).to(knots.dtype)
            return back, knots @ matrix.T
        corners = fault("corners")
        return back, F.interpolate(knots[:, None], self.horizon, mode="linear", align_corners=corners).squeeze(1)


class NHits(nn.Module):
    def __init__(self, length: int = 48, horizon: int = 16) -> None:
        super().__init__()
        shapes = [(8, 2), (4, 4), (1, 16)]
        self.blocks = nn.ModuleList(HiBlock(length, horizon, p, c) for p, c in shapes)

    def forward(self, x: Tensor) -> Tensor:
        level = x[:, -1:]
        x = x - level
        forecast: Tensor = level
        for block in self.blocks:
            back, ahead = block(x)
            x = x + back if fault("backcast") else x - back
            forecast = forecast + ahead
        return forecast


class NHitsScript(Script):
    faults = ("corners", "backcast", "accumulation")
    variants = ("matrix",)

    def setup(self) -> None:
        self.model = self.net(NHits())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def batch(self, step: int) -> Tensor:
        t = torch.arange(64.0) + torch.arange(32.0)[:, None] * 2 + step
        x = torch.sin(0.3 * t) + 0.5 * torch.sin(1.1 * t) + 0.1 * noise(32, 64, seed=430 + step).float()
        return x.to(dtype())

    def loss(self, batch: Tensor) -> Tensor:
        return F.smooth_l1_loss(self.model(batch[:, :48]), batch[:, 48:])

    def run(self) -> None:
        for step in range(OPTIONS.steps):
            parts = self.batch(step).chunk(4)
            self.optimizer.zero_grad()
            total = 0.0
            for part in parts:
                with self.autocast():
                    loss = self.loss(part)
                # The mean over what is accumulated.
                share = loss if fault("accumulation") else loss / len(parts)
                self.scaler.scale(share).backward()
                total += float(loss) / len(parts)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.report(step, total)


SCRIPTS = {"fusion": FusionScript, "timesnet": TimesScript, "autoformer": AutoformerScript, "nhits": NHitsScript}
