"""Kinds of tensors other than dense float32, and defaults that scripts set."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from models import Results, Setting, collect, make_gpt, make_perceptron, scenario, train


@scenario()
def sparse_gradients(setting: Setting) -> Results:
    model = nn.ModuleDict({"words": nn.Embedding(20, 6, sparse=True), "bags": nn.EmbeddingBag(20, 6, sparse=True)})
    model.to(setting.device)
    words = torch.randint(0, 20, (3, 4)).to(setting.device)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)
    losses = train(
        optimizer, setting.steps, lambda: model["words"](words).square().sum() + model["bags"](words).square().sum()
    )
    results = collect(model, losses)
    results.gradients = {name: gradient.to_dense() for name, gradient in results.gradients.items()}
    matrix = torch.eye(4).to_sparse_csr() @ torch.ones(4, 2)
    results.outputs["product"] = matrix + torch.sparse.mm(torch.eye(4).to_sparse(), torch.ones(4, 2))
    return results


@scenario()
def complex_parameters(setting: Setting) -> Results:
    """Lazy conjugates and negatives look at memory that others look at as it is."""
    model = nn.ParameterDict({"weight": torch.randn(4, 4, dtype=torch.complex64), "phase": torch.randn(4)})
    model.to(setting.device)
    x = torch.randn(3, 4, dtype=torch.complex64).to(setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of() -> Tensor:
        turned = (x @ model["weight"]) * torch.polar(torch.ones_like(model["phase"]), model["phase"])
        conjugate = turned.conj()
        parts = turned.real + turned.imag * 2 + conjugate.real * 3 + conjugate.imag * 4
        spectrum = torch.fft.fft(turned) @ turned.mH
        return parts.square().sum() + spectrum.abs().mean() + torch.view_as_real(conjugate.resolve_conj()).sum()

    return collect(model, train(optimizer, setting.steps, loss_of))


@scenario()
def double_precision(setting: Setting) -> Results:
    model, tokens, targets = make_gpt(setting)
    model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return collect(model, train(optimizer, setting.steps, lambda: model(tokens, targets)))


@scenario()
def bfloat16_parameters(setting: Setting) -> Results:
    """Weights in bf16, with a float32 copy that the optimizer changes."""
    model, tokens, targets = make_gpt(setting)
    model.bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    losses = []
    for _ in range(setting.steps):
        model.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(list(model.parameters()), masters)
        losses.append(loss.detach())
    return collect(model, losses)


@scenario(trains=False)
def quantized(setting: Setting) -> Results:
    """int8 weights: dynamically quantized layers, and quantized tensors."""
    model, x, _ = make_perceptron(setting)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        whole = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        channels = torch.quantize_per_channel(x, torch.full((8,), 0.1), torch.zeros(8), 1, torch.qint8)
        outputs = {"output": small(x), "whole": whole.dequantize(), "relu": functional.relu(whole).int_repr()}
        return collect(model, [], **outputs, channels=channels.dequantize())


@scenario()
def fake_quantized(setting: Setting) -> Results:
    model, x, labels = make_perceptron(setting)
    scale, zero = torch.tensor([0.05], requires_grad=True), torch.zeros(1)
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.01)

    def loss_of() -> Tensor:
        hidden = torch.fake_quantize_per_tensor_affine(model(x), 0.1, 0, -128, 127)
        learned = torch._fake_quantize_learnable_per_tensor_affine(model(x * 2), scale, zero, -128, 127)
        return functional.cross_entropy(hidden + learned, labels)

    return collect(model, train(optimizer, setting.steps, loss_of), scale=scale)


@scenario()
def default_dtype(setting: Setting) -> Results:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model, x, labels = make_perceptron(setting)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return collect(model, train(optimizer, setting.steps, lambda: functional.cross_entropy(model(x), labels)))
    finally:
        torch.set_default_dtype(before)


@scenario()
def default_device(setting: Setting) -> Results:
    """The default device is a function mode of torch's own; here it comes and goes while capture's is on the stack."""
    model, x, labels = make_perceptron(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.set_default_device(setting.device)
    try:
        losses = train(optimizer, setting.steps, lambda: functional.cross_entropy(model(x), labels))
        with torch.device("meta"):
            shape = torch.tensor(nn.Linear(3, 4).weight.shape, device="cpu")
        noise = torch.randn(3) + torch.arange(3)
    finally:
        torch.set_default_device(None)
    losses += train(optimizer, 1, lambda: functional.cross_entropy(model(x + torch.ones(8)), labels))
    return collect(model, losses, noise=noise, shape=shape)
