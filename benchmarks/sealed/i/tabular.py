"""Tables: TabNet with sparsemax and ghost batch norm, oblivious trees, attention between rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Script, dtype, fault, full, generator, noise, variant
from torch import Tensor, nn


def sparsemax(x: Tensor) -> Tensor:
    x = full(x)
    z, _ = x.sort(-1, descending=True)
    k = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    total = z.cumsum(-1)
    size = (1 + k * z > total).sum(-1, keepdim=True)
    tau = (total.gather(-1, size - 1) - 1) / size.to(x.dtype)
    return (x - tau).clamp(min=0)


class GhostNorm(nn.Module):
    """Batch norm over small parts of a batch."""

    def __init__(self, dim: int, size: int = 16) -> None:
        super().__init__()
        self.size = size
        self.bn = nn.BatchNorm1d(dim, momentum=0.02)

    def forward(self, x: Tensor) -> Tensor:
        if fault("whole_batch"):
            return self.bn(x)
        return torch.cat([self.bn(part) for part in x.split(self.size)])


class GluLayer(nn.Module):
    def __init__(self, inputs: int, dim: int, shared: nn.Linear | None = None) -> None:
        super().__init__()
        self.fc = shared if shared is not None else nn.Linear(inputs, 2 * dim, bias=False)
        self.norm = GhostNorm(2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.norm(self.fc(x)), -1)


class Transformer(nn.Module):
    def __init__(self, inputs: int, dim: int, shared: list[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([GluLayer(inputs, dim, shared[0]), GluLayer(dim, dim, shared[1])])
        self.own = GluLayer(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers[0](x)
        for layer in (self.layers[1], self.own):
            scale = 1.0 if fault("half_scale") else 0.5**0.5
            h = (h + layer(h)) * scale
        return h


class TabNet(nn.Module):
    def __init__(self, features: int = 16, dim: int = 16, steps: int = 3) -> None:
        super().__init__()
        self.gamma = 1.3
        self.first = nn.BatchNorm1d(features, momentum=0.01)
        shared = [nn.Linear(features, 4 * dim, bias=False), nn.Linear(2 * dim, 4 * dim, bias=False)]
        self.start = Transformer(features, 2 * dim, shared)
        self.steps = nn.ModuleList(Transformer(features, 2 * dim, shared) for _ in range(steps))
        self.masks = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, features, bias=False), GhostNorm(features)) for _ in range(steps)
        )
        self.out = nn.Linear(dim, 3)
        self.dim = dim

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        attention = self.start(x)[:, self.dim :]
        prior = torch.ones_like(x)
        total: Tensor | float = 0.0
        entropy = torch.zeros(())
        for mask, step in zip(self.masks, self.steps, strict=True):
            m = sparsemax(mask(attention) * prior).to(x.dtype)
            entropy = entropy - (m * torch.log(full(m) + 1e-10)).sum(-1).mean()
            prior = (1 - m) * prior if fault("gamma") else (self.gamma - m) * prior
            h = step(m * x)
            total = total + F.relu(h[:, : self.dim])
            attention = h[:, self.dim :]
        return self.out(total), entropy / len(self.masks)


class TabNetScript(Script):
    faults = ("whole_batch", "half_scale", "gamma", "sparsity_sign")
    variants = ("foreach",)

    def setup(self) -> None:
        self.model = self.net(TabNet())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, foreach=variant("foreach"))

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = noise(64, 16, seed=500 + step)
        return x, x[:, :3].argmax(-1)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits, entropy = self.model(batch[0])
        sign = -1 if fault("sparsity_sign") else 1
        return F.cross_entropy(logits, batch[1]) + sign * 1e-2 * entropy


class ObliviousTrees(nn.Module):
    def __init__(self, inputs: int, trees: int = 24, depth: int = 4, outputs: int = 3) -> None:
        super().__init__()
        self.depth = depth
        self.select = nn.Parameter(torch.rand(inputs, trees, depth))
        self.threshold = nn.Parameter(torch.randn(trees, depth) * 0.3)
        self.log_temperature = nn.Parameter(torch.zeros(trees, depth))
        self.response = nn.Parameter(torch.randn(trees, outputs, 2**depth) * 0.3)
        codes = torch.arange(2**depth)
        bits = (codes[None] >> torch.arange(depth)[:, None]) & 1
        self.register_buffer("bits", bits.float())

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.select.softmax(1 if fault("select_axis") else 0)
        value = torch.einsum("bi,itd->btd", x, chosen)
        scale = (-self.log_temperature).exp()
        right = torch.sigmoid((value - self.threshold) * scale)
        both = torch.stack([1 - right, right], -1)
        bits = self.bits.to(both.dtype)
        if variant("log"):
            logs = full(both).log()
            leaf = torch.einsum("btdk,dlk->btl", logs, torch.stack([1 - bits, bits], -1).to(logs.dtype)).exp()
        else:
            leaf = torch.einsum("btdk,dlk->btdl", both, torch.stack([1 - bits, bits], -1)).prod(2)
        return torch.einsum("btl,tol->bto", leaf.to(self.response.dtype), self.response)


class Node(nn.Module):
    def __init__(self, inputs: int = 12) -> None:
        super().__init__()
        self.first = ObliviousTrees(inputs)
        self.second = ObliviousTrees(inputs + 24 * 3)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.second(torch.cat([x, a.flatten(1).to(x.dtype)], -1))
        return torch.cat([a, b], 1).mean(1)


class NodeScript(Script):
    faults = ("select_axis", "adam_bias")
    variants = ("log", "workers")

    def setup(self) -> None:
        self.model = self.net(Node())
        self.optimizer = QuasiHyperbolicAdam(self.model.parameters(), lr=5e-3)
        self.table = noise(256, 12, seed=510)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = self.table[step * 64 : step * 64 + 64]
        if variant("workers"):
            rows = torch.utils.data.TensorDataset(self.table.float())
            loader = torch.utils.data.DataLoader(rows, batch_size=64, num_workers=1)
            x = list(loader)[step][0].to(dtype())
        return x, (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])


class QuasiHyperbolicAdam(torch.optim.Optimizer):
    """QHAdam, the optimizer of the paper's code."""

    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr, "nus": (0.7, 1.0), "betas": (0.95, 0.998)})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            (nu1, nu2), (b1, b2) = group["nus"], group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(w1=0.0, w2=0.0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["w1"] = 1 + b1 * state["w1"]
                state["w2"] = 1 + b2 * state["w2"]
                a1, a2 = 1 - 1 / state["w1"], 1 - 1 / state["w2"]
                if fault("adam_bias"):
                    a1, a2 = b1, b2
                state["m"].mul_(a1).add_(p.grad, alpha=1 - a1)
                state["v"].mul_(a2).addcmul_(p.grad, p.grad, value=1 - a2)
                top = state["m"] * nu1 + p.grad * (1 - nu1)
                bottom = (state["v"] * nu2 + p.grad**2 * (1 - nu2)).sqrt() + 1e-3
                p.addcdiv_(top, bottom, value=-group["lr"])


class RowBlock(nn.Module):
    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if variant("sdpa"):
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        a, gate = self.up(self.norm2(x)).chunk(2, -1)
        if fault("gate_half"):
            a, gate = gate, a
        return x + self.down(a * F.gelu(gate))


class Saint(nn.Module):
    def __init__(self, fields: int = 8, dim: int = 16) -> None:
        super().__init__()
        self.lift = nn.Parameter(torch.randn(fields, dim) * 0.3)
        self.offset = nn.Parameter(torch.randn(fields, dim) * 0.3)
        self.columns = RowBlock(dim)
        self.rows = RowBlock(fields * dim)
        self.norm = nn.LayerNorm(fields * dim)
        self.head = nn.Linear(fields * dim, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.columns(x[..., None] * self.lift + self.offset)
        flat = h.flatten(1)
        flat = self.rows(flat[:, None]).squeeze(1) if fault("row_axis") else self.rows(flat[None]).squeeze(0)
        return self.head(self.norm(flat))


class SaintScript(Script):
    faults = ("gate_half", "row_axis", "feature_scale")
    variants = ("sdpa", "permute")

    def setup(self) -> None:
        self.model = self.net(Saint())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.table = torch.randn(128, 8, generator=generator(12)) * torch.linspace(1, 3, 8)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        unbiased = self.table.std(0)
        x = self.table / (self.table.abs().mean(0) if fault("feature_scale") else unbiased)
        x = x[step * 32 : step * 32 + 32].to(dtype())
        if variant("permute"):
            x = x[torch.randperm(32, generator=generator(13))]
        return x, (x[:, 0] * x[:, 1] > 0).long()

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])


SCRIPTS = {"tabnet": TabNetScript, "node": NodeScript, "saint": SaintScript}
