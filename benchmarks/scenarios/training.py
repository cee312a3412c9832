"""Ways to train: precision, recomputation, accumulation, optimizers, hooks."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from models import GPT, Results, Setting, collect, make_gpt, make_perceptron, scenario, train


def train_with_checkpoints(setting: Setting, *, reentrant: bool) -> Results:
    model, tokens, targets = make_gpt(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        x = model.tokens(tokens)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return functional.cross_entropy(model.head(model.norm(x)).flatten(0, 1), targets.flatten())

    return collect(model, train(optimizer, setting.steps, loss_of))


@scenario()
def checkpoint_reentrant(setting: Setting) -> Results:
    return train_with_checkpoints(setting, reentrant=True)


@scenario()
def checkpoint_saved_hooks(setting: Setting) -> Results:
    return train_with_checkpoints(setting, reentrant=False)


@scenario()
def accumulation(setting: Setting) -> Results:
    model, tokens, targets = make_gpt(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(setting.steps):
        for part in range(2):
            loss = model(tokens[part::2], targets[part::2]) / 2
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    model(tokens, targets).backward()
    return collect(model, losses)


@scenario()
def autocast(setting: Setting) -> Results:
    """Two forwards within one autocast share the casts of their weights."""
    model, tokens, targets = make_gpt(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        with torch.autocast(setting.device, dtype=torch.bfloat16):
            return model(tokens, targets) + model(targets, tokens)

    losses = train(optimizer, setting.steps, loss_of)
    with torch.no_grad(), torch.autocast(setting.device, dtype=torch.bfloat16):
        return collect(model, losses, after=model(tokens))


@scenario()
def grad_scaler(setting: Setting) -> Results:
    """The second step overflows and is skipped."""
    model, tokens, targets = make_gpt(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(setting.device, init_scale=256.0, growth_interval=2)
    losses, scales = [], []
    for step in range(max(3, setting.steps)):
        optimizer.zero_grad()
        with torch.autocast(setting.device, dtype=torch.bfloat16):
            loss = model(tokens, targets)
        scaler.scale(loss * float("inf") if step == 1 else loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        scales.append(scaler.get_scale())
    return collect(model, losses, scales=torch.tensor(scales))


def train_gpt_with(setting: Setting, optimizer: Callable[..., torch.optim.Optimizer]) -> Results:
    model, tokens, targets = make_gpt(setting)
    made = optimizer(model.parameters(), lr=1e-3)
    results = collect(model, train(made, setting.steps, lambda: model(tokens, targets)))
    states = [(number, key, state) for number, group in enumerate(made.state.values()) for key, state in group.items()]
    results.outputs.update({f"state.{n}.{key}": s for n, key, s in states if isinstance(s, Tensor)})
    return results


@scenario()
def adamw_fused(setting: Setting) -> Results:
    return train_gpt_with(setting, functools.partial(torch.optim.AdamW, fused=True))


@scenario()
def adamw_foreach(setting: Setting) -> Results:
    return train_gpt_with(setting, functools.partial(torch.optim.AdamW, foreach=True, amsgrad=True))


@scenario()
def sgd_clipped(setting: Setting) -> Results:
    model, x, labels = make_perceptron(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses, norms = [], []
    for _ in range(setting.steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return collect(model, losses, norms=torch.stack(norms))


@scenario()
def lbfgs(setting: Setting) -> Results:
    model, x, labels = make_perceptron(setting)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        return loss

    return collect(model, [optimizer.step(closure) for _ in range(setting.steps)])


@scenario()
def double_backward(setting: Setting) -> Results:
    """A gradient penalty, and a graph that is walked twice."""
    model, x, labels = make_perceptron(setting)
    x.requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(setting.steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), labels)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        total = loss + slope.square().sum()
        total.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        losses.append(total.detach())
    return collect(model, losses, x_gradient=x.grad)


def double_gradient(parameter: Tensor) -> None:
    parameter.grad.mul_(2)


@scenario()
def tensor_hooks(setting: Setting) -> Results:
    model, x, labels = make_perceptron(setting)
    model[0].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    model[2].bias.register_post_accumulate_grad_hook(double_gradient)
    model[1].register_full_backward_hook(lambda _module, grads, _outputs: (grads[0] * 0.5,))
    model[2].register_forward_hook(lambda _module, _args, output: output + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[Tensor] = []

    def loss_of() -> Tensor:
        hidden = model[1](model[0](x))
        hidden.register_hook(lambda grad: grad * 3)
        hidden.retain_grad()
        kept.append(hidden)
        return functional.cross_entropy(model[2](hidden), labels)

    losses = train(optimizer, setting.steps, loss_of)
    return collect(model, losses, hidden_gradient=kept[-1].grad)


@scenario()
def checkpoint_in_autocast(setting: Setting) -> Results:
    """What is recomputed is cast again, outside of the autocast that the forward ran in."""
    model, tokens, targets = make_gpt(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        with torch.autocast(setting.device, dtype=torch.bfloat16):
            x = model.tokens(tokens)
            x = checkpoint(model.blocks[0], x, use_reentrant=True)
            x = checkpoint(model.blocks[1], x, use_reentrant=False)
            return functional.cross_entropy(model.head(model.norm(x)).flatten(0, 1), targets.flatten())

    return collect(model, train(optimizer, setting.steps, loss_of))


@scenario()
def grad_scaler_fused(setting: Setting) -> Results:
    """A fused optimizer unscales by itself; the second step overflows."""
    model, tokens, targets = make_gpt(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler(setting.device, init_scale=256.0, growth_interval=2)
    losses = []
    for step in range(max(3, setting.steps)):
        optimizer.zero_grad()
        with torch.autocast(setting.device, dtype=torch.bfloat16):
            loss = model(tokens, targets)
        scaler.scale(loss * float("inf") if step == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return collect(model, losses, scale=torch.tensor(scaler.get_scale()))


@scenario()
def averaged_weights(setting: Setting) -> Results:
    """Moving averages of the weights: by .data, by foreach, by swa_utils; the model then runs with them."""
    model, tokens, targets = make_gpt(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    by_data, by_foreach = copy.deepcopy(model), copy.deepcopy(model)
    by_torch = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    losses, averaged = [], []
    for _ in range(setting.steps):
        losses += train(optimizer, 1, lambda: model(tokens, targets))
        for mean, weight in zip(by_data.parameters(), model.parameters(), strict=True):
            mean.data.mul_(0.9).add_(weight.data, alpha=0.1)
        with torch.no_grad():
            torch._foreach_lerp_(list(by_foreach.parameters()), list(model.parameters()), 0.1)
            by_torch.update_parameters(model)
            averaged += [other(tokens, targets) for other in (by_data, by_foreach, by_torch)]
    results = collect(model, losses, averaged=torch.stack(averaged))
    results.outputs.update({f"foreach {name}": p.detach() for name, p in by_foreach.named_parameters()})
    return results


@scenario()
def sgd_by_hand(setting: Setting) -> Results:
    """No optimizer: weights change by .data, in no_grad, by copy_ and by assignment."""
    model, x, labels = make_perceptron(setting)
    losses = []
    for _ in range(setting.steps):
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        model[0].weight.data -= 0.1 * model[0].weight.grad
        model[0].bias.data = model[0].bias.data - 0.1 * model[0].bias.grad.data
        with torch.no_grad():
            model[2].weight.sub_(model[2].weight.grad, alpha=0.1)
            model[2].bias.copy_(model[2].bias - 0.1 * model[2].bias.grad)
        losses.append(loss.detach())
        if len(losses) < setting.steps:
            model.zero_grad()
    return collect(model, losses)


@scenario()
def optimizer_in_backward(setting: Setting) -> Results:
    """Each weight is updated, and its gradient freed, as soon as backward has made it."""
    model, x, labels = make_perceptron(setting)
    optimizers = {p: torch.optim.AdamW([p], lr=1e-2, foreach=False) for p in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    losses = []
    for _ in range(setting.steps):
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        losses.append(loss.detach())
    return collect(model, losses)


@scenario()
def every_hook(setting: Setting) -> Results:
    """All kinds of hooks of modules and nodes, each of which changes what passes."""
    model, x, labels = make_perceptron(setting)
    model[0].register_forward_pre_hook(lambda _module, args: (args[0] * 2,))
    model[0].register_forward_hook(lambda _module, _args, _kwargs, output: output.clamp(-1, 1), with_kwargs=True)
    model[1].register_full_backward_pre_hook(lambda _module, grads: (grads[0] * 1.5,))
    model[2].register_full_backward_hook(lambda _module, grads, _outputs: (grads[0].sign() * 0.01,))
    model.register_full_backward_hook(lambda _module, _grads, _outputs: None)
    everywhere = nn.modules.module.register_module_forward_hook(lambda _module, _args, output: output * 1.25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(model.parameters(), 0.02))

    def loss_of() -> Tensor:
        output = model(x)
        output.grad_fn.register_hook(lambda leaving, _arriving: tuple(g if g is None else g * 0.5 for g in leaving))
        output.register_hook(lambda gradient: gradient.add_(0.001))
        return functional.cross_entropy(output, labels)

    try:
        return collect(model, train(optimizer, setting.steps, loss_of))
    finally:
        everywhere.remove()


class Fragile(nn.Module):
    """Raises in the middle of its forward, or of its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, breaks: str = "") -> Tensor:
        hidden = self.layer(x)
        if breaks == "torch":
            return hidden @ hidden
        if breaks == "python":
            raise KeyError("on purpose")
        if breaks == "backward":
            hidden.register_hook(raise_in_backward)
        return hidden.tanh()


def raise_in_backward(_gradient: Tensor) -> None:
    raise ValueError("on purpose")


@scenario(interrupts=True)
def caught_exceptions(setting: Setting) -> Results:
    """The run catches what its forward and its backward raise, and goes on."""
    model = nn.Sequential(Fragile(), nn.ReLU()).to(setting.device)
    x = torch.randn(5, 8).to(setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of() -> Tensor:
        for breaks in ("torch", "python"):
            with contextlib.suppress(RuntimeError, KeyError):
                model[0](x, breaks=breaks)
        with contextlib.suppress(ValueError):
            model[1](model[0](x, breaks="backward")).sum().backward()
        return model(x).square().mean()

    return collect(model, train(optimizer, setting.steps, loss_of))


@scenario()
def retained_graph(setting: Setting) -> Results:
    """One graph is walked several times, whole and in part."""
    model, x, labels = make_perceptron(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, slopes = [], []
    for _ in range(setting.steps):
        optimizer.zero_grad()
        hidden = model[1](model[0](x))
        loss = functional.cross_entropy(model[2](hidden), labels)
        loss.backward(retain_graph=True)
        slopes += torch.autograd.grad(loss, [hidden, model[2].bias], retain_graph=True)
        hidden.backward(torch.ones_like(hidden), inputs=[model[0].weight], retain_graph=True)
        torch.autograd.backward([loss, hidden.sum()])
        optimizer.step()
        losses.append(loss.detach())
    return collect(model, losses, **{f"slope {number}": slope for number, slope in enumerate(slopes)})


@scenario()
def copied_and_saved(setting: Setting) -> Results:
    """Model and optimizer are copied, saved and loaded in the middle, and training goes on with the copies."""
    model, tokens, targets = make_gpt(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(setting.steps):
        losses += train(optimizer, 1, lambda: model(tokens, targets))  # noqa: B023
        model, optimizer = moved(model, optimizer)
    losses += train(optimizer, 1, lambda: model(tokens, targets))
    return collect(model, losses)


def moved(model: GPT, optimizer: torch.optim.Optimizer) -> tuple[GPT, torch.optim.Optimizer]:
    file = io.BytesIO()
    torch.save({"model": copy.deepcopy(model), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)  # written three lines above
    copied: GPT = loaded["model"]
    fresh = torch.optim.AdamW(copied.parameters(), lr=1e-3)
    fresh.load_state_dict(loaded["optimizer"])
    return copied, fresh
