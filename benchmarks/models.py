"""Small models and their training or evaluation, each built from a seed alone.

    results = SCENARIOS["gpt"].run(Setting(seed=0, steps=3))

What a scenario returns depends on nothing but its setting, so that two runs of it can be compared bit for bit.
"""

from __future__ import annotations

import os

# Without this limit, oneDNN may choose AMX for bf16 on CPUs whose kernel forbids it, and the process dies of SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Tensors = dict[str, Tensor]
Kind = TypeVar("Kind", bound=type[Function])


@dataclass(frozen=True)
class Setting:
    """What a scenario is built from."""

    seed: int = 0
    steps: int = 3
    device: str = "cpu"


@dataclass
class Results:
    """Everything a run computed, by name."""

    losses: Tensors = field(default_factory=dict)
    gradients: Tensors = field(default_factory=dict)
    weights: Tensors = field(default_factory=dict)
    outputs: Tensors = field(default_factory=dict)

    def flat(self) -> Tensors:
        parts = {"loss": self.losses, "gradient": self.gradients, "weight": self.weights, "output": self.outputs}
        return {f"{part} {name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Scenario:
    """One model with what is done to it."""

    name: str
    run: Callable[[Setting], Results]
    compiled: bool = False
    """Runs in a process of its own: compiled code is kept for the life of a process."""
    trains: bool = True


SCENARIOS: dict[str, Scenario] = {}
FUNCTIONS: dict[str, type[Function]] = {}
"""Custom Functions of the models, by the name they have in a trace."""


def scenario(*, compiled: bool = False, trains: bool = True) -> Callable[..., Callable[[Setting], Results]]:
    def register(run: Callable[[Setting], Results]) -> Callable[[Setting], Results]:
        @functools.wraps(run)
        def seeded(setting: Setting) -> Results:
            torch.manual_seed(setting.seed)
            return run(setting)

        SCENARIOS[run.__name__] = Scenario(run.__name__, seeded, compiled=compiled, trains=trains)
        return seeded

    return register


def custom(kind: Kind) -> Kind:
    FUNCTIONS[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return kind


def collect(model: nn.Module, losses: list[Tensor], **outputs: Tensor) -> Results:
    """Copies of what is left after a run."""
    named = dict(model.named_parameters())
    return Results(
        losses={str(step): loss.detach().clone() for step, loss in enumerate(losses)},
        gradients={name: p.grad.detach().clone() for name, p in named.items() if p.grad is not None},
        weights={name: tensor.detach().clone() for name, tensor in model.state_dict().items()},
        outputs={name: tensor.detach().clone() for name, tensor in outputs.items()},
    )


def train(optimizer: torch.optim.Optimizer, steps: int, loss_of: Callable[[], Tensor]) -> list[Tensor]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


class Block(nn.Module):
    """Attention written out, and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.attend(self.norm1(x)))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        seen = torch.tril(torch.ones(length, length, dtype=torch.bool, device=x.device))
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)


class GPT(nn.Module):
    def __init__(self, *, vocabulary: int = 64, width: int = 32, heads: int = 4, layers: int = 2, length: int = 16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits if targets is None else functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_gpt(setting: Setting) -> tuple[GPT, Tensor, Tensor]:
    model = GPT().to(setting.device)
    tokens, targets = (torch.randint(0, 64, (4, 16)).to(setting.device) for _ in range(2))
    return model, tokens, targets


def make_perceptron(setting: Setting) -> tuple[nn.Sequential, Tensor, Tensor]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(setting.device)
    return model, torch.randn(10, 8).to(setting.device), torch.randint(0, 3, (10,)).to(setting.device)


@scenario()
def gpt(setting: Setting) -> Results:
    model, tokens, targets = make_gpt(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = train(optimizer, setting.steps, lambda: model(tokens, targets))
    with torch.no_grad():
        after = model.eval()(tokens)
    return collect(model, losses, after=after)


@scenario(trains=False)
def gpt_no_grad(setting: Setting) -> Results:
    model, tokens, _ = make_gpt(setting)
    with torch.no_grad():
        return collect(model, [], logits=model.eval()(tokens))


@scenario(trains=False)
def gpt_inference(setting: Setting) -> Results:
    model, tokens, _ = make_gpt(setting)
    with torch.inference_mode():
        model.eval()
        for _ in range(setting.steps):
            tokens = torch.cat([tokens[:, 1:], model(tokens)[:, -1:].argmax(-1)], dim=1)
        return collect(model, [], tokens=tokens, logits=model(tokens))


@scenario()
def cnn(setting: Setting) -> Results:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, groups=2),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    ).to(setting.device)
    images = torch.randn(4, 3, 12, 12).to(setting.device, memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (4,)).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = train(optimizer, setting.steps, lambda: functional.cross_entropy(model(images), labels))
    model.eval()
    with torch.no_grad():
        return collect(model, losses, after=model(images))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 12)
        self.lstm = nn.LSTM(12, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 8, batch_first=True)
        self.tags = nn.Linear(8, 5)

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.words(words))
        hidden, _ = self.gru(hidden)
        return self.tags(hidden)


@scenario()
def lstm(setting: Setting) -> Results:
    model = Tagger().to(setting.device)
    words, tags = torch.randint(0, 20, (3, 7)).to(setting.device), torch.randint(0, 5, (3, 7)).to(setting.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = train(
        optimizer, setting.steps, lambda: functional.cross_entropy(model(words).flatten(0, 1), tags.flatten())
    )
    with torch.inference_mode():
        return collect(model, losses, after=model.eval()(words))


def make_encoder(setting: Setting) -> tuple[nn.TransformerEncoder, Tensor, Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0, activation="gelu")
    model = nn.TransformerEncoder(layer, 2).to(setting.device)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = padding[2, 2:] = True
    return model, torch.randn(3, 6, 32).to(setting.device), padding.to(setting.device)


@scenario()
def encoder_training(setting: Setting) -> Results:
    model, x, padding = make_encoder(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return collect(
        model, train(optimizer, setting.steps, lambda: model(x, src_key_padding_mask=padding).square().mean())
    )


@contextlib.contextmanager
def slow_path() -> Iterator[None]:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def both_paths(run: Callable[[], Tensor]) -> Tensors:
    """What the fast path gives and what the slow one gives; they round differently, or one of them was not taken."""
    fast = run()
    with slow_path():
        slow = run()
    if torch.equal(fast, slow):
        raise AssertionError("the fast path was not taken: it gave the same bits as the slow one")
    return {"fast": fast, "slow": slow}


def evaluate_encoder(setting: Setting) -> Results:
    model, x, padding = make_encoder(setting)
    model.eval()
    plain = both_paths(lambda: model(x))
    padded = both_paths(lambda: model(x, src_key_padding_mask=padding))
    return collect(model, [], **plain, **{f"padded_{path}": output for path, output in padded.items()})


@scenario(trains=False)
def encoder_no_grad(setting: Setting) -> Results:
    with torch.no_grad():
        return evaluate_encoder(setting)


@scenario(trains=False)
def encoder_inference(setting: Setting) -> Results:
    with torch.inference_mode():
        return evaluate_encoder(setting)


def make_attention(setting: Setting) -> tuple[nn.MultiheadAttention, Tensor]:
    return nn.MultiheadAttention(32, 4, batch_first=True).to(setting.device), torch.randn(3, 6, 32).to(setting.device)


@scenario()
def attention_training(setting: Setting) -> Results:
    model, x = make_attention(setting)
    memory = torch.randn(3, 5, 32).to(setting.device).requires_grad_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        own, weights = model(x, x, x)
        crossed, _ = model(own, memory, memory, need_weights=False)
        return crossed.square().mean() + weights.square().mean()

    return collect(model, train(optimizer, setting.steps, loss_of), memory_gradient=memory.grad)


@scenario(trains=False)
def attention_eval(setting: Setting) -> Results:
    model, x = make_attention(setting)
    model.eval()
    with torch.no_grad():
        quiet = both_paths(lambda: model(x, x, x, need_weights=False)[0])
    with torch.inference_mode():
        inference = both_paths(lambda: model(x, x, x, need_weights=False)[0])
    return collect(model, [], **quiet, **{f"inference_{path}": output for path, output in inference.items()})


class Experts(nn.Module):
    """Routes each row to its best two experts, with every way of indexing."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(experts)])
        self.register_buffer("load", torch.zeros(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == number)
            share = weights[rows, slot].unsqueeze(-1)
            mixed.index_add_(0, rows, expert(x.index_select(0, rows)) * share)
            self.load[number] += rows.numel()
        strong = weights[:, 0] > 0.6
        boosted = mixed.clone()
        boosted[strong] = mixed[strong] * 2
        boosted[:, 0] = x[:, 0]
        boosted[:, 1:3] *= 0.5
        return torch.where(strong.unsqueeze(-1), boosted, mixed + x.gather(1, chosen[:, :1]))


@scenario()
def mixture_of_experts(setting: Setting) -> Results:
    model = Experts().to(setting.device)
    x = torch.randn(12, 16).to(setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return collect(model, train(optimizer, setting.steps, lambda: model(x).square().mean()))


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
def tied_weights(setting: Setting) -> Results:
    model, tokens, targets = make_gpt(setting)
    model.head.weight = model.tokens.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return collect(model, train(optimizer, setting.steps, lambda: model(tokens, targets)))


@dataclass
class Batch:
    features: Tensor
    labels: Tensor


@dataclass
class Scored:
    loss: Tensor
    logits: Tensor
    note: str = "scored"


class Structured(nn.Module):
    """Takes keywords and a dataclass, gives a dict that holds a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, *, batch: Batch, scale: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        hidden = self.norm(batch.features) * scale
        if options["sharpen"]:
            hidden = hidden.pow(exponent=3)
        logits = self.last(input=hidden)
        return {
            "scored": Scored(functional.cross_entropy(input=logits, target=batch.labels), logits),
            "hidden": [hidden],
        }


@scenario()
def structured(setting: Setting) -> Results:
    model = Structured().to(setting.device)
    batch = Batch(torch.randn(6, 8).to(setting.device), torch.randint(0, 3, (6,)).to(setting.device))
    scale = torch.tensor(0.5, device=setting.device, requires_grad=True)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        made = model(batch=batch, scale=scale, options={"sharpen": True, "names": ["a", "b"]})
        return made["scored"].loss + made["hidden"][0].abs().mean()

    return collect(model, train(optimizer, setting.steps, loss_of), scale_gradient=scale.grad)


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
def dropout(setting: Setting) -> Results:
    layers = [nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 3), nn.Dropout(0.1, inplace=True)]
    model = nn.Sequential(*layers).to(setting.device)
    x = torch.randn(10, 8).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(optimizer, setting.steps, lambda: (model(x) + torch.rand_like(x[:, :3])).square().mean())
    return collect(model, losses, noise=torch.randn(3, device=setting.device))


@scenario()
def embedding_max_norm(setting: Setting) -> Results:
    model = nn.Sequential(nn.Embedding(10, 6, max_norm=1.0), nn.Linear(6, 3)).to(setting.device)
    words = torch.randint(0, 10, (4, 5)).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return collect(model, train(optimizer, setting.steps, lambda: model(words).square().sum()))
