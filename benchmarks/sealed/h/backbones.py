"""Image classifiers of timm, small, with random weights."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from common import Batch, Task, full, swap, task
from timm.models import (
    beit,
    byobnet,
    crossvit,
    davit,
    dla,
    edgenext,
    fastvit,
    focalnet,
    ghostnet,
    hiera,
    levit,
    maxxvit,
    metaformer,
    mobilevit,
    pvt_v2,
    res2net,
    resnet,
    twins,
    volo,
)
from torch import Tensor, nn

CLASSES = 10


def liven(model: nn.Module, scale: float = 0.1) -> nn.Module:
    """Scales, shifts and running statistics as after some training."""
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(scale * torch.randn(parameter.shape, generator=g))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d) and module.running_mean is not None:
                module.running_mean.copy_(0.1 * torch.randn(module.running_mean.shape, generator=g))
                module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=g))
    return model


class Classifier(Task):
    size = 64
    count = 4
    ways = ("shuffle", "nll")

    def data(self, g: torch.Generator) -> Batch:
        labels = torch.randint(CLASSES, (self.count,), generator=g)
        coarse = torch.randn(self.count, 3, self.size // 8, self.size // 8, generator=g)
        images = F.interpolate(coarse, size=self.size, mode="bilinear") + 0.3 * torch.randn(
            self.count, 3, self.size, self.size, generator=g
        )
        images = images + 0.1 * labels[:, None, None, None]
        if self.has("shuffle"):
            order = torch.arange(self.count).flip(0)
            images, labels = images[order], labels[order]
        return {"images": images, "labels": labels}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images = batch["images"]
        if self.has("channels_last"):
            images = images.contiguous(memory_format=torch.channels_last)
        logits = full(model(images))
        if self.has("nll"):
            return F.nll_loss(F.log_softmax(logits, dim=-1), batch["labels"])
        return F.cross_entropy(logits, batch["labels"])


@task("levit")
class Levit(Classifier):
    faults = ("scale",)
    ways = (*Classifier.ways, "fold")
    size = 128

    def build(self) -> nn.Module:
        model = levit.Levit(
            img_size=128, num_classes=CLASSES, embed_dim=(64, 96), key_dim=16, depth=(2, 2), num_heads=(3, 4)
        )
        liven(model, 0.2)
        for module in model.modules():
            if isinstance(module, levit.Attention):
                nn.init.constant_(module.qkv.bn.weight, 0.35)
                if self.fault == "scale":
                    module.scale = (module.key_dim * module.num_heads) ** -0.5
        return model


@task("levit-eval")
class LevitEval(Levit):
    inference = True

    def build(self) -> nn.Module:
        model = super().build()
        model.eval()
        if self.has("fold"):
            model = self.folded(model.double() if self.options.precision == "float64" else model)
        return model

    def folded(self, model: nn.Module) -> nn.Module:
        for name, module in list(model.named_modules()):
            if isinstance(module, levit.LinearNorm | levit.ConvNorm | levit.NormLinear):
                parent, _, last = name.rpartition(".")
                fused = module.fuse().to(next(module.parameters()).dtype)
                if next(module.parameters()).dtype == torch.float64:
                    self.exact(module, fused)
                setattr(model.get_submodule(parent), last, fused)
        return model

    def exact(self, module: nn.Module, fused: nn.Module) -> None:
        """fuse() makes a float32 layer; this fills the float64 one."""
        bn, linear = module.bn, module.linear
        w = bn.weight / (bn.running_var + bn.eps) ** 0.5
        b = bn.bias - bn.running_mean * w
        with torch.no_grad():
            if isinstance(module, levit.NormLinear):
                fused.weight.copy_(linear.weight * w)
                fused.bias.copy_(linear.weight @ b + linear.bias)
            else:
                fused.weight.copy_(linear.weight * w.view(-1, *[1] * (linear.weight.ndim - 1)))
                fused.bias.copy_(b)


def scale_image(x: Tensor, ss: tuple[int, int], crop_scale: bool = False) -> Tensor:
    """The image for the branch of large patches."""
    if tuple(x.shape[-2:]) != tuple(ss):
        x = F.interpolate(x, size=ss, mode="bilinear", align_corners=False)
    return x


@task("crossvit")
class CrossVit(Classifier):
    faults = ("scale_image", "coupled_decay")

    def build(self) -> nn.Module:
        if self.fault == "scale_image":
            crossvit.scale_image = scale_image
        model = crossvit.CrossVit(
            img_size=64,
            img_scale=(1.0, 0.75),
            patch_size=(8, 12),
            num_classes=CLASSES,
            embed_dim=(32, 48),
            depth=((1, 2, 0), (1, 2, 0)),
            num_heads=(2, 4),
        )
        return liven(model)


@task("twins")
class Twins(Classifier):
    faults = ("no_residual", "no_zero_grad")
    ways = (*Classifier.ways, "eager")

    def build(self) -> nn.Module:
        model = twins.Twins(
            img_size=64,
            num_classes=CLASSES,
            embed_dims=(32, 48, 64),
            num_heads=(1, 2, 4),
            mlp_ratios=(2, 2, 2),
            depths=(2, 2, 2),
            sr_ratios=(4, 2, 1),
            wss=(4, 4, 4),
        )
        if self.has("eager"):
            for module in model.modules():
                if hasattr(module, "fused_attn"):
                    module.fused_attn = False
        if self.fault == "no_residual":
            swap(model.pos_block, twins.PosConv, PosConv)
        return liven(model)


class PosConv(twins.PosConv):
    """Position encoding by a depthwise convolution."""

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        b, _, c = x.shape
        x = x.transpose(1, 2).view(b, c, *size)
        return self.proj(x).flatten(2).transpose(1, 2)


@task("pvt")
class Pvt(Classifier):
    faults = ("keras_eps",)
    ways = (*Classifier.ways, "eager")

    def build(self) -> nn.Module:
        model = pvt_v2.PyramidVisionTransformerV2(
            num_classes=CLASSES,
            depths=(1, 1, 1),
            embed_dims=(32, 48, 64),
            num_heads=(1, 2, 4),
            sr_ratios=(4, 2, 1),
            mlp_ratios=(4, 4, 2),
        )
        for module in model.modules():
            if isinstance(module, pvt_v2.Attention):
                if self.has("eager"):
                    module.fused_attn = False
                if self.fault == "keras_eps" and module.norm is not None:
                    module.norm.eps = 1e-3
        return liven(model)


@task("maxvit")
class MaxVit(Classifier):
    faults = ("grid", "coupled_decay")
    decay = 0.05

    def build(self) -> nn.Module:
        cfg = maxxvit.MaxxVitCfg(
            embed_dim=(32, 48),
            depths=(1, 1),
            block_type=("M", "M"),
            stem_width=16,
            head_hidden_size=48,
            conv_cfg=maxxvit.MaxxVitConvCfg(
                expand_ratio=2.0, norm_layer="batchnorm2d", norm_eps=1e-3, act_layer="gelu"
            ),
            transformer_cfg=maxxvit.MaxxVitTransformerCfg(
                dim_head=16, expand_ratio=2.0, window_size=(4, 4), grid_size=(4, 4)
            ),
        )
        model = maxxvit.MaxxVit(cfg, img_size=64, num_classes=CLASSES)
        if self.fault == "grid":
            for module in model.modules():
                if isinstance(module, maxxvit.PartitionAttentionCl):
                    module.partition_block = True
        return liven(model)


@task("mobilevit")
class MobileVit(Classifier):
    faults = ("hard_swish",)

    def build(self) -> nn.Module:
        cfg = byobnet.ByoModelCfg(
            blocks=(
                mobilevit._inverted_residual_block(d=1, c=16, s=2, br=2.0),
                mobilevit._mobilevit_block(
                    d=1, c=32, s=2, transformer_dim=32, transformer_depth=1, patch_size=2, br=2.0
                ),
                mobilevit._mobilevit_block(
                    d=1, c=40, s=1, transformer_dim=48, transformer_depth=2, patch_size=2, br=2.0
                ),
            ),
            stem_chs=16,
            stem_type="3x3",
            stem_pool="",
            downsample="",
            act_layer="hard_swish" if self.fault == "hard_swish" else "silu",
            num_features=64,
        )
        model = byobnet.ByobNet(cfg, num_classes=CLASSES)
        return liven(model)


class CrossCovarianceAttn(edgenext.CrossCovarianceAttn):
    """Attention between channels."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 4, 1).unbind(0)
        q = F.normalize(q, dim=-2)
        k = F.normalize(k, dim=-2)
        attention = ((q @ k.transpose(-2, -1)) * self.temperature).softmax(dim=-1)
        x = (attention @ v).permute(0, 3, 1, 2).reshape(b, n, c)
        return self.proj(x)


@task("edgenext")
class EdgeNeXt(Classifier):
    faults = ("normalize_axis", "no_gamma")

    def build(self) -> nn.Module:
        model = edgenext.EdgeNeXt(
            num_classes=CLASSES,
            dims=(16, 32, 48, 48),
            depths=(1, 2, 2, 1),
            global_block_counts=(0, 1, 1, 0),
            kernel_sizes=(3, 5, 7, 3),
            heads=(4, 4, 4, 4),
            d2_scales=(2, 2, 3, 3),
            use_pos_emb=(False, True, False, False),
            ls_init_value=0.5,
        )
        if self.fault == "normalize_axis":
            swap(model, edgenext.CrossCovarianceAttn, CrossCovarianceAttn)
        return liven(model)

    def parameters(self, model: nn.Module) -> list[dict]:
        decayed, plain = [], []
        for name, parameter in model.named_parameters():
            last = name.rpartition(".")[2]
            if last == "weight" and parameter.ndim > 1:
                decayed.append(parameter)
            elif self.fault == "no_gamma":
                if last in ("bias", "weight", "temperature"):
                    plain.append(parameter)
            else:
                plain.append(parameter)
        return [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]


@task("fastvit")
class FastVit(Classifier):
    ways = (*Classifier.ways, "reparam")
    inference = True

    def build(self) -> nn.Module:
        model = fastvit.FastVit(
            layers=(1, 1, 1, 1),
            token_mixers=("repmixer", "repmixer", "repmixer", "attention"),
            embed_dims=(32, 32, 64, 64),
            mlp_ratios=(2, 2, 2, 2),
            num_classes=CLASSES,
            layer_scale_init_value=0.2,
        )
        model = liven(model).to(self.dtype).eval()
        if self.has("reparam"):
            with torch.no_grad():
                for module in model.modules():
                    if hasattr(module, "reparameterize"):
                        module.to(self.dtype).reparameterize()
        return model


class RepVggBlock(byobnet.RepVggBlock):
    """Merges its branches in a kernel of 3 x 3."""

    def _get_kernel_bias(self) -> tuple[Tensor, Tensor]:
        kernel, bias = self._fuse_bn_tensor(self.conv_kxk)
        point, shift = self._fuse_bn_tensor(self.conv_1x1)
        kernel = kernel + F.pad(point, [1, 1, 0, 2])
        bias = bias + shift
        if self.identity is not None:
            same, shift = self._fuse_bn_tensor(self.identity)
            kernel = kernel + same
            bias = bias + shift
        return kernel, bias


@task("repvgg")
class RepVgg(Classifier):
    ways = (*Classifier.ways, "reparam")
    faults = ("pad",)
    inference = True

    def build(self) -> nn.Module:
        blocks = tuple(byobnet.ByoBlockCfg(type="rep", d=2, c=c, s=2) for c in (24, 32, 48))
        cfg = byobnet.ByoModelCfg(blocks=blocks, stem_type="rep", stem_chs=16)
        model = liven(byobnet.ByobNet(cfg, num_classes=CLASSES)).to(self.dtype).eval()
        if self.fault == "pad":
            swap(model, byobnet.RepVggBlock, RepVggBlock)
        if self.has("reparam"):
            with torch.no_grad():
                for module in model.modules():
                    if hasattr(module, "reparameterize"):
                        module.reparameterize()
        return model


class GhostModule(ghostnet.GhostModule):
    """Half of the channels by a convolution, the other half from these."""

    def forward(self, x: Tensor) -> Tensor:
        primary = self.primary_conv(x)
        cheap = self.cheap_operation(primary)
        return torch.cat([cheap, primary], dim=1)[:, : self.out_chs]


@task("ghostnet")
class GhostNet(Classifier):
    faults = ("order", "betas")

    def build(self) -> nn.Module:
        cfgs = [[[3, 16, 16, 0, 1]], [[3, 48, 24, 0, 2]], [[5, 72, 40, 0.25, 2]], [[3, 120, 48, 0.25, 2]]]
        model = ghostnet.GhostNet(cfgs, num_classes=CLASSES, width=1.0, drop_rate=0.0)
        if self.fault == "order":
            swap(model.blocks[1], ghostnet.GhostModule, GhostModule)
        return liven(model)


class OutlookAttention(volo.OutlookAttention):
    """Attention of windows of 3 x 3."""

    def forward(self, x: Tensor) -> Tensor:
        b, height, width, c = x.shape
        k, heads = self.kernel_size * self.kernel_size, self.num_heads
        h, w = -(-height // self.stride), -(-width // self.stride)
        v = self.unfold(self.v(x).permute(0, 3, 1, 2))
        v = v.reshape(b, heads, c // heads, k, h * w).permute(0, 1, 4, 3, 2)
        pooled = self.pool(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        attn = self.attn(pooled).reshape(b, h * w, heads, k, k).permute(0, 2, 1, 3, 4)
        attn = (attn * self.scale).softmax(dim=-2)
        x = (attn @ v).permute(0, 1, 4, 3, 2).reshape(b, c * k, h * w)
        x = F.fold(x, (height, width), self.kernel_size, padding=self.padding, stride=self.stride)
        return self.proj(x.permute(0, 2, 3, 1))


@task("volo")
class Volo(Classifier):
    faults = ("axis",)

    def build(self) -> nn.Module:
        model = volo.VOLO(
            layers=[1, 1, 1],
            img_size=64,
            num_classes=CLASSES,
            patch_size=8,
            stem_hidden_dim=16,
            embed_dims=[32, 48, 48],
            num_heads=[2, 4, 4],
            downsamples=(True, False, False),
            outlook_attention=(True, False, False),
            post_layers=("ca",),
            use_aux_head=False,
        )
        with torch.no_grad():
            model.network[0][0].attn.attn.weight.mul_(10)
        if self.fault == "axis":
            swap(model, volo.OutlookAttention, OutlookAttention)
        return liven(model)


@task("poolformer")
class PoolFormer(Classifier):
    faults = ("include_pad", "no_correction")

    def build(self) -> nn.Module:
        model = metaformer.MetaFormer(
            num_classes=CLASSES,
            depths=(1, 1, 2),
            dims=(24, 32, 48),
            mlp_act=nn.GELU,
            mlp_bias=True,
            layer_scale_init_values=0.5,
            res_scale_init_values=None,
            norm_layers=metaformer.GroupNorm1,
            downsample_norm=None,
            use_mlp_head=False,
        )
        if self.fault == "include_pad":
            for module in model.modules():
                if isinstance(module, metaformer.Pooling):
                    module.pool = nn.AvgPool2d(3, stride=1, padding=1)
        return liven(model)


@task("focalnet")
class FocalNet(Classifier):
    faults = ("smoothing",)

    def build(self) -> nn.Module:
        model = focalnet.FocalNet(
            num_classes=CLASSES, embed_dim=24, depths=(1, 1, 2), focal_levels=(2, 2, 2), focal_windows=(3, 3, 3)
        )
        return liven(model)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits, labels = full(model(batch["images"])), batch["labels"]
        if self.fault == "smoothing":
            soft = torch.full_like(logits, 0.2 / (CLASSES - 1)).scatter(1, labels[:, None], 0.8)
            return -(soft * F.log_softmax(logits, dim=-1)).sum(-1).mean()
        return F.cross_entropy(logits, labels, label_smoothing=0.2)


@task("davit")
class DaVit(Classifier):
    ways = (*Classifier.ways, "checkpoint")

    def build(self) -> nn.Module:
        model = davit.DaVit(
            num_classes=CLASSES, depths=(1, 1, 1), embed_dims=(24, 32, 48), num_heads=(2, 4, 4), window_size=4
        )
        if self.has("checkpoint"):
            model.set_grad_checkpointing(True)
        return liven(model)


@task("hiera")
class Hiera(Classifier):
    faults = ("betas",)

    def build(self) -> nn.Module:
        model = hiera.Hiera(
            img_size=(64, 64), embed_dim=24, num_classes=CLASSES, stages=(1, 1, 2, 1), head_init_scale=1.0, q_pool=2
        )
        return liven(model)


class BeitAttention(beit.Attention):
    """The bias of relative positions, one row of it for each query."""

    def _get_rel_pos_bias(self) -> Tensor:
        n = self.window_size[0] * self.window_size[1] + 1
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(n, n, -1)
        return bias.permute(2, 1, 0).contiguous().unsqueeze(0)


@task("beit")
class Beit(Classifier):
    faults = ("bias_transposed",)

    def build(self) -> nn.Module:
        model = beit.Beit(
            img_size=64,
            patch_size=8,
            num_classes=CLASSES,
            embed_dim=48,
            depth=3,
            num_heads=4,
            mlp_ratio=2.0,
            init_values=0.5,
            use_abs_pos_emb=False,
            use_rel_pos_bias=True,
            head_init_scale=1.0,
        )
        g = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for block in model.blocks:
                table = block.attn.relative_position_bias_table
                table.copy_(0.3 * torch.randn(table.shape, generator=g))
        if self.fault == "bias_transposed":
            swap(model, beit.Attention, BeitAttention)
        return liven(model)


@task("beit-eval")
class BeitEval(Beit):
    inference = True


@task("res2net")
class Res2Net(Classifier):
    """Fine-tuning with frozen batch norms."""

    faults = ("norms_in_train",)
    momentum = 0.9
    lr = 0.01

    def build(self) -> nn.Module:
        model = resnet.ResNet(
            res2net.Bottle2neck,
            layers=(1, 1, 1, 1),
            num_classes=CLASSES,
            base_width=32,
            channels=(16, 24, 32, 32),
            stem_width=16,
            block_args={"scale": 4},
        )
        return liven(model)

    def begin(self, model: nn.Module, step: int) -> None:
        model.train()
        for name, module in model.named_modules():
            if isinstance(module, nn.BatchNorm2d) and not (self.fault == "norms_in_train" and "layer3" in name):
                module.eval()


@task("dla")
class Dla(Classifier):
    size = 96
    count = 8
    momentum = 0.9
    decay = 1e-4
    lr = 0.01

    def build(self) -> nn.Module:
        return dla.DLA(
            levels=(1, 1, 1, 2, 1, 1),
            channels=(8, 16, 16, 32, 48, 64),
            num_classes=CLASSES,
            block=dla.DlaBasic,
        )


def average(model: nn.Module, average_model: nn.Module, decay: float) -> None:
    """The running average of the weights."""
    with torch.no_grad():
        for mean, new in zip(average_model.parameters(), model.parameters(), strict=True):
            mean.mul_(decay).add_(new, alpha=1 - decay)


@task("davit-ema")
class DaVitEma(DaVit):
    """With a running average of the weights that is evaluated after each step."""

    faults = ("decay_swapped",)

    def run(self) -> None:
        self.mean: nn.Module | None = None
        super().run()

    def end(self, model: nn.Module, step: int) -> None:
        if self.mean is None:
            self.mean = copy.deepcopy(model)
        average(model, self.mean, 0.1 if self.fault == "decay_swapped" else 0.9)
        with torch.no_grad(), self.amp():
            print(f"mean weights: loss {float(self.loss(self.mean, self.batches(step)[0])):.6g}")
