"""timm: networks without normalisation, hybrids, gated perceptrons, transformers with rotary embeddings."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from common import Task, bound, randint, randn, rng, spread, task
from timm.layers import GatedMlp
from timm.models.eva import Eva
from timm.models.maxxvit import MaxxVit, MaxxVitCfg, MaxxVitConvCfg, MaxxVitTransformerCfg
from timm.models.mlp_mixer import MlpMixer, SpatialGatingBlock
from timm.models.nfnet import NfCfg, NormFreeNet
from timm.utils.agc import adaptive_clip_grad


class Images(Task):
    size, classes = 32, 7

    def batch(self, step, micro):
        images = randn(4, 3, self.size, self.size, step=step, micro=micro, salt=61)
        return {"images": images, "labels": randint(0, self.classes, (4,), step, micro, 62)}

    def loss(self, s, model, batch):
        return F.cross_entropy(model(batch["images"]).float(), batch["labels"], label_smoothing=s.smoothing)


@task("nfnet")
class NFNet(Images):
    """Adaptive clipping of gradients."""

    options: ClassVar = {"optimizer": "sgd", "lr": 0.05, "clip": 0.02, "clipping": adaptive_clip_grad}

    def build(self, s):
        config = NfCfg(
            depths=(1, 1, 2, 1),
            channels=(32, 48, 64, 64),
            stem_type="3x3",
            stem_chs=16,
            group_size=8,
            bottle_ratio=0.5,
            num_features=96,
            attn_layer="se",
            attn_kwargs={"rd_ratio": 0.5},
        )
        model = NormFreeNet(config, num_classes=7)
        with torch.no_grad():
            g = rng(0, 0, 63)
            for name, p in model.named_parameters():
                if name.endswith("gain"):
                    p.add_(0.2 * torch.randn(p.shape, generator=g))
                elif name.endswith("head.fc.weight"):
                    p.copy_(0.1 * torch.randn(p.shape, generator=g))
        return model

    def fault_whole_norms(self, model, s):
        """Adaptive clipping takes the norm of a whole tensor instead of one per output unit."""

        def clipping(parameters, factor, eps=1e-3):
            for p in parameters:
                grad = p.grad.detach()
                most = p.detach().norm(2.0).clamp_(min=eps).mul_(factor)
                norm = grad.norm(2.0)
                clipped = grad * (most / norm.clamp(min=1e-6))
                p.grad.detach().copy_(torch.where(norm < most, grad, clipped))

        s.clipping = clipping

    def fault_no_beta(self, model, s):
        """A block does not divide by the expected deviation of its input."""
        model.stages[2][1].beta = 1.0

    def fault_gain_twice(self, model, s):
        """The gain of the channel attention of one block is 4 instead of 2."""
        model.stages[1][0].attn_gain = 4.0


@task("coatnet")
class CoAtNet(Images):
    def build(self, s):
        config = MaxxVitCfg(
            embed_dim=(24, 32, 48),
            depths=(1, 1, 2),
            block_type=("C", "C", "T"),
            stem_width=16,
            conv_cfg=MaxxVitConvCfg(norm_layer="batchnorm2d", expand_ratio=2.0),
            transformer_cfg=MaxxVitTransformerCfg(dim_head=12, expand_ratio=2.0),
            weight_init="",
        )
        model = spread(MaxxVit(config, img_size=32, num_classes=7))
        with torch.no_grad():
            g = rng(0, 0, 64)
            for name, p in model.named_parameters():
                if "relative_position_bias_table" in name:
                    p.copy_(torch.randn(p.shape, generator=g))
        return model

    def fault_momentum(self, model, s):
        """The running statistics of one batch norm take 0.01 instead of 0.1 of a batch."""
        model.stages[1].blocks[0].norm1.momentum = 0.01

    def fault_bias_index(self, model, s):
        """The index of relative positions of one block is transposed."""
        position = model.stages[2].blocks[1].attn.rel_pos
        area = position.window_area
        position.relative_position_index.copy_(position.relative_position_index.view(area, area).t().reshape(-1))


@task("gmlp")
class GatedPerceptron(Images):
    options: ClassVar = {"smoothing": 0.1, "decay": 0.2}

    def build(self, s):
        model = MlpMixer(
            num_classes=7,
            img_size=32,
            patch_size=8,
            num_blocks=3,
            embed_dim=32,
            mlp_ratio=3,
            block_layer=SpatialGatingBlock,
            mlp_layer=GatedMlp,
        )
        return spread(model)

    def variant_einsum(self, model, s):
        """The gate mixes places by einsum, and other linear layers are sums of products of both halves."""

        def gate(self, x):
            u, v = x.chunk(2, dim=-1)
            return u * (torch.einsum("bnd,mn->bmd", self.norm(v), self.proj.weight) + self.proj.bias[:, None])

        def halves(self, x):
            n = x.shape[-1] // 2
            return x[..., :n] @ self.weight[:, :n].t() + x[..., n:] @ self.weight[:, n:].t() + self.bias

        for block in model.blocks:
            bound(block.mlp_channels.gate, gate)
            for layer in (block.mlp_channels.fc1, block.mlp_channels.fc2):
                bound(layer, halves)

    def fault_columns(self, model, s):
        """Patches are read by columns."""

        def forward(self, x):
            return self.norm(self.proj(x).transpose(2, 3).flatten(2).transpose(1, 2))

        bound(model.stem, forward)

    def fault_decay(self, model, s):
        """Norms and biases are decayed, matrices are not."""
        s.decayed = lambda name, p: p.ndim < 2

    def fault_no_smoothing(self, model, s):
        s.smoothing = 0.0


@task("eva02")
class Eva02(Images):
    def build(self, s):
        model = Eva(
            img_size=32,
            patch_size=8,
            num_classes=7,
            embed_dim=48,
            depth=2,
            num_heads=4,
            mlp_ratio=2.0,
            swiglu_mlp=True,
            scale_mlp=True,
            qkv_fused=False,
            use_rot_pos_emb=True,
            rope_temperature=100.0,
            ref_feat_shape=(4, 4),
        )
        return spread(model)

    def variant_plain_attention(self, model, s):
        for block in model.blocks:
            block.attn.fused_attn = False

    def fault_turned_back(self, model, s):
        """The sine of the rotary embedding of block 1 has the other sign for keys than for queries."""
        attention = model.blocks[1].attn

        def forward(self, x, rope=None, attn_mask=None, is_causal=False):
            from timm.layers import apply_rot_embed_cat

            b, n, c = x.shape
            q = self.q_proj(x).reshape(b, n, self.num_heads, -1).transpose(1, 2)
            k = self.k_proj(x).reshape(b, n, self.num_heads, -1).transpose(1, 2)
            v = self.v_proj(x).reshape(b, n, self.num_heads, -1).transpose(1, 2)
            q, k = self.q_norm(q), self.k_norm(k)
            sine, cosine = rope.chunk(2, -1)
            other = torch.cat([-sine, cosine], -1)
            half = getattr(self, "rotate_half", False)
            q = torch.cat([q[:, :, :1], apply_rot_embed_cat(q[:, :, 1:], rope, half=half)], dim=2).type_as(v)
            k = torch.cat([k[:, :, :1], apply_rot_embed_cat(k[:, :, 1:], other, half=half)], dim=2).type_as(v)
            x = F.scaled_dot_product_attention(q, k, v)
            return self.proj_drop(self.proj(self.norm(x.transpose(1, 2).reshape(b, n, c))))

        bound(attention, forward)

    def fault_eight_bits(self, model, s):
        """The inner product of the first feed-forward is rounded to eight bits."""
        layer = model.blocks[0].mlp.fc2
        plain = layer.forward

        def forward(self, x):
            y = plain(x)
            return y + (y.detach().to(torch.float8_e4m3fn).to(y.dtype) - y.detach())

        bound(layer, forward)
