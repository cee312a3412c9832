"""Compiled code; each in a process of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models import Results, Setting, collect, make_gpt, make_perceptron, scenario, train


def compiler_backend() -> str:
    from torch._inductor import cpp_builder

    try:
        cpp_builder.get_cpp_compiler()
    except Exception:
        return "aot_eager"
    return "inductor"


def graphs_compiled() -> Tensor:
    """How many graphs this process has compiled; none would mean that eager code was measured."""
    from torch._dynamo.utils import counters

    if not counters["stats"]["unique_graphs"]:
        raise AssertionError("nothing was compiled")
    return torch.tensor(counters["stats"]["unique_graphs"])


@scenario(compiled=True)
def compiled_module(setting: Setting) -> Results:
    model, x, labels = make_perceptron(setting)
    compiled = torch.compile(model, backend=compiler_backend())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = train(optimizer, setting.steps, lambda: functional.cross_entropy(compiled(x), labels))
    with torch.no_grad():
        return collect(model, losses, after=compiled(x), graphs=graphs_compiled())


@scenario(compiled=True)
def compiled_function(setting: Setting) -> Results:
    model = nn.ParameterDict({"weight": torch.randn(8, 8)}).to(setting.device)
    x = torch.randn(4, 8).to(setting.device)

    @torch.compile(backend=compiler_backend())
    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return functional.gelu(x @ weight).softmax(-1).square() + x.sin()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(optimizer, setting.steps, lambda: (layer(x * 2, model["weight"]) * 3).sum())
    return collect(model, losses, after=layer(x, model["weight"]), graphs=graphs_compiled())


@scenario(compiled=True)
def compiled_in_place(setting: Setting) -> Results:
    """A part of a model compiles itself; the rest runs eagerly."""
    model, tokens, targets = make_gpt(setting)
    model.blocks[0].compile(backend=compiler_backend())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = train(optimizer, setting.steps, lambda: model(tokens, targets))
    return collect(model, losses, graphs=graphs_compiled())
