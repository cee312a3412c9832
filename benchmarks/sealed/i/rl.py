"""Reinforcement learning: V-trace, decision transformer, world model, C51, policy-value net, implicit Q-learning."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from common import OPTIONS, Script, dtype, fault, full, generator, mlp, noise, variant
from torch import Tensor, nn


class Agent(nn.Module):
    """Convolutions, a recurrent core that is reset where an episode ends, policy and baseline."""

    def __init__(self, actions: int = 5, dim: int = 48) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, stride=2)
        self.conv2 = nn.Conv2d(12, 16, 3, stride=2)
        self.fc = nn.Linear(16 * 9 + actions + 1, dim)
        self.core = nn.LSTMCell(dim, dim)
        self.policy = nn.Linear(dim, actions)
        self.baseline = nn.Linear(dim, 1)
        self.actions = actions

    def forward(self, frame: Tensor, action: Tensor, reward: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
        t, b = frame.shape[:2]
        x = F.relu(self.conv2(F.relu(self.conv1(frame.flatten(0, 1)))))
        extra = [F.one_hot(action, self.actions).to(frame.dtype), reward.clamp(-1, 1)[..., None]]
        x = torch.cat([x.flatten(1), *[e.flatten(0, 1) for e in extra]], -1)
        x = F.relu(self.fc(x)).view(t, b, -1)
        h = c = torch.zeros(b, x.shape[-1], dtype=x.dtype)
        outs = []
        for step in range(t):
            if not fault("no_reset"):
                keep = (~done[step])[:, None].to(x.dtype)
                h, c = h * keep, c * keep
            h, c = self.core(x[step], (h, c))
            outs.append(h)
        out = torch.stack(outs)
        return self.policy(out), self.baseline(out).squeeze(-1)


def v_trace(log_rho: Tensor, discount: Tensor, reward: Tensor, value: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    rho = log_rho.exp()
    clipped = rho.clamp(max=1.0)
    c = rho if fault("no_c_bar") else rho.clamp(max=1.0)
    following = torch.cat([value[1:], last[None]])
    delta = clipped * (reward + discount * following - value)
    carry = torch.zeros_like(last)
    sums = []
    for t in reversed(range(len(reward))):
        carry = delta[t] + discount[t] * c[t] * carry
        sums.append(carry)
    vs = torch.stack(sums[::-1]) + value
    vs_next = torch.cat([vs[1:], last[None]])
    return vs, clipped * (reward + discount * vs_next - value)


class ImpalaScript(Script):
    faults = ("no_reset", "no_c_bar", "early_discount", "rms_alpha")
    variants = ("categorical", "channels_last")
    clip = 40.0

    def setup(self) -> None:
        self.model = self.net(Agent())
        if variant("channels_last"):
            self.model = self.model.to(memory_format=torch.channels_last)
        alpha = 0.9 if fault("rms_alpha") else 0.99
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=6e-4, alpha=alpha, eps=0.01)

    def batch(self, step: int) -> dict[str, Tensor]:
        g = generator(200 + step)
        t, b = 9, 6
        return {
            "frame": torch.rand(t, b, 3, 16, 16, generator=g).to(dtype()),
            "action": torch.randint(0, 5, (t, b), generator=g),
            "reward": torch.randn(t, b, generator=g).to(dtype()),
            "done": torch.rand(t, b, generator=g) < 0.15,
            "behaviour": (torch.randn(t, b, 5, generator=g) * 0.7).to(dtype()),
        }

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits, value = self.model(batch["frame"], batch["action"], batch["reward"], batch["done"])
        logits, value = full(logits), full(value)
        taken = batch["action"][1:, :, None]
        old = full(batch["behaviour"])[:-1].log_softmax(-1).gather(-1, taken).squeeze(-1)
        if variant("categorical"):
            policy = torch.distributions.Categorical(logits=logits[:-1])
            logp, entropy = policy.log_prob(taken.squeeze(-1)), policy.entropy()
        else:
            logs = logits[:-1].log_softmax(-1)
            logp = logs.gather(-1, taken).squeeze(-1)
            entropy = -(logs.exp() * logs).sum(-1)
        done = batch["done"][:-1] if fault("early_discount") else batch["done"][1:]
        discount = 0.97 * (~done).to(logits.dtype)
        with torch.no_grad():
            vs, advantage = v_trace(logp - old, discount, full(batch["reward"])[1:], value[:-1], value[-1])
        policy_loss = -(logp * advantage).sum()
        return (policy_loss + 0.5 * 0.5 * (vs - value[:-1]).pow(2).sum() - 0.01 * entropy.sum()) / 8


class GptBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (y.view(b, n, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln1(x)).chunk(3, -1))
        if variant("sdpa"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            width = d if fault("model_scale") else d // self.heads
            scores = (q @ k.transpose(-1, -2)) * width**-0.5
            future = torch.ones(n, n, dtype=torch.bool).triu(1)
            y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class DecisionTransformer(nn.Module):
    def __init__(self, state: int = 8, action: int = 3, dim: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.embed_return = nn.Linear(1, dim)
        self.embed_state = nn.Linear(state, dim)
        self.embed_action = nn.Linear(action, dim)
        self.embed_time = nn.Embedding(64, dim)
        self.embed_norm = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(GptBlock(dim, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.act = nn.Linear(dim, action)

    def forward(self, returns: Tensor, states: Tensor, actions: Tensor, time: Tensor) -> Tensor:
        b, n = time.shape
        t = self.embed_time(time - 1 if fault("time_shift") else time)
        tokens = [self.embed_return(returns) + t, self.embed_state(states) + t, self.embed_action(actions) + t]
        x = self.embed_norm(torch.stack(tokens, 2).reshape(b, 3 * n, -1))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).view(b, n, 3, -1)
        return torch.tanh(self.act(x[:, :, 0] if fault("return_token") else x[:, :, 1]))


class DecisionScript(Script):
    faults = ("model_scale", "time_shift", "return_token", "decay_norms")
    variants = ("sdpa", "compile")

    def setup(self) -> None:
        self.model = self.net(DecisionTransformer())
        decay = [p for p in self.model.parameters() if p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        if fault("decay_norms"):
            groups = [{"params": decay + rest, "weight_decay": 0.1}]
        self.optimizer = torch.optim.AdamW(groups, lr=2e-3)
        if variant("compile"):
            self.model = torch.compile(self.model, backend="aot_eager")

    def batch(self, step: int) -> tuple[Tensor, ...]:
        g = generator(210 + step)
        reward = torch.rand(8, 12, generator=g)
        returns = reward.flip(1).cumsum(1).flip(1)[..., None] / 10
        states = torch.randn(8, 12, 8, generator=g)
        actions = torch.tanh(states[..., :3] + 0.3 * torch.randn(8, 12, 3, generator=g))
        time = torch.randint(1, 40, (8, 1), generator=g) + torch.arange(12)
        return returns.to(dtype()), states.to(dtype()), actions.to(dtype()), time

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        return F.mse_loss(self.model(*batch), batch[2])


class Rssm(nn.Module):
    def __init__(self, deter: int = 40, stoch: int = 12, embed: int = 32, actions: int = 2) -> None:
        super().__init__()
        self.deter, self.stoch = deter, stoch
        self.pre = nn.Linear(stoch + actions, 40)
        self.gru = nn.GRUCell(40, deter)
        self.prior = mlp(deter, 40, 2 * stoch, act=nn.ELU)
        self.posterior = mlp(deter + embed, 40, 2 * stoch, act=nn.ELU)

    def sample(self, stats: Tensor, eps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, raw = full(stats).chunk(2, -1)
        # Never below 0.1, as in the published world models.
        std = F.softplus(raw) if fault("min_std") else F.softplus(raw) + 0.1
        return mean + std * eps, mean, std

    def imagine(self, h: Tensor, z: Tensor, action: Tensor) -> Tensor:
        return full(self.gru(F.elu(self.pre(torch.cat([z, action], -1))).to(h.dtype), h))


class World(nn.Module):
    def __init__(self, obs: int = 10) -> None:
        super().__init__()
        self.encoder = mlp(obs, 48, 32, act=nn.ELU)
        self.rssm = Rssm()
        self.decoder = mlp(52, 48, obs, act=nn.ELU)
        self.reward = mlp(52, 32, 1, act=nn.ELU)


def normal_kl(m1: Tensor, s1: Tensor, m2: Tensor, s2: Tensor) -> Tensor:
    if variant("distributions"):
        p, q = torch.distributions.Normal(m1, s1), torch.distributions.Normal(m2, s2)
        return torch.distributions.kl_divergence(p, q).sum(-1)
    return (s2.log() - s1.log() + (s1**2 + (m1 - m2) ** 2) / (2 * s2**2) - 0.5).sum(-1)


class DreamerScript(Script):
    faults = ("min_std", "kl_balance", "lambda_bootstrap")
    variants = ("distributions",)

    def setup(self) -> None:
        self.world = self.net(World())
        self.actor = self.net(mlp(52, 40, 2, act=nn.ELU))
        self.critic = self.net(mlp(52, 40, 1, act=nn.ELU))
        self.world_optimizer = torch.optim.Adam(self.world.parameters(), lr=6e-4, eps=1e-5)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=8e-4, eps=1e-5)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=8e-4, eps=1e-5)

    def world_loss(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        t, b = 6, 8
        obs, action = noise(t, b, 10, seed=220 + step), noise(t, b, 2, seed=230 + step)
        reward = obs[..., 0] - 0.5 * action[..., 1]
        eps = full(noise(t, b, 12, seed=240 + step))
        rssm = self.world.rssm
        embed = self.world.encoder(obs)
        h = torch.zeros(b, rssm.deter, dtype=eps.dtype)
        z = torch.zeros(b, rssm.stoch, dtype=eps.dtype)
        total = torch.zeros(())
        features = []
        for i in range(t):
            h = rssm.imagine(h.to(obs.dtype), z.to(obs.dtype), action[i])
            _, m2, s2 = rssm.sample(rssm.prior(h.to(obs.dtype)), eps[i])
            z, m1, s1 = rssm.sample(rssm.posterior(torch.cat([h.to(obs.dtype), embed[i].to(obs.dtype)], -1)), eps[i])
            to_prior = normal_kl(m1.detach(), s1.detach(), m2, s2)
            to_posterior = normal_kl(m1, s1, m2.detach(), s2.detach())
            a = 0.2 if fault("kl_balance") else 0.8
            total = total + (a * to_prior + (1 - a) * to_posterior).mean()
            features.append(torch.cat([h, z], -1))
        f = torch.stack(features)
        recon = (full(self.world.decoder(f.to(obs.dtype))) - obs).pow(2).sum(-1).mean()
        guess = full(self.world.reward(f.to(obs.dtype))).squeeze(-1)
        return recon + (guess - reward).pow(2).mean() + 0.1 * total / t, h.detach(), z.detach()

    def actor_loss(self, h: Tensor, z: Tensor, step: int) -> tuple[Tensor, Tensor]:
        kind = self.world.rssm.pre.weight.dtype
        eps = full(noise(5, len(h), 12, seed=250 + step))
        features = []
        for i in range(5):
            feature = torch.cat([h, z], -1)
            features.append(feature)
            action = torch.tanh(self.actor(feature.to(kind)))
            h = self.world.rssm.imagine(h.to(kind), z.to(kind), action)
            z, _, _ = self.world.rssm.sample(self.world.rssm.prior(h.to(kind)), eps[i])
        f = torch.stack([*features, torch.cat([h, z], -1)])
        reward = full(self.world.reward(f.to(kind))).squeeze(-1)
        value = full(self.critic(f.to(kind))).squeeze(-1)
        gamma, lam = 0.99, 0.95
        carry = value[-1]
        returns = []
        for i in reversed(range(5)):
            after = value[i] if fault("lambda_bootstrap") else value[i + 1]
            carry = reward[i] + gamma * ((1 - lam) * after + lam * carry)
            returns.append(carry)
        target = torch.stack(returns[::-1])
        guess = full(self.critic(f[:-1].detach().to(kind))).squeeze(-1)
        return -target.mean(), 0.5 * (guess - target.detach()).pow(2).mean()

    def run(self) -> None:
        for step in range(OPTIONS.steps):
            with self.autocast():
                loss, h, z = self.world_loss(step)
            self.update(loss, self.world_optimizer)
            with self.autocast():
                actor, critic = self.actor_loss(h, z, step)
            self.actor_optimizer.zero_grad()
            self.critic_optimizer.zero_grad()
            inputs = list(self.actor.parameters())
            self.scaler.scale(actor).backward(inputs=inputs, retain_graph=True)
            self.scaler.scale(critic).backward(inputs=list(self.critic.parameters()))
            self.scaler.step(self.actor_optimizer)
            self.scaler.step(self.critic_optimizer)
            self.report(step, (loss + actor + critic).detach())


class Categorical51(nn.Module):
    def __init__(self, obs: int = 8, actions: int = 4, atoms: int = 21) -> None:
        super().__init__()
        self.actions, self.atoms = actions, atoms
        self.body = mlp(obs, 64, 64)
        self.value = nn.Linear(64, atoms)
        self.advantage = nn.Linear(64, actions * atoms)
        self.register_buffer("support", torch.linspace(-5, 5, atoms))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.body(x))
        a = self.advantage(h).view(-1, self.actions, self.atoms)
        axis = -1 if fault("dueling_axis") else 1
        return self.value(h)[:, None] + a - a.mean(axis, keepdim=True)


class C51Script(Script):
    faults = ("dueling_axis", "integer_atoms", "online_target")
    variants = ("triangle",)

    def setup(self) -> None:
        self.model = self.net(Categorical51())
        self.target = copy.deepcopy(self.model)
        with torch.no_grad():
            for i, p in enumerate(self.target.parameters()):
                p.add_(0.05 * noise(*p.shape, seed=i))
        self.target = self.net(self.target)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, eps=1.5e-4)

    def batch(self, step: int) -> tuple[Tensor, ...]:
        g = generator(260 + step)
        obs, after = torch.randn(32, 8, generator=g), torch.randn(32, 8, generator=g)
        action = torch.randint(0, 4, (32,), generator=g)
        reward = torch.randint(-1, 2, (32,), generator=g).float()
        done = (torch.rand(32, generator=g) < 0.4).float()
        return obs.to(dtype()), after.to(dtype()), action, reward.to(dtype()), done.to(dtype())

    @torch.no_grad()
    def project(self, after: Tensor, reward: Tensor, done: Tensor) -> Tensor:
        support = full(self.model.support)
        step = support[1] - support[0]
        net = self.model if fault("online_target") else self.target
        p = full(net(after)).softmax(-1)
        best = (p * support).sum(-1).argmax(-1)
        p = p[torch.arange(len(p)), best]
        tz = (full(reward)[:, None] + 0.99 * (1 - full(done))[:, None] * support).clamp(-5, 5)
        if variant("triangle"):
            weight = (1 - (tz[:, :, None] - support).abs() / step).clamp(min=0)
            return torch.einsum("bi,bij->bj", p, weight)
        b = (tz - support[0]) / step
        low, high = b.floor().long(), b.ceil().long()
        if not fault("integer_atoms"):
            # Where an atom is hit exactly, both weights would be zero.
            low = torch.where((high > 0) & (low == high), low - 1, low)
            high = torch.where(low == high, high + 1, high)
        m = torch.zeros_like(p)
        m.scatter_add_(1, low, p * (high - b))
        m.scatter_add_(1, high, p * (b - low))
        return m

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        obs, after, action, reward, done = batch
        m = self.project(after, reward, done)
        logits = full(self.model(obs))[torch.arange(len(obs)), action]
        return -(m * logits.log_softmax(-1)).sum(-1).mean()


class BoardBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if fault("late_residual"):
            return F.relu(y) + x
        return F.relu(x + y)


class PolicyValue(nn.Module):
    def __init__(self, dim: int = 24, depth: int = 3, side: int = 7) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(5, dim, 3, padding=1, bias=False), nn.BatchNorm2d(dim), nn.ReLU())
        self.tower = nn.Sequential(*[BoardBlock(dim) for _ in range(depth)])
        self.policy_conv = nn.Sequential(nn.Conv2d(dim, 2, 1), nn.BatchNorm2d(2), nn.ReLU())
        self.policy = nn.Linear(2 * side * side, side * side + 1)
        self.value_conv = nn.Sequential(nn.Conv2d(dim, 1, 1), nn.BatchNorm2d(1), nn.ReLU())
        self.value = mlp(side * side, 32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tower(self.stem(x))
        p = self.policy_conv(x)
        p = p.permute(0, 2, 3, 1).flatten(1) if fault("flatten_order") else p.flatten(1)
        return self.policy(p), torch.tanh(self.value(self.value_conv(x).flatten(1))).squeeze(-1)


class BoardScript(Script):
    faults = ("late_residual", "flatten_order", "warmup_order")
    variants = ("channels_last", "compile")

    def setup(self) -> None:
        self.model = self.net(PolicyValue())
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: min(1.0, (n + 1) / 10))
        if variant("channels_last"):
            self.model = self.model.to(memory_format=torch.channels_last)
        if variant("compile"):
            self.model = torch.compile(self.model, backend="eager")

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(270 + step)
        board = (torch.rand(16, 5, 7, 7, generator=g) < 0.3).to(dtype())
        visits = torch.rand(16, 50, generator=g) ** 4
        outcome = torch.randint(-1, 2, (16,), generator=g).to(dtype())
        if variant("channels_last"):
            board = board.to(memory_format=torch.channels_last)
        return board, (visits / visits.sum(-1, keepdim=True)).to(dtype()), outcome

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        board, visits, outcome = batch
        policy, value = self.model(board)
        return F.cross_entropy(policy, visits) + F.mse_loss(value, outcome)

    def update(self, loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
        if fault("warmup_order"):
            self.scheduler.step()
            return super().update(loss, *optimizers)
        super().update(loss, *optimizers)
        self.scheduler.step()
        return None


class TwinQ(nn.Module):
    def __init__(self, obs: int, act: int) -> None:
        super().__init__()
        self.q1 = mlp(obs + act, 64, 64, 1)
        self.q2 = mlp(obs + act, 64, 64, 1)

    def forward(self, obs: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([obs, act], -1)
        return self.q1(x).squeeze(-1), self.q2(x).squeeze(-1)


class IqlScript(Script):
    faults = ("expectile_side", "tau_swapped", "critic_zero_grad")
    variants = ("foreach", "polyak_lerp")

    def setup(self) -> None:
        self.q = self.net(TwinQ(10, 3))
        self.value = self.net(nn.Sequential(mlp(10, 64, 64, 1)))
        self.actor = self.net(nn.Sequential(mlp(10, 64, 64, 3), nn.Tanh()))
        self.target = self.net(copy.deepcopy(self.q)).requires_grad_(False)
        each = variant("foreach")
        self.q_optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-3, foreach=each)
        self.v_optimizer = torch.optim.Adam(self.value.parameters(), lr=1e-3, foreach=each)
        self.a_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3, foreach=each)

    def batch(self, step: int) -> tuple[Tensor, ...]:
        g = generator(280 + step)
        obs, after = torch.randn(48, 10, generator=g), torch.randn(48, 10, generator=g)
        act = torch.tanh(torch.randn(48, 3, generator=g))
        reward = obs[:, 0] * act[:, 0] + 0.1 * torch.randn(48, generator=g)
        return tuple(x.to(dtype()) for x in (obs, act, reward, after))

    def run(self) -> None:
        for step in range(OPTIONS.steps):
            obs, act, reward, after = self.batch(step)
            with self.autocast():
                with torch.no_grad():
                    q = torch.minimum(*self.target(obs, act))
                advantage = q - self.value(obs).squeeze(-1)
                below = advantage > 0 if fault("expectile_side") else advantage < 0
                weight = torch.where(below, 0.3, 0.7)
                v_loss = (weight * advantage**2).mean()
            self.update(v_loss, self.v_optimizer)
            with self.autocast():
                with torch.no_grad():
                    goal = reward + 0.99 * self.value(after).squeeze(-1)
                q1, q2 = self.q(obs, act)
                q_loss = F.mse_loss(q1, goal) + F.mse_loss(q2, goal)
            if fault("critic_zero_grad"):
                self.scaler.scale(q_loss).backward()
                self.scaler.step(self.q_optimizer)
                self.scaler.update()
            else:
                self.update(q_loss, self.q_optimizer)
            with self.autocast():
                gain = (3.0 * advantage.detach()).exp().clamp(max=100.0)
                a_loss = (gain[:, None] * (self.actor(obs) - act) ** 2).mean()
            self.update(a_loss, self.a_optimizer)
            with torch.no_grad():
                for p, t in zip(self.q.parameters(), self.target.parameters(), strict=True):
                    if variant("polyak_lerp"):
                        t.lerp_(p, 0.05)
                    elif fault("tau_swapped"):
                        t.mul_(0.05).add_(p, alpha=0.95)
                    else:
                        t.mul_(0.95).add_(p, alpha=0.05)
            self.report(step, v_loss.detach() + q_loss.detach() + a_loss.detach())


SCRIPTS = {
    "impala": ImpalaScript,
    "decision": DecisionScript,
    "dreamer": DreamerScript,
    "c51": C51Script,
    "board": BoardScript,
    "iql": IqlScript,
}
