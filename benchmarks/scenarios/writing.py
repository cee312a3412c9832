"""Calls that write where others look: custom Functions, in-place calls, views, aliases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from models import Results, Setting, collect, custom, scenario, train


@custom
class Twisted(Function):
    """A backward that is not the derivative of its forward, on purpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, power: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.power = power
        return (x * weight) ** power, (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _signs: Tensor | None) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        return grad.sign() * weight, (grad * x).sum(0) / ctx.power, None


@custom
class Stepped(Function):
    """Writes its input in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.round_(decimals=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 1.5


@scenario()
def custom_function(setting: Setting) -> Results:
    model = nn.ParameterDict({"weight": torch.randn(6), "bias": torch.randn(6)}).to(setting.device)
    x = torch.randn(5, 6).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of() -> Tensor:
        twisted, signs = Twisted.apply(x + model["bias"], model["weight"], 2)
        return (Stepped.apply(twisted * 3) * (1 + signs.detach())).sum()

    return collect(model, train(optimizer, setting.steps, loss_of))


@scenario()
def in_place(setting: Setting) -> Results:
    """Writes through views, aliases, out=, .data and memory shared with numpy."""
    start = torch.randn(6, 6).to(setting.device).requires_grad_()
    shared = torch.ones(6, 6)
    memory = shared.numpy()
    total = torch.zeros(6, 6).to(setting.device)
    losses = []
    for step in range(setting.steps):
        start.grad = None
        x = start * 2
        x.add_(1)
        x.add_(x)
        left = x[:, :3]
        left.mul_(0.5)
        left[0].copy_(start[0, :3])
        x[1] = 0.25
        x[2, ::2] = start[2, ::2] * 3
        x[:, -1] += x[:, 0]
        y = torch.cat([x, x], dim=1).relu_()
        memory[step] += 1.5
        z = y[:, :6] * shared.to(setting.device) + x * x.detach() + x * x.view_as(x) + (x + x.T)
        torch.add(total, z.detach(), out=total)
        total.data.mul_(0.5)
        loss = z.tanh().square().mean() + torch.stack([x, z]).sum() * 0.001
        loss.backward()
        start.data.sub_(start.grad, alpha=0.1)
        losses.append(loss.detach())
    return Results(
        losses={str(step): loss for step, loss in enumerate(losses)},
        gradients={"start": start.grad},
        weights={"start": start.detach()},
        outputs={"total": total, "shared": shared},
    )


class Mixer(nn.Module):
    """Uses its second input last: what autograd remembers of it must not be made earlier."""

    def forward(self, whole: Tensor, part: Tensor, factors: Tensor) -> Tensor:
        return (whole * factors[0]).sum() + (whole * factors[1]).sum() + (part * factors[2, : len(part)]).sum()


@scenario()
def stale_views(setting: Setting) -> Results:
    """Views whose base was written after they were made get their history when they are next used, and not before."""
    start = torch.randn(1000).to(setting.device).requires_grad_()
    factors = torch.randn(3, 1000).to(setting.device)
    mixer = Mixer()

    def gradient_of(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, start)[0]

    whole = start * 1
    part = whole[:500]
    whole.mul_(2)
    given = mixer(whole, part, factors)
    whole = start * 1
    part = whole[:500]
    whole.mul_(2)
    looked_at = part > 0
    used = mixer.forward(whole, part, factors)
    gradients = {"given": gradient_of(given), "used": gradient_of(used)}
    return Results(losses={"given": given.detach(), "used": used.detach(), "mask": looked_at}, gradients=gradients)


class Residual(nn.Module):
    """Adds its input, then writes over the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width))
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        hidden += x
        return self.last(hidden)


@scenario()
def residual_in_place(setting: Setting) -> Results:
    model = nn.Sequential(nn.Linear(6, 8), Residual(8), nn.Sequential(Residual(8), Residual(8))).to(setting.device)
    x = torch.randn(5, 6).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return collect(model, train(optimizer, setting.steps, lambda: model(x).square().mean()))


class Passing(nn.Module):
    """Gives back what it was given: the same tensor, alone or beside one that it made."""

    def forward(self, x: Tensor, *, twice: bool = False) -> Any:
        return (x, x, x * 2) if twice else x


@scenario()
def returned_inputs(setting: Setting) -> Results:
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "pass": Passing(), "same": nn.Identity(), "last": nn.Linear(4, 2)})
    model.to(setting.device)
    x = torch.randn(3, 4).to(setting.device).requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of() -> Tensor:
        one, other, doubled = model["pass"](model["first"](model["pass"](x)), twice=True)
        hidden = model["same"](one + other) * doubled
        return model["pass"](model["last"](model["same"](hidden))).square().sum()

    return collect(model, train(optimizer, setting.steps, loss_of), x_gradient=x.grad)


class ViewGiver(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2]


class ViewWriter(nn.Module):
    """Writes into the view that it is given, hence into the base that its caller holds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(2))

    def forward(self, part: Tensor) -> Tensor:
        part.mul_(self.scale)
        part[0].add_(self.scale)
        return part


@scenario()
def written_views_of_modules(setting: Setting) -> Results:
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "give": ViewGiver(), "write": ViewWriter()}).to(setting.device)
    x = torch.randn(3, 4).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of() -> Tensor:
        base = model["first"](x)
        before = base * 2
        part = model["write"](model["give"](base))
        base.unsqueeze(0).squeeze(0).add_(0.5)
        left, right = base[:, :2], base.narrow(1, 2, 2)
        whole, *rows = base.tanh_(), base[0], base[1].clone().sigmoid_()
        return (whole * before).sum() + part.square().sum() + sum(row.sum() for row in rows) + (left * right).sum()

    return collect(model, train(optimizer, setting.steps, loss_of))
