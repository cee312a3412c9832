"""Losses of reinforcement learning: proximal policy optimization, and a soft actor-critic with slow targets."""

from __future__ import annotations

import copy
import itertools
import math

import torch
import torch.nn.functional as F
from common import Options, generator, integers, normal, show, spread, uniform
from torch import Tensor, nn

# --- PPO: advantages along a rollout, several epochs of minibatches ---


def perceptron(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Agent(nn.Module):
    def __init__(self, seen: int = 12, acts: int = 3, width: int = 48) -> None:
        super().__init__()
        self.policy = perceptron(seen, width, width, acts)
        self.value = perceptron(seen, width, width, 1)
        self.log_deviation = nn.Parameter(torch.full((acts,), -0.5))

    def forward(self, seen: Tensor) -> tuple[torch.distributions.Normal, Tensor]:
        mean = self.policy(seen)
        spread_of_acts = self.log_deviation.exp().expand_as(mean)
        return torch.distributions.Normal(mean, spread_of_acts.to(mean.dtype)), self.value(seen).squeeze(-1)


def advantages(
    rewards: Tensor, values: Tensor, ends: Tensor, late: bool, gamma: float = 0.99, keep: float = 0.95
) -> Tensor:
    """Generalised advantage estimates; values has one row more, that of what came behind the rollout."""
    out, running = [], torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        alive = 1.0 - ends[max(t - 1, 0) if late else t]
        delta = rewards[t] + gamma * alive * values[t + 1] - values[t]
        running = delta + gamma * keep * alive * running
        out.append(running)
    return torch.stack(out[::-1])


def train_ppo(options: Options) -> None:
    torch.manual_seed(51)
    agent = Agent()
    spread(agent, 0.1)
    behaviour = copy.deepcopy(agent)
    spread(behaviour, 0.05, seed=9)
    options.place(agent)
    length, actors = 16, 8
    seen = normal(1100, length + 1, actors, 12)
    with torch.no_grad():
        old, values = behaviour(seen)
        acts = (old.mean + old.stddev * normal(1101, *old.mean.shape))[:-1]
        old_log = torch.distributions.Normal(old.mean[:-1], old.stddev[:-1]).log_prob(acts).sum(dim=-1)
    rewards, ends = normal(1102, length, actors), (uniform(1103, length, actors) < 0.1).float()
    gains = advantages(rewards, values, ends, late=options.fault == "ends")
    returns = gains + values[:-1]
    flat = [options.cast(v.flatten(0, 1)) for v in (seen[:-1], acts, old_log, gains, returns)]
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
    batches = torch.randperm(length * actors, generator=generator(1104)).chunk(options.steps)
    for step, batch in enumerate(batches):
        if options.variant == "reordered":
            batch = batch.sort().values
        x, act, log_before, gain, wanted = (v[batch] for v in flat)
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        with options.autocast():
            policy, value = agent(x)
            log_now = policy.log_prob(act).sum(dim=-1)
            entropy = policy.entropy().sum(dim=-1).mean()
        ratio = (log_now - log_before).exp()
        clipped = ratio.clamp(0.8, 1.2)
        policy_loss = -torch.min(ratio * gain, clipped * gain).mean()
        value_loss = 0.5 * (value.to(wanted.dtype) - wanted).square().mean()
        bonus = 0.01 * entropy
        loss = policy_loss + 0.5 * value_loss - bonus
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        show(step, policy=policy_loss, value=value_loss, entropy=entropy)


# --- Soft actor-critic: twin critics, squashed actions, a temperature, targets that follow slowly ---


class Twin(nn.Module):
    def __init__(self, seen: int, acts: int, width: int = 48) -> None:
        super().__init__()
        self.one = nn.Sequential(
            nn.Linear(seen + acts, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )
        self.two = nn.Sequential(
            nn.Linear(seen + acts, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, seen: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([seen, act.to(seen.dtype)], dim=-1)
        return self.one(both).squeeze(-1), self.two(both).squeeze(-1)


class Squashed(nn.Module):
    def __init__(self, seen: int, acts: int, width: int = 48) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.mean = nn.Linear(width, acts)
        self.log_deviation = nn.Linear(width, acts)

    def forward(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(seen)
        log_deviation = self.log_deviation(x).to(noise.dtype).clamp(-5, 2)
        before = self.mean(x).to(noise.dtype) + log_deviation.exp() * noise
        log_p = (-0.5 * noise.square() - log_deviation - 0.5 * math.log(2 * math.pi)).sum(dim=-1)
        log_p = log_p - (2 * (math.log(2) - before - F.softplus(-2 * before))).sum(dim=-1)
        return before.tanh(), log_p


def train_sac(options: Options) -> None:
    torch.manual_seed(52)
    actor, critic = options.place(Squashed(10, 3)), options.place(Twin(10, 3))
    target = copy.deepcopy(critic).requires_grad_(False)
    log_alpha = nn.Parameter(options.cast(torch.tensor(-1.0)))
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
    follow = 0.05
    for step in range(options.steps):
        seed = 1200 + 10 * step
        seen, after = options.cast(normal(seed, 32, 10)), options.cast(normal(seed + 1, 32, 10))
        act, reward = options.cast(normal(seed + 2, 32, 3).tanh()), options.cast(normal(seed + 3, 32))
        done = options.cast((integers(seed + 4, 5, 32) == 0).float())
        with torch.no_grad(), options.autocast():
            next_act, next_log = actor(after, options.cast(normal(seed + 5, 32, 3)))
            first, second = target(after, next_act)
            worst = torch.min(first, second)
            wanted = reward + 0.99 * (1 - done) * (worst.to(reward.dtype) - log_alpha.exp() * next_log)
        with options.autocast():
            first, second = critic(seen, act)
        critic_loss = F.mse_loss(first.to(wanted.dtype), wanted) + F.mse_loss(second.to(wanted.dtype), wanted)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        critic.requires_grad_(False)
        with options.autocast():
            new_act, log_p = actor(seen, options.cast(normal(seed + 6, 32, 3)))
            value = torch.min(*critic(seen, new_act))
        actor_loss = (log_alpha.exp().detach() * log_p - value.to(log_p.dtype)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        critic.requires_grad_(True)
        alpha_loss = -(log_alpha * (log_p.detach() - 3.0)).mean()
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                slow.lerp_(fast, 1 - follow if options.fault == "follow" else follow)
        show(step, critic=critic_loss, actor=actor_loss, alpha=alpha_loss)
