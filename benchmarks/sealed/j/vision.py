"""Pictures: segmentation, detection, reconstruction, classification."""

from __future__ import annotations

import copy
from typing import Any

import timm
import torch
import torch.nn.functional as F
import transformers
from common import Script, modules_of, script
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn


class Pictures(Script):
    """Blobs of colour, each class with its own, and noise."""

    size, batch, classes = 32, 4, 6

    def pictures(self) -> tuple[Tensor, Tensor]:
        """Pictures, and the class of every pixel."""
        rows = torch.arange(self.size).view(1, -1, 1)
        columns = torch.arange(self.size).view(1, 1, -1)
        classes = torch.zeros(self.batch, self.size, self.size, dtype=torch.long)
        for _ in range(3):
            middle = self.integers(4, self.size - 4, self.batch, 2)
            kind = self.integers(1, self.classes, self.batch)
            near = (rows - middle[:, :1, None]) ** 2 + (columns - middle[:, 1:, None]) ** 2 < 50
            classes = torch.where(near, kind[:, None, None], classes)
        colours = torch.linspace(-1, 1, 3 * self.classes).view(self.classes, 3).to(self.dtype)
        pictures = colours[classes].permute(0, 3, 1, 2) + 0.5 * self.normal(self.batch, 3, self.size, self.size)
        return pictures.contiguous(), classes


@script("segformer")
class Segformer(Pictures):
    faults = ("corners", "ignore")
    size = 64

    def build(self) -> None:
        self.net = self.add(
            transformers.SegformerForSemanticSegmentation(
                transformers.SegformerConfig(
                    num_encoder_blocks=3,
                    depths=[1, 1, 1],
                    sr_ratios=[4, 2, 1],
                    hidden_sizes=[16, 24, 32],
                    patch_sizes=[7, 3, 3],
                    strides=[4, 2, 2],
                    num_attention_heads=[1, 2, 4],
                    mlp_ratios=[2, 2, 2],
                    decoder_hidden_size=32,
                    num_labels=self.classes,
                    hidden_dropout_prob=0.0,
                    classifier_dropout_prob=0.0,
                    drop_path_rate=0.0,
                    initializer_range=0.15,
                )
            )
        ).train()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def step(self, number: int) -> float:
        pictures, classes = self.pictures()
        classes[:, :6] = 255
        unknown = -100 if self.has("ignore") else 255
        if unknown != 255:
            classes = classes.clamp(max=self.classes - 1)
        with self.autocast():
            logits = self.net(pictures).logits
            logits = F.interpolate(logits, size=classes.shape[-2:], mode="bilinear", align_corners=self.has("corners"))
        loss = F.cross_entropy(logits.float() if self.precision != "fp64" else logits, classes, ignore_index=unknown)
        return self.optimize(loss, self.optimizer)


def corners_of(boxes: Tensor) -> Tensor:
    x, y, w, h = boxes.unbind(-1)
    return torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], dim=-1)


def generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """Of pairs of boxes, given by their corners."""
    common = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    around = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - common
    return common / union - (around - union) / around


class Detector(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1),
            nn.GroupNorm(4, 24),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1),
            nn.GroupNorm(4, 48),
            nn.ReLU(),
        )
        self.position = nn.Parameter(torch.randn(1, 64, 48))
        self.queries = nn.Parameter(torch.randn(1, 8, 48))
        self.transformer = nn.Transformer(48, 4, 1, 2, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.kind = nn.Linear(48, classes + 1)
        self.box = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4), nn.Sigmoid())

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        patches = self.backbone(pictures).flatten(2).transpose(1, 2) + self.position
        found = self.transformer(patches, self.queries.expand(len(pictures), -1, -1))
        return self.kind(found), self.box(found)


@script("detr")
class Detr(Pictures):
    """Boxes matched to the objects at the least cost, found without gradients."""

    faults = ("centres", "empty_weight")
    variants = ("one_by_one",)

    def build(self) -> None:
        self.net = self.add(Detector(self.classes))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, weight_decay=1e-4)
        self.weight = torch.ones(self.classes + 1, dtype=self.dtype)
        self.weight[-1] = 0.3 if self.has("empty_weight") else 0.1

    def match(self, logits: Tensor, boxes: Tensor, kinds: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            cost = -logits.softmax(-1)[:, kinds] + 5 * (boxes[:, None] - truth[None]).abs().sum(-1)
            found, wanted = linear_sum_assignment(cost.float().numpy())
        return torch.as_tensor(found), torch.as_tensor(wanted)

    def box_loss(self, boxes: Tensor, truth: Tensor) -> Tensor:
        first = boxes if self.has("centres") else corners_of(boxes)
        return 1 - generalized_iou(first, corners_of(truth))

    def step(self, number: int) -> float:
        pictures, _ = self.pictures()
        truth = torch.cat([0.2 + 0.6 * self.uniform(self.batch, 3, 2), 0.1 + 0.2 * self.uniform(self.batch, 3, 2)], -1)
        kinds = self.integers(0, self.classes, self.batch, 3)
        with self.autocast():
            logits, boxes = self.net(pictures)
        pairs = [self.match(*of) for of in zip(logits, boxes, kinds, truth, strict=True)]
        target = torch.full(logits.shape[:2], self.classes)
        for row, (found, wanted) in enumerate(pairs):
            target[row, found] = kinds[row, wanted]
        logits, boxes = logits.to(self.weight.dtype), boxes.to(self.weight.dtype)
        loss = F.cross_entropy(logits.transpose(1, 2), target, self.weight)
        if self.way("one_by_one"):
            far = [(boxes[i, f] - truth[i, w]).abs().sum() for i, (f, w) in enumerate(pairs)]
            apart = [self.box_loss(boxes[i, f], truth[i, w]).sum() for i, (f, w) in enumerate(pairs)]
            loss = loss + (5 * sum(far) + 2 * sum(apart)) / truth[..., 0].numel()
        else:
            mine = torch.cat([boxes[i, f] for i, (f, _) in enumerate(pairs)])
            right = torch.cat([truth[i, w] for i, (_, w) in enumerate(pairs)])
            loss = loss + (5 * F.l1_loss(mine, right, reduction="sum") + 2 * self.box_loss(mine, right).sum()) / len(
                right
            )
        return self.optimize(loss, self.optimizer, clip=0.5)


class Reconstruction(transformers.ViTMAEForPreTraining):
    everywhere = False

    def forward_loss(self, pixel_values: Tensor, pred: Tensor, mask: Tensor, **_: Any) -> Tensor:
        target = self.patchify(pixel_values)
        mean, var = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
        error = (pred - (target - mean) / (var + 1e-6).sqrt()).pow(2).mean(-1)
        if self.everywhere:
            return error.mean()
        return (error * mask).sum() / mask.sum()


@script("vitmae")
class VitMae(Pictures):
    faults = ("everywhere", "no_position")

    def build(self) -> None:
        config = transformers.ViTMAEConfig(
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            image_size=32,
            patch_size=4,
            decoder_hidden_size=32,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=64,
            norm_pix_loss=True,
            initializer_range=0.12,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.net = self.add(Reconstruction(config)).train()
        self.net.everywhere = self.has("everywhere")
        if self.has("no_position"):
            self.net.decoder.decoder_pos_embed.data.zero_()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, betas=(0.9, 0.95))

    def step(self, number: int) -> float:
        pictures, _ = self.pictures()
        noise = self.uniform(self.batch, 64).float()
        with self.autocast():
            loss = self.net(pictures, noise=noise).loss
        return self.optimize(loss, self.optimizer)


@script("dino")
class Dino(Pictures):
    """A student learns what its moving average says of another view."""

    faults = ("no_centre", "temperature", "layer_scale")
    variants = ("sdpa",)

    def build(self) -> None:
        config = transformers.Dinov2Config(
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            mlp_ratio=2,
            image_size=32,
            patch_size=8,
            layerscale_value=0.5,
            initializer_range=0.12,
        )
        config._attn_implementation = "sdpa" if self.way("sdpa") else "eager"
        student = nn.ModuleDict({"body": transformers.Dinov2Model(config), "head": nn.Linear(48, 40, bias=False)})
        if self.has("layer_scale"):
            student["body"].encoder.layer[1].layer_scale2.lambda1.data.fill_(0.5 * 0.9)
        self.student = self.add(student).train()
        self.teacher = self.add(copy.deepcopy(student)).requires_grad_(False)
        self.centre = torch.linspace(-1, 1, 40).to(self.dtype)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=1e-3)

    def say(self, net: nn.ModuleDict, view: Tensor) -> Tensor:
        return net["head"](net["body"](view).pooler_output)

    def step(self, number: int) -> float:
        pictures, _ = self.pictures()
        views = pictures + 0.1 * self.normal(*pictures.shape), pictures.flip(-1)
        with self.autocast():
            with torch.no_grad():
                taught = self.say(self.teacher, views[1])
                centred = taught if self.has("no_centre") else taught - self.centre
                wanted = (centred / (0.07 if self.has("temperature") else 0.4)).softmax(-1)
            said = self.say(self.student, views[0])
            loss = -(wanted * (said / 0.5).log_softmax(-1)).sum(-1).mean()
        value = self.optimize(loss, self.optimizer, clip=3.0)
        with torch.no_grad():
            self.centre = 0.9 * self.centre + 0.1 * taught.mean(0).to(self.centre.dtype)
            for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        return value


@script("mobilevit")
class MobileVit(Pictures):
    faults = ("frozen_norm", "momentum")
    variants = ("channels_last", "foreach")
    size = 64

    def build(self) -> None:
        self.net = self.add(
            transformers.MobileViTForImageClassification(
                transformers.MobileViTConfig(
                    image_size=64,
                    hidden_sizes=[16, 24, 32],
                    neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 48],
                    num_attention_heads=2,
                    num_labels=self.classes,
                    initializer_range=0.1,
                    hidden_dropout_prob=0.0,
                    classifier_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                    output_stride=32,
                )
            )
        ).train()
        if self.way("channels_last"):
            self.net.to(memory_format=torch.channels_last)
        if self.has("frozen_norm"):
            self.net.mobilevit.encoder.layer[1].eval()
        self.optimizer = torch.optim.SGD(
            self.net.parameters(),
            lr=0.02,
            momentum=0.0 if self.has("momentum") else 0.9,
            foreach=self.way("foreach"),
        )

    def step(self, number: int) -> float:
        pictures, classes = self.pictures()
        if self.way("channels_last"):
            pictures = pictures.to(memory_format=torch.channels_last)
        with self.autocast():
            loss = self.net(pictures, labels=classes[:, 32, 32]).loss
        return self.optimize(loss, self.optimizer)


@script("convnext")
class ConvNext(Pictures):
    """A network of timm, with a smaller rate for the early stages."""

    faults = ("stage_rate", "layer_scale", "depthwise")
    size = 64

    def build(self) -> None:
        net = timm.create_model(
            "convnext_atto", num_classes=self.classes, depths=(1, 1, 1, 1), dims=(16, 24, 32, 48), ls_init_value=0.5
        )
        for name, module in modules_of(net, nn.Conv2d):
            if module.groups > 1:
                module.weight.data.mul_(5)
                if self.has("depthwise") and name.startswith("stages.1."):
                    module.weight.data = module.weight.data.flip(-1).flip(-2).contiguous()
        if self.has("layer_scale"):
            net.stages[2].blocks[0].gamma.data.fill_(0.53)
        self.net = self.add(net).train()
        early = [p for n, p in self.net.named_parameters() if n.startswith(("stem", "stages.0"))]
        late = [p for n, p in self.net.named_parameters() if not n.startswith(("stem", "stages.0"))]
        groups = [{"params": early, "lr": 5e-3 if self.has("stage_rate") else 5e-4}, {"params": late}]
        self.optimizer = torch.optim.SGD(groups, lr=5e-3, momentum=0.9, weight_decay=1e-3)

    def step(self, number: int) -> float:
        pictures, classes = self.pictures()
        with self.autocast():
            loss = F.cross_entropy(self.net(pictures), classes[:, 32, 32], label_smoothing=0.1)
        return self.optimize(loss, self.optimizer)


class TwoWay(nn.Module):
    """Points ask the picture, then the picture asks the points."""

    def __init__(self, width: int, way: str, scaled: bool = True) -> None:
        super().__init__()
        self.own = nn.ModuleDict({n: nn.Linear(width, width) for n in ("q", "k", "v", "o")})
        self.cross = nn.ModuleDict({n: nn.Linear(width, width) for n in ("q", "k", "v", "o")})
        self.back = nn.ModuleDict({n: nn.Linear(width, width) for n in ("q", "k", "v", "o")})
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.way, self.scaled = way, scaled

    def attend(self, parts: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (parts[n](x).unflatten(-1, (4, -1)).transpose(1, 2) for n, x in zip("qkv", (q, k, v), strict=True))
        scale = q.shape[-1] ** -0.5 if self.scaled else 1.0
        if self.way == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
        else:
            mixed = (q @ k.transpose(-1, -2) * scale).softmax(-1) @ v
        return parts["o"](mixed.transpose(1, 2).flatten(2))

    def forward(self, points: Tensor, places: Tensor, picture: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
        q = points + places
        points = self.norms[0](points + self.attend(self.own, q, q, points))
        points = self.norms[1](points + self.attend(self.cross, points + places, picture + grid, picture))
        points = self.norms[2](points + self.mlp(points))
        picture = self.norms[3](picture + self.attend(self.back, picture + grid, points + places, points))
        return points, picture


class Promptable(nn.Module):
    def __init__(self, way: str, unscaled: bool, swapped: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 4, 4)
        self.register_buffer("frequencies", torch.randn(2, 24))
        self.kinds = nn.Embedding(2, 48)
        self.output = nn.Parameter(torch.randn(1, 1, 48))
        self.layers = nn.ModuleList(TwoWay(48, way, not (unscaled and i == 1)) for i in range(2))
        self.up = nn.ConvTranspose2d(48, 12, 4, 4)
        self.hyper = nn.Linear(48, 12)
        self.swapped = swapped

    def place(self, xy: Tensor) -> Tensor:
        angles = 2 * torch.pi * (2 * xy - 1) @ self.frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def forward(self, pictures: Tensor, points: Tensor, kinds: Tensor) -> Tensor:
        picture = self.patches(pictures)
        side = (torch.arange(picture.shape[-1]).to(points) + 0.5) / picture.shape[-1]
        order = "ij" if self.swapped else "xy"
        grid = self.place(torch.stack(torch.meshgrid(side, side, indexing=order), -1).flatten(0, 1))[None]
        places = self.place(points)
        asked = torch.cat([self.output.expand(len(points), -1, -1), places + self.kinds(kinds)], 1)
        places = torch.cat([torch.zeros_like(places[:, :1]), places], 1)
        flat = picture.flatten(2).transpose(1, 2)
        for layer in self.layers:
            asked, flat = layer(asked, places, flat, grid)
        masks = self.up(flat.transpose(1, 2).unflatten(-1, picture.shape[-2:]))
        return torch.einsum("bc,bchw->bhw", self.hyper(asked[:, 0]), masks)


@script("sam")
class Sam(Pictures):
    """Masks of what points in a picture belong to."""

    faults = ("unscaled", "grid")
    variants = ("sdpa",)

    def build(self) -> None:
        way = "sdpa" if self.way("sdpa") else "eager"
        self.net = self.add(Promptable(way, self.has("unscaled"), self.has("grid")))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def step(self, number: int) -> float:
        pictures, classes = self.pictures()
        with self.autocast():
            logits = self.net(pictures, self.uniform(self.batch, 3, 2), self.integers(0, 2, self.batch, 3))
        loss = F.binary_cross_entropy_with_logits(logits, (classes == 2).to(logits.dtype))
        return self.optimize(loss, self.optimizer)


def dice(p: Tensor, truth: Tensor, over: tuple[int, ...]) -> Tensor:
    return (1 - (2 * (p * truth).sum(over) + 1) / (p.sum(over) + truth.sum(over) + 1)).mean()


@script("masks")
class Masks(Pictures):
    """One mask per class by focal and dice loss."""

    faults = ("dice_axes", "focal_alpha", "norm_groups")
    variants = ("by_hand", "channels_last")

    def build(self) -> None:
        def block(a: int, b: int, groups: int) -> list[nn.Module]:
            return [nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(groups, b), nn.LeakyReLU(0.1)]

        groups = 3 if self.has("norm_groups") else 4
        self.net = self.add(
            nn.Sequential(
                *block(3, 24, 4), *block(24, 24, groups), *block(24, 24, 4), nn.Conv2d(24, self.classes - 1, 1)
            )
        )
        if self.way("channels_last"):
            self.net.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)

    def focal(self, logits: Tensor, truth: Tensor) -> Tensor:
        alpha = 0.75 if self.has("focal_alpha") else 0.25
        if self.way("by_hand"):
            p = logits.sigmoid()
            sure = truth * (1 - p).pow(2) * F.softplus(-logits) * alpha
            return (sure + (1 - truth) * p.pow(2) * F.softplus(logits) * (1 - alpha)).mean()
        loss = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        p = logits.sigmoid()
        right = p * truth + (1 - p) * (1 - truth)
        return ((alpha * truth + (1 - alpha) * (1 - truth)) * loss * (1 - right) ** 2).mean()

    def step(self, number: int) -> float:
        pictures, classes = self.pictures()
        truth = F.one_hot(classes, self.classes)[..., 1:].permute(0, 3, 1, 2).to(self.dtype)
        with self.autocast():
            logits = self.net(pictures)
        logits = logits.to(truth.dtype)
        axes = (0, 2, 3) if self.has("dice_axes") else (2, 3)
        loss = 20 * self.focal(logits, truth) + dice(logits.sigmoid(), truth, axes)
        return self.optimize(loss, self.optimizer)
