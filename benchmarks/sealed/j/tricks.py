"""What is done around a network: averages of weights, other optimizers, fake quantisation, custom gradients."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from common import Script, script
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn


class Points(Script):
    """Rows of numbers, and a smooth function of them or its sign."""

    width, batch = 16, 32

    def rows(self) -> tuple[Tensor, Tensor]:
        x = self.normal(self.batch, self.width)
        return x, (x[:, :4].sin().sum(1) + 0.5 * x[:, 4] * x[:, 5]).detach()

    def labels(self, classes: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows()
        return x, (y.float() * 1.2 + classes / 2).long().clamp(0, classes - 1)


def named(**parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(parts))


def convolutions(classes: int = 5) -> nn.Sequential:
    return named(
        conv1=nn.Conv1d(1, 16, 3, padding=1),
        norm1=nn.BatchNorm1d(16),
        act1=nn.ReLU(),
        conv2=nn.Conv1d(16, 32, 3, stride=2, padding=1),
        norm2=nn.BatchNorm1d(32),
        act2=nn.ReLU(),
        pool=nn.AdaptiveAvgPool1d(1),
        flat=nn.Flatten(),
        head=nn.Linear(32, classes),
    )


@script("ema")
class Ema(Points):
    """The loss told is the one of the averaged weights."""

    faults = ("stale_buffers", "decay")
    variants = ("averaged_model", "foreach")

    def build(self) -> None:
        self.net = self.add(convolutions())
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=5e-3, foreach=self.way("foreach"))
        self.decay = 0.99 if self.has("decay") else 0.8
        if self.way("averaged_model"):
            average = get_ema_multi_avg_fn(self.decay)
            self.average = AveragedModel(self.net, multi_avg_fn=average, use_buffers=True)
            self.nets.append(self.average.module)
        else:
            self.average = copy.deepcopy(self.net).requires_grad_(False)
            self.nets.append(self.average)

    @torch.no_grad()
    def update(self, number: int) -> None:
        if self.way("averaged_model"):
            self.average.update_parameters(self.net)
            return
        new = self.net.state_dict()
        params = {name for name, _ in self.net.named_parameters()}
        for name, old in self.average.state_dict().items():
            if name not in params and self.has("stale_buffers"):
                continue
            if number == 0 or not old.is_floating_point():
                old.copy_(new[name])
            else:
                old.copy_(self.decay * old + (1 - self.decay) * new[name])

    def step(self, number: int) -> float:
        x, y = self.labels(5)
        self.net.train()
        with self.autocast():
            loss = F.cross_entropy(self.net(x[:, None]), y)
        self.optimize(loss, self.optimizer)
        self.update(number)
        self.average.eval()
        x, y = self.labels(5)
        with torch.no_grad(), self.autocast():
            return float(F.cross_entropy(self.average(x[:, None]), y))


@script("swa")
class Swa(Points):
    """Weights averaged over steps; statistics of its batch norms are found anew before it is used."""

    faults = ("no_update_bn", "no_average")

    def build(self) -> None:
        self.net = self.add(convolutions())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.average = AveragedModel(self.net)
        self.nets.append(self.average.module)
        self.schedule = SWALR(self.optimizer, swa_lr=0.02, anneal_epochs=2)

    def step(self, number: int) -> float:
        seen = []
        for _ in range(2):
            x, y = self.labels(5)
            seen.append(x[:, None])
            with self.autocast():
                loss = F.cross_entropy(self.net(x[:, None]), y)
            self.optimize(loss, self.optimizer)
            if not self.has("no_average"):
                self.average.update_parameters(self.net)
        self.schedule.step()
        if not self.has("no_update_bn"):
            update_bn(seen, self.average)
        self.average.eval()
        x, y = self.labels(5)
        with torch.no_grad(), self.autocast():
            value = float(F.cross_entropy(self.average(x[:, None]), y))
        self.average.train()
        return value


@script("sharpness")
class Sharpness(Points):
    """Sharpness-aware minimisation: the gradient is the one at the worst point nearby."""

    faults = ("not_restored", "norm_of_each", "radius")
    variants = ("foreach",)

    def build(self) -> None:
        self.net = self.add(
            nn.Sequential(
                nn.Linear(16, 48), nn.Tanh(), nn.LayerNorm(48), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1)
            )
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, foreach=self.way("foreach"))

    @torch.no_grad()
    def climb(self) -> list[Tensor]:
        params = list(self.net.parameters())
        grads = [p.grad for p in params]
        radius = 0.22 if self.has("radius") else 0.2
        if self.way("foreach"):
            norm = torch.stack(torch._foreach_norm(grads)).norm()
            moves = list(torch._foreach_mul(grads, radius / norm))
            torch._foreach_add_(params, moves)
            return moves
        norm = torch.stack([g.norm() for g in grads]).norm()
        moves = []
        for p, g in zip(params, grads, strict=True):
            move = g * (radius / (g.norm() if self.has("norm_of_each") else norm))
            p.add_(move)
            moves.append(move)
        return moves

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with self.autocast():
            return F.smooth_l1_loss(self.net(x).squeeze(-1).to(y.dtype), y)

    def step(self, number: int) -> float:
        x, y = self.rows()
        first = self.loss(x, y)
        first.backward()
        moves = self.climb()
        self.optimizer.zero_grad()
        self.loss(x, y).backward()
        if not self.has("not_restored"):
            with torch.no_grad():
                for p, move in zip(self.net.parameters(), moves, strict=True):
                    p.sub_(move)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(first.detach())


@script("distill")
class Distill(Points):
    """A small network learns from a larger one's answers and from labels."""

    faults = ("no_square", "teacher_trains", "direction")
    variants = ("by_hand",)

    def build(self) -> None:
        teacher = named(
            wide=nn.Linear(16, 64), norm=nn.BatchNorm1d(64), act=nn.GELU(), drop=nn.Dropout(0.1), head=nn.Linear(64, 6)
        )
        teacher.norm.running_mean.normal_(0, 0.3)
        teacher.norm.running_var.uniform_(0.3, 1.5)
        student = nn.Sequential(nn.Linear(16, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 6))
        for net in (teacher, student):
            net[-1].weight.data.mul_(4)
        self.teacher = self.add(teacher).requires_grad_(False).train(self.has("teacher_trains"))
        self.student = self.add(student)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.05, momentum=0.9)

    def step(self, number: int) -> float:
        x, y = self.labels(6)
        heat = 3.0
        with self.autocast():
            with torch.no_grad():
                taught = self.teacher(x)
            said = self.student(x)
            wanted, mine = (taught / heat).log_softmax(-1), (said / heat).log_softmax(-1)
            if self.has("direction"):
                wanted, mine = mine, wanted
            if self.way("by_hand"):
                soft = (wanted.exp() * (wanted - mine)).sum() / len(x)
            else:
                soft = F.kl_div(mine, wanted, log_target=True, reduction="batchmean")
            soft = soft if self.has("no_square") else soft * heat**2
            loss = 0.7 * soft + 0.3 * F.cross_entropy(said, y)
        return self.optimize(loss, self.optimizer)


class Rounding(torch.autograd.Function):
    """Eight bits; gradients pass where nothing was clamped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, through: bool) -> Tensor:
        level = torch.round(x / scale)
        ctx.save_for_backward((level >= -8) & (level <= 7))
        ctx.through = through
        return level.clamp(-8, 7) * scale

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return grad_output if ctx.through else grad_output * inside, None, None


class Quantised(nn.Module):
    def __init__(self, inputs: int, outputs: int, fault: str, way: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.fault, self.way = fault, way

    def rounded(self, w: Tensor) -> Tensor:
        axis = 0 if self.fault == "channel_axis" else 1
        scale = (w.detach().abs().amax(axis, keepdim=True) / 10).clamp(min=1e-8)
        if self.way == "torch":
            zero = torch.zeros(len(w), dtype=torch.int32)
            return torch.fake_quantize_per_channel_affine(w, scale.flatten(), zero, 0, -8, 7)
        return Rounding.apply(w, scale, self.fault == "straight_through")

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.rounded(self.linear.weight), self.linear.bias)


@script("qat")
class Qat(Points):
    """Weights of four bits in training, each row with its own scale."""

    faults = ("straight_through", "channel_axis")
    variants = ("torch",)

    def build(self) -> None:
        fault, way = self.options.fault, "torch" if self.way("torch") else ""
        self.net = self.add(
            named(
                first=Quantised(16, 48, "", way),
                act1=nn.ReLU(),
                second=Quantised(48, 48, fault, way),
                act2=nn.ReLU(),
                head=nn.Linear(48, 1),
            )
        )
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3)

    def step(self, number: int) -> float:
        x, y = self.rows()
        with self.autocast():
            loss = F.mse_loss(self.net(x).squeeze(-1).to(y.dtype), y)
        return self.optimize(loss, self.optimizer)


class Weighted(nn.Module):
    """A linear map whose rows have a length of their own."""

    def __init__(self, linear: nn.Linear, axis: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(linear.weight.detach().clone())
        self.length = nn.Parameter(linear.weight.detach().norm(dim=axis, keepdim=True).clone())
        self.bias = linear.bias
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        weight = self.length * self.direction / self.direction.norm(dim=self.axis, keepdim=True)
        return F.linear(x, weight, self.bias)


@script("weightnorm")
class WeightNorm(Points):
    """A critic with weight norm, and spectral norm in its last layers."""

    faults = ("axis", "no_power_iteration")
    variants = ("by_hand",)

    def build(self) -> None:
        linears = [nn.Linear(16, 48), nn.Linear(48, 48), nn.Linear(48, 24)]
        parts: dict[str, nn.Module] = {}
        for i, linear in enumerate(linears[:2]):
            if self.way("by_hand") or self.has("axis"):
                part: nn.Module = Weighted(linear, 0 if self.has("axis") and i == 1 else 1)
            else:
                part = nn.utils.parametrizations.weight_norm(linear)
            parts |= {f"weighted{i}": part, f"act{i}": nn.LeakyReLU(0.2)}
        rounds = 1
        spectral = nn.utils.parametrizations.spectral_norm(linears[2], n_power_iterations=rounds)
        if self.has("no_power_iteration"):
            spectral.parametrizations.eval()
        self.net = self.add(named(**parts, spectral=spectral, act2=nn.LeakyReLU(0.2), head=nn.Linear(24, 1)))
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=1e-3)

    def step(self, number: int) -> float:
        real, fake = self.normal(self.batch, 16) + 0.5, self.normal(self.batch, 16)
        with self.autocast():
            loss = F.relu(1 - self.net(real)).mean() + F.relu(1 + self.net(fake)).mean()
        return self.optimize(loss, self.optimizer)


@script("mixup")
class Mixup(Points):
    """Pairs of pictures mixed, with smoothed labels."""

    faults = ("unmixed_labels", "smoothing", "accumulate")
    variants = ("one_hot", "accumulate_two", "batch_order")
    batch = 24

    def build(self) -> None:
        self.net = self.add(
            nn.Sequential(
                nn.Conv1d(1, 24, 5, padding=2),
                nn.GroupNorm(4, 24),
                nn.Hardswish(),
                nn.Conv1d(24, 32, 3, stride=2, padding=1),
                nn.GroupNorm(4, 32),
                nn.Hardswish(),
                nn.Flatten(),
                nn.Linear(256, 5),
            )
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    def loss(self, logits: Tensor, one: Tensor, two: Tensor, share: float) -> Tensor:
        smoothing = 0.0 if self.has("smoothing") else 0.1
        if self.way("one_hot"):
            soft = share * F.one_hot(one, 5) + (1 - share) * F.one_hot(two, 5)
            soft = soft * (1 - smoothing) + smoothing / 5
            return -(soft * logits.log_softmax(-1)).sum(-1).mean()
        first = F.cross_entropy(logits, one, label_smoothing=smoothing)
        second = F.cross_entropy(logits, one if self.has("unmixed_labels") else two, label_smoothing=smoothing)
        return share * first + (1 - share) * second

    def step(self, number: int) -> float:
        x, y = self.labels(5)
        share = 0.3 + 0.4 * float(self.uniform(1))
        order = torch.randperm(self.batch, generator=self.random)
        mixed, other = share * x + (1 - share) * x[order], y[order]
        if self.way("batch_order"):
            mixed, y, other = mixed.flip(0), y.flip(0), other.flip(0)
        parts = 2 if self.way("accumulate_two") else 1
        value = 0.0
        for rows, one, two in zip(mixed.chunk(parts), y.chunk(parts), other.chunk(parts), strict=True):
            with self.autocast():
                loss = self.loss(self.net(rows[:, None]), one, two, share) / parts
            self.scaler.scale(loss).backward()
            value += float(loss.detach())
        self.apply(self.optimizer)
        return value


@script("triplet")
class Triplet(Points):
    """Embeddings on a sphere: the hardest negative of an anchor is to be farther than its positive."""

    faults = ("not_normal", "margin")

    def build(self) -> None:
        self.net = self.add(
            nn.Sequential(
                nn.Linear(16, 64), nn.BatchNorm1d(64), nn.PReLU(), nn.Linear(64, 64), nn.PReLU(), nn.Linear(64, 12)
            )
        )
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)

    def step(self, number: int) -> float:
        x, y = self.labels(4)
        near = x + 0.3 * self.normal(*x.shape)
        with self.autocast():
            one, two = self.net(x), self.net(near)
        one, two = (t.to(self.dtype) for t in (one, two))
        if not self.has("not_normal"):
            one, two = F.normalize(one, dim=-1), F.normalize(two, dim=-1)
        apart = torch.cdist(one.float(), two.float()) if self.dtype == torch.bfloat16 else torch.cdist(one, two)
        same = y[:, None] == y[None]
        negative = apart.masked_fill(same, 10).amin(1)
        margin = 0.35 if self.has("margin") else 0.3
        loss = F.relu(apart.diagonal() - negative + margin).mean()
        return self.optimize(loss, self.optimizer)


@script("gaussian")
class Gaussian(Points):
    """Mean and logarithm of the variance, by the likelihood of a normal distribution."""

    faults = ("deviation", "reduction", "activation")
    variants = ("by_hand",)

    def build(self) -> None:
        middle = nn.LeakyReLU(0.03 if self.has("activation") else 0.01)
        self.net = self.add(
            named(
                first=nn.Linear(16, 64),
                norm=nn.LayerNorm(64),
                act1=nn.ReLU(),
                second=nn.Linear(64, 64),
                act2=middle,
                head=nn.Linear(64, 2),
            )
        )
        self.optimizer = torch.optim.NAdam(self.net.parameters(), lr=2e-3)

    def step(self, number: int) -> float:
        x, y = self.rows()
        with self.autocast():
            mean, log_var = self.net(x).to(y.dtype).unbind(-1)
        if self.way("by_hand"):
            loss = 0.5 * (log_var + (y - mean) ** 2 * torch.exp(-log_var)).mean()
        else:
            var = torch.exp(0.5 * log_var) if self.has("deviation") else torch.exp(log_var)
            loss = F.gaussian_nll_loss(mean, y, var, reduction="sum" if self.has("reduction") else "mean")
        return self.optimize(loss, self.optimizer)


class Squash(torch.autograd.Function):
    """x * sigmoid(slope * x), which keeps only its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float, fault: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope, ctx.fault = slope, fault
        return x * torch.sigmoid(slope * x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.slope * x)
        inner = x * s * (1 - s)
        if ctx.fault != "no_slope":
            inner = ctx.slope * inner
        return grad_output * (s + inner), None, None


class Swish(nn.Module):
    def __init__(self, slope: float, fault: str, way: str) -> None:
        super().__init__()
        self.slope, self.fault, self.way = slope, fault, way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "autograd":
            return x * torch.sigmoid(self.slope * x)
        return Squash.apply(x, self.slope, self.fault)


@script("custom")
class Custom(Points):
    """An activation with a gradient of its own."""

    faults = ("no_slope", "sum_for_mean")
    variants = ("autograd",)

    def build(self) -> None:
        way = "autograd" if self.way("autograd") else ""
        self.net = self.add(
            named(
                first=nn.Linear(16, 48),
                swish1=Swish(1.35, "", way),
                second=nn.Linear(48, 48),
                swish2=Swish(1.35, self.options.fault, way),
                head=nn.Linear(48, 1),
            )
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.9)

    def step(self, number: int) -> float:
        x, y = self.rows()
        with self.autocast():
            loss = F.mse_loss(self.net(x).squeeze(-1).to(y.dtype), y)
        return self.optimize(loss, self.optimizer)


@script("private")
class Private(Points):
    """Gradients of single examples are clipped, summed and blurred."""

    faults = ("clip_after", "noise_scale")
    variants = ("loop",)
    batch = 12

    def build(self) -> None:
        self.net = self.add(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def gradients(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        params = {n: p.detach() for n, p in self.net.named_parameters()}

        def loss(params: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(self.net, params, (one[None],)), label[None])

        if self.way("loop"):
            each = [grad(loss)(params, one, label) for one, label in zip(x, y, strict=True)]
            return {n: torch.stack([g[n] for g in each]) for n in params}
        return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)

    def step(self, number: int) -> float:
        x, y = self.labels(4)
        each = self.gradients(x, y)
        limit = 0.5
        if self.has("clip_after"):
            whole = {n: g.sum(0) for n, g in each.items()}
            norm = torch.stack([g.norm() for g in whole.values()]).norm()
            whole = {n: g * (limit / norm).clamp(max=1) for n, g in whole.items()}
        else:
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
            share = (limit / norms).clamp(max=1)
            whole = {n: torch.einsum("b...,b->...", g, share) for n, g in each.items()}
        noise = 0.3 if self.has("noise_scale") else 0.1
        for name, p in self.net.named_parameters():
            p.grad = (whole[name] + noise * limit * self.normal(*p.shape)) / self.batch
        with torch.no_grad():
            value = float(F.cross_entropy(self.net(x), y))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return value


@script("tbptt")
class Truncated(Script):
    """Characters by a GRU that keeps its state over pieces of the text; output weights are those of the embedding."""

    faults = ("no_detach", "reset", "untied")
    variants = ("cells",)

    def build(self) -> None:
        gru = nn.GRU(32, 32, batch_first=True)
        embedding = nn.Embedding(40, 32)
        embedding.weight.data.mul_(0.5)
        parts = {"embedding": embedding, "rnn": gru, "norm": nn.LayerNorm(32), "output": nn.Linear(32, 40)}
        self.net = self.add(nn.ModuleDict(parts))
        if self.has("untied"):
            self.net["output"].weight.data = embedding.weight.data.clone()
        else:
            self.net["output"].weight = self.net["embedding"].weight
        self.optimizer = torch.optim.Adagrad(self.net.parameters(), lr=0.02)

    def recur(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        rnn = self.net["rnn"]
        if not self.way("cells"):
            return rnn(x, state[None])
        out = []
        for t in range(x.shape[1]):
            gates = F.linear(x[:, t], rnn.weight_ih_l0, rnn.bias_ih_l0).chunk(3, -1)
            past = F.linear(state, rnn.weight_hh_l0, rnn.bias_hh_l0).chunk(3, -1)
            reset, keep = (gates[0] + past[0]).sigmoid(), (gates[1] + past[1]).sigmoid()
            state = (1 - keep) * (gates[2] + reset * past[2]).tanh() + keep * state
            out.append(state)
        return torch.stack(out, 1), state[None]

    def step(self, number: int) -> float:
        text = (self.integers(0, 40, 6, 1) + 3 * torch.arange(25) + self.integers(0, 2, 6, 25)) % 40
        state = torch.zeros(6, 32, dtype=self.dtype)
        total: Any = 0.0
        value = 0.0
        for start in range(0, 24, 8):
            piece = text[:, start : start + 9]
            if self.has("reset"):
                state = torch.zeros_like(state)
            with self.autocast():
                hidden, last = self.recur(self.net["embedding"](piece[:, :-1]), state)
                logits = self.net["output"](self.net["norm"](hidden))
            state = last[0] if self.has("no_detach") else last[0].detach()
            loss = F.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten())
            total = total + loss / 3
            value += float(loss.detach()) / 3
        self.optimize(total, self.optimizer, clip=1.0)
        return value


@script("warmup")
class Warmup(Points):
    """Warm-up and cosine, decay only of matrices, and harder examples with every step."""

    faults = ("too_early", "beta", "no_zero", "clip_late")
    variants = ("foreach", "fused", "reordered")

    def build(self) -> None:
        self.net = self.add(
            nn.Sequential(nn.Linear(16, 64), nn.RMSNorm(64), nn.Mish(), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 1))
        )
        matrices = [p for p in self.net.parameters() if p.ndim > 1]
        rest = [p for p in self.net.parameters() if not any(p is m for m in matrices)]
        groups = [{"params": matrices, "weight_decay": 0.5}, {"params": rest, "weight_decay": 0.0}]
        if self.way("reordered"):
            groups.reverse()
        betas = (0.9, 0.95) if not self.has("beta") else (0.95, 0.95)
        ways: dict[str, Any] = {k: True for k in ("foreach", "fused") if self.way(k)}
        self.optimizer = torch.optim.AdamW(groups, lr=5e-3, betas=betas, **ways)
        warm = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.25, 1.0, total_iters=3)
        cool = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)
        self.schedule = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [warm, cool], [3])

    def step(self, number: int) -> float:
        x, y = self.rows()
        with self.autocast():
            losses = (self.net(x).squeeze(-1).to(y.dtype) - y) ** 2
        easy = losses.detach().argsort()[: 16 + 4 * number]
        loss = losses[easy].mean()
        if self.has("too_early"):
            self.schedule.step()
        loss.backward()
        limit = 1.0
        if not self.has("clip_late"):
            nn.utils.clip_grad_norm_(self.net.parameters(), limit)
        self.optimizer.step()
        if not self.has("too_early"):
            self.schedule.step()
        if not self.has("no_zero"):
            self.optimizer.zero_grad()
        return float(loss.detach())
