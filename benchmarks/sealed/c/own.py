"""Models written by hand: speech, recurrent, convolutional and forecasting ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from common import Options
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

# ---------------------------------------------------------------- speech


class Swish(torch.autograd.Function):
    """x * sigmoid(x) with a backward that keeps x only."""

    whole = True

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        slope = gate * (1 + x * (1 - gate)) if Swish.whole else gate
        return grad * slope


class LogMel(nn.Module):
    """Log energies of triangular bands of a short-time spectrum."""

    def __init__(self, bands: int, variant: str | None) -> None:
        super().__init__()
        self.variant = variant
        self.register_buffer("window", torch.hann_window(64))
        centres = torch.linspace(0, 32, bands + 2)
        bins = torch.arange(33.0)[:, None]
        rising = (bins - centres[:-2]) / (centres[1:-1] - centres[:-2])
        falling = (centres[2:] - bins) / (centres[2:] - centres[1:-1])
        self.register_buffer("banks", torch.minimum(rising, falling).clamp(min=0))

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(wave, 64, hop_length=32, window=self.window, return_complex=True)
        if self.variant == "real_imag":
            parts = torch.view_as_real(spectrum)
            power = parts.square().sum(-1)
        else:
            power = spectrum.abs() ** 2
        return torch.log(power.transpose(1, 2) @ self.banks + 1e-6)


class FeedForward(nn.Module):
    """Norm, wide layer, swish, narrow layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(Swish.apply(self.up(self.norm(x))))


class RelativeAttention(nn.Module):
    """Self attention with a learned bias for every distance."""

    def __init__(self, width: int, heads: int, reach: int) -> None:
        super().__init__()
        self.heads = heads
        self.reach = reach
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.distance = nn.Parameter(torch.randn(heads, 2 * reach + 1) * 0.5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        place = torch.arange(length)
        bias = self.distance[:, (place[None, :] - place[:, None]).clamp(-self.reach, self.reach) + self.reach]
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        weights = scores.masked_fill(~mask[:, None, None, :], -1e4).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class ConvModule(nn.Module):
    """Pointwise, gate, depthwise, batch norm, swish, pointwise."""

    def __init__(self, width: int, swapped: bool = False) -> None:
        super().__init__()
        self.swapped = swapped
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.leave = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.enter(self.norm(x).transpose(1, 2)).chunk(2, dim=1)
        if self.swapped:
            value, gate = gate, value
        hidden = self.depth(value * torch.sigmoid(gate))
        return self.leave(Swish.apply(self.batch_norm(hidden))).transpose(1, 2)


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward."""

    def __init__(self, width: int, swapped: bool, half: float) -> None:
        super().__init__()
        self.half = half
        self.ff1 = FeedForward(width)
        self.attention = RelativeAttention(width, 4, 8)
        self.conv = ConvModule(width, swapped)
        self.ff2 = FeedForward(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.ff1(x)
        x = x + self.attention(x, mask)
        x = x + self.conv(x)
        x = x + self.half * self.ff2(x)
        return self.norm(x)


class Conformer(nn.Module):
    """A keyword spotter over raw waves."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        width = 48
        self.mel = LogMel(20, options.variant)
        self.subsample = nn.Sequential(nn.Conv1d(20, width, 3, stride=2, padding=1), nn.ReLU())
        self.blocks = nn.ModuleList(
            ConformerBlock(
                width,
                swapped=options.fault == "glu_halves" and i == 1,
                half=1.0 if options.fault == "half_step" and i == 1 else 0.5,
            )
            for i in range(2)
        )
        self.head = nn.Linear(width, 6)

    def forward(self, wave: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            mel = self.mel(wave)
        x = self.subsample(mel.transpose(1, 2)).transpose(1, 2)
        mask = torch.arange(x.shape[1])[None, :] < lengths[:, None]
        for block in self.blocks:
            x = block(x, mask)
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(pooled)


# ---------------------------------------------------------------- preference learning


class AlibiAttention(nn.Module):
    """Causal attention whose scores fall with distance."""

    def __init__(self, width: int, heads: int, first: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.slopes = [2 ** (-8 * (i + first) / heads) for i in range(heads)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q = self.query(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.key_value(x).view(batch, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        place = torch.arange(length)
        distance = (place[None, :] - place[:, None]).to(x.dtype)
        bias = torch.tensor(self.slopes, dtype=x.dtype)[:, None, None] * distance
        bias = bias.masked_fill(distance > 0, float("-inf"))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class AlibiBlock(nn.Module):
    """Attention and feed-forward, each normalised behind its residual."""

    def __init__(self, width: int, heads: int, first: int) -> None:
        super().__init__()
        self.attn = AlibiAttention(width, heads, first)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


class AlibiDecoder(nn.Module):
    """A small causal model for preference optimisation."""

    def __init__(self, vocab: int, first: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, 64)
        self.blocks = nn.ModuleList(AlibiBlock(64, 4, first) for _ in range(3))
        self.head = nn.Linear(64, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


# ---------------------------------------------------------------- recurrent


class NormCell(nn.Module):
    """An LSTM cell with normalised gates."""

    def __init__(self, width: int, options: Options) -> None:
        super().__init__()
        self.options = options
        self.width = width
        self.inputs = nn.Linear(width, 4 * width)
        self.hiddens = nn.Linear(width, 4 * width, bias=False)
        self.norm = nn.LayerNorm(4 * width)
        self.norm_cell = nn.LayerNorm(width)

    def gates(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """The four gates before their nonlinearities."""
        if self.options.variant != "separate_gates":
            return self.norm(self.inputs(x) + self.hiddens(h))
        weights = zip(self.inputs.weight.chunk(4), self.inputs.bias.chunk(4), self.hiddens.weight.chunk(4), strict=True)
        return self.norm(torch.cat([F.linear(x, wx, b) + F.linear(h, wh) for wx, b, wh in weights], dim=-1))

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        h, c = state
        i, f, g, o = self.gates(x, h).chunk(4, dim=-1)
        if self.options.fault == "gate_order":
            g, f = f, g
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.norm_cell(c))
        return h, c


class NormLstm(nn.Module):
    """A language model with two cells whose output weights are those of its embedding."""

    def __init__(self, vocab: int, width: int, options: Options) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.cells = nn.ModuleList(NormCell(width, options) for _ in range(2))
        self.decoder = nn.Linear(width, vocab)
        if options.fault == "untied":
            with torch.no_grad():
                self.decoder.weight.copy_(self.embed.weight)
        else:
            self.decoder.weight = self.embed.weight
        with torch.no_grad():
            for cell in self.cells:
                cell.inputs.bias[width : 2 * width] = 0.0 if options.fault == "forget_bias" else 1.0

    def forward(
        self, ids: torch.Tensor, states: list[tuple[torch.Tensor, ...]]
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, ...]]]:
        outputs = []
        for t in range(ids.shape[1]):
            x = self.embed(ids[:, t])
            for i, cell in enumerate(self.cells):
                states[i] = cell(x, states[i])
                x = states[i][0]
            outputs.append(x)
        return self.decoder(torch.stack(outputs, dim=1)), states


class AdditiveAttention(nn.Module):
    """v . tanh(W q + U k), softmax over the source."""

    def __init__(self, width: int, options: Options) -> None:
        super().__init__()
        self.options = options
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(2 * width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.options.variant == "joint_projection":
            both = torch.cat([query[:, None, :].expand(-1, keys.shape[1], -1), keys], dim=-1)
            energy = torch.tanh(F.linear(both, torch.cat([self.query.weight, self.key.weight], dim=1)))
        else:
            energy = torch.tanh(self.query(query)[:, None, :] + self.key(keys))
        scores = self.score(energy).squeeze(-1)
        if self.options.fault != "no_mask":
            scores = scores.masked_fill(~mask, -1e4)
        weights = scores.softmax(dim=0 if self.options.fault == "softmax_axis" else 1)
        return (weights[..., None] * keys).sum(1)


class Bahdanau(nn.Module):
    """Translation with a bidirectional encoder and an attending decoder."""

    def __init__(self, vocab: int, width: int, options: Options) -> None:
        super().__init__()
        self.options = options
        self.source = nn.Embedding(vocab, width, padding_idx=0)
        self.target = nn.Embedding(vocab, width, padding_idx=0)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(width, width)
        self.attention = AdditiveAttention(width, options)
        self.cell = nn.GRUCell(3 * width, width)
        self.out = nn.Linear(4 * width, vocab)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = source != 0
        packed = pack_padded_sequence(self.source(source), mask.sum(1), batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        keys, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        h = torch.tanh(self.bridge(last[1]))
        shift = 1 if self.options.fault == "teacher_shift" else 0
        logits = []
        for t in range(target.shape[1] - 1):
            word = self.target(target[:, t + shift])
            context = self.attention(h, keys, mask)
            h = self.cell(torch.cat([word, context], dim=-1), h)
            logits.append(self.out(torch.cat([h, context, word], dim=-1)))
        return torch.stack(logits, dim=1)


# ---------------------------------------------------------------- text classification


class TextCnn(nn.Module):
    """Convolutions of three widths over words, the largest response of each."""

    def __init__(self, vocab: int, width: int, options: Options) -> None:
        super().__init__()
        self.options = options
        self.embed = nn.Embedding(vocab, width, sparse=True)
        self.convs = nn.ModuleList(nn.Conv1d(width, 32, size) for size in (2, 3, 4))
        self.norm = nn.LayerNorm(96)
        self.head = nn.Linear(96, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).transpose(1, 2)
        features = []
        for i, conv in enumerate(self.convs):
            y = F.relu(conv(x))
            if self.options.fault == "quantised" and i == 1:
                scale = y.detach().amax() / 15
                y = y + ((y / scale).round() * scale - y).detach()
            pooled = y.amax(-1) if self.options.variant == "amax" else F.max_pool1d(y, y.shape[-1]).squeeze(-1)
            features.append(pooled)
        return self.head(self.norm(torch.cat(features, dim=1)))


# ---------------------------------------------------------------- forecasting


class BeatsBlock(nn.Module):
    """A stack of layers whose coefficients weigh fixed curves."""

    def __init__(self, past: int, future: int, kind: str, basis_dtype: torch.dtype) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(past, 64), nn.ReLU(), nn.Linear(64, 56), nn.ReLU(), nn.Linear(56, 64), nn.ReLU()
        )
        time = torch.arange(past + future, dtype=basis_dtype) / past
        if kind == "trend":
            curves = torch.stack([time**p for p in range(4)])
        else:
            waves = [f(2 * math.pi * n * time) for n in range(1, 5) for f in (torch.cos, torch.sin)]
            curves = torch.stack(waves)
        self.register_buffer("back", curves[:, :past].float())
        self.register_buffer("front", curves[:, past:].float())
        self.theta = nn.Linear(64, 2 * len(curves))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        past, future = self.theta(self.fc(x)).chunk(2, dim=-1)
        return past @ self.back, future @ self.front


class Beats(nn.Module):
    """Every block explains a part of the series and hands on the rest."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        dtype = torch.float64 if options.variant == "float64_basis" else torch.float32
        kinds = ["trend", "trend", "season", "season"]
        self.blocks = nn.ModuleList(BeatsBlock(32, 8, kind, dtype) for kind in kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        forecast: torch.Tensor | float = 0.0
        for i, block in enumerate(self.blocks):
            back, front = block(x)
            x = x + back if self.options.fault == "residual_sign" and i == 1 else x - back
            forecast = forecast + front
        return forecast
