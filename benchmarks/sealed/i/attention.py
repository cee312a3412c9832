"""Transformers by hand: ALiBi with one key and value head, Shaw's relative positions, decoding with rotary cache,
random features, talking heads with low rank keys, mixture of depths."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from common import OPTIONS, Script, fault, full, generator, noise, variant
from torch import Tensor, nn


def tokens(step: int, rows: int = 6, length: int = 25, words: int = 70, base: int = 1000) -> Tensor:
    start = torch.randint(0, words, (rows, 1), generator=generator(base + step))
    walk = torch.randint(1, 5, (rows, length - 1), generator=generator(base + 50 + step)).cumsum(1)
    return torch.cat([start, start + walk], 1) % words


class Feed(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        if fault("square_relu"):
            return self.down(F.relu(self.up(x)))
        return self.down(F.relu(self.up(x)).square())


class RmsNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        if variant("rms"):
            return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)
        eps = 5e-3 if fault("rms_eps") else 1e-6
        y = full(x)
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * self.weight


class AlibiAttention(nn.Module):
    def __init__(self, dim: int, heads: int = 6) -> None:
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * self.width, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.register_buffer("slopes", self.make_slopes(heads), persistent=False)

    @staticmethod
    def make_slopes(heads: int) -> Tensor:
        power = 2 ** math.floor(math.log2(heads))
        if fault("slopes"):
            return torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
        first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
        more = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(2 * power)][::2]
        return torch.tensor(first + more[: heads - power])

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = (y[:, None] for y in self.kv(x).chunk(2, -1))
        place = torch.arange(n)
        bias = self.slopes[:, None, None] * (place[None] - place[:, None])
        bias = bias.masked_fill(place[None] > place[:, None], float("-inf")).to(q.dtype)
        if variant("sdpa"):
            y = F.scaled_dot_product_attention(
                q, k.expand(-1, self.heads, -1, -1), v.expand(-1, self.heads, -1, -1), attn_mask=bias
            )
        elif fault("scaled_bias"):
            y = ((q @ k.transpose(-1, -2) + bias) / math.sqrt(self.width)).softmax(-1) @ v
        else:
            y = (q @ k.transpose(-1, -2) / math.sqrt(self.width) + bias).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim: int, attention: nn.Module, norm: Any = RmsNorm) -> None:
        super().__init__()
        self.norm1 = norm(dim)
        self.attention = attention
        self.norm2 = norm(dim)
        self.feed = Feed(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Language(nn.Module):
    def __init__(self, blocks: list[nn.Module], dim: int, words: int = 70) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        nn.init.normal_(self.embed.weight, std=0.5)
        self.blocks = nn.ModuleList(blocks)
        self.norm = RmsNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.norm(h) @ self.embed.weight.T


class Lion(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                if fault("coupled_decay"):
                    p.grad.add_(p, alpha=group["decay"])
                else:
                    p.mul_(1 - group["lr"] * group["decay"])
                move = (state["m"] * b1 + p.grad * (1 - b1)).sign()
                p.add_(move, alpha=-group["lr"])
                state["m"].mul_(b2).add_(p.grad, alpha=1 - b2)


class AlibiScript(Script):
    faults = ("slopes", "scaled_bias", "square_relu", "rms_eps", "coupled_decay")
    variants = ("sdpa", "rms")

    def setup(self) -> None:
        blocks: list[nn.Module] = [Block(48, AlibiAttention(48)) for _ in range(2)]
        self.model = self.net(Language(blocks, 48))
        self.optimizer = Lion(self.model.parameters(), lr=1e-3)

    def batch(self, step: int) -> Tensor:
        return tokens(step)

    def loss(self, batch: Tensor) -> Tensor:
        return F.cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


class ShawAttention(nn.Module):
    """Keys and values each get an embedding of the clipped distance."""

    def __init__(self, dim: int, heads: int = 4, reach: int = 6) -> None:
        super().__init__()
        self.heads, self.reach = heads, reach
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.key_table = nn.Embedding(2 * reach + 1, dim // heads)
        self.value_table = nn.Embedding(2 * reach + 1, dim // heads)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        place = torch.arange(n)
        way = place[:, None] - place[None] if fault("distance_sign") else place[None] - place[:, None]
        distance = way.clamp(-self.reach, self.reach) + self.reach
        rk, rv = self.key_table(distance), self.value_table(distance)
        if variant("matmul"):
            far = (q.permute(2, 0, 1, 3).reshape(n, -1, q.shape[-1]) @ rk.transpose(1, 2)).view(n, b, -1, n)
            far = far.permute(1, 2, 0, 3)
        else:
            far = torch.einsum("bhid,ijd->bhij", q, rk)
        if fault("far_unscaled"):
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + far
        else:
            scores = (q @ k.transpose(-1, -2) + far) / math.sqrt(q.shape[-1])
        p = scores.softmax(-1)
        y = p @ v + torch.einsum("bhij,ijd->bhid", p, rv.to(p.dtype))
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class ShawScript(Script):
    """Trained to fill in masked words, with dropout only where it is wrong."""

    faults = ("distance_sign", "far_unscaled", "dropout_on", "mask_token")
    variants = ("matmul", "foreach")

    def setup(self) -> None:
        blocks: list[nn.Module] = [Block(48, ShawAttention(48), nn.LayerNorm) for _ in range(2)]
        self.model = self.net(Language(blocks, 48, 71))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, foreach=variant("foreach"))

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = tokens(step, base=1100)
        hidden = torch.rand(x.shape, generator=generator(1200 + step)) < 0.2
        wrong = 0 if fault("mask_token") else 70
        return x.masked_fill(hidden, wrong), x.masked_fill(~hidden, -100)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x = self.model.embed(batch[0])
        if fault("dropout_on"):
            x = F.dropout(x, 0.1)
        for block in self.model.blocks:
            x = block(x)
        logits = self.model.norm(x) @ self.model.embed.weight.T
        return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())


def rotate(x: Tensor, place: Tensor) -> Tensor:
    """Pairs of neighbouring channels are turned by an angle."""
    half = x.shape[-1] // 2
    angle = place[:, None] * 10000.0 ** (-torch.arange(half) / half)
    kind = torch.bfloat16 if fault("coarse_angle") else full(x).dtype
    cos, sin = angle.to(kind).cos(), angle.to(kind).sin()
    if fault("half_turn"):
        a, b = full(x).chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)
    a, b = full(x)[..., ::2], full(x)[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)


class CachedAttention(nn.Module):
    """Grouped queries, a sliding window and a cache."""

    def __init__(self, dim: int, heads: int = 4, groups: int = 2, window: int = 10) -> None:
        super().__init__()
        self.heads, self.groups, self.width, self.window = heads, groups, dim // heads, window
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, groups * self.width, bias=False)
        self.v = nn.Linear(dim, groups * self.width, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cache: dict[str, Tensor], past: int) -> Tensor:
        b, n, d = x.shape
        place = torch.arange(past, past + n)
        if fault("cache_position") and past:
            place = place - 1
        q = rotate(self.q(x).view(b, n, self.heads, -1).transpose(1, 2), place)
        k = rotate(self.k(x).view(b, n, self.groups, -1).transpose(1, 2), place)
        v = self.v(x).view(b, n, self.groups, -1).transpose(1, 2)
        if past:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        cache["k"], cache["v"] = k, v
        repeat = self.heads // self.groups
        if fault("group_order"):
            k, v = k.repeat(1, repeat, 1, 1), v.repeat(1, repeat, 1, 1)
        else:
            k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        distance = torch.arange(past, past + n)[:, None] - torch.arange(past + n)
        reach = self.window + 1 if fault("window") else self.window
        allowed = (distance >= 0) & (distance < reach)
        if variant("sdpa"):
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        else:
            scores = (q @ k.transpose(-1, -2)) * self.width**-0.5
            y = scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class CachedModel(nn.Module):
    def __init__(self, dim: int = 48, words: int = 70) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.attention = nn.ModuleList(CachedAttention(dim) for _ in range(2))
        self.feed = nn.ModuleList(Feed(dim) for _ in range(2))
        self.norms = nn.ModuleList(RmsNorm(dim) for _ in range(5))
        self.head = nn.Linear(dim, words, bias=False)

    def forward(self, x: Tensor, caches: list[dict[str, Tensor]], past: int) -> Tensor:
        h = self.embed(x)
        for i in range(2):
            h = h + self.attention[i](self.norms[2 * i](h), caches[i], past)
            h = h + self.feed[i](self.norms[2 * i + 1](h))
        return self.head(self.norms[4](h))


class CachedScript(Script):
    """Scores a given continuation, one word after another."""

    faults = ("coarse_angle", "half_turn", "cache_position", "group_order", "window")
    variants = ("sdpa", "rms")

    def setup(self) -> None:
        self.model = self.net(CachedModel()).eval()

    @torch.no_grad()
    def run(self) -> None:
        for step in range(OPTIONS.steps):
            text = tokens(step, base=1300)
            caches: list[dict[str, Tensor]] = [{}, {}]
            with self.autocast():
                logits = self.model(text[:, :16], caches, 0)[:, -1]
                total = F.cross_entropy(full(logits), text[:, 16])
                for i in range(16, 20):
                    logits = self.model(text[:, i : i + 1], caches, i)[:, -1]
                    total = total + F.cross_entropy(full(logits), text[:, i + 1])
            self.report(step, total / 5)


class RandomFeatures(nn.Module):
    """Positive orthogonal random features instead of the softmax."""

    def __init__(self, dim: int, heads: int = 4, features: int = 32) -> None:
        super().__init__()
        self.heads = heads
        width = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        blocks = []
        g = generator(16)
        for _ in range(-(-features // width)):
            q, _ = torch.linalg.qr(torch.randn(width, width, generator=g))
            blocks.append(q.T)
        length = torch.randn(features, width, generator=g).norm(dim=-1, keepdim=True)
        self.register_buffer("projection", torch.cat(blocks)[:features] * length)

    def kernel(self, x: Tensor, query: bool) -> Tensor:
        scale = 1.0 if fault("feature_norm") else x.shape[-1] ** -0.25
        x = full(x) * scale
        dash = x @ self.projection.T.to(x.dtype)
        half = x.pow(2).sum(-1, keepdim=True) / (1 if fault("half_norm") else 2)
        top = full(dash).amax(-1, keepdim=True) if query else full(dash).amax((-1, -2), keepdim=True)
        return (torch.exp(full(dash) - half - top.detach()) + 1e-4) * dash.shape[-1] ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.kernel(q, True), self.kernel(k, False)
        v = full(v)
        if variant("quadratic"):
            weight = q @ k.transpose(-1, -2)
            y = weight @ v / weight.sum(-1, keepdim=True)
        else:
            context = torch.einsum("bhnf,bhnd->bhfd", k, v)
            y = torch.einsum("bhnf,bhfd->bhnd", q, context)
            y = y / torch.einsum("bhnf,bhf->bhn", q, k.sum(-2))[..., None]
        return self.out(y.transpose(1, 2).reshape(b, n, d).to(x.dtype))


class PerformerScript(Script):
    faults = ("feature_norm", "half_norm", "label_shift", "square_relu")
    variants = ("quadratic", "fused")

    def setup(self) -> None:
        blocks: list[nn.Module] = [Block(48, RandomFeatures(48), nn.LayerNorm) for _ in range(2)]
        self.model = self.net(Language(blocks, 48))
        self.head = self.net(nn.Linear(70, 5))
        params = [*self.model.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(params, lr=1e-3, fused=variant("fused"))

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = tokens(step, rows=12, base=1400)
        label = x.sum(-1) % 5
        return x, (label + 1) % 5 if fault("label_shift") else label

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.head(self.model(batch[0]).mean(1)), batch[1])


class TalkingHeads(nn.Module):
    """Low rank keys and values (Linformer), and heads mixed before and after the softmax."""

    def __init__(self, dim: int, heads: int = 4, length: int = 24, rank: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.shrink_k = nn.Parameter(torch.randn(rank, length) * length**-0.5)
        self.shrink_v = nn.Parameter(torch.randn(rank, length) * length**-0.5)
        self.before = nn.Parameter(torch.eye(heads) + 0.2 * torch.randn(heads, heads))
        self.after = nn.Parameter(torch.eye(heads) + 0.2 * torch.randn(heads, heads))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        k, v = self.shrink_k @ self.k(x), (self.shrink_k if fault("shared_shrink") else self.shrink_v) @ self.v(x)
        q, k, v = (y.view(b, -1, self.heads, d // self.heads).transpose(1, 2) for y in (self.q(x), k, v))
        scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5
        mix = self.before.T if fault("mix_transposed") else self.before
        if variant("conv"):
            p = F.conv2d(scores, mix.T[..., None, None].contiguous()).softmax(-1)
            p = F.conv2d(p, self.after.T[..., None, None].contiguous())
        else:
            p = torch.einsum("bhij,hg->bgij", scores, mix).softmax(-1)
            p = torch.einsum("bhij,hg->bgij", p, self.after)
        return self.out((p @ v).transpose(1, 2).reshape(b, n, d))


class TalkingScript(Script):
    faults = ("shared_shrink", "mix_transposed", "late_layers", "early_exit")
    variants = ("conv",)

    def setup(self) -> None:
        blocks: list[nn.Module] = [Block(40, TalkingHeads(40), nn.LayerNorm) for _ in range(3)]
        self.model = self.net(nn.ModuleDict({"blocks": nn.ModuleList(blocks), "exits": self.exits()}))
        groups = []
        for i, block in enumerate(self.model["blocks"]):
            # Rates grow with depth.
            power = i if fault("late_layers") else 2 - i
            groups.append({"params": list(block.parameters()), "lr": 0.05 * 0.7**power})
        groups.append({"params": list(self.model["exits"].parameters()), "lr": 0.05})
        self.optimizer = torch.optim.SGD(groups, momentum=0.9)

    def exits(self) -> nn.ModuleList:
        return nn.ModuleList(nn.Linear(40, 4) for _ in range(3))

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = noise(12, 24, 40, seed=1500 + step)
        return x, x[:, :, :4].mean(1).argmax(-1)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        total = torch.zeros(())
        for i, (block, leave) in enumerate(zip(self.model["blocks"], self.model["exits"], strict=True)):
            x = block(x)
            weight = 1.0 if fault("early_exit") else (i + 1) / 6
            total = total + weight * F.cross_entropy(leave(x.mean(1)), y)
        return total


class DepthRouter(nn.Module):
    """Only the tokens with the highest score pass through the block (mixture of depths)."""

    def __init__(self, dim: int, keep: int = 8) -> None:
        super().__init__()
        self.keep = keep
        self.router = nn.Linear(dim, 1, bias=False)
        self.block = Block(dim, ShawAttention(dim), nn.LayerNorm)

    def forward(self, x: Tensor) -> Tensor:
        score = full(self.router(x)).squeeze(-1)
        top = score.topk(self.keep, -1)
        order = top.indices if fault("unsorted") else top.indices.sort(-1).values
        index = order[..., None].expand(-1, -1, x.shape[-1])
        chosen = x.gather(1, index)
        change = self.block(chosen) - chosen
        gain = torch.sigmoid(score.gather(1, order))[..., None]
        gain = gain.detach() if fault("gain_detached") else gain
        if variant("mask"):
            place = F.one_hot(order, x.shape[1]).to(x.dtype)
            return x + place.transpose(1, 2) @ (gain * change).to(x.dtype)
        return x.scatter_add(1, index, (gain * change).to(x.dtype))


class DepthsScript(Script):
    faults = ("unsorted", "gain_detached", "square_relu")
    variants = ("mask",)

    def setup(self) -> None:
        blocks: list[nn.Module] = [Block(40, ShawAttention(40), nn.LayerNorm), DepthRouter(40)]
        self.model = self.net(Language(blocks, 40))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = tokens(step, rows=8, base=1600)
        return x, x.flip(1)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0]).flatten(0, 1), batch[1].flatten())


SCRIPTS = {
    "alibi": AlibiScript,
    "shaw": ShawScript,
    "cached": CachedScript,
    "performer": PerformerScript,
    "talking": TalkingScript,
    "depths": DepthsScript,
}
