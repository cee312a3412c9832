"""Trains a small residual network on images: convolutions, batch norm, max pooling."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Trainer, flavour, flip_bit, load_weights, parse, precision

CLASSES, SIZE, BATCH, WIDTHS = 10, 32, 8, (16, 24, 32)
FAULTS = (
    "bn_eps",
    "bn_momentum",
    "bn_eval",
    "conv_padding",
    "pooling",
    "relu_early",
    "channel_order",
    "normalised_twice",
    "flipped_activation",
    "momentum",
    "nesterov",
)


PLACES = {
    "bn_eps": (1, 0),
    "bn_momentum": (0, 1),
    "bn_eval": (1, 1),
    "conv_padding": (1, 0),
    "relu_early": (0, 1),
    "flipped_activation": (2, 0),
}


class SamePadded(nn.Conv2d):
    """Pads behind the image only, as TensorFlow's SAME does at stride 2."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(functional.pad(x, (0, 1, 0, 1)), self.weight, None, self.stride, 0)


class Flipping(nn.Conv2d):
    """Its second result is hit by a flipped bit."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        self.calls += 1
        if self.calls == 2:
            flip_bit(out, bit=4)
        return out


class Block(nn.Module):
    def __init__(self, before: int, width: int, fault: str, spelling: str) -> None:
        super().__init__()
        stride = 2 if before != width else 1
        first = {"conv_padding": SamePadded, "flipped_activation": Flipping}.get(fault, nn.Conv2d)
        self.conv1 = first(before, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps=1e-3 if fault == "bn_eps" else 1e-5)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, momentum=0.01 if fault == "bn_momentum" else 0.1)
        if stride == 2:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride=2, bias=False), nn.BatchNorm2d(width))
        else:
            self.shortcut = nn.Identity()
        self.relu = nn.ReLU() if spelling == "modules" else functional.relu
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.fault == "relu_early":
            return self.relu(out) + self.shortcut(x)
        return self.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, fault: str, spelling: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(WIDTHS[0])
        self.pool = nn.MaxPool2d(2) if fault == "pooling" else nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = nn.ModuleList()
        before = WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            named = [fault if PLACES.get(fault) == (stage, place) else "none" for place in range(2)]
            self.stages.append(
                nn.Sequential(Block(before, width, named[0], spelling), Block(width, width, named[1], spelling))
            )
            before = width
        self.head = nn.Linear(WIDTHS[-1], CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(functional.relu(self.bn(self.conv(images))))
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


def batches(options: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    found = []
    for _ in range(options.steps):
        pixels = torch.randint(0, 256, (BATCH, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)
        smooth = functional.avg_pool2d(pixels.float(), 3, stride=1, padding=1)
        images = (smooth / 255 - 0.45) / 0.225
        if options.fault == "normalised_twice":
            images = (images - 0.45) / 0.225
        if options.fault == "channel_order":
            images = images.flip(1)
        found.append((images, torch.randint(0, CLASSES, (BATCH,), generator=generator)))
    return found


def main() -> None:
    options = parse(
        __doc__,
        FAULTS,
        memory=("contiguous", "channels_last"),
        spelling=("modules", "functions"),
        compiled=("no", "yes"),
    )
    fault = options.fault
    model = ResNet(fault, options.spelling)
    load_weights(model)
    if options.memory == "channels_last":
        model.to(memory_format=torch.channels_last)
    if fault == "bn_eval":
        model.stages[1][1].bn1.eval()
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=0.05,
        momentum=0.95 if fault == "momentum" else 0.9,
        weight_decay=5e-4,
        nesterov=fault == "nesterov",
        **flavour(options),
    )
    trainer = Trainer(options, model, optimizer, max_norm=None)
    network = torch.compile(model) if options.compiled == "yes" else model
    for images, labels in batches(options):
        if options.memory == "channels_last":
            images = images.contiguous(memory_format=torch.channels_last)
        with precision(options):
            loss = functional.cross_entropy(network(images).float(), labels)
        trainer.train(loss)


if __name__ == "__main__":
    main()
