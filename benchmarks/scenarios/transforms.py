"""Function transforms and scripted code."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, hessian, jvp, stack_module_state, vmap
from torch.nn import functional

from models import Results, Setting, collect, make_perceptron, scenario, train


@scenario()
def functional_weights(setting: Setting) -> Results:
    """The module runs with weights that are not its own: scaled ones, as in meta-learning."""
    model, x, labels = make_perceptron(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of() -> Tensor:
        own = dict(model.named_parameters())
        inner = functional.cross_entropy(functional_call(model, own, (x,)), labels)
        slopes = torch.autograd.grad(inner, list(own.values()), create_graph=True)
        fast = {name: p - 0.1 * slope for (name, p), slope in zip(own.items(), slopes, strict=True)}
        return functional.cross_entropy(functional_call(model, fast, (x,)), labels)

    return collect(model, train(optimizer, setting.steps, loss_of))


class Mapped(nn.Module):
    """vmap inside a forward, over functions of weights that autograd watches from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.randn(4, 4)), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        mapped = vmap(lambda row: (row @ self.weight).tanh() + torch.where(row > 0, row, row * 2))(x)
        noisy = vmap(lambda row: self.drop(row) + torch.rand_like(row), randomness="different")(mapped)
        return noisy + vmap(vmap(torch.mul), in_dims=(0, None))(mapped.unsqueeze(1), x[:1]).squeeze(1)


@scenario()
def vmap_in_forward(setting: Setting) -> Results:
    model = Mapped().to(setting.device)
    x = torch.randn(3, 4).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return collect(model, train(optimizer, setting.steps, lambda: model(x).square().mean()))


@scenario(trains=False)
def functional_gradients(setting: Setting) -> Results:
    """torch.func: gradients, per-sample gradients, Hessians, forward mode, ensembles."""
    model, x, labels = make_perceptron(setting)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(weights: dict[str, Tensor], x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, weights, (x,)), labels)

    losses = []
    for _ in range(setting.steps):
        slopes, loss = grad_and_value(loss_of)(weights, x, labels)
        weights = {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}
        losses.append(loss)
    samples = vmap(grad(loss_of), in_dims=(None, 0, 0))(weights, x[:, None], labels[:, None])
    curvature = hessian(lambda bias: loss_of({**weights, "2.bias": bias}, x, labels))(weights["2.bias"])
    value, tangent = jvp(lambda x: functional_call(model, weights, (x,)), (x,), (torch.ones_like(x),))
    parameters, buffers = stack_module_state([model, make_perceptron(setting)[0]])
    ensemble = vmap(lambda p, b: functional_call(model, (p, b), (x,)))(parameters, buffers)
    outputs = {"curvature": curvature, "value": value, "tangent": tangent, "ensemble": ensemble}
    outputs.update({f"sample {name}": slope for name, slope in samples.items()})
    return collect(model, losses, **outputs, **{f"weight {name}": weight for name, weight in weights.items()})


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for number in range(3):
            if bool(x.sum() > -1000):
                total = total + self.layer(x).relu() * number
        return total


@scenario()
def scripted(setting: Setting) -> Results:
    """Parts of a model that are scripted and traced by torch.jit, within eager ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(Scripted())
        trace = torch.jit.trace(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(2, 8))
        model = nn.Sequential(nn.Linear(8, 8), script, nn.GELU(), trace, nn.Linear(8, 3)).to(setting.device)
        x = torch.randn(4, 8).to(setting.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = train(optimizer, setting.steps, lambda: model(x).square().mean())
        with torch.no_grad():
            return collect(model, losses, after=model(x))
