"""Layers and losses that do more than call one function."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, rnn

from models import Results, Setting, collect, scenario, train


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


@scenario()
def parametrized(setting: Setting) -> Results:
    """Weights that are computed anew whenever they are read; one of them by power iteration, in place."""
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(6, 6)),
        nn.Tanh(),
        parametrizations.spectral_norm(nn.Linear(6, 6)),
        nn.Tanh(),
        parametrizations.orthogonal(nn.Linear(6, 6)),
        nn.Linear(6, 6, bias=False),
    ).to(setting.device)
    parametrize.register_parametrization(model[5], "weight", Symmetric())
    x = torch.randn(4, 6).to(setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of() -> Tensor:
        with parametrize.cached():
            return model(x).square().mean() + model(x * 2).abs().mean()

    losses = train(optimizer, setting.steps, loss_of) + train(optimizer, 1, lambda: model(x).square().mean())
    return collect(model, losses, after=model.eval()(x))


@scenario()
def normalized_by_hooks(setting: Setting) -> Results:
    """The older weight_norm and spectral_norm: pre-forward hooks set the weight as an attribute."""
    model = nn.Sequential(
        nn.utils.spectral_norm(nn.Conv2d(2, 4, 3)), nn.ReLU(), nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 3))
    ).to(setting.device)
    images = torch.randn(3, 2, 6, 6).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(optimizer, setting.steps, lambda: model(images).square().mean())
    return collect(model, losses, after=model.eval()(images))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(4, 6, num_layers=2, batch_first=True)
        self.lstm = nn.LSTM(6, 5, bidirectional=True)
        self.cell, self.last = nn.GRUCell(10, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = self.rnn(packed)
        hidden, _ = self.lstm(hidden)
        padded, _ = rnn.pad_packed_sequence(hidden)
        state = padded.new_zeros(x.shape[0], 3)
        for moment in padded:
            state = self.cell(moment, state)
        return self.last(state)


@scenario()
def packed_sequences(setting: Setting) -> Results:
    model = Packed().to(setting.device)
    x, lengths = torch.randn(3, 6, 4).to(setting.device), torch.tensor([3, 6, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = train(optimizer, setting.steps, lambda: model(x, lengths).square().mean())
    with torch.no_grad():
        return collect(model, losses, after=model.eval()(x, lengths))


class Upsampler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 4, 3, stride=2), nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1)
        self.norm, self.group = nn.BatchNorm2d(3, momentum=None), nn.GroupNorm(2, 4)
        self.instance = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.up(functional.silu(self.group(self.down(images))))
        hidden = functional.interpolate(self.norm(hidden), scale_factor=1.5, mode="bilinear", align_corners=False)
        hidden = functional.pad(self.instance(hidden), (1, 1, 0, 2), mode="reflect")
        grid = functional.affine_grid(torch.eye(2, 3).expand(len(images), 2, 3), [len(images), 3, 6, 6], False)
        return functional.grid_sample(hidden, grid.to(images), align_corners=False)


@scenario()
def upsampler(setting: Setting) -> Results:
    """BatchNorm keeps a cumulative average: momentum None."""
    model = Upsampler().to(setting.device)
    images = torch.randn(2, 2, 9, 9).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(optimizer, setting.steps, lambda: model(images).square().mean())
    with torch.no_grad():
        return collect(model, losses, after=model.eval()(images))


@scenario()
def ctc(setting: Setting) -> Results:
    model = nn.Linear(5, 7).to(setting.device)
    x = torch.randn(12, 3, 5).to(setting.device)
    targets, lengths = torch.randint(1, 7, (3, 4)).to(setting.device), torch.tensor([4, 2, 3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of() -> Tensor:
        return functional.ctc_loss(model(x).log_softmax(-1), targets, torch.full((3,), 12), lengths)

    return collect(model, train(optimizer, setting.steps, loss_of))


class Masked(nn.Module):
    """Attention by torch's own function: causal, by a mask of -inf, and with a row that sees nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        causal = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        distance = torch.arange(5)[:, None] - torch.arange(5)[None, :]
        mask = torch.zeros(5, 5).masked_fill(distance.abs() > 1, float("-inf")).to(x.device)
        banded = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        closed = mask.index_fill(0, torch.zeros(1, dtype=torch.long, device=x.device), float("-inf"))
        blind = functional.scaled_dot_product_attention(q, k, v, attn_mask=closed > -1)
        lowest = functional.scaled_dot_product_attention(q, k, v, attn_mask=closed.clamp(torch.finfo(x.dtype).min))
        return causal + banded + blind.nan_to_num() + lowest


@scenario()
def masked_attention(setting: Setting) -> Results:
    model = Masked().to(setting.device)
    x = torch.randn(2, 5, 8).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(optimizer, setting.steps, lambda: model(x).square().mean())
    with torch.inference_mode():
        return collect(model, losses, after=model(x))
