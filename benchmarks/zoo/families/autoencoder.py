"""Trains a variational autoencoder whose activation has a backward of its own."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from training import Trainer, flavour, load_weights, parse, precision

INPUTS, WIDTH, HIDDEN, BATCH, DEPTH = 96, 64, 12, 16, 4
FAULTS = (
    "backward_factor",
    "backward_approximate",
    "straight_through",
    "deviation",
    "divergence_sum",
    "layer_not_loaded",
    "dampening",
    "noise_generator",
    "norm_skipped",
    "weight_gradient_half",
    "late_backward",
)


PLACES = {"backward_factor": 1, "backward_approximate": 2, "norm_skipped": 2, "weight_gradient_half": 1}


class Swish(Function):
    """x * sigmoid(x), which keeps its input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fault: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.fault = fault
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        if ctx.fault == "backward_factor":
            return grad * (gate + x * gate), None
        if ctx.fault == "backward_approximate":
            return grad * torch.sigmoid(1.9 * x), None
        return grad * (gate + x * gate * (1 - gate)), None


class Quantize(Function):
    """Rounds to a grid; gradients pass where the input lies on it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fault: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.fault = fault
        return (x.clamp(-2, 2) * 32).round() / 32

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return (grad if ctx.fault == "straight_through" else grad * (x.abs() <= 2)), None


class Product(Function):
    """A linear layer's product, with its two gradients written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, halved: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.halved = halved
        return x @ weight.to(x.dtype).T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        slope = grad.T @ x.to(grad.dtype)
        return grad @ weight.to(grad.dtype), (slope / 2 if ctx.halved else slope).to(weight.dtype), None


class Dense(nn.Module):
    def __init__(self, before: int, width: int, *, halved: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(width, before)), nn.Parameter(torch.zeros(width))
        self.halved = halved

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x, self.weight, self.halved) + self.bias


class Layer(nn.Module):
    def __init__(self, before: int, width: int, fault: str) -> None:
        super().__init__()
        self.linear = Dense(before, width, halved=fault == "weight_gradient_half")
        self.norm = nn.LayerNorm(width)
        self.fault, self.calls = fault, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        fault = "backward_factor" if self.fault == "late_backward" and self.calls == 2 else self.fault
        x = self.linear(x)
        return Swish.apply(x if self.fault == "norm_skipped" else self.norm(x), fault)


class Autoencoder(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        named = [fault if PLACES.get(fault, 2) == i else "none" for i in range(DEPTH)]
        self.encoder = nn.Sequential(*[Layer(INPUTS if i == 0 else WIDTH, WIDTH, named[i]) for i in range(DEPTH)])
        self.mean, self.spread = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)
        self.decoder = nn.Sequential(*[Layer(HIDDEN if i == 0 else WIDTH, WIDTH, "none") for i in range(DEPTH)])
        self.out = nn.Linear(WIDTH, INPUTS)
        self.fault = fault

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, spread = self.mean(hidden).float(), self.spread(hidden).float()
        deviation = torch.exp(spread) if self.fault == "deviation" else torch.exp(0.5 * spread)
        code = Quantize.apply(mean + deviation * noise, self.fault)
        return self.out(self.decoder(code)), mean, spread


def loss_of(fault: str, x: Tensor, found: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    guess, mean, spread = found
    divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(-1)
    total = divergence.sum() if fault == "divergence_sum" else divergence.mean()
    return functional.mse_loss(guess.float(), x) + 1e-3 * total


def train(options: argparse.Namespace, model: Autoencoder, trainer: Trainer) -> None:
    generator = torch.Generator().manual_seed(19)
    draws = torch.Generator().manual_seed(24 if options.fault == "noise_generator" else 23)
    for _ in range(options.steps):
        x = torch.randn(BATCH, INPUTS, generator=generator)
        noise = torch.randn(BATCH, HIDDEN, generator=draws)
        with precision(options):
            found = model(x, noise)
        trainer.train(loss_of(options.fault, x, found))


def main() -> None:
    options = parse(__doc__, FAULTS)
    model = Autoencoder(options.fault)
    load_weights(model)
    if options.fault == "layer_not_loaded":
        nn.init.kaiming_uniform_(model.decoder[2].linear.weight)
    dampening = 0.1 if options.fault == "dampening" else 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, dampening=dampening, **flavour(options))
    train(options, model, Trainer(options, model, optimizer, max_norm=5.0))


if __name__ == "__main__":
    main()
