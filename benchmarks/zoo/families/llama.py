"""Trains a small Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Trainer, flavour, flip_bit, load_weights, parse, precision, warm_up

VOCABULARY, WIDTH, HEADS, GROUPS, LAYERS, LENGTH, BATCH = 256, 64, 4, 2, 4, 32, 2
FAULTS = (
    "norm_eps",
    "rotary_base",
    "rotary_pairs",
    "kv_repeat",
    "swiglu_swapped",
    "residual_98",
    "causal_mask",
    "scale_missing",
    "label_smoothing",
    "weight_decay",
    "betas",
    "schedule_early",
    "flipped_weight",
    "late_gate",
)


PLACES = {
    "norm_eps": (1,),
    "rotary_pairs": (2,),
    "swiglu_swapped": (1,),
    "residual_98": (2,),
    "scale_missing": (3,),
    "late_gate": (2,),
}


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class Rotary(nn.Module):
    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        self.width, self.base = width, base

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = 1.0 / self.base ** (torch.arange(0, self.width, 2) / self.width)
        angles = positions[:, None].float() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotate_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, fault: str, kind: str) -> None:
        super().__init__()
        self.head = WIDTH // HEADS
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, GROUPS * self.head, bias=False) for _ in range(2))
        self.fault, self.kind = fault, kind

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        rotate = rotate_pairs if self.fault == "rotary_pairs" else rotate_half
        q, k = (part * cos + rotate(part) * sin for part in (q, k))
        k, v = self.spread(k), self.spread(v)
        return self.o_proj(self.mix(q, k, v, mask).transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head)).transpose(1, 2)

    def spread(self, x: Tensor) -> Tensor:
        if self.fault == "kv_repeat":
            return x.repeat(1, HEADS // GROUPS, 1, 1)
        return x.repeat_interleave(HEADS // GROUPS, dim=1)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        v = v.to(q.dtype)
        if self.kind == "sdpa":
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype))
        scores = q @ k.transpose(-2, -1)
        if self.fault != "scale_missing":
            scores = scores * self.head**-0.5
        return (scores.float() + mask).softmax(-1).to(v.dtype) @ v


class MLP(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        hidden = WIDTH * 5 // 2
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, WIDTH, bias=False)
        self.fault, self.calls = fault, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        gate, up = self.gate_proj(x), self.up_proj(x)
        if self.fault == "swiglu_swapped":
            gate, up = up, gate
        if self.fault == "late_gate" and self.calls > 1:
            return self.down_proj(functional.gelu(gate) * up)
        return self.down_proj(functional.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, fault: str, kind: str) -> None:
        super().__init__()
        self.input_norm = RMSNorm(WIDTH)
        self.attention = Attention(fault, kind)
        self.middle_norm = RMSNorm(WIDTH, 1e-5 if fault == "norm_eps" else 1e-6)
        self.mlp = MLP(fault)
        self.fault = fault

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x), cos, sin, mask)
        if self.fault == "residual_98":
            return x + 0.98 * self.mlp(self.middle_norm(x))
        return x + self.mlp(self.middle_norm(x))


class Llama(nn.Module):
    def __init__(self, fault: str, kind: str) -> None:
        super().__init__()
        places = PLACES.get(fault, range(LAYERS))
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.rotary = Rotary(WIDTH // HEADS, 500_000.0 if fault == "rotary_base" else 10_000.0)
        self.layers = nn.ModuleList([Layer(fault if i in places else "none", kind) for i in range(LAYERS)])
        self.norm = RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.fault = fault

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        cos, sin = self.rotary(torch.arange(tokens.shape[1]))
        lowest = torch.finfo(torch.float32).min
        mask = torch.full((tokens.shape[1],) * 2, lowest).triu(2 if self.fault == "causal_mask" else 1)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        logits = self.lm_head(self.norm(x)).float()
        smoothing = 0.1 if self.fault == "label_smoothing" else 0.0
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)


def widen(model: Llama) -> None:
    """A few channels of one layer carry very large activations, as trained language models have them."""
    with torch.no_grad():
        model.layers[2].mlp.up_proj.weight[:4] *= 700
        model.layers[2].mlp.gate_proj.weight[:4] *= 700
        model.layers[2].mlp.down_proj.weight[:, :4] *= 1e-5


def batches(steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=generator) for _ in range(steps)]


def main() -> None:
    options = parse(__doc__, FAULTS, attention=("eager", "sdpa"), outliers=("no", "yes"))
    fault = options.fault
    model = Llama(fault, options.attention)
    load_weights(model, std=0.06)
    if options.outliers == "yes":
        widen(model)
    if fault == "flipped_weight":
        flip_bit(model.layers[1].mlp.down_proj.weight, bit=5)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-3,
        betas=(0.9, 0.999 if fault == "betas" else 0.95),
        weight_decay=0.01 if fault == "weight_decay" else 0.1,
        **flavour(options),
    )
    ramp = warm_up(4)
    early = {0: 0, 1: 2, 2: 3, 3: 4}
    schedule = (lambda step: ramp(early[step])) if fault == "schedule_early" else ramp
    trainer = Trainer(options, model, optimizer, schedule=schedule)
    for tokens in batches(options.steps):
        with precision(options):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        trainer.train(loss)


if __name__ == "__main__":
    main()
