"""Image classification, detection and segmentation."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections import OrderedDict

import torch
import torch.nn.functional as F
from common import Options, integers, normal, show, spread, uniform
from torch import Tensor, nn

# --- DenseNet of timm: SGD with a schedule, a plain loop ---


def build_densenet() -> nn.Module:
    from timm.models.densenet import DenseNet

    torch.manual_seed(11)
    return DenseNet(growth_rate=12, block_config=(2, 3, 2), bn_size=2, num_classes=10)


def train_densenet(options: Options) -> None:
    model = options.place(build_densenet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1], gamma=0.1)
    model.train()
    if options.fault == "norm_eval":
        model.features.denseblock2.denselayer2.norm1.eval()
    for step in range(options.steps):
        images, labels = options.cast(normal(100 + step, 8, 3, 64, 64)), integers(200 + step, 10, 8)
        with options.autocast():
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        show(step, loss=loss)


# --- XCiT of timm: AdamW with warm-up, clipping and an average of the weights, GradScaler for float16 ---


def build_xcit() -> nn.Module:
    from timm.models.xcit import Xcit

    torch.manual_seed(12)
    model = Xcit(
        img_size=64, patch_size=16, num_classes=10, embed_dim=48, depth=3, cls_attn_layers=1, num_heads=4, eta=1.0
    )
    spread(model, 0.02)
    return model


def attend_along_tokens(self: nn.Module, x: Tensor) -> Tensor:
    """Cross-covariance attention, whose keys are normalised along the channels."""
    batch, tokens, width = x.shape
    q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 4, 1).unbind(0)
    q = F.normalize(q, dim=-1)
    k = F.normalize(k, dim=-2)
    x = ((q @ k.transpose(-2, -1)) * self.temperature).softmax(dim=-1) @ v
    return self.proj(x.permute(0, 3, 1, 2).reshape(batch, tokens, width))


def train_xcit(options: Options) -> None:
    model = options.place(build_xcit())
    if options.fault == "normalize_axis":
        attention = model.blocks[1].attn
        attention.forward = attend_along_tokens.__get__(attention)
    average = copy.deepcopy(model).requires_grad_(False)
    decay = [p for n, p in model.named_parameters() if p.ndim > 1 and "temperature" not in n]
    plain = [p for n, p in model.named_parameters() if p.ndim <= 1 or "temperature" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=2e-3,
        fused=options.variant == "fused" or None,
    )
    shift = 0 if options.fault == "warmup" else 1
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + shift) / 4))
    scaler = options.scaler()
    for step in range(options.steps):
        images, labels = options.cast(normal(300 + step, 6, 3, 64, 64)), integers(400 + step, 10, 6)
        with options.autocast():
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        show(step, loss=loss, norm=norm)


# --- FCOS of torchvision on a small feature pyramid: one dictionary of losses ---


class Pyramid(nn.Module):
    """Three levels of features of the same width."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.out_channels = width
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        widths = [16, 24, 32, 48]
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.GroupNorm(4, b), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(w, width, 1) for w in widths[1:])
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in widths[1:])

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        x = self.stem(images)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        laterals = [layer(f) for layer, f in zip(self.lateral, features, strict=True)]
        for i in range(len(laterals) - 1, 0, -1):
            laterals[i - 1] = laterals[i - 1] + F.interpolate(laterals[i], scale_factor=2, mode="nearest")
        smooth = [layer(f) for layer, f in zip(self.smooth, laterals, strict=True)]
        return OrderedDict((str(i), f) for i, f in enumerate(smooth))


def build_fcos() -> nn.Module:
    warnings.filterwarnings("ignore")
    from torchvision.models.detection import FCOS
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    torch.manual_seed(13)
    anchors = AnchorGenerator(sizes=((4,), (8,), (16,)), aspect_ratios=((1.0,),) * 3)
    model = FCOS(Pyramid(), 5, min_size=64, max_size=64, anchor_generator=anchors)
    spread(model, 0.03)
    return model


def scenes(options: Options, seed: int, count: int) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    images = list(options.cast(uniform(seed, count, 3, 64, 64)))
    corners = uniform(seed + 1, count, 3, 2) * 28
    sizes = 14 + uniform(seed + 2, count, 3, 2) * 20
    labels = 1 + integers(seed + 3, 4, count, 3)
    boxes = options.cast(torch.cat([corners, corners + sizes], dim=-1))
    return images, [{"boxes": b, "labels": c} for b, c in zip(boxes, labels, strict=True)]


def train_fcos(options: Options) -> None:
    model = options.place(build_fcos())
    if options.fault == "groups":
        model.head.regression_head.conv[4].num_groups = 8
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model.train()
    for step in range(options.steps):
        images, targets = scenes(options, 500 + 10 * step, 3)
        with options.autocast():
            losses = model(images, targets)
        total = sum(losses.values())
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        show(step, **losses)


# --- DeepLab with an atrous pyramid: two groups of parameters, accumulation, ignored pixels ---


def unit(fan_in: int, fan_out: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=dilation, dilation=dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(fan_out), nn.ReLU())


class AtrousPyramid(nn.Module):
    def __init__(self, width: int, rates: tuple[int, ...]) -> None:
        super().__init__()
        self.point = nn.Sequential(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.branches = nn.ModuleList(unit(width, width, dilation=rate) for rate in rates)
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), nn.ReLU())
        self.project = nn.Sequential(nn.Conv2d(width * (len(rates) + 2), width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.point(x), *(branch(x) for branch in self.branches)]
        parts.append(self.pooled(x).expand(-1, -1, *x.shape[-2:]))
        return F.relu(self.project(torch.cat(parts, dim=1)))


class DeepLab(nn.Module):
    def __init__(self, rates: tuple[int, ...], align_corners: bool) -> None:
        super().__init__()
        self.align_corners = align_corners
        self.low = nn.Sequential(unit(3, 16, stride=2), unit(16, 24, stride=2))
        self.high = nn.Sequential(unit(24, 32, stride=2), unit(32, 32, dilation=2))
        self.aspp = AtrousPyramid(32, rates)
        self.reduce = nn.Conv2d(24, 12, 1)
        self.decode = nn.Sequential(unit(44, 32), nn.Conv2d(32, 6, 1))

    def forward(self, images: Tensor) -> Tensor:
        low = self.low(images)
        context = self.aspp(self.high(low))
        context = F.interpolate(context, size=low.shape[-2:], mode="bilinear", align_corners=self.align_corners)
        logits = self.decode(torch.cat([self.reduce(low), context], dim=1))
        return F.interpolate(logits, size=images.shape[-2:], mode="bilinear", align_corners=False)


def dice_loss(logits: Tensor, labels: Tensor, ignore: int) -> Tensor:
    known = (labels != ignore).unsqueeze(1)
    probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(dim=1)
    truth = F.one_hot(labels.clamp(max=logits.shape[1] - 1), logits.shape[1]).permute(0, 3, 1, 2)
    probabilities, truth = probabilities * known, truth * known
    both = (probabilities * truth).sum(dim=(0, 2, 3))
    either = probabilities.sum(dim=(0, 2, 3)) + truth.sum(dim=(0, 2, 3))
    return 1 - ((2 * both + 1) / (either + 1)).mean()


def pixel_loss(options: Options, logits: Tensor, labels: Tensor, ignore: int) -> Tensor:
    if options.variant == "nll":
        return F.nll_loss(F.log_softmax(logits, dim=1), labels, ignore_index=ignore)
    return F.cross_entropy(logits, labels, ignore_index=ignore)


def train_deeplab(options: Options) -> None:
    torch.manual_seed(14)
    model = options.place(DeepLab((2, 4, 6), align_corners=options.fault == "align_corners"))
    backbone = [*model.low.parameters(), *model.high.parameters()]
    head = [*model.aspp.parameters(), *model.reduce.parameters(), *model.decode.parameters()]
    optimizer = torch.optim.SGD([{"params": backbone, "lr": 0.01}, {"params": head, "lr": 0.1}], momentum=0.9)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=10, power=0.9)
    parts, ignore = 2, 255
    for step in range(options.steps):
        optimizer.zero_grad()
        total = 0.0
        for part in range(parts):
            seed = 600 + 10 * step + part
            images, labels = options.cast(normal(seed, 4, 3, 64, 64)), integers(seed + 5, 6, 4, 64, 64)
            labels[:, :6] = ignore
            with options.autocast():
                logits = model(images)
                loss = pixel_loss(options, logits, labels, ignore) + dice_loss(logits, labels, ignore)
            scaled = loss if options.fault == "undivided" else loss / parts
            scaled.backward()
            total += float(loss.detach()) / parts
        optimizer.step()
        schedule.step()
        show(step, loss=total)


# --- A style-based GAN: modulated convolutions, R1 penalty, two optimizers ---


class ModulatedConv(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, style: int, kernel: int = 3, demodulate: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_out, fan_in, kernel, kernel) / math.sqrt(fan_in * kernel**2))
        self.affine = nn.Linear(style, fan_in)
        nn.init.ones_(self.affine.bias)
        self.demodulate = demodulate
        self.grouped = False

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        scale = self.affine(style)
        padding = self.weight.shape[-1] // 2
        squares = (self.weight.unsqueeze(0) * scale[:, None, :, None, None]).square().sum(dim=(2, 3, 4))
        factor = (squares + 1e-8).rsqrt() if self.demodulate else None
        if self.grouped:
            batch, width, height, _ = x.shape
            weight = self.weight.unsqueeze(0) * scale[:, None, :, None, None]
            if factor is not None:
                weight = weight * factor[:, :, None, None, None]
            x = F.conv2d(x.reshape(1, batch * width, height, -1), weight.flatten(0, 1), padding=padding, groups=batch)
            return x.reshape(batch, -1, height, x.shape[-1])
        x = F.conv2d(x * scale[:, :, None, None], self.weight, padding=padding)
        return x if factor is None else x * factor[:, :, None, None]


class StyleBlock(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, style: int, size: int) -> None:
        super().__init__()
        self.conv = ModulatedConv(fan_in, fan_out, style)
        self.register_buffer("noise", normal(77 + size, 1, 1, size, size))
        self.strength = nn.Parameter(torch.full((1,), 0.1))
        self.bias = nn.Parameter(torch.zeros(fan_out))
        self.to_rgb = ModulatedConv(fan_out, 3, style, kernel=1, demodulate=False)

    def forward(self, x: Tensor, image: Tensor | None, style: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv(x, style) + self.strength * self.noise + self.bias[:, None, None]
        x = F.leaky_relu(x, 0.2) * math.sqrt(2)
        rgb = self.to_rgb(x, style)
        return x, rgb if image is None else rgb + image


class StyleGenerator(nn.Module):
    def __init__(self, latent: int = 32, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Linear(latent, latent), nn.LeakyReLU(0.2)]
        self.mapping = nn.Sequential(*layers)
        self.constant = nn.Parameter(torch.randn(1, width, 4, 4))
        self.blocks = nn.ModuleList(StyleBlock(width, width, latent, size) for size in (4, 8, 16))

    def forward(self, z: Tensor) -> Tensor:
        style = self.mapping(z * (z.square().mean(dim=1, keepdim=True) + 1e-8).rsqrt())
        x, image = self.constant.expand(len(z), -1, -1, -1), None
        for i, block in enumerate(self.blocks):
            if i:
                x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
                image = F.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)
            x, image = block(x, image, style)
        return image


class StyleCritic(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.from_rgb = nn.Conv2d(3, width, 1)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.skips = nn.ModuleList(nn.Conv2d(width, width, 1, bias=False) for _ in range(2))
        self.last = nn.Conv2d(width + 1, width, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(width * 16, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def forward(self, images: Tensor) -> Tensor:
        x = F.leaky_relu(self.from_rgb(images), 0.2)
        for conv, skip in zip(self.convs, self.skips, strict=True):
            y = F.avg_pool2d(F.leaky_relu(conv(x), 0.2), 2)
            x = (y + skip(F.avg_pool2d(x, 2))) / math.sqrt(2)
        spread_of_batch = (x.var(dim=0, unbiased=False) + 1e-8).sqrt().mean().expand(len(x), 1, 4, 4)
        x = F.leaky_relu(self.last(torch.cat([x, spread_of_batch.to(x.dtype)], dim=1)), 0.2)
        return self.head(x.flatten(1))


def gradient_penalty(options: Options, critic: nn.Module, real: Tensor) -> Tensor:
    real = real.detach().requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
    if options.fault == "penalty":
        return slope.flatten(1).norm(dim=1).mean()
    return slope.square().sum(dim=(1, 2, 3)).mean()


def train_stylegan(options: Options) -> None:
    torch.manual_seed(15)
    maker, critic = options.place(StyleGenerator()), options.place(StyleCritic())
    spread(critic, 0.08)
    for block in maker.blocks:
        block.conv.grouped = block.to_rgb.grouped = options.variant == "grouped"
    if options.fault == "no_demodulation":
        maker.blocks[1].conv.demodulate = False
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.0, 0.99))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.99))
    for step in range(options.steps):
        real = options.cast(normal(700 + step, 6, 3, 16, 16).tanh())
        z = options.cast(normal(750 + step, 6, 32))
        with options.autocast():
            fake = maker(z)
            critic_loss = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(real)).mean()
        penalty = gradient_penalty(options, critic, real)
        critic_optimizer.zero_grad()
        (critic_loss + 5.0 * penalty).backward()
        critic_optimizer.step()
        with options.autocast():
            maker_loss = F.softplus(-critic(maker(z))).mean()
        maker_optimizer.zero_grad()
        maker_loss.backward()
        maker_optimizer.step()
        show(step, critic=critic_loss, penalty=penalty, maker=maker_loss)
