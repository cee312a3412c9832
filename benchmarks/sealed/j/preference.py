"""Language models trained by preferences and rewards."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from common import Script, script
from torch import Tensor, nn


def small_model(**more: Any) -> Any:
    config = transformers.StableLmConfig(
        vocab_size=60,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.14,
        partial_rotary_factor=0.5,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **more,
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    return logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


@script("dpo")
class Dpo(Script):
    """Direct preference optimisation against the model before training."""

    faults = ("mean_for_sum", "no_reference", "beta")
    variants = ("two_passes", "by_entropy")

    def build(self) -> None:
        self.policy = self.add(small_model())
        self.before = self.add(copy.deepcopy(self.policy)).requires_grad_(False)
        with torch.no_grad():
            for p in self.before.parameters():
                p.mul_(0.98)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-3)

    def score(self, net: nn.Module, ids: Tensor, counted: Tensor) -> Tensor:
        logits = net(input_ids=ids, attention_mask=(ids != 0).long()).logits
        if self.precision != "fp64":
            logits = logits.float()
        if self.way("by_entropy"):
            each = -F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
        else:
            each = log_probs(logits, ids)
        sums = (each * counted[:, 1:]).sum(-1)
        return sums / counted[:, 1:].sum(-1) if self.has("mean_for_sum") else sums

    def step(self, number: int) -> float:
        prompts, answers = self.integers(3, 60, 4, 6), self.integers(3, 60, 8, 8)
        lengths = self.integers(4, 9, 8, 1)
        answers = answers * (torch.arange(8) < lengths)
        ids = torch.cat([prompts.repeat(2, 1), answers], 1)
        counted = (ids != 0).to(self.dtype).float()
        counted[:, :6] = 0
        with self.autocast():
            if self.way("two_passes"):
                halves = zip(ids.chunk(2), counted.chunk(2), strict=True)
                mine = torch.cat([self.score(self.policy, i, c) for i, c in halves])
            else:
                mine = self.score(self.policy, ids, counted)
            with torch.no_grad():
                theirs = self.score(self.before, ids, counted)
        gain = mine if self.has("no_reference") else mine - theirs
        better, worse = gain.chunk(2)
        beta = 0.11 if self.has("beta") else 0.1
        loss = -F.logsigmoid(beta * (better - worse)).mean()
        return self.optimize(loss, self.optimizer)


@script("ppo")
class Ppo(Script):
    """Two passes over answers sampled before, with clipped ratios and a head for values."""

    faults = ("attached", "gae_lambda", "unclipped_min")
    variants = ("backwards_sum",)

    def build(self) -> None:
        body = small_model()
        self.net = self.add(nn.ModuleDict({"policy": body, "value": nn.Linear(60, 1)}))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)

    def play(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net["policy"](input_ids=ids).logits
        values = self.net["value"](logits).squeeze(-1)
        if self.precision != "fp64":
            logits, values = logits.float(), values.float()
        return log_probs(logits, ids), values[:, :-1]

    def advantages(self, rewards: Tensor, values: Tensor) -> Tensor:
        discount = 0.99
        fading = discount * (0.85 if self.has("gae_lambda") else 0.95)
        length = rewards.shape[1]
        following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
        errors = rewards + discount * following - values
        if self.way("backwards_sum"):
            times = torch.arange(length)
            away = times[None] - times[:, None]
            weights = torch.where(away >= 0, fading ** away.clamp(min=0).to(errors.dtype), 0.0)
            return errors @ weights.T.to(errors.dtype)
        out, last = [], torch.zeros_like(errors[:, 0])
        for t in reversed(range(length)):
            last = errors[:, t] + fading * last
            out.append(last)
        return torch.stack(out[::-1], 1)

    def step(self, number: int) -> float:
        ids = self.integers(3, 60, 6, 12)
        with self.autocast():
            said, values = self.play(ids)
        with torch.no_grad():
            old = said.detach() + 0.1 * self.normal(*said.shape).to(said.dtype)
        rewards = self.normal(*said.shape).to(said.dtype)
        gains = self.advantages(rewards, values if self.has("attached") else values.detach())
        returns = (gains + values).detach()
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        ratio = torch.exp(said - old)
        clipped = ratio.clamp(0.9, 1.1)
        least = clipped * gains if self.has("unclipped_min") else torch.min(ratio * gains, clipped * gains)
        loss = -least.mean() + 0.5 * F.mse_loss(values, returns)
        return self.optimize(loss, self.optimizer, clip=1.0)


@script("reward")
class Reward(Script):
    """Rewards read at the last token of each text."""

    faults = ("last_token", "padding_side")

    def build(self) -> None:
        body = small_model(tie_word_embeddings=False).model
        self.net = self.add(nn.ModuleDict({"body": body, "score": nn.Linear(48, 1, bias=False)}))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.9)

    def step(self, number: int) -> float:
        lengths = self.integers(6, 13, 8, 1)
        inside = torch.arange(14) < lengths
        ids = self.integers(3, 60, 8, 14) * inside
        with self.autocast():
            if self.has("padding_side"):
                ids = torch.stack([row.roll(14 - int(n)) for row, n in zip(ids, lengths, strict=True)])
            hidden = self.net["body"](input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
            scores = self.net["score"](hidden).squeeze(-1)
        last = lengths if self.has("last_token") else lengths - 1
        at = torch.full_like(lengths, 13) if self.has("padding_side") else last
        better, worse = scores.gather(1, at).squeeze(1).chunk(2)
        loss = -F.logsigmoid(better - worse).mean()
        return self.optimize(loss, self.optimizer)
