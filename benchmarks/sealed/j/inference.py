"""Text made by a model: with caches of keys and values, several beams, or a draft that is checked."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import transformers
from common import Script, script
from torch import Tensor, nn


class Attention(nn.Module):
    """Grouped queries with rotary positions and a cache of fixed size."""

    def __init__(self, width: int, fault: str, way: str) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(16), nn.RMSNorm(16)
        self.fault, self.way = fault, way
        self.register_buffer("inv_freq", 100.0 ** (-torch.arange(8) / 8), persistent=False)
        self.keys, self.values = torch.empty(0), torch.empty(0)

    def clear(self, rows: int, like: Tensor) -> None:
        self.keys, self.values = (torch.zeros(rows, 2, 40, 16, dtype=like.dtype) for _ in range(2))

    def turn(self, x: Tensor, at: Tensor) -> Tensor:
        angles = at[:, None] * self.inv_freq
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x: Tensor, start: int) -> Tensor:
        length, width = x.shape[1:]
        q, k, v = self.qkv(x).split([width, width // 2, width // 2], -1)
        q, k, v = (t.unflatten(-1, (-1, 16)).transpose(1, 2) for t in (q, k, v))
        at = torch.arange(start, start + length)
        late = 1 if self.fault == "position" and start else 0
        q, k = self.turn(self.q_norm(q), at + late), self.turn(self.k_norm(k), at + late)
        if self.way != "whole":
            slot = start - 1 if self.fault == "slot" and start else start
            self.keys[:, :, slot : slot + length], self.values[:, :, slot : slot + length] = k, v
            k, v = self.keys[:, :, : start + length], self.values[:, :, : start + length]
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * (1.6 if self.fault == "scale" else 1.5) / 16**0.5
        hidden = torch.arange(k.shape[2])[None] > at[:, None]
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, fault: str, way: str) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width), Attention(width, fault, way)
        self.norm2, self.gate_up = nn.RMSNorm(width), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, start: int) -> Tensor:
        x = x + self.attention(self.norm1(x), start)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self, fault: str, way: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(70, 64)
        self.blocks = nn.ModuleList(Block(64, fault if i == 1 else "", way) for i in range(3))
        self.norm = nn.RMSNorm(64)
        self.head = nn.Linear(64, 70, bias=False)

    def forward(self, ids: Tensor, start: int) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, start)
        return self.head(self.norm(x))


@script("cache")
class Cached(Script):
    """Greedy continuation of prompts, one piece of given text after each, scored all the way."""

    faults = ("slot", "position", "scale")
    variants = ("whole",)

    def build(self) -> None:
        way = "whole" if self.way("whole") else ""
        self.net = self.add(Decoder(self.options.fault, way)).eval()

    @torch.no_grad()
    def step(self, number: int) -> float:
        text = self.integers(3, 70, 3, 18)
        like = torch.zeros(1, dtype=torch.bfloat16 if self.precision == "bf16-autocast" else self.dtype)
        for block in self.net.blocks:
            block.attention.clear(3, like)
        score = 0.0
        with self.autocast():
            pieces = [(0, 12), *((t, t + 1) for t in range(12, 17))]
            for start, end in pieces:
                if self.way("whole"):
                    logits = self.net(text[:, :end], 0)[:, -1]
                else:
                    logits = self.net(text[:, start:end], start)[:, -1]
                score -= float(logits.float().log_softmax(-1).gather(1, text[:, end, None]).mean())
        return score / len(pieces)


@script("beam")
class Beam(Script):
    """Scores of beams by a Persimmon with penalties for repetition and length."""

    faults = ("penalty", "length", "eos")
    variants = ("sdpa", "one_by_one")

    def build(self) -> None:
        config = transformers.PersimmonConfig(
            vocab_size=50,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            initializer_range=0.14,
            hidden_dropout=0.0,
            use_cache=False,
        )
        way = "sdpa" if self.way("sdpa") else "eager"
        self.net = self.add(transformers.AutoModelForCausalLM.from_config(config, attn_implementation=way)).eval()

    def logits(self, ids: Tensor) -> Tensor:
        if self.way("one_by_one"):
            return torch.cat([self.net(input_ids=row[None]).logits[:, -1] for row in ids])
        return self.net(input_ids=ids).logits[:, -1]

    @torch.no_grad()
    def step(self, number: int) -> float:
        ids, scores = self.integers(3, 50, 1, 6), torch.zeros(1, dtype=torch.get_default_dtype())
        for _ in range(5):
            with self.autocast():
                logits = self.logits(ids)
            if self.precision != "fp64":
                logits = logits.float()
            seen = logits.gather(1, ids)
            strict = 1.3
            punished = seen / strict if self.has("penalty") else torch.where(seen < 0, seen * strict, seen / strict)
            logits = logits.scatter(1, ids, punished)
            every = scores[:, None] + logits.log_softmax(-1)
            scores, best = every.flatten().topk(3)
            ids = torch.cat([ids[best // 50], (best % 50)[:, None]], 1)
        return float(-scores[0] / (ids.shape[1] if self.has("length") else 5) ** 0.8)


@script("speculative")
class Speculative(Script):
    """A draft's tokens are kept with the probability that the large model gives them against the draft's."""

    faults = ("temperature", "wrong_position")
    variants = ("softmax_by_hand",)

    def build(self) -> None:
        self.net = self.add(Decoder("", "whole")).eval()
        self.draft = self.add(Decoder("", "whole")).eval()

    def probabilities(self, logits: Tensor, heat: float) -> Tensor:
        scaled = logits.to(torch.float64 if self.precision == "fp64" else torch.float32) / heat
        if self.way("softmax_by_hand"):
            powers = (scaled - scaled.amax(-1, keepdim=True)).exp()
            return powers / powers.sum(-1, keepdim=True)
        return scaled.softmax(-1)

    @torch.no_grad()
    def step(self, number: int) -> float:
        ids = self.integers(3, 70, 4, 16)
        with self.autocast():
            large, small = self.net(ids, 0), self.draft(ids, 0)
        p = self.probabilities(large, 0.8 if self.has("temperature") else 0.7)
        q = self.probabilities(small, 0.7)
        shift = 1 if self.has("wrong_position") else 0
        wanted = ids[:, 8:, None]
        mine = p[:, 7 + shift : 15 + shift].gather(-1, wanted)
        theirs = q[:, 7:15].gather(-1, wanted)
        kept = (mine / theirs).clamp(max=1).squeeze(-1)
        return float(kept.cumprod(1).sum(1).mean())
