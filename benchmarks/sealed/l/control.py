"""Reinforcement learning by hand, on recorded episodes."""

from __future__ import annotations

import copy

import torch
from common import Script, script
from torch import Tensor, nn
from torch.nn import functional as F


class Player(nn.Module):
    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.see = nn.Linear(10, 32)
        self.memory = nn.LSTMCell(32, 32)
        self.act, self.value = nn.Linear(32, 5), nn.Linear(32, 1)

    def remember(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if not self.script.way("gates"):
            return self.memory(x, state)
        m, (hidden, cell) = self.memory, state
        gates = torch.cat([x, hidden], 1) @ torch.cat([m.weight_ih, m.weight_hh], 1).T + (m.bias_ih + m.bias_hh)
        take, keep, new, show = gates.chunk(4, 1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(take) * torch.tanh(new)
        return torch.sigmoid(show) * torch.tanh(cell), cell

    def forward(self, seen: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        state = (seen.new_zeros(seen.shape[1], 32), seen.new_zeros(seen.shape[1], 32))
        states = []
        for x, begins in zip(seen, first, strict=True):
            if not self.script.has("remembers_episodes"):
                keep = (~begins).to(seen.dtype)[:, None]
                state = (state[0] * keep, state[1] * keep)
            state = self.remember(torch.tanh(self.see(x)), state)
            states.append(state[0])
        after = torch.stack(states)
        return self.act(after), self.value(after).squeeze(-1)


@script("player")
class AdvantageActor(Script):
    """Actor and critic with a memory, and advantages that look some steps ahead."""

    faults = ("remembers_episodes", "past_the_end", "advantage_learns", "no_entropy")
    variants = ("gates",)
    clip = 0.5

    def build(self) -> None:
        self.net = self.add(Player(self))
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=1e-3, alpha=0.99, eps=1e-5)
        self.seen = self.normal(9, 4, 10)
        self.actions = self.integers(0, 5, 8, 4)
        self.rewards = self.normal(8, 4)
        self.done = torch.rand(9, 4, generator=self.random) < 0.25
        self.done[4, 1] = True

    def loss(self, number: int) -> Tensor:
        logits, values = self.net(self.seen, self.done)
        logits, values = self.wide(logits), self.wide(values)
        advantages, ahead = [], values.new_zeros(4)
        for t in reversed(range(8)):
            on = 1 - self.done[t + 1].to(values.dtype)
            if self.has("past_the_end"):
                on = torch.ones_like(on)
            change = self.rewards[t] + 0.97 * values[t + 1].detach() * on - values[t].detach()
            ahead = change + 0.97 * 0.9 * on * ahead
            advantages.insert(0, ahead)
        advantage = torch.stack(advantages)
        returns = advantage + values[:8].detach()
        if self.has("advantage_learns"):
            advantage = returns - values[:8]
        chances = F.log_softmax(logits[:8], -1)
        taken = chances.gather(-1, self.actions[..., None]).squeeze(-1)
        entropy = -(chances.exp() * chances).sum(-1).mean()
        policy = -(taken * advantage).mean()
        weight = 0.0 if self.has("no_entropy") else 0.05
        return policy + 0.5 * F.mse_loss(values[:8], returns) - weight * entropy


class Blend(nn.Module):
    """The value of all from the value of each, more of one is never less of all."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.first, self.first_bias = nn.Linear(12, 3 * 8), nn.Linear(12, 8)
        self.second = nn.Linear(12, 8)
        self.second_bias = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, each: Tensor, state: Tensor) -> Tensor:
        first = self.first(state).unflatten(-1, (3, 8)).abs()
        second = self.second(state)
        if not self.script.has("signed"):
            second = second.abs()
        hidden = F.elu(torch.einsum("ba,bah->bh", each, first) + self.first_bias(state))
        return (hidden * second).sum(-1) + self.second_bias(state).squeeze(-1)


class Team(nn.Module):
    def __init__(self, script: Script) -> None:
        super().__init__()
        self.utility = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 5))
        self.blend = Blend(script)


@script("team")
class TeamValues(Script):
    """Three agents share a reward; a slow copy says what the next state is worth."""

    faults = ("signed", "fast_copy", "greedy_copy")
    variants = ("foreach",)
    clip = 10.0

    def build(self) -> None:
        team = Team(self)
        slow = copy.deepcopy(team)
        for parameter in slow.parameters():
            nn.init.normal_(parameter, std=0.15)
        self.net = self.add(team)
        self.slow = self.add(slow)
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=2e-3, foreach=self.way("foreach"))
        self.seen, self.states = self.normal(2, 16, 3, 9), self.normal(2, 16, 12)
        self.actions, self.rewards = self.integers(0, 5, 16, 3, 1), self.normal(16)
        self.over = torch.rand(16, generator=self.random) < 0.2

    def loss(self, number: int) -> Tensor:
        chosen = self.net.utility(self.seen[0]).gather(-1, self.actions).squeeze(-1)
        value = self.wide(self.net.blend(chosen, self.states[0]))
        with torch.no_grad():
            ahead = self.slow.utility(self.seen[1])
            judge = ahead if self.has("greedy_copy") else self.net.utility(self.seen[1])
            best = ahead.gather(-1, judge.argmax(-1, keepdim=True)).squeeze(-1)
            worth = self.wide(self.slow.blend(best, self.states[1]))
        return F.mse_loss(value, self.rewards + 0.95 * ~self.over * worth)

    def step(self, number: int) -> float:
        value = super().step(number)
        rate = 0.2 if self.has("fast_copy") else 0.05
        with torch.no_grad():
            slow, fast = [*self.slow.parameters()], [*self.net.parameters()]
            if self.way("foreach"):
                torch._foreach_lerp_(slow, fast, rate)
            else:
                for old, new in zip(slow, fast, strict=True):
                    old.mul_(1 - rate).add_(new, alpha=rate)
        return value
