"""Trains a small vision transformer with an AdamW of its own: patches, class token, layer scale, mixup."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Trainer, load_weights, parse, precision

CLASSES, SIZE, PATCH, WIDTH, HEADS, LAYERS, BATCH = 10, 24, 4, 64, 4, 3, 4
FAULTS = (
    "variance_unbiased",
    "patch_order",
    "attention_scale",
    "detached",
    "transposed_weight",
    "bias_correction",
    "layer_scale",
    "class_position",
    "token_pooling",
    "mixup_seed",
    "learning_rate",
)
PLACES = {"variance_unbiased": 1, "attention_scale": 2, "detached": 1}


class Norm(nn.Module):
    """Layer norm written out."""

    def __init__(self, *, unbiased: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.unbiased = unbiased

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        variance = wide.var(-1, unbiased=self.unbiased, keepdim=True)
        return centred / torch.sqrt(variance + 1e-6) * self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, fault: str, kind: str) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = WIDTH**-0.5 if fault == "attention_scale" else (WIDTH // HEADS) ** -0.5
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.kind == "sdpa":
            mixed = functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        else:
            mixed = (q @ k.transpose(-2, -1) * self.scale).softmax(-1).to(v.dtype) @ v
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, fault: str, kind: str) -> None:
        super().__init__()
        self.norm1, self.attention = Norm(), Attention(fault, kind)
        self.norm2 = Norm(unbiased=fault == "variance_unbiased")
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))
        self.scale1, self.scale2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale1 * self.attention(self.norm1(x))
        if self.fault == "detached":
            return x + self.scale2 * self.mlp(self.norm2(x.detach()))
        return x + self.scale2 * self.mlp(self.norm2(x))


class Patches(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.fault = fault

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images)
        if self.fault == "patch_order":
            x = x.transpose(2, 3)
        return x.flatten(2).transpose(1, 2)


class ViT(nn.Module):
    def __init__(self, fault: str, kind: str) -> None:
        super().__init__()
        count = (SIZE // PATCH) ** 2
        self.patches = Patches(fault)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.zeros(1, count + 1, WIDTH))
        named = [fault if PLACES.get(fault) == i else "none" for i in range(LAYERS)]
        self.blocks = nn.ModuleList([Block(name, kind) for name in named])
        self.norm, self.head = Norm(), nn.Linear(WIDTH, CLASSES)
        self.fault = fault

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images)
        token = self.token.expand(x.shape[0], -1, -1).to(x.dtype)
        if self.fault == "class_position":
            x = torch.cat((token, x + self.places[:, 1:]), dim=1)
        else:
            x = torch.cat((token, x), dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x[:, 1:].mean(1) if self.fault == "token_pooling" else x[:, 0])


class OwnAdamW(torch.optim.Optimizer):
    """As it came with an older library."""

    def __init__(self, parameters: Any, lr: float, correct_bias: bool = True, weight_decay: float = 0.05) -> None:
        defaults = {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "correct_bias": correct_bias}
        super().__init__(parameters, {**defaults, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        state["step"] += 1
        state["mean"].mul_(first).add_(gradient, alpha=1 - first)
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        size = group["lr"]
        if group["correct_bias"]:
            size *= (1 - second ** state["step"]) ** 0.5 / (1 - first ** state["step"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(state["mean"], state["square"].sqrt().add_(group["eps"]), value=-size)


def mixup(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    share = torch.rand(())
    order = torch.randperm(BATCH)
    targets = functional.one_hot(labels, CLASSES).float()
    return share * images + (1 - share) * images[order], share * targets + (1 - share) * targets[order]


def batches(options: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(options.steps, BATCH, 3, SIZE, SIZE, generator=generator)
    labels = torch.randint(0, CLASSES, (options.steps, BATCH), generator=generator)
    return list(zip(images, labels, strict=True))


def main() -> None:
    options = parse(__doc__, FAULTS, attention=("eager", "sdpa"))
    fault = options.fault
    model = ViT(fault, options.attention)
    load_weights(model)
    with torch.no_grad():
        model.places.mul_(0.2)
        for block in model.blocks:
            block.scale1.mul_(0.5)
            block.scale2.mul_(0.5)
        if fault == "layer_scale":
            model.blocks[2].scale1.mul_(0.1)
        if fault == "transposed_weight":
            weight = model.blocks[1].attention.proj.weight
            weight.copy_(weight.T.clone())
    optimizer = OwnAdamW(
        model.parameters(), lr=5e-4 if fault == "learning_rate" else 1e-3, correct_bias=fault != "bias_correction"
    )
    trainer = Trainer(options, model, optimizer, max_norm=2.0)
    torch.manual_seed(9 if fault == "mixup_seed" else 8)
    for images, labels in batches(options):
        mixed, targets = mixup(images, labels)
        with precision(options):
            logits = model(mixed)
        trainer.train(functional.cross_entropy(logits.float(), targets))


if __name__ == "__main__":
    main()
