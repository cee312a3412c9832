"""Reinforcement learning on a buffer of made-up transitions."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

from common import autocast, build, cfg, fault, probe, rand, randint, randn, report, variant


class Dueling(nn.Module):
    def __init__(self, actions=5):
        super().__init__()
        self.torso = nn.Sequential(nn.Conv2d(4, 16, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 1), nn.ReLU(), nn.Flatten())
        self.value = nn.Sequential(nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 1))
        self.advantage = nn.Sequential(nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, actions))

    def forward(self, frames):
        h = self.torso(frames / 255.0)
        v, a = self.value(h), self.advantage(h)
        return v + a - a.mean(1, keepdim=True)


def dqn():
    """Dueling double DQN, three-step returns, weights of importance, a soft target."""
    online = build("online", Dueling)
    target = copy.deepcopy(online).requires_grad_(False)
    cfg.roots["target"] = target
    with torch.no_grad():                                       # as if it lagged behind
        for i, p in enumerate(target.parameters()):
            p.add_(randn(900 + i, *p.shape), alpha=0.02)
    optimizer = torch.optim.RMSprop(online.parameters(), lr=1e-3, alpha=0.95, eps=1e-3, centered=True)
    gamma, tau, n = 0.97, 0.1, 3

    @torch.no_grad()
    def sync():
        if variant("foreach_sync"):
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
            return
        for i, (t, p) in enumerate(zip(target.parameters(), online.parameters())):
            t.copy_(probe(f"synced.{i}", tau * p + (1 - tau) * t))

    for step in range(cfg.steps):
        frames = (rand(10 + step, 24, 4, 16, 16) * 255).floor()
        later = (rand(30 + step, 24, 4, 16, 16) * 255).floor()
        actions, rewards = randint(50 + step, 5, 24), randn(70 + step, 24, n)
        done = (rand(90 + step, 24, n) < 0.1).to(rewards.dtype)
        weights = 0.4 + rand(110 + step, 24)
        with torch.no_grad():
            alive, returns = torch.ones(24, dtype=rewards.dtype), torch.zeros(24, dtype=rewards.dtype)
            for k in range(n):
                returns = returns + gamma ** k * alive * rewards[:, k]
                alive = alive * (1 - done[:, k])
            with autocast():
                best = online(later).argmax(1, keepdim=True)
                value = target(later).gather(1, best).squeeze(1)
            power = n - 1 if fault("gamma_power") else n
            goal = probe("goal", returns + gamma ** power * alive * value.float().to(returns.dtype))
        with autocast():
            q = online(frames).gather(1, actions[:, None]).squeeze(1)
        loss = (weights * F.smooth_l1_loss(q.to(goal.dtype), goal, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        if fault("early_sync"):
            sync()
            optimizer.step()
        else:
            optimizer.step()
            sync()
        report(step, loss)


class Twin(nn.Module):
    """Two critics as one stack of weights."""

    def __init__(self, inputs, hidden=48):
        super().__init__()
        sizes = [inputs, hidden, hidden, 1]
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(2, b, a) * a ** -0.5) for a, b in zip(sizes, sizes[1:]))
        self.biases = nn.ParameterList(nn.Parameter(torch.randn(2, 1, b) * 0.1) for b in sizes[1:])

    def forward(self, state, action):
        x = torch.cat([state, action], -1)
        if variant("loop_critics"):
            both = []
            for k in range(2):
                h = x
                for i, (w, b) in enumerate(zip(self.weights, self.biases)):
                    h = F.linear(h, w[k], b[k, 0])
                    h = F.relu(h) if i < 2 else h
                both.append(h.squeeze(-1))
            return torch.stack(both)
        x = x.expand(2, *x.shape)
        for i, (w, b) in enumerate(zip(self.weights, self.biases)):
            x = torch.baddbmm(b, x, w.transpose(1, 2))
            x = F.relu(x) if i < 2 else x
        return x.squeeze(-1)


class Agent(nn.Module):
    def __init__(self, states=11, actions=3):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(states, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                                   nn.Linear(64, actions), nn.Tanh())
        self.critic = Twin(states + actions)
        self.old_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.old_critic = copy.deepcopy(self.critic).requires_grad_(False)


def td3():
    """Twin delayed policy gradient."""
    agent = build("agent", Agent, 3)
    with torch.no_grad():
        for i, p in enumerate([*agent.old_actor.parameters(), *agent.old_critic.parameters()]):
            p.add_(randn(700 + i, *p.shape), alpha=0.03)
    critic_step = torch.optim.Adam(agent.critic.parameters(), lr=1e-3)
    actor_step = torch.optim.Adam(agent.actor.parameters(), lr=1e-3)
    for step in range(cfg.steps):
        s, a, s2 = randn(step, 64, 11), rand(20 + step, 64, 3) * 2 - 1, randn(40 + step, 64, 11)
        r, d = randn(60 + step, 64), (rand(80 + step, 64) < 0.1).to(cfg.dtype)
        with torch.no_grad(), autocast():
            noise = (randn(100 + step, 64, 3) * 0.2).clamp(-0.3, 0.3)
            a2 = (agent.old_actor(s2) + noise).clamp(-1, 1)
            q1, q2 = agent.old_critic(s2, a2)
            lower = torch.max(q1, q2) if fault("max_of_twins") else torch.min(q1, q2)
            probe("lower", lower)
            y = r + 0.98 * (1 - d) * lower
        with autocast():
            q = agent.critic(s, a)
        loss = F.mse_loss(q.float(), y.float().expand(2, -1)) if cfg.precision != "fp64" else F.mse_loss(q, y.expand(2, -1))
        critic_step.zero_grad()
        loss.backward()
        critic_step.step()
        gain = torch.zeros(())
        if step % 2 == 1:
            agent.critic.requires_grad_(False)
            with autocast():
                pi = agent.actor(s)
                gain = -agent.critic(s, pi)[0].mean()
            actor_step.zero_grad()
            gain.backward()
            actor_step.step()
            agent.critic.requires_grad_(True)
            with torch.no_grad():
                for old, new in ((agent.old_actor, agent.actor), (agent.old_critic, agent.critic)):
                    for t, p in zip(old.parameters(), new.parameters()):
                        t.mul_(0.9).add_(p, alpha=0.1)
        report(step, loss, gain=gain)
