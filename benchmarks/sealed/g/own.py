"""Language models by hand: retention, patches of bytes, gated attention units, minimal gated recurrence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from common import VOCABULARY, Batch, Task, tokens
from torch import Tensor, nn


class RMSNormFunction(torch.autograd.Function):
    """Root-mean-square norm with its gradient by hand."""

    complete = True

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, inverse)
        return x * inverse * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        normed = x * inverse
        inner = grad * weight
        if RMSNormFunction.complete:
            inner = inner - normed * (inner * normed).mean(-1, keepdim=True)
        return inner * inverse, (grad * normed).flatten(0, -2).sum(0), None


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps
        self.by_autograd = False

    def forward(self, x: Tensor) -> Tensor:
        if self.by_autograd:
            return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)
        return RMSNormFunction.apply(x, self.weight, self.eps)


class Retention(nn.Module):
    """Attention without softmax whose memory fades, in its parallel form or step by step."""

    def __init__(self, width: int, heads: int, first: int, recurrent: bool) -> None:
        super().__init__()
        self.heads, self.size, self.recurrent = heads, width // heads, recurrent
        self.query, self.key, self.value, self.gate, self.out = (nn.Linear(width, width, bias=False) for _ in range(5))
        self.norm = nn.GroupNorm(heads, width)
        self.register_buffer("fade", 1 - 2.0 ** (-first - torch.arange(heads, dtype=torch.float64)).float())

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.size)).transpose(1, 2)

    def parallel(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        at = torch.arange(query.shape[2])
        distance = (at[:, None] - at[None, :]).to(self.fade.dtype)
        decay = self.fade[:, None, None] ** distance.clamp(min=0) * (distance >= 0)
        return (query @ key.transpose(-1, -2) * decay) @ value

    def stepwise(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        memory = torch.zeros_like(key[:, :, 0, :, None] * value[:, :, 0, None, :])
        outputs = []
        for i in range(query.shape[2]):
            memory = self.fade[:, None, None] * memory + key[:, :, i, :, None] * value[:, :, i, None, :]
            outputs.append((query[:, :, i, None, :] @ memory.to(query.dtype))[:, :, 0])
        return torch.stack(outputs, dim=2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        key = key * self.size**-0.5
        mixed = self.stepwise(query, key, value) if self.recurrent else self.parallel(query, key, value)
        mixed = mixed.transpose(1, 2).flatten(-2)
        normed = self.norm(mixed.flatten(0, 1)).view_as(mixed)
        return self.out(F.silu(self.gate(x)) * normed)


class RetentionBlock(nn.Module):
    def __init__(self, width: int, first: int, recurrent: bool) -> None:
        super().__init__()
        self.norm_mix, self.norm_feed = RMSNorm(width), RMSNorm(width)
        self.mix = Retention(width, 4, first, recurrent)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm_mix(x))
        return x + self.down(F.gelu(self.up(self.norm_feed(x))))


class RetNet(nn.Module):
    def __init__(self, first: int, recurrent: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.blocks = nn.ModuleList(RetentionBlock(64, first, recurrent) for _ in range(2))
        self.norm = RMSNorm(64)
        self.head = nn.Linear(64, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class NextToken(Task):
    """Cross-entropy of the next token."""

    count, length = 4, 32

    def batch(self, step: int) -> Batch:
        return {"ids": tokens(step, self.count, self.length)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        ids = batch["ids"]
        logits = model(ids)[:, :-1].flatten(0, 1)
        logits = logits if self.precision == "float64" else logits.float()
        if self.has("nll"):
            return F.nll_loss(F.log_softmax(logits, dim=-1), ids[:, 1:].flatten())
        return F.cross_entropy(logits, ids[:, 1:].flatten())


class Retentive(NextToken):
    faults = ("gradient", "fade", "embedding")
    variants = ("recurrent", "autograd", "foreach", "nll", "compile")

    def model(self) -> nn.Module:
        RMSNormFunction.complete = self.fault != "gradient"
        model = RetNet(first=4 if self.fault == "fade" else 5, recurrent=self.has("recurrent"))
        for module in model.modules():
            if isinstance(module, RMSNorm):
                module.by_autograd = self.has("autograd")
        if self.fault == "embedding":
            nn.init.xavier_uniform_(model.head.weight)
        return model


class Layer(nn.Module):
    """A causal transformer layer, norms first."""

    def __init__(self, width: int, heads: int, residual: bool = True, manual: bool = False) -> None:
        super().__init__()
        self.heads, self.residual, self.manual = heads, residual, manual
        self.norm_mix, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.manual:
            scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            mixed = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ value
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm_mix(x))
        fed = self.down(F.gelu(self.up(self.norm_feed(x))))
        return x + fed if self.residual else fed


class Megabyte(nn.Module):
    """A large model looks at patches of bytes, a small one at the bytes of a patch."""

    def __init__(self, patch: int, residual: bool, manual: bool, late: bool) -> None:
        super().__init__()
        self.patch, self.late = patch, late
        self.embed_patch = nn.Embedding(VOCABULARY, 24)
        self.embed_byte = nn.Embedding(VOCABULARY, 48)
        self.places = nn.Parameter(0.3 * torch.randn(16, 24 * patch))
        self.start = nn.Parameter(0.3 * torch.randn(24 * patch))
        self.outer = nn.ModuleList(Layer(24 * patch, 4, manual=manual) for _ in range(2))
        self.bridge = nn.Linear(24, 48)
        self.inner = nn.ModuleList(Layer(48, 4, residual or i == 0, manual) for i in range(2))
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        patches = self.embed_patch(ids).unflatten(1, (-1, self.patch)).flatten(-2)
        start = self.start.expand(len(ids), 1, -1)
        patches = torch.cat([start, patches[:, :-1]], dim=1) + self.places[: patches.shape[1]]
        for layer in self.outer:
            patches = layer(patches)
        context = self.bridge(patches.unflatten(-1, (self.patch, 24)))
        seen = self.embed_byte(ids).unflatten(1, (-1, self.patch))
        if not self.late:
            seen = F.pad(seen, (0, 0, 1, -1))
        x = (context + seen).flatten(0, 1)
        for layer in self.inner:
            x = layer(x)
        return self.head(self.norm(x)).view(*ids.shape, -1)


class Bytes(NextToken):
    """Bytes in patches, with warm-up of the learning rate."""

    faults = ("residual", "warmup", "leak")
    variants = ("manual", "foreach", "nll", "compile")

    def model(self) -> nn.Module:
        return Megabyte(4, self.fault != "residual", self.has("manual"), self.fault == "leak")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        ids = batch["ids"]
        logits = model(ids).flatten(0, 1)
        logits = logits if self.precision == "float64" else logits.float()
        if self.has("nll"):
            return F.nll_loss(F.log_softmax(logits, dim=-1), ids.flatten())
        return F.cross_entropy(logits, ids.flatten())

    def run(self) -> Iterator[float]:
        model = self.prepare(self.model())
        optimizer, scaler = self.optimizer(model), self.scaler()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
        for step in range(self.steps):
            with self.autocast():
                loss = self.loss(model, self.batch(step))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if self.fault == "warmup":
                schedule.step()
            scaler.step(optimizer)
            scaler.update()
            if self.fault != "warmup":
                schedule.step()
            yield loss.item()


class Lamb(torch.optim.Optimizer):
    """Adam's step, as long as the weights are."""

    def __init__(self, params: Any, lr: float, corrected: bool = True) -> None:
        super().__init__(params, {"lr": lr, "corrected": corrected})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["step"] += 1
                state["mean"].lerp_(p.grad, 0.1)
                state["square"].lerp_(p.grad.square(), 0.02)
                mean, square = state["mean"], state["square"]
                if group["corrected"]:
                    mean = mean / (1 - 0.9 ** state["step"])
                    square = square / (1 - 0.98 ** state["step"])
                update = mean / (square.sqrt() + 1e-6) + 0.01 * p
                trust = p.norm().clamp(0.1, 10) / update.norm().clamp(min=1e-6)
                p.sub_(group["lr"] * trust * update)


class Shares(nn.Module):
    """How much each token takes of those before it: squared rectified scores."""

    def __init__(self, size: int, style: set[str]) -> None:
        super().__init__()
        self.style = style
        self.scale = nn.Parameter(1 + 0.5 * torch.randn(2, size))
        self.shift = nn.Parameter(0.5 * torch.randn(2, size))
        self.distance = nn.Embedding(32, 1)

    def forward(self, shared: Tensor) -> Tensor:
        length = shared.shape[1]
        if "einsum" in self.style:
            query, key = shared * self.scale[0] + self.shift[0], shared * self.scale[1] + self.shift[1]
            scores = torch.einsum("bid,bjd->bij", query, key)
        else:
            query, key = (shared[..., None, :] * self.scale + self.shift).unbind(-2)
            scores = query @ key.transpose(-1, -2)
        at = torch.arange(length)
        scores = scores / length + self.distance((at[:, None] - at[None, :]).clamp(0, 31))[..., 0]
        shares = F.relu(scores) if "plain-relu" in self.style else F.relu(scores).square()
        return shares.tril(-1) if "strict" in self.style else shares.tril()


class GatedUnit(nn.Module):
    """A gated linear unit whose values first go through an attention."""

    def __init__(self, width: int, style: set[str]) -> None:
        super().__init__()
        self.size, self.style = 16, style
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width + self.size)
        self.shares = Shares(self.size, style)
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[2]
        normed = self.norm(x)
        if "addmm" in self.style:
            wide = torch.addmm(self.wide.bias, normed.flatten(0, 1), self.wide.weight.T).unflatten(0, x.shape[:2])
        else:
            wide = self.wide(normed)
        gate, value, shared = F.silu(wide).split([2 * width, 2 * width, self.size], dim=-1)
        return x + self.out(gate * (self.shares(shared) @ value))


class GatedModel(nn.Module):
    def __init__(self, style: set[str]) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.units = nn.ModuleList(GatedUnit(64, style) for _ in range(3))
        self.norm = nn.LayerNorm(64)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for unit in self.units:
            x = unit(x)
        return F.linear(self.norm(x), self.embed.weight) / 8


class Gated(NextToken):
    """Two small batches a step and an optimizer by hand."""

    faults = ("correction", "strict", "plain-relu", "accumulation")
    variants = ("addmm", "einsum", "nll")
    lr = 1e-2

    def model(self) -> nn.Module:
        return GatedModel({self.fault or "", *self.chosen})

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Lamb(model.parameters(), self.lr, corrected=self.fault != "correction")

    def run(self) -> Iterator[float]:
        model = self.prepare(self.model())
        optimizer, scaler = self.optimizer(model), self.scaler()
        for step in range(self.steps):
            total = 0.0
            optimizer.zero_grad()
            for part in self.batch(step)["ids"].chunk(2):
                if self.fault == "accumulation":
                    optimizer.zero_grad()
                with self.autocast():
                    loss = self.loss(model, {"ids": part}) / 2
                scaler.scale(loss).backward()
                total += loss.item()
            scaler.step(optimizer)
            scaler.update()
            yield total


class MinGRU(nn.Module):
    """A gated recurrence whose gates do not look back, so that all steps can be had at once."""

    def __init__(self, width: int, style: set[str]) -> None:
        super().__init__()
        self.style = style
        self.gate, self.candidate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        share, candidate = torch.sigmoid(self.gate(x)), torch.tanh(self.candidate(x))
        if "swapped" in self.style:
            share = 1 - share
        keep, new = 1 - share, share * candidate
        if "scan" in self.style:
            return self.scan(keep, new)
        state = torch.zeros_like(new[:, 0])
        states = []
        for i in range(x.shape[1]):
            state = keep[:, i] * state + new[:, i]
            states.append(state)
        return torch.stack(states, dim=1)

    @staticmethod
    def scan(keep: Tensor, new: Tensor) -> Tensor:
        """Doubling: after k rounds every step has seen the 2**k before it."""
        reach = 1
        while reach < keep.shape[1]:
            before_new = F.pad(new, (0, 0, reach, 0))[:, : new.shape[1]]
            before_keep = F.pad(keep, (0, 0, reach, 0), value=1.0)[:, : keep.shape[1]]
            new = new + keep * before_new
            keep = keep * before_keep
            reach *= 2
        return new


class Recurrent(nn.Module):
    def __init__(self, style: set[str]) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.conv = nn.Conv1d(64, 64, 4, groups=64)
        self.cells = nn.ModuleList(MinGRU(64, style) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(3))
        self.head = nn.Linear(64, VOCABULARY)
        self.style = style

    def mixed(self, x: Tensor) -> Tensor:
        sides = (1, 2) if "ahead" in self.style else (3, 0)
        padded = F.pad(x.transpose(1, 2), sides)
        if "unfold" in self.style:
            windows = padded.unfold(-1, 4, 1)
            out = torch.einsum("bclk,ck->bcl", windows, self.conv.weight[:, 0]) + self.conv.bias[:, None]
        else:
            out = self.conv(padded)
        return F.silu(out).transpose(1, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.mixed(x)
        for cell, norm in zip(self.cells, self.norms, strict=False):
            x = x + cell(norm(x))
        return self.head(self.norms[-1](x))


class MinimalRecurrent(NextToken):
    """Trained with momentum; an average of the weights is what counts in the end."""

    faults = ("ahead", "swapped", "zero-grad", "average", "frozen")
    variants = ("scan", "unfold", "nll", "foreach")
    lr = 0.1
    length = 24

    def model(self) -> nn.Module:
        return Recurrent({self.fault or "", *self.chosen})

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        parameters = [p for n, p in model.named_parameters() if self.fault != "frozen" or "norms" not in n]
        return torch.optim.SGD(parameters, self.lr, momentum=0.9, foreach=self.has("foreach"))

    def run(self) -> Iterator[float]:
        model = self.prepare(self.model())
        average = self.prepare(self.model())
        average.load_state_dict(model.state_dict())
        optimizer, scaler = self.optimizer(model), self.scaler()
        for step in range(self.steps):
            with self.autocast():
                loss = self.loss(model, self.batch(step))
            if self.fault != "zero-grad":
                optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            keep = 0.1 if self.fault == "average" else 0.9
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                    mean.mul_(keep).add_(weight, alpha=1 - keep)
                with self.autocast():
                    held = self.loss(average, self.batch(50))
            yield loss.item() + held.item()


OWN: dict[str, type[Task]] = {
    "retnet": Retentive,
    "megabyte": Bytes,
    "gau": Gated,
    "mingru": MinimalRecurrent,
}
