"""Self-supervised and metric learning, written by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from common import Batch, Task, full, task
from torch import Tensor, nn


def views(g: torch.Generator, n: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """Two noisy crops of the same pictures."""
    coarse = torch.randn(n, 3, size // 4 + 2, size // 4 + 2, generator=g)
    image = F.interpolate(coarse, size=size + 8, mode="bilinear")
    one = image[..., 2 : 2 + size, 4 : 4 + size] + 0.2 * torch.randn(n, 3, size, size, generator=g)
    two = image[..., 6 : 6 + size, 1 : 1 + size].flip(-1) + 0.2 * torch.randn(n, 3, size, size, generator=g)
    return one, two


def encoder(width: int = 16) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for index in range(3):
        out = width * 2**index
        layers += [nn.Conv2d(channels, out, 3, 2, 1), nn.GroupNorm(4, out), nn.SiLU()]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


# Barlow Twins ---------------------------------------------------------------------------------------------------------


class BarlowNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()
        self.projector = nn.Sequential(
            nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 64), nn.BatchNorm1d(64, affine=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.projector(self.encoder(x))


@task("barlow")
class Barlow(Task):
    faults = ("accumulate_sum", "diagonal")
    ways = ("einsum",)
    micro = 2
    momentum = 0.9
    lr = 0.01
    decay = 1e-4

    def build(self) -> nn.Module:
        return BarlowNet()

    def data(self, g: torch.Generator) -> Batch:
        one, two = views(g, 16)
        return {"one": one, "two": two}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        one, two = model(batch["one"]), model(batch["two"])
        c = torch.einsum("bi,bj->ij", one, two) / one.shape[0] if self.has("einsum") else one.t() @ two / one.shape[0]
        c = full(c)
        on = c.diagonal().square().sum() if self.fault == "diagonal" else (c.diagonal() - 1).square().sum()
        off = c.square().sum() - c.diagonal().square().sum()
        return on + 0.005 * off


# SwAV -----------------------------------------------------------------------------------------------------------------


class SwavNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()
        self.projector = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
        self.prototypes = nn.Linear(32, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z = F.normalize(self.projector(self.encoder(x)), dim=-1)
        return self.prototypes(z)


@task("swav")
class Swav(Task):
    faults = ("sinkhorn_axis", "prototypes", "no_normalize")
    lr = 2e-3

    def build(self) -> nn.Module:
        model = SwavNet()
        if self.fault == "prototypes":
            nn.init.xavier_uniform_(model.prototypes.weight)
        return model

    def begin(self, model: nn.Module, step: int) -> None:
        if self.fault == "no_normalize" and step > 0:
            return
        with torch.no_grad():
            weight = model.prototypes.weight
            weight.copy_(F.normalize(weight, dim=1))

    def data(self, g: torch.Generator) -> Batch:
        one, two = views(g, 16)
        return {"one": one, "two": two}

    @torch.no_grad()
    def sinkhorn(self, scores: Tensor) -> Tensor:
        """Assignments with equal use of all prototypes."""
        q = torch.exp(scores / 0.25)
        q = q / q.sum()
        b, k = q.shape
        for _ in range(3):
            if self.fault == "sinkhorn_axis":
                q = q / q.sum(1, keepdim=True) / k
                q = q / q.sum(0, keepdim=True) / b
            else:
                q = q / q.sum(0, keepdim=True) / k
                q = q / q.sum(1, keepdim=True) / b
        return q * b

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        one, two = full(model(batch["one"])), full(model(batch["two"]))
        q_one, q_two = self.sinkhorn(one.detach()), self.sinkhorn(two.detach())
        p_one, p_two = F.log_softmax(one / 0.1, -1), F.log_softmax(two / 0.1, -1)
        return -0.5 * ((q_one * p_two).sum(-1).mean() + (q_two * p_one).sum(-1).mean())


# A small transformer for DINO and MAE ---------------------------------------------------------------------------------


class OwnNorm(nn.Module):
    """Layer norm written out."""

    def __init__(self, width: int, correction: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.correction = correction

    def forward(self, x: Tensor) -> Tensor:
        y = full(x)
        mean = y.mean(-1, keepdim=True)
        var = y.var(-1, keepdim=True, correction=self.correction)
        return ((y - mean) * torch.rsqrt(var + 1e-5) * self.weight + self.bias).to(x.dtype)


class AddmmLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        return torch.addmm(self.bias, flat, self.weight.t()).view(*x.shape[:-1], -1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, norm: Any, linear: Any, fused: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.fused = fused
        self.norm1 = norm(width)
        self.qkv = linear(width, 3 * width)
        self.proj = linear(width, width)
        self.norm2 = norm(width)
        self.up = linear(width, 2 * width)
        self.down = linear(2 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = (q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)).softmax(-1)
            out = weights @ v
        return self.proj(out.transpose(1, 2).reshape(b, n, c))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


# DINO -----------------------------------------------------------------------------------------------------------------


class DinoHalf(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 8, 8)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, 48))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 17, 48))
        self.blocks = nn.ModuleList(Block(48, 4, nn.LayerNorm, nn.Linear, fused) for _ in range(2))
        self.norm = nn.LayerNorm(48)
        self.head = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1).to(x.dtype), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class DinoNet(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.student = DinoHalf(fused)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(32))

    def forward(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([one, two])
        with torch.no_grad():
            target = self.teacher(both)
        return self.student(both), target


@task("dino")
class Dino(Task):
    faults = ("ema_swapped", "centre_stale", "temperature", "scheduler_first")
    ways = ("eager",)

    def build(self) -> nn.Module:
        return DinoNet(not self.has("eager"))

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 5)

    def data(self, g: torch.Generator) -> Batch:
        one, two = views(g, 8)
        return {"one": one, "two": two}

    def loss(self, model: DinoNet, batch: Batch) -> Tensor:
        student, teacher = model(batch["one"], batch["two"])
        student, teacher = full(student), full(teacher)
        sharp = 0.1 if self.fault == "temperature" else 0.04
        p = ((teacher - full(model.centre)) / sharp).softmax(-1)
        logs = F.log_softmax(student / 0.1, -1)
        p_one, p_two = p.chunk(2)
        l_one, l_two = logs.chunk(2)
        if self.fault != "centre_stale":
            with torch.no_grad():
                model.centre.mul_(0.9).add_(teacher.mean(0).to(model.centre.dtype), alpha=0.1)
        return -0.5 * ((p_one * l_two).sum(-1).mean() + (p_two * l_one).sum(-1).mean())

    @torch.no_grad()
    def end(self, model: DinoNet, step: int) -> None:
        keep = 0.01 if self.fault == "ema_swapped" else 0.99
        for teacher, student in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            teacher.mul_(keep).add_(student, alpha=1 - keep)


# MAE ------------------------------------------------------------------------------------------------------------------


class Mae(nn.Module):
    def __init__(self, fault: str, norm: Any, linear: Any) -> None:
        super().__init__()
        self.fault = fault
        self.patch = linear(3 * 16, 48)
        positions = torch.zeros(1, 64, 48)
        angle = torch.arange(64.0)[:, None] / 10000 ** (torch.arange(24.0) / 24)
        positions[0, :, 0::2], positions[0, :, 1::2] = angle.sin(), angle.cos()
        self.register_buffer("positions", positions)
        self.encoder = nn.ModuleList(Block(48, 4, norm, linear) for _ in range(2))
        self.norm = norm(48)
        self.embed = linear(48, 32)
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, 32))
        self.decoder = nn.ModuleList(Block(32, 4, norm, linear) for _ in range(1))
        self.predict = linear(32, 3 * 16)

    def forward(self, patches: Tensor, order: Tensor) -> Tensor:
        b, n, _ = patches.shape
        keep = n // 4
        x = self.patch(patches) + self.positions
        seen = order[:, :keep]
        x = x.gather(1, seen[..., None].expand(-1, -1, 48))
        for block in self.encoder:
            x = block(x)
        x = self.embed(self.norm(x))
        x = torch.cat([x, self.mask_token.to(x.dtype).expand(b, n - keep, -1)], dim=1)
        back = order if self.fault == "restore" else order.argsort(dim=1)
        x = x.gather(1, back[..., None].expand(-1, -1, 32)) + self.positions[..., :32]
        for block in self.decoder:
            x = block(x)
        return self.predict(x)


@task("mae")
class MaeTask(Task):
    faults = ("restore", "unbiased", "loss_everywhere", "betas")
    ways = ("own_norm", "addmm", "shuffle")

    def build(self) -> nn.Module:
        norm: Any = nn.LayerNorm
        if self.has("own_norm"):
            norm = OwnNorm
        if self.fault == "unbiased":
            norm = lambda width: OwnNorm(width, correction=1)  # noqa: E731
        return Mae(self.fault, norm, AddmmLinear if self.has("addmm") else nn.Linear)

    def data(self, g: torch.Generator) -> Batch:
        images = views(g, 6)[0]
        patches = F.unfold(images, 4, stride=4).transpose(1, 2)
        order = torch.stack([torch.randperm(64, generator=g) for _ in range(6)])
        if self.has("shuffle"):
            patches, order = patches.flip(0), order.flip(0)
        return {"patches": patches, "order": order}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        patches, order = batch["patches"], batch["order"]
        out = full(model(patches, order))
        target = full(patches)
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
        error = (out - target).square().mean(-1)
        if self.fault == "loss_everywhere":
            return error.mean()
        hidden = torch.ones_like(error).scatter(1, order[:, :16], 0.0)
        return (error * hidden).sum() / hidden.sum()


# Faces ----------------------------------------------------------------------------------------------------------------


class FaceNet(nn.Module):
    """A depthwise network with PReLU, and the centres of the classes."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.PReLU(16)]
        for i, o in ((16, 24), (24, 32)):
            layers += [nn.Conv2d(i, i, 3, 1, 1, groups=i, bias=False), nn.BatchNorm2d(i), nn.PReLU(i)]
            layers += [nn.Conv2d(i, o, 1, 2, bias=False), nn.BatchNorm2d(o), nn.PReLU(o)]
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(32 * 16, 32)
        self.centres = nn.Parameter(torch.randn(12, 32) * 0.2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.out(self.body(x).flatten(1))
        z = F.normalize(z, dim=-1)
        centres = F.normalize(self.centres, dim=0 if self.fault == "centre_axis" else 1)
        return z, F.linear(z, centres.to(z.dtype))


@task("arcface")
class ArcFace(Task):
    faults = ("centre_axis", "margin", "no_centres", "labels")
    ways = ("nll", "angle")
    lr = 2e-3

    def build(self) -> nn.Module:
        return FaceNet(self.fault)

    def parameters(self, model: nn.Module) -> Any:
        if self.fault == "no_centres":
            return [*model.body.parameters(), *model.out.parameters()]
        return list(model.parameters())

    def data(self, g: torch.Generator) -> Batch:
        labels = torch.randint(12, (12,), generator=g)
        return {"images": views(g, 12)[0] + 0.1 * labels.view(-1, 1, 1, 1), "labels": labels}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        _, cosine = model(batch["images"])
        cosine = full(cosine)
        labels = batch["labels"]
        if self.fault == "labels":
            labels = (labels + 1) % 12
        cosine = cosine.clamp(-1 + 1e-6, 1 - 1e-6)
        if self.has("angle"):
            phi = torch.cos(torch.acos(cosine) + 0.5)
        else:
            sine = torch.sqrt(1 - cosine**2)
            phi = cosine * math.cos(0.5) - sine * math.sin(0.5)
        if self.fault == "margin":
            phi = cosine - 0.5
        own = F.one_hot(labels, 12).bool()
        logits = 16 * torch.where(own, phi, cosine)
        if self.has("nll"):
            return F.nll_loss(F.log_softmax(logits, -1), labels)
        return F.cross_entropy(logits, labels)


# Attention transfer ---------------------------------------------------------------------------------------------------


class Stages(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        channels = 3
        for width in widths:
            self.stages.append(
                nn.Sequential(nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
            )
            channels = width
        self.head = nn.Linear(channels, 8)

    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found, self.head(x.mean((2, 3)))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = Stages((24, 48, 64)).requires_grad_(False)
        self.student = Stages((12, 16, 24))
        g = torch.Generator().manual_seed(9)
        for module in self.teacher.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.copy_(0.2 * torch.randn(module.num_features, generator=g))
                module.running_var.copy_(0.1 + torch.rand(module.num_features, generator=g))

    def forward(self, x: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        with torch.no_grad():
            target = self.teacher(x)[0]
        found, logits = self.student(x)
        return found, target, logits


@task("attention_transfer")
class AttentionTransfer(Task):
    faults = ("teacher_train", "power", "no_zero_grad")
    momentum = 0.9
    lr = 0.05

    def build(self) -> nn.Module:
        return Pair()

    def begin(self, model: nn.Module, step: int) -> None:
        model.train()
        if self.fault != "teacher_train":
            model.teacher.eval()

    def data(self, g: torch.Generator) -> Batch:
        return {"images": views(g, 8)[0], "labels": torch.randint(8, (8,), generator=g)}

    def attention(self, x: Tensor) -> Tensor:
        power = 1 if self.fault == "power" else 2
        return F.normalize(full(x).pow(power).mean(1).flatten(1), dim=1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        found, target, logits = model(batch["images"])
        maps = [(self.attention(a) - self.attention(b)).square().mean() for a, b in zip(found, target, strict=True)]
        return F.cross_entropy(full(logits), batch["labels"]) + 500 * sum(maps)
