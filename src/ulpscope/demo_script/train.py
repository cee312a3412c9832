"""Trains a two-layer transformer on a toy text for three steps; `--fault` plants a numerical fault in one block."""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

TEXT = "the quick brown fox jumps over the lazy dog. " * 8
VOCABULARY = sorted(set(TEXT))
WIDTH, HEADS, LENGTH, BATCH = 64, 4, 32, 8
EPS, WRONG_EPS = 1e-5, 1e-2


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a LayerNorm."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, eps=eps)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Model(nn.Module):
    """A small language model over the characters of TEXT."""

    def __init__(self, second_eps: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(EPS), Block(second_eps)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(VOCABULARY))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch_at(step: int) -> tuple[Tensor, Tensor]:
    starts = [(step * BATCH + row) * 7 % (len(TEXT) - LENGTH - 1) for row in range(BATCH)]
    codes = torch.tensor([[VOCABULARY.index(letter) for letter in TEXT[s : s + LENGTH + 1]] for s in starts])
    return codes[:, :-1], codes[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", action="store_true", help="use a wrong eps in one LayerNorm")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = Model(second_eps=WRONG_EPS if arguments.fault else EPS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(arguments.steps):
        tokens, following = batch_at(step)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
