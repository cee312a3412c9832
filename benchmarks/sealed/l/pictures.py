"""Pictures and videos: of transformers and timm, and by hand."""

from __future__ import annotations

import torch
from common import Script, modules_of, replace, script
from timm.models.gcvit import GlobalContextVit
from timm.models.resnest import ResNestBottleneck
from timm.models.resnet import ResNet
from timm.models.tnt import TNT
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_convert
from transformers import (
    CvtConfig,
    CvtForImageClassification,
    TimesformerConfig,
    TimesformerForVideoClassification,
    YolosConfig,
    YolosForObjectDetection,
)


@script("timesformer")
class Timesformer(Script):
    faults = ("scale_of_width", "first_frame", "rounded_pixels")

    def build(self) -> None:
        config = TimesformerConfig(
            image_size=16,
            patch_size=8,
            num_frames=4,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=6,
        )
        net = TimesformerForVideoClassification(config)
        for name, parameter in net.named_parameters():
            if parameter.ndim > 1 or "embeddings" in name:
                nn.init.normal_(parameter, std=0.25)
        if self.has("scale_of_width"):
            net.timesformer.encoder.layer[0].temporal_attention.attention.scale = 32**-0.5
        self.net = self.add(net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
        self.videos, self.labels = self.normal(3, 4, 3, 16, 16), self.integers(0, 6, 3)

    def loss(self, number: int) -> Tensor:
        videos = self.videos.flip(-1) if number % 2 else self.videos
        if self.has("first_frame"):
            videos = videos[:, :1].expand_as(videos)
        if self.has("rounded_pixels"):
            videos = torch.round((videos + 4) * 32) / 32 - 4
        return F.cross_entropy(self.wide(self.net(videos).logits), self.labels)


@script("cvt")
class Cvt(Script):
    faults = ("still_statistics", "wide_eps")
    variants = ("fused",)

    def build(self) -> None:
        config = CvtConfig(
            patch_sizes=[3, 3],
            patch_stride=[2, 2],
            patch_padding=[1, 1],
            embed_dim=[16, 32],
            num_heads=[2, 4],
            depth=[1, 2],
            mlp_ratio=[2.0, 2.0],
            attention_drop_rate=[0.0, 0.0],
            drop_rate=[0.0, 0.0],
            drop_path_rate=[0.0, 0.0],
            qkv_bias=[True, True],
            cls_token=[False, True],
            qkv_projection_method=["dw_bn", "dw_bn"],
            kernel_qkv=[3, 3],
            padding_kv=[1, 1],
            stride_kv=[2, 2],
            padding_q=[1, 1],
            stride_q=[1, 1],
            initializer_range=0.1,
            num_labels=5,
        )
        net = CvtForImageClassification(config)
        net.train()
        if self.has("still_statistics"):
            for _, norm in modules_of(net.cvt.encoder.stages[1].layers[0], nn.BatchNorm2d):
                norm.eval()
        if self.has("wide_eps"):
            for _, norm in modules_of(net.cvt.encoder.stages[0].layers[0].attention, nn.BatchNorm2d):
                norm.eps = 1e-3
        self.net = self.add(net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, fused=self.way("fused") or None)
        self.pictures, self.labels = self.normal(4, 3, 16, 16), self.integers(0, 5, 4)

    def loss(self, number: int) -> Tensor:
        return F.cross_entropy(self.wide(self.net(self.pictures).logits), self.labels, label_smoothing=0.1)


@script("yolos")
class Yolos(Script):
    faults = ("corners",)

    def build(self) -> None:
        config = YolosConfig(
            image_size=[32, 32],
            patch_size=8,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            num_detection_tokens=5,
            use_mid_position_embeddings=True,
            initializer_range=0.2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=4,
            attn_implementation="eager",
        )
        net = YolosForObjectDetection(config)
        self.net = self.add(net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, weight_decay=1e-4)
        self.pictures = self.uniform(2, 3, 32, 32)
        first = torch.rand(2, 5, 2, generator=self.random) * 16
        size = torch.rand(2, 5, 2, generator=self.random) * 12 + 3
        self.corners = torch.cat([first, first + size], dim=-1)
        self.kinds = self.integers(0, 5, 2, 5)

    def loss(self, number: int) -> Tensor:
        boxes = self.corners / 32
        if not self.has("corners"):
            boxes = box_convert(boxes, "xyxy", "cxcywh")
        out = self.net(pixel_values=self.pictures)
        named = F.cross_entropy(self.wide(out.logits).flatten(0, 1), self.kinds.flatten())
        return named + 5 * F.l1_loss(self.wide(out.pred_boxes), boxes.to(self.wide(out.pred_boxes).dtype))


@script("tnt")
class Tnt(Script):
    faults = ("wide_eps",)

    def build(self) -> None:
        net = TNT(
            img_size=16,
            patch_size=8,
            num_classes=7,
            embed_dim=32,
            inner_dim=12,
            depth=2,
            num_heads_inner=2,
            num_heads_outer=4,
            mlp_ratio=2.0,
            first_stride=4,
        )
        for _, layer in modules_of(net, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(layer.weight, std=0.2)
        if self.has("wide_eps"):
            net.blocks[1].norm1_proj.eps = 1e-2
        self.net = self.add(net)
        self.optimizer = torch.optim.RAdam(self.net.parameters(), lr=2e-3)
        self.pictures, self.labels = self.normal(3, 3, 16, 16) * 0.5, self.integers(0, 7, 3)

    def loss(self, number: int) -> Tensor:
        return F.cross_entropy(self.wide(self.net(self.pictures)), self.labels)


@script("gcvit")
class Gcvit(Script):
    faults = ("bias_turned",)
    variants = ("accumulate",)

    def build(self) -> None:
        net = GlobalContextVit(
            img_size=32,
            window_size=(4, 4),
            embed_dim=16,
            depths=(2, 2),
            num_heads=(2, 4),
            mlp_ratio=2.0,
            num_classes=6,
            drop_path_rate=0.0,
        )
        for name, parameter in net.named_parameters():
            if "relative_position_bias_table" in name:
                nn.init.normal_(parameter, std=0.5)
        if self.has("bias_turned"):
            bias = net.stages[0].blocks[0].attn.rel_pos
            area = bias.window_area
            index = bias.relative_position_index.view(area, area)
            bias.relative_position_index = index.T.reshape(-1).contiguous()
        self.net = self.add(net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.pictures, self.labels = self.normal(4, 3, 32, 32), self.integers(0, 6, 4)

    def step(self, number: int) -> float:
        parts = 2 if self.way("accumulate") else 1
        total = 0.0
        for pictures, labels in zip(self.pictures.chunk(parts), self.labels.chunk(parts), strict=True):
            with self.autocast():
                loss = F.cross_entropy(self.wide(self.net(pictures)), labels) / parts
            self.scaler.scale(loss).backward()
            total += float(loss.detach())
        self.apply(self.optimizer)
        return total


class RadixOverChannels(nn.Module):
    """Shares of the splits of a convolution."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x.view(x.size(0), 2, -1), dim=2).flatten(1)


@script("resnest")
class ResNest(Script):
    faults = ("radix_over_channels", "decayed_norms")
    variants = ("channels_last", "foreach")

    def build(self) -> None:
        net = ResNet(
            block=ResNestBottleneck,
            layers=(1, 1, 1, 1),
            channels=(8, 8, 16, 16),
            stem_width=8,
            stem_type="deep",
            avg_down=True,
            base_width=64,
            cardinality=1,
            num_classes=5,
            block_args={"radix": 2, "avd": True, "avd_first": False},
        )
        if self.has("radix_over_channels"):
            replace(net, "layer2.0.conv2.rsoftmax", RadixOverChannels())
        self.net = self.add(net)
        plain = [p for p in self.net.parameters() if p.ndim < 2]
        decayed = [p for p in self.net.parameters() if p.ndim > 1]
        groups = [
            {"params": decayed, "weight_decay": 0.05},
            {"params": plain, "weight_decay": 0.05 if self.has("decayed_norms") else 0.0},
        ]
        self.optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, foreach=self.way("foreach"))
        self.pictures, self.labels = self.normal(4, 3, 32, 32), self.integers(0, 5, 4)
        if self.way("channels_last"):
            self.net.to(memory_format=torch.channels_last)
            self.pictures = self.pictures.contiguous(memory_format=torch.channels_last)

    def loss(self, number: int) -> Tensor:
        return F.cross_entropy(self.wide(self.net(self.pictures)), self.labels)
