"""Pictures and films: told, reconstructed, enlarged, measured, searched."""

from __future__ import annotations

from typing import Any

import timm
import torch
import torch.nn.functional as F
import transformers
from common import Script, modules_of, script
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.anchor_utils import AnchorGenerator


class Pictures(Script):
    """Waves of colour with a bright rectangle, and noise."""

    size, batch = 32, 4

    def pictures(self, batch: int = 0, size: int = 0) -> Tensor:
        batch, size = batch or self.batch, size or self.size
        at = torch.linspace(0, 1, size, dtype=torch.get_default_dtype())
        turns = 12 * self.uniform(batch, 3, 2, 1).to(at.dtype)
        waves = (turns[:, :, 0] * at).sin()[..., None] * (turns[:, :, 1] * at).cos()[:, :, None]
        waves[:, :, size // 4 : size // 2, size // 3 : size // 2] += 1
        return waves.to(self.dtype) + 0.2 * self.normal(batch, 3, size, size)

    def adamw(self, lr: float = 1e-3) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.net.parameters(), lr=lr)


@script("videomae")
class VideoMAE(Pictures):
    """Films, of which whole columns of time are hidden."""

    faults = ("hidden_apart", "positions_from_one", "quick")
    variants = ("sdpa",)

    def build(self) -> None:
        config = transformers.VideoMAEConfig(
            image_size=16,
            patch_size=4,
            num_frames=4,
            tubelet_size=2,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            hidden_act="quick_gelu" if self.has("quick") else "gelu",
            initializer_range=0.1,
            decoder_num_attention_heads=4,
            decoder_hidden_size=24,
            decoder_num_hidden_layers=1,
            decoder_intermediate_size=48,
        )
        way = "sdpa" if self.way("sdpa") else "eager"
        net = transformers.VideoMAEForPreTraining._from_config(config, attn_implementation=way)
        if self.has("positions_from_one"):
            table = transformers.models.videomae.modeling_videomae.get_sinusoid_encoding_table
            net.videomae.embeddings.position_embeddings = table(33, 48)[:, 1:]
        self.net = self.add(net).train()
        self.optimizer = self.adamw()

    def loss(self, number: int) -> Tensor:
        films = torch.stack([self.pictures(size=16) for _ in range(4)], dim=1)
        draws = torch.stack([torch.randperm(16, generator=self.random) for _ in range(2 * self.batch)])
        draws = draws.view(self.batch, 2, 16) < 12
        hidden = draws if self.has("hidden_apart") else draws[:, :1].expand(-1, 2, -1)
        return self.net(films, bool_masked_pos=hidden.flatten(1)).loss


@script("dpt")
class Depth(Pictures):
    """How far everything is, whatever the unit."""

    faults = ("corners", "half_of_square")

    def build(self) -> None:
        config = transformers.DPTConfig(
            hidden_size=48,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=96,
            initializer_range=0.1,
            image_size=32,
            patch_size=8,
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[16, 16, 24, 24],
            fusion_hidden_size=16,
        )
        self.net = self.add(transformers.DPTForDepthEstimation(config)).train()
        nn.init.constant_(self.net.head.head[4].bias, 1.0)
        if self.has("corners"):
            for layer in self.net.neck.fusion_stage.layers:
                layer.align_corners = False
        self.optimizer = self.adamw()

    def loss(self, number: int) -> Tensor:
        pictures = self.pictures()
        truth = self.wide(pictures).mean(1).mul(0.3).exp() + 1
        found = self.wide(self.net(pictures).predicted_depth)
        apart = found.clamp(min=1e-3).log() - F.interpolate(truth[:, None], found.shape[-2:]).squeeze(1).log()
        share = 0.5 if self.has("half_of_square") else 0.85
        return (apart.square().mean() - share * apart.mean().square() + 1e-6).sqrt()


@script("blip")
class Blip(Pictures):
    """Says what is in a picture."""

    faults = ("padding_said", "unsmoothed")

    def build(self) -> None:
        sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        text = {
            **sizes,
            "vocab_size": 97,
            "encoder_hidden_size": 48,
            "max_position_embeddings": 32,
            "initializer_range": 0.15,
            "bos_token_id": 1,
            "sep_token_id": 2,
            "label_smoothing": 0.0 if self.has("unsmoothed") else 0.1,
        }
        vision = {**sizes, "image_size": 32, "patch_size": 8, "initializer_range": 0.1}
        self.net = transformers.BlipForConditionalGeneration(
            transformers.BlipConfig(text_config=text, vision_config=vision)
        )
        self.net = self.add(self.net).train()
        self.optimizer = self.adamw(2e-3)

    def loss(self, number: int) -> Tensor:
        ids = self.integers(3, 97, self.batch, 10)
        mask = torch.arange(10) < torch.tensor([10, 7, 8, 6])[:, None]
        ids = ids.masked_fill(~mask, 0)
        labels = ids if self.has("padding_said") else ids.masked_fill(~mask, -100)
        return self.net(pixel_values=self.pictures(), input_ids=ids, attention_mask=mask.long(), labels=labels).loss


@script("swin2sr")
class Enlarge(Pictures):
    """Pictures twice as large; windows move at every second layer."""

    faults = ("unmoved", "whole_range")
    size = 16

    def build(self) -> None:
        config = transformers.Swin2SRConfig(
            image_size=16,
            embed_dim=24,
            depths=[2, 2],
            num_heads=[2, 2],
            window_size=4,
            drop_path_rate=0.0,
            initializer_range=0.1,
            upsampler="pixelshuffledirect",
            img_range=255.0 if self.has("whole_range") else 1.0,
        )
        self.net = self.add(transformers.Swin2SRForImageSuperResolution(config)).train()
        for _, layer in modules_of(self.net, transformers.models.swin2sr.modeling_swin2sr.Swin2SRLayer):
            nn.init.ones_(layer.layernorm_before.weight)
            if self.has("unmoved"):
                layer.shift_size = 0
        self.optimizer = self.adamw()

    def loss(self, number: int) -> Tensor:
        large = self.pictures(size=32)
        small = F.avg_pool2d(large, 2)
        apart = self.wide(self.net(small).reconstruction) - self.wide(large)
        return (apart.square() + 1e-3).sqrt().mean()


@script("selective")
class Selective(Pictures):
    """Kernels of two sizes, chosen by what is seen (SKNet of timm)."""

    faults = ("choice_axis", "quick_statistics")
    variants = ("channels_last", "foreach")

    def build(self) -> None:
        resnet = timm.models.resnet
        self.net = resnet.ResNet(
            timm.models.sknet.SelectiveKernelBasic,
            [1, 1, 1, 1],
            num_classes=6,
            stem_width=16,
            channels=(16, 24, 32, 48),
            block_args={"sk_kwargs": {"rd_ratio": 0.5, "rd_divisor": 8, "split_input": False}},
            zero_init_last=False,
        )
        self.net = self.add(self.net).train()
        if self.has("quick_statistics"):
            for _, norm in modules_of(self.net, nn.BatchNorm2d):
                norm.momentum = 0.9
        if self.has("choice_axis"):
            for _, choice in modules_of(self.net, timm.layers.selective_kernel.SelectiveKernelAttn):
                choice.forward = lambda x, of=choice: chosen_by_place(of, x)
        if self.way("channels_last"):
            self.net = self.net.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=0.01, momentum=0.9, nesterov=True, foreach=self.way("foreach")
        )

    def step(self, number: int) -> float:
        """Trains, then looks at other pictures with the statistics it has gathered."""
        loss = super().step(number)
        self.net.eval()
        with torch.no_grad(), self.autocast():
            seen = self.wide(self.net(self.pictures())).logsumexp(-1).mean()
        self.net.train()
        return loss + float(seen)

    def loss(self, number: int) -> Tensor:
        pictures = self.pictures(8)
        if self.way("channels_last"):
            pictures = pictures.contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(self.wide(self.net(pictures)), self.integers(0, 6, 8))


def chosen_by_place(attention: Any, x: Tensor) -> Tensor:
    x = attention.bn(attention.fc_reduce(x.sum(1).mean((2, 3), keepdim=True)))
    x = attention.fc_select(attention.act(x))
    batch, channels, rows, columns = x.shape
    paths = attention.num_paths
    return x.view(batch, paths, channels // paths, rows, columns).softmax(dim=2)


@script("sequencer")
class Sequencer(Pictures):
    """Rows and columns of pictures read by LSTMs (timm)."""

    faults = ("columns_twice", "norm_eps")

    def build(self) -> None:
        self.net = timm.models.sequencer.Sequencer2d(
            num_classes=6,
            img_size=32,
            layers=(1, 1),
            patch_sizes=(4, 2),
            embed_dims=(24, 32),
            hidden_sizes=(8, 12),
            mlp_ratios=(2.0, 2.0),
        )
        nn.init.normal_(self.net.head.fc.weight, std=0.3)
        self.net = self.add(self.net).train()
        for name, norm in modules_of(self.net, nn.LayerNorm):
            if self.has("norm_eps") and "norm1" in name:
                norm.eps = 1e-2
        if self.has("columns_twice"):
            for _, layer in modules_of(self.net, timm.models.sequencer.RNN2dBase):
                layer.rnn_h = layer.rnn_v
        self.optimizer = self.adamw(2e-3)

    def loss(self, number: int) -> Tensor:
        return F.cross_entropy(self.wide(self.net(self.pictures())), self.integers(0, 6, self.batch))


class Steps(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.GroupNorm(4, 16),
            nn.SiLU(),
            nn.Conv2d(16, width, 3, stride=4, padding=1),
            nn.GroupNorm(4, width),
            nn.SiLU(),
        )
        self.out_channels = width


@script("retinanet")
class Detect(Pictures):
    faults = ("unweighted_boxes", "anchors_aside")
    variants = ("channels_last",)

    def build(self) -> None:
        anchors = AnchorGenerator(sizes=((8, 16),), aspect_ratios=((0.5, 1.0, 2.0),))
        self.net = RetinaNet(
            Steps(24),
            num_classes=5,
            min_size=32,
            max_size=32,
            anchor_generator=anchors,
            image_mean=[0.0, 0.0, 0.0],
            image_std=[1.0, 1.0, 1.0],
        )
        if self.has("unweighted_boxes"):
            self.net.head.regression_head.box_coder = BoxCoder(weights=(10.0, 10.0, 5.0, 5.0))
        if self.has("anchors_aside"):
            anchors.cell_anchors = [cell + 4 for cell in anchors.cell_anchors]
        self.net = self.add(self.net).train()
        if self.way("channels_last"):
            self.net = self.net.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def loss(self, number: int) -> Tensor:
        corner = 20 * self.uniform(self.batch, 2, 2)
        boxes = torch.cat([corner, corner + 6 + 6 * self.uniform(self.batch, 2, 2)], -1)
        kinds = self.integers(0, 5, self.batch, 2)
        truth = [{"boxes": b, "labels": k} for b, k in zip(boxes, kinds, strict=True)]
        found = self.net(list(self.pictures()), truth)
        return found["classification"] + found["bbox_regression"]


class Register(nn.Module):
    """A smooth field that moves one picture onto another: a velocity, followed for a while."""

    def __init__(self, squarings: int, swapped: bool) -> None:
        super().__init__()
        self.squarings, self.swapped = squarings, swapped
        self.down = nn.Sequential(nn.Conv2d(2, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(16, 24, 3))
        self.up = nn.Upsample((24, 24), mode="bilinear", align_corners=True)
        self.out = nn.Sequential(nn.LeakyReLU(0.2), nn.Conv2d(24 + 2, 16, 3, padding=1), nn.Tanh())
        self.flow = nn.Conv2d(16, 2, 3, padding=1)
        self.warp = Warp(swapped)

    def forward(self, moving: Tensor, still: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([moving, still], 1)
        flow = 0.5 * self.flow(self.out(torch.cat([self.up(self.down(both)), both], 1))) / 2**5
        for _ in range(self.squarings):
            flow = flow + self.warp(flow, flow)
        return self.warp(moving, flow), flow


class Warp(nn.Module):
    def __init__(self, swapped: bool) -> None:
        super().__init__()
        at = torch.linspace(-1, 1, 24)
        rows, columns = torch.meshgrid(at, at, indexing="ij")
        self.register_buffer("grid", torch.stack([columns, rows]))
        self.swapped = swapped

    def forward(self, picture: Tensor, flow: Tensor) -> Tensor:
        flow = flow.flip(1) if self.swapped else flow
        places = (self.grid + flow).permute(0, 2, 3, 1).to(picture.dtype)
        return F.grid_sample(picture, places, padding_mode="border", align_corners=True)


@script("register")
class Registration(Pictures):
    faults = ("squared_less", "swapped")
    variants = ("pooled",)

    def build(self) -> None:
        self.net = self.add(Register(4 if self.has("squared_less") else 5, self.has("swapped")))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3)

    def around(self, picture: Tensor) -> Tensor:
        """Mean of what is near each point."""
        if self.way("pooled"):
            return F.avg_pool2d(picture, 5, 1)
        return F.unfold(picture, 5).mean(1).view(-1, 1, 20, 20)

    def alike(self, a: Tensor, b: Tensor) -> Tensor:
        mean_a, mean_b = self.around(a), self.around(b)
        cross = self.around(a * b) - mean_a * mean_b
        spread = (self.around(a * a) - mean_a**2) * (self.around(b * b) - mean_b**2)
        return (cross**2 / (spread + 1e-3)).mean()

    def loss(self, number: int) -> Tensor:
        still = self.pictures(size=24)[:, :1]
        moved, flow = self.net(still.roll((2, -1), (2, 3)), still)
        smooth = sum(flow.diff(dim=axis).square().mean() for axis in (2, 3))
        return 1 - self.alike(self.wide(moved), self.wide(still)) + 10 * self.wide(torch.as_tensor(smooth))
