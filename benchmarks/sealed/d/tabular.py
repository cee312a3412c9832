"""Tables: a transformer over features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Options, integers, normal, show, spread
from torch import Tensor, nn

CATEGORIES = (5, 3, 9)
NUMBERS = 6


class Tokenizer(nn.Module):
    """A token a feature, and one for the whole row in front."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(NUMBERS, width) * 0.5)
        self.bias = nn.Parameter(torch.randn(NUMBERS, width) * 0.1)
        self.table = nn.Embedding(sum(CATEGORIES), width)
        self.row = nn.Parameter(torch.randn(width) * 0.1)
        self.register_buffer("offsets", torch.tensor([0, *CATEGORIES[:-1]]).cumsum(0))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        tokens = numbers[:, :, None] * self.weight + self.bias
        return torch.cat([self.row.expand(len(numbers), 1, -1), tokens, self.table(categories + self.offsets)], dim=1)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width: int, gate: str) -> None:
        super().__init__()
        self.gate = gate
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.up(x).chunk(2, dim=-1)
        return self.down(value * (F.relu(gate) if self.gate == "relu" else F.gelu(gate)))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, gate: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width, gate)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class FeatureTransformer(nn.Module):
    def __init__(self, options: Options, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.tokenizer = Tokenizer(width)
        self.layers = nn.ModuleList(
            Layer(
                width,
                heads=4,
                gate="gelu" if options.fault == "gate" and i == 1 else "relu",
            )
            for i in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        x = self.tokenizer(numbers, categories)
        for layer in self.layers:
            x = layer(x)
        return self.head(F.relu(self.norm(x[:, 0]))).squeeze(-1)


def train_ft_transformer(options: Options) -> None:
    torch.manual_seed(41)
    model = FeatureTransformer(options)
    spread(model, 0.02)
    options.place(model)
    free = [p for n, p in model.named_parameters() if "tokenizer" in n or "norm" in n or n.endswith("bias")]
    kept = {id(p) for p in free}
    decayed = [p for p in model.parameters() if id(p) not in kept]
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": free, "weight_decay": 1e-1 if options.fault == "decay" else 0.0}],
        lr=1e-3,
        weight_decay=1e-1,
    )
    mean, deviation = 0.3, 1.7
    for step in range(options.steps):
        numbers = options.cast(normal(1000 + step, 16, NUMBERS))
        categories = torch.stack([integers(1010 + step + 3 * i, n, 16) for i, n in enumerate(CATEGORIES)], dim=1)
        wanted = options.cast((normal(1030 + step, 16) - mean) / deviation)
        with options.autocast():
            predicted = model(numbers, categories)
            loss = F.mse_loss(predicted.to(wanted.dtype), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show(step, loss=loss)
