"""Dense prediction, video and rendering, written by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from common import Batch, Task, full, task
from torch import Tensor, nn


def picture(g: torch.Generator, n: int, size: int, channels: int = 3) -> Tensor:
    """Smooth random images between 0 and 1."""
    coarse = torch.rand(n, channels, size // 8, size // 8, generator=g)
    fine = torch.rand(n, channels, size, size, generator=g)
    return 0.8 * F.interpolate(coarse, size=size, mode="bilinear") + 0.2 * fine


def conv(i: int, o: int, k: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, stride, k // 2), nn.GroupNorm(4, o), nn.ReLU())


# Segmentation ---------------------------------------------------------------------------------------------------------


class NestedUNet(nn.Module):
    """UNet++ with a head at every depth."""

    def __init__(self, classes: int, align: bool) -> None:
        super().__init__()
        widths = (12, 16, 24, 32)
        self.align = align
        self.depth = len(widths)
        self.blocks = nn.ModuleDict()
        for j in range(self.depth):
            for i in range(self.depth - j):
                below = widths[i + 1] if j else 0
                inputs = widths[i] * j + below if j else (widths[i - 1] if i else 3)
                self.blocks[f"x{i}{j}"] = nn.Sequential(conv(inputs, widths[i]), conv(widths[i], widths[i]))
        self.heads = nn.ModuleList(nn.Conv2d(widths[0], classes, 1) for _ in range(self.depth - 1))

    def forward(self, image: Tensor) -> list[Tensor]:
        made: dict[str, Tensor] = {}
        for i in range(self.depth):
            made[f"x{i}0"] = self.blocks[f"x{i}0"](F.max_pool2d(made[f"x{i - 1}0"], 2) if i else image)
        for j in range(1, self.depth):
            for i in range(self.depth - j):
                low = made[f"x{i + 1}{j - 1}"]
                up = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=self.align)
                before = [made[f"x{i}{k}"] for k in range(j)]
                made[f"x{i}{j}"] = self.blocks[f"x{i}{j}"](torch.cat([*before, up], dim=1))
        return [head(made[f"x0{j + 1}"]) for j, head in enumerate(self.heads)]


@task("unetpp")
class UNetPp(Task):
    faults = ("align", "aux_weight", "scheduler_first")
    ways = ("nll", "order")

    def build(self) -> nn.Module:
        return NestedUNet(5, align=self.fault != "align")

    def data(self, g: torch.Generator) -> Batch:
        images = picture(g, 2, 48)
        return {"images": images, "labels": (images.mean(1) * 5).long().clamp(0, 4)}

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 - step / 5) ** 0.9)

    def one(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.has("nll"):
            logs = F.log_softmax(logits, dim=1)
            entropy = F.nll_loss(logs, labels)
            p = logs.exp()
        else:
            entropy = F.cross_entropy(logits, labels)
            p = logits.softmax(dim=1)
        truth = F.one_hot(labels, 5).permute(0, 3, 1, 2).to(p.dtype)
        overlap = (p * truth).sum((2, 3))
        dice = (2 * overlap + 1) / (p.sum((2, 3)) + truth.sum((2, 3)) + 1)
        return entropy + 1 - dice.mean()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        outs = model(batch["images"])
        weights = [0.25, 0.5, 1.0]
        if self.fault == "aux_weight":
            weights = weights[::-1]
        losses = [w * self.one(full(out), batch["labels"]) for w, out in zip(weights, outs, strict=True)]
        return sum(losses[::-1]) if self.has("order") else sum(losses)


# Optical flow ---------------------------------------------------------------------------------------------------------


class ConvGru(nn.Module):
    def __init__(self, hidden: int, inputs: int) -> None:
        super().__init__()
        self.z = nn.Conv2d(hidden + inputs, hidden, 3, padding=1)
        self.r = nn.Conv2d(hidden + inputs, hidden, 3, padding=1)
        self.q = nn.Conv2d(hidden + inputs, hidden, 3, padding=1)

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        both = torch.cat([h, x], dim=1)
        z = torch.sigmoid(self.z(both))
        r = torch.sigmoid(self.r(both))
        q = torch.tanh(self.q(torch.cat([r * h, x], dim=1)))
        return (1 - z) * h + z * q


class Lookup(nn.Module):
    """Correlations around the point that each pixel has moved to, in two scales."""

    def __init__(self, radius: int, off_by_one: bool) -> None:
        super().__init__()
        self.radius = radius
        self.off_by_one = off_by_one

    def forward(self, pyramid: list[Tensor], coords: Tensor) -> Tensor:
        b, _, h, w = coords.shape
        r = self.radius
        steps = torch.arange(-r, r + 1, device=coords.device, dtype=coords.dtype)
        dy, dx = torch.meshgrid(steps, steps, indexing="ij")
        delta = torch.stack([dx, dy], dim=-1).view(1, 2 * r + 1, 2 * r + 1, 2)
        found = []
        for level, volume in enumerate(pyramid):
            height, width = volume.shape[-2:]
            centre = coords.permute(0, 2, 3, 1).reshape(b * h * w, 1, 1, 2) / 2**level
            points = centre + delta
            if self.off_by_one:
                x = 2 * points[..., 0] / width - 1
                y = 2 * points[..., 1] / height - 1
            else:
                x = 2 * points[..., 0] / (width - 1) - 1
                y = 2 * points[..., 1] / (height - 1) - 1
            grid = torch.stack([x, y], dim=-1).to(volume.dtype)
            sampled = F.grid_sample(volume, grid, align_corners=True)
            found.append(sampled.view(b, h, w, -1).permute(0, 3, 1, 2))
        return torch.cat(found, dim=1)


class Raft(nn.Module):
    def __init__(self, fault: str, einsum: bool) -> None:
        super().__init__()
        self.fault = fault
        self.einsum = einsum
        self.features = nn.Sequential(conv(3, 16, 5, 2), conv(16, 24, 3, 2), nn.Conv2d(24, 32, 1))
        self.context = nn.Sequential(conv(3, 16, 5, 2), conv(16, 24, 3, 2), nn.Conv2d(24, 32, 1))
        self.lookup = Lookup(2, fault == "grid")
        self.motion = nn.Conv2d(2 * 25 + 2, 24, 3, padding=1)
        self.gru = ConvGru(16, 24 + 16)
        self.flow = nn.Sequential(nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 2, 3, padding=1))
        self.mask = nn.Conv2d(16, 16 * 9, 1)

    def upsample(self, flow: Tensor, mask: Tensor) -> Tensor:
        b, _, h, w = flow.shape
        weights = mask.view(b, 1, 9, 4, 4, h, w).softmax(dim=2)
        patches = F.unfold(4 * flow, 3, padding=1).view(b, 2, 9, 1, 1, h, w)
        fine = (weights * patches).sum(2)
        return fine.permute(0, 1, 4, 2, 5, 3).reshape(b, 2, 4 * h, 4 * w)

    def forward(self, first: Tensor, second: Tensor) -> list[Tensor]:
        one, two = self.features(first), self.features(second)
        b, c, h, w = one.shape
        if self.einsum:
            volume = torch.einsum("bchw,bcxy->bhwxy", one, two).reshape(b * h * w, 1, h, w) / math.sqrt(c)
        else:
            volume = (one.flatten(2).transpose(1, 2) @ two.flatten(2)).view(b * h * w, 1, h, w) / math.sqrt(c)
        pyramid = [volume, F.avg_pool2d(volume, 2)]
        hidden, context = self.context(first).chunk(2, dim=1)
        hidden, context = torch.tanh(hidden), torch.relu(context)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        start = torch.stack([xs, ys]).to(one.dtype).expand(b, 2, h, w)
        coords = start
        flows = []
        for _ in range(3):
            coords = coords.detach()
            found = self.lookup(pyramid, full(coords))
            flow = coords - start
            motion = torch.relu(self.motion(torch.cat([found, flow], dim=1)))
            if self.fault == "detached_hidden":
                hidden = hidden.detach()
            hidden = self.gru(hidden, torch.cat([motion, context], dim=1))
            coords = coords + self.flow(hidden)
            flows.append(self.upsample(coords - start, 0.25 * self.mask(hidden)))
        return flows


@task("raft")
class RaftTask(Task):
    faults = ("grid", "detached_hidden")
    ways = ("einsum",)
    lr = 4e-4

    def build(self) -> nn.Module:
        return Raft(self.fault, self.has("einsum"))

    def data(self, g: torch.Generator) -> Batch:
        first = picture(g, 2, 64)
        second = first.roll((2, 3), dims=(2, 3)) + 0.02 * torch.rand(first.shape, generator=g)
        flow = torch.tensor([3.0, 2.0]).view(1, 2, 1, 1).expand(2, 2, 64, 64)
        return {"first": first * 2 - 1, "second": second * 2 - 1, "flow": flow}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        flows = model(batch["first"], batch["second"])
        weights = [0.8 ** (len(flows) - 1 - i) for i in range(len(flows))]
        errors = [(full(f) - full(batch["flow"])).abs().mean() for f in flows]
        return sum(w * e for w, e in zip(weights, errors, strict=True))


# Stereo ---------------------------------------------------------------------------------------------------------------


class Stereo(nn.Module):
    """Concatenated features for each disparity, 3D convolutions, soft argmin."""

    def __init__(self, fault: str, stacked: bool) -> None:
        super().__init__()
        self.fault = fault
        self.stacked = stacked
        self.disparities = 8
        self.features = nn.Sequential(conv(3, 12, 5, 2), conv(12, 12), nn.Conv2d(12, 12, 3, padding=1))
        self.cost = nn.Sequential(
            nn.Conv3d(24, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Conv3d(16, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv3d(8, 1, 3, padding=1),
        )

    def volume(self, left: Tensor, right: Tensor) -> Tensor:
        b, c, h, w = left.shape
        if self.stacked:
            slices = []
            for d in range(self.disparities):
                shifted = F.pad(right, (d, 0))[..., :w]
                seen = (torch.arange(w) >= d).to(left.dtype)
                slices.append(torch.cat([left * seen, shifted], dim=1))
            return torch.stack(slices, dim=2)
        volume = left.new_zeros(b, 2 * c, self.disparities, h, w)
        for d in range(self.disparities):
            volume[:, :c, d, :, d:] = left[..., d:]
            volume[:, c:, d, :, d:] = right[..., : w - d]
        return volume

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.features(left), self.features(right)
        if self.fault == "detached_right":
            b = b.detach()
        cost = self.cost(self.volume(a, b)).squeeze(1)
        cost = F.interpolate(cost, scale_factor=2, mode="bilinear", align_corners=False)
        values = torch.arange(self.disparities, dtype=cost.dtype)
        if self.fault == "from_one":
            values = values + 1
        p = full(-cost).softmax(dim=1)
        if self.fault == "half":
            p = p.half().to(cost.dtype)
        return 2 * (p * values.view(1, -1, 1, 1)).sum(1)


@task("stereo")
class StereoTask(Task):
    faults = ("detached_right", "from_one", "half")
    ways = ("stacked",)

    def build(self) -> nn.Module:
        return Stereo(self.fault, self.has("stacked"))

    def data(self, g: torch.Generator) -> Batch:
        left = picture(g, 2, 48)
        return {"left": left, "right": left.roll(-5, dims=-1), "disparity": 5 + torch.rand(2, 48, 48, generator=g)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.smooth_l1_loss(full(model(batch["left"], batch["right"])), full(batch["disparity"]))


# Super-resolution -----------------------------------------------------------------------------------------------------


class UnfoldConv(nn.Conv2d):
    """A convolution as one matrix product."""

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        columns = F.unfold(x, self.kernel_size, padding=self.padding)
        out = self.weight.flatten(1) @ columns + self.bias.view(1, -1, 1)
        return out.view(b, -1, h, w)


class ResBlock(nn.Module):
    def __init__(self, width: int, scale: float, kind: type[nn.Conv2d]) -> None:
        super().__init__()
        self.one = kind(width, width, 3, padding=1)
        self.two = kind(width, width, 3, padding=1)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.two(torch.relu(self.one(x)))


class Shuffle(nn.Module):
    """From channels to space."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        if self.way == "permute":
            x = x.view(b, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3)
            return x.reshape(b, c // 4, 2 * h, 2 * w)
        if self.way == "depth_to_space":
            x = x.view(b, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2)
            return x.reshape(b, c // 4, 2 * h, 2 * w)
        return F.pixel_shuffle(x, 2)


class Edsr(nn.Module):
    def __init__(self, scale: float, shuffle: str, unfold: bool) -> None:
        super().__init__()
        kind = UnfoldConv if unfold else nn.Conv2d
        self.head = kind(3, 24, 3, padding=1)
        self.body = nn.Sequential(*[ResBlock(24, scale, kind) for _ in range(4)])
        self.up = nn.Sequential(kind(24, 96, 3, padding=1), Shuffle(shuffle))
        self.tail = kind(24, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x - 0.45)
        x = x + self.body(x)
        return self.tail(self.up(x)) + 0.45


@task("edsr")
class EdsrTask(Task):
    faults = ("res_scale", "depth_to_space")
    ways = ("permute", "unfold")

    def build(self) -> nn.Module:
        way = "permute" if self.has("permute") else self.fault
        return Edsr(1.0 if self.fault == "res_scale" else 0.1, way, self.has("unfold"))

    def data(self, g: torch.Generator) -> Batch:
        fine = picture(g, 2, 48)
        return {"fine": fine, "coarse": F.interpolate(fine, scale_factor=0.5, mode="bicubic", antialias=True)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.l1_loss(full(model(batch["coarse"])), full(batch["fine"]))


# Keypoints ------------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, width: int, inplace: bool) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.one = nn.Conv2d(width, width // 2, 1)
        self.two = nn.Conv2d(width // 2, width, 3, padding=1)
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        if self.inplace:
            y = F.relu_(self.norm(x))
            y = self.two(F.relu_(self.one(y)))
            return y.add_(x)
        y = self.two(F.relu(self.one(F.relu(self.norm(x)))))
        return x + y


class Glass(nn.Module):
    def __init__(self, depth: int, width: int, inplace: bool) -> None:
        super().__init__()
        self.skip = Residual(width, inplace)
        self.low = Residual(width, inplace)
        self.inner = Glass(depth - 1, width, inplace) if depth > 1 else Residual(width, inplace)

    def forward(self, x: Tensor) -> Tensor:
        low = self.inner(self.low(F.max_pool2d(x, 2)))
        return self.skip(x) + F.interpolate(low, scale_factor=2, mode="nearest")


class Hourglass(nn.Module):
    """Two stacks; the maps of the first are put into the second."""

    def __init__(self, points: int, fault: str, inplace: bool) -> None:
        super().__init__()
        width = 24
        self.fault = fault
        self.stem = conv(3, width, 5, 2)
        self.glasses = nn.ModuleList(Glass(2, width, inplace) for _ in range(2))
        self.outs = nn.ModuleList(nn.Conv2d(width, points, 1) for _ in range(2))
        self.merge_maps = nn.Conv2d(points, width, 1)
        self.merge_features = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        maps = []
        for index, (glass, out) in enumerate(zip(self.glasses, self.outs, strict=True)):
            features = glass(x)
            maps.append(out(features))
            if index == 0:
                given = maps[0].detach() if self.fault == "detached_maps" else maps[0]
                x = x + self.merge_features(features) + self.merge_maps(given)
        return maps


@task("hourglass")
class HourglassTask(Task):
    faults = ("half_pixel", "detached_maps", "no_zero_grad")
    ways = ("inplace",)

    def build(self) -> nn.Module:
        return Hourglass(5, self.fault, self.has("inplace"))

    def data(self, g: torch.Generator) -> Batch:
        return {"images": picture(g, 2, 64), "points": 8 + 48 * torch.rand(2, 5, 2, generator=g)}

    def heatmaps(self, points: Tensor) -> Tensor:
        """A Gaussian at each point, for maps of half the resolution."""
        centres = points / 2 + 0.5 if self.fault == "half_pixel" else points / 2
        grid = torch.arange(32, dtype=points.dtype)
        dx = grid.view(1, 1, 1, -1) - centres[..., 0, None, None]
        dy = grid.view(1, 1, -1, 1) - centres[..., 1, None, None]
        return torch.exp(-(dx**2 + dy**2) / (2 * 1.5**2))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        truth = self.heatmaps(full(batch["points"]))
        return sum(F.mse_loss(full(m), truth) for m in model(batch["images"])) * 10


# Detection without anchors --------------------------------------------------------------------------------------------


class SigmoidFocal(torch.autograd.Function):
    """Focal loss of a heatmap with its gradient written out; negatives weigh less near a centre."""

    factor = 1.0

    @staticmethod
    def forward(ctx: Any, logits: Tensor, truth: Tensor, factor: float) -> Tensor:
        p = logits.sigmoid()
        positive = (truth == 1).to(logits.dtype)
        near = (1 - truth) ** 4
        log_p, log_q = F.logsigmoid(logits), F.logsigmoid(-logits)
        value = -(positive * (1 - p) ** 2 * log_p + (1 - positive) * near * p**2 * log_q)
        ctx.save_for_backward(p, positive, near, log_p, log_q)
        ctx.factor = factor
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        p, positive, near, log_p, log_q = ctx.saved_tensors
        high = -((1 - p) ** 3) + ctx.factor * (1 - p) ** 2 * p * log_p
        low = p**3 - ctx.factor * p**2 * (1 - p) * log_q
        return grads[0] * (positive * high + (1 - positive) * near * low), None, None


class CenterNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv(3, 16, 5, 2), conv(16, 24, 3, 2), conv(24, 32), conv(32, 32))
        self.heat = nn.Sequential(nn.Conv2d(32, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 3, 1))
        self.size = nn.Sequential(nn.Conv2d(32, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 2, 1))
        self.offset = nn.Sequential(nn.Conv2d(32, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 2, 1))
        nn.init.constant_(self.heat[-1].bias, -2.19)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.backbone(x)
        return self.heat(x), self.size(x), self.offset(x)


@task("centernet")
class CenterNetTask(Task):
    faults = ("focal_gradient", "gather_xy", "init")
    ways = ("autograd_focal",)

    def build(self) -> nn.Module:
        model = CenterNet()
        if self.fault == "init":
            nn.init.zeros_(model.heat[-1].bias)
        return model

    def data(self, g: torch.Generator) -> Batch:
        centres = torch.randint(2, 14, (2, 4, 2), generator=g)
        heat = torch.zeros(2, 3, 16, 16)
        grid = torch.arange(16.0)
        for b in range(2):
            for n in range(4):
                x, y = centres[b, n]
                blob = torch.exp(-((grid - x).view(1, -1) ** 2 + (grid - y).view(-1, 1) ** 2) / 4)
                heat[b, n % 3] = torch.maximum(heat[b, n % 3], blob)
        return {
            "images": picture(g, 2, 64),
            "heat": heat,
            "centres": centres,
            "sizes": 2 + 6 * torch.rand(2, 4, 2, generator=g),
            "offsets": 0.5 + torch.rand(2, 4, 2, generator=g),
        }

    def at(self, maps: Tensor, centres: Tensor) -> Tensor:
        x, y = centres[..., 0], centres[..., 1]
        index = x * 16 + y if self.fault == "gather_xy" else y * 16 + x
        return maps.flatten(2).transpose(1, 2).gather(1, index[..., None].expand(-1, -1, 2))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        heat, size, offset = (full(x) for x in model(batch["images"]))
        truth = full(batch["heat"])
        if self.has("autograd_focal"):
            p = heat.sigmoid()
            high = (1 - p) ** 2 * F.logsigmoid(heat)
            low = (1 - truth) ** 4 * p**2 * F.logsigmoid(-heat)
            focal = -torch.where(truth == 1, high, low)
        else:
            focal = SigmoidFocal.apply(heat, truth, 1.0 if self.fault == "focal_gradient" else 2.0)
        sizes = F.l1_loss(self.at(size, batch["centres"]), full(batch["sizes"]))
        offsets = F.l1_loss(self.at(offset, batch["centres"]), full(batch["offsets"]))
        return focal.sum() / 8 + 0.1 * sizes + offsets


# Video ----------------------------------------------------------------------------------------------------------------


class Factored(nn.Module):
    """A convolution in space, then one in time."""

    def __init__(self, i: int, o: int, stride: int = 1, time_pad: str = "zeros", **norm: float) -> None:
        super().__init__()
        middle = (i * o * 27) // (9 * i + 3 * o) // 4 * 4
        self.space = nn.Conv3d(i, middle, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.norm = nn.BatchNorm3d(middle, **norm)
        self.time = nn.Conv3d(middle, o, (3, 1, 1), padding=(1, 0, 0), bias=False, padding_mode=time_pad)

    def forward(self, x: Tensor) -> Tensor:
        return self.time(F.relu(self.norm(self.space(x))))


class R2Plus1d(nn.Module):
    def __init__(self, time_pad: str, **norm: float) -> None:
        super().__init__()
        more: dict[str, Any] = {"time_pad": time_pad, **norm}
        self.stem = Factored(3, 12, 2, **more)
        self.norm = nn.BatchNorm3d(12, **norm)
        self.one = Factored(12, 12, 1, **more)
        self.two = Factored(12, 24, 2, **more)
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.one(x))
        x = F.relu(self.two(x))
        return self.head(x.mean((2, 3, 4)))


@task("r2plus1d")
class Video(Task):
    """After every step a clip is classified with the running statistics."""

    faults = ("time_pad", "bn_momentum", "bn_eps")
    ways = ("channels_last_3d",)
    lr = 0.01
    momentum = 0.9

    def build(self) -> nn.Module:
        pad = "replicate" if self.fault == "time_pad" else "zeros"
        momentum = 0.9 if self.fault == "bn_momentum" else 0.1
        model = R2Plus1d(pad, momentum=momentum, eps=1e-3 if self.fault == "bn_eps" else 1e-5)
        if self.has("channels_last_3d"):
            model = model.to(memory_format=torch.channels_last_3d)
        return model

    def data(self, g: torch.Generator) -> Batch:
        frames = picture(g, 2, 32)
        clip = torch.stack([frames.roll(t, dims=-1) for t in range(6)], dim=2)
        return {"clip": (clip - 0.5) / 0.5, "labels": torch.randint(6, (2,), generator=g)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        clip = batch["clip"]
        if self.has("channels_last_3d"):
            clip = clip.contiguous(memory_format=torch.channels_last_3d)
        return F.cross_entropy(full(model(clip)), batch["labels"])

    def end(self, model: nn.Module, step: int) -> None:
        model.eval()
        with torch.no_grad(), self.amp():
            print(f"validation loss {float(self.loss(model, self.batches(step)[0])):.6g}")
        model.train()


# Neural cellular automaton --------------------------------------------------------------------------------------------


class Automaton(nn.Module):
    """Cells see their gradients by Sobel filters and change a little in every step."""

    def __init__(self, fault: str, way: str) -> None:
        super().__init__()
        self.fault = fault
        self.way = way
        self.channels = 12
        sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
        if fault != "sobel_scale":
            sobel = sobel / 8
        identity = torch.zeros(3, 3)
        identity[1, 1] = 1.0
        kernels = torch.stack([identity, sobel, sobel.T])
        self.register_buffer("kernels", kernels.repeat(self.channels, 1, 1)[:, None])
        self.hidden = nn.Conv2d(3 * self.channels, 48, 1)
        self.change = nn.Conv2d(48, self.channels, 1)
        nn.init.normal_(self.change.weight, std=0.05)

    def perceive(self, cells: Tensor) -> Tensor:
        mode = "constant" if self.fault == "padding" else "circular"
        return F.conv2d(F.pad(cells, (1, 1, 1, 1), mode=mode), self.kernels, groups=self.channels)

    def forward(self, cells: Tensor, masks: Tensor) -> Tensor:
        for mask in masks.unbind(1):
            alive = F.max_pool2d(cells[:, 3:4], 3, stride=1, padding=1) > 0.1
            change = self.change(torch.relu(self.hidden(self.perceive(cells)))) * mask[:, None]
            cells = torch.addcmul(cells, change, torch.ones_like(change)) if self.way == "addcmul" else cells + change
            after = F.max_pool2d(cells[:, 3:4], 3, stride=1, padding=1) > 0.1
            cells = cells * (alive & after).to(cells.dtype)
        return cells


@task("nca")
class Nca(Task):
    faults = ("sobel_scale", "padding", "no_correction")
    ways = ("addcmul",)
    lr = 2e-3

    def build(self) -> nn.Module:
        return Automaton(self.fault, "addcmul" if self.has("addcmul") else "")

    def data(self, g: torch.Generator) -> Batch:
        cells = 0.3 * torch.rand(2, 12, 24, 24, generator=g)
        cells[:, 3:] += 0.6
        target = picture(g, 2, 24, 4)
        return {"cells": cells, "masks": (torch.rand(2, 5, 24, 24, generator=g) < 0.5).float(), "target": target}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        cells = model(batch["cells"], batch["masks"])
        return F.mse_loss(full(cells[:, :4]), full(batch["target"]))


# Splatting ------------------------------------------------------------------------------------------------------------


class Splats(nn.Module):
    """Gaussians in the plane with a depth, composed from front to back."""

    def __init__(self, count: int, fault: str, way: str) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(2)
        self.fault = fault
        self.way = way
        self.centres = nn.Parameter(torch.rand(count, 2, generator=g) * 2 - 1)
        self.scales = nn.Parameter(torch.randn(count, 2, generator=g) * 0.4 - 1.2)
        self.angles = nn.Parameter(torch.randn(count, generator=g))
        self.colours = nn.Parameter(torch.randn(count, 3, generator=g))
        self.opacities = nn.Parameter(torch.randn(count, generator=g))
        self.register_buffer("depths", torch.rand(count, generator=g))

    def covariance(self) -> Tensor:
        cos, sin = torch.cos(self.angles), torch.sin(self.angles)
        rotation = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        if self.fault == "rotation":
            rotation = rotation.transpose(-1, -2)
        scaled = rotation * torch.exp(self.scales)[:, None, :]
        return scaled @ scaled.transpose(-1, -2)

    def forward(self, size: int) -> Tensor:
        axis = torch.linspace(-1, 1, size, dtype=self.centres.dtype)
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        order = self.depths.argsort()
        pixels = torch.stack([x, y], -1).view(1, -1, 2)
        delta = pixels - self.centres[order][:, None]
        inverse = torch.linalg.inv(full(self.covariance()))[order].to(delta.dtype)
        if self.way == "einsum":
            power = torch.einsum("npi,nij,npj->np", delta, inverse, delta)
        else:
            power = ((delta @ inverse) * delta).sum(-1)
        alpha = 0.99 * torch.sigmoid(self.opacities[order])[:, None] * torch.exp(-0.5 * power)
        if self.way == "log":
            through = torch.exp(torch.cumsum(torch.log1p(-alpha), dim=0))
        else:
            through = torch.cumprod(1 - alpha, dim=0)
        if self.fault != "inclusive":
            through = torch.cat([torch.ones_like(through[:1]), through[:-1]])
        image = (alpha * through).t() @ torch.sigmoid(self.colours[order])
        return image.t().view(3, size, size)


@task("splat")
class Splat(Task):
    faults = ("inclusive", "rotation", "betas", "no_angles")
    ways = ("log", "einsum")
    lr = 0.02

    def build(self) -> nn.Module:
        way = next((w for w in ("log", "einsum") if self.has(w)), "")
        return Splats(40, self.fault, way)

    def parameters(self, model: Splats) -> Any:
        groups = [
            {"params": [model.centres], "lr": 0.01},
            {"params": [model.scales], "lr": 0.005},
            {"params": [model.colours, model.opacities]},
        ]
        if self.fault != "no_angles":
            groups.append({"params": [model.angles], "lr": 0.005})
        return groups

    def data(self, g: torch.Generator) -> Batch:
        return {"image": picture(torch.Generator().manual_seed(5), 1, 32)[0]}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        image, truth = full(model(32)), full(batch["image"])
        error = image - truth
        edges = error[:, 1:] - error[:, :-1]
        return 0.8 * error.abs().mean() + 0.2 * edges.square().mean()


# Style ----------------------------------------------------------------------------------------------------------------


class Stylised(nn.Module):
    """An image that is optimised, and the fixed network that looks at it."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.image = nn.Parameter(picture(torch.Generator().manual_seed(11), 1, 48))
        self.stages = nn.ModuleList()
        for i, o in ((3, 16), (16, 24), (24, 32)):
            self.stages.append(nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1)))
        self.stages.requires_grad_(False)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, image: Tensor | None = None) -> list[Tensor]:
        x = self.image if image is None else image
        x = (x - self.mean) / self.std if self.fault != "no_mean" else x / self.std
        found = []
        for stage in self.stages:
            x = torch.relu(stage(x))
            found.append(x)
            x = F.max_pool2d(x, 2) if self.fault == "max_pool" else F.avg_pool2d(x, 2)
        return found


@task("style")
class Style(Task):
    faults = ("no_mean", "max_pool", "gram_scale")
    ways = ("einsum",)
    lr = 0.01
    decay = 0.0

    def build(self) -> nn.Module:
        return Stylised(self.fault)

    def data(self, g: torch.Generator) -> Batch:
        fixed = torch.Generator().manual_seed(12)
        return {"style": picture(fixed, 1, 48), "content": picture(fixed, 1, 48)}

    def gram(self, x: Tensor) -> Tensor:
        _, c, h, w = x.shape
        area = h * w if self.fault == "gram_scale" else c * h * w
        if self.has("einsum"):
            return torch.einsum("bchw,bdhw->bcd", x, x) / area
        flat = x.flatten(2)
        return flat @ flat.transpose(1, 2) / area

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        found = model()
        with torch.no_grad():
            style, content = model(batch["style"]), model(batch["content"])
        grams = [F.mse_loss(full(self.gram(a)), full(self.gram(b))) for a, b in zip(found, style, strict=True)]
        return F.mse_loss(full(found[1]), full(content[1])) + 100 * sum(grams)


# Depth ----------------------------------------------------------------------------------------------------------------


class Deformable(nn.Module):
    """Samples the features at learned places before a convolution."""

    def __init__(self, width: int, padding: str) -> None:
        super().__init__()
        self.offset = nn.Conv2d(width, 2, 3, padding=1)
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        y = torch.linspace(-1, 1, h, dtype=x.dtype).view(1, h, 1).expand(b, h, w)
        z = torch.linspace(-1, 1, w, dtype=x.dtype).view(1, 1, w).expand(b, h, w)
        moved = torch.stack([z, y], dim=-1) + 0.3 * torch.tanh(self.offset(x)).permute(0, 2, 3, 1)
        sampled = F.grid_sample(x, moved.to(x.dtype), padding_mode=self.padding, align_corners=True)
        return x + torch.relu(self.conv(sampled))


class DepthNet(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.stem = conv(3, 16, 5, 2)
        self.blocks = nn.ModuleList(Deformable(16, "border" if fault == "border" else "zeros") for _ in range(3))
        self.head = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == 1 and self.fault == "bf16_block":
                x = x.to(torch.bfloat16).to(self.head.weight.dtype)
        return F.interpolate(F.softplus(self.head(x)), scale_factor=2, mode="bilinear", align_corners=False)[:, 0]


@task("depth")
class Depth(Task):
    faults = ("border", "bf16_block", "silog")

    def build(self) -> nn.Module:
        return DepthNet(self.fault)

    def data(self, g: torch.Generator) -> Batch:
        images = picture(g, 2, 48)
        return {"images": images, "depth": 0.5 + 3 * images.mean(1)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        depth = full(model(batch["images"]))
        d = torch.log(depth + 1e-3) - torch.log(full(batch["depth"]))
        silog = d.square().mean() - 0.85 * d.mean() ** 2
        if self.fault == "silog":
            silog = d.square().mean() - 0.85 * d.square().mean()
        inverse = 1 / (depth + 1e-3)
        inverse = inverse / inverse.mean((1, 2), keepdim=True)
        weight = torch.exp(-(full(batch["images"][..., 1:]) - full(batch["images"][..., :-1])).abs().mean(1))
        smooth = ((inverse[..., 1:] - inverse[..., :-1]).abs() * weight).mean()
        return silog + 0.1 * smooth
