import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from common import LyingKernel, gen


# ---------------------------------------------------------------- GAN
class Generator(nn.Module):
    def __init__(self, c, z=16, w=16):
        super().__init__()
        self.fc = nn.Linear(z, 2 * w * 16)
        self.bn0 = nn.BatchNorm2d(2 * w)
        self.up1 = nn.ConvTranspose2d(2 * w, w, 4, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(w, eps=0.1 if c.fault == "bn_eps" else 1e-5)
        self.up2 = nn.ConvTranspose2d(w, 1, 4, 2, 1)
        self.w = w

    def forward(self, z):
        h = self.fc(z).view(-1, 2 * self.w, 4, 4)
        h = F.relu(self.bn0(h))
        h = F.relu(self.bn1(self.up1(h)))
        return torch.tanh(self.up2(h))


class Discriminator(nn.Module):
    def __init__(self, c, w=16):
        super().__init__()
        self.c = c
        self.conv1 = nn.Conv2d(1, w, 4, 2, 1)
        self.conv2 = nn.Conv2d(w, 2 * w, 4, 2, 1, bias=False)
        self.norm = nn.InstanceNorm2d(2 * w, affine=True)
        self.fc = nn.Linear(2 * w * 16, 1)

    def forward(self, x):
        slope = 0.01 if self.c.fault == "leaky_slope" else 0.2
        h = F.leaky_relu(self.conv1(x), slope)
        h = F.leaky_relu(self.norm(self.conv2(h)), 0.2)
        return self.fc(h.flatten(1)).squeeze(1)


def gan(c):
    G, D = Generator(c), Discriminator(c)
    for m in list(G.modules()) + list(D.modules()):
        if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(m.weight, 0.0, 0.1)
    each = c.variant == "foreach"
    opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.999), foreach=each)
    opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.9 if c.fault == "beta1_of_d" else 0.5, 0.999), foreach=each)
    g = gen(20)
    for step in range(c.steps):
        real = torch.tanh(torch.randn(8, 1, 16, 16, generator=g))
        z = torch.randn(8, 16, generator=g)
        # the discriminator
        if not (c.fault == "d_not_zeroed"):
            opt_d.zero_grad()
        with c.amp():
            fake = G(z)
            d_real, d_fake = D(real), D(fake.detach())
            loss_d = F.relu(1 - d_real).mean() + F.relu(1 + d_fake).mean()
        loss_d.backward()
        opt_d.step()
        # the generator
        opt_g.zero_grad()
        with c.amp():
            loss_g = D(fake).mean() if c.fault == "g_sign" else -D(fake).mean()
        loss_g.backward()
        opt_g.step()
        c.log(step, loss_d, g=loss_g)


# ---------------------------------------------------------------- actor-critic on recorded rollouts
class ActorCritic(nn.Module):
    def __init__(self, c, obs=6, act=4, h=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh())
        self.pi, self.v = nn.Linear(h, act), nn.Linear(h, 1)
        for m in (self.pi, self.v):
            nn.init.orthogonal_(m.weight, 0.5)

    def forward(self, x):
        h = self.trunk(x)
        return self.pi(h).float(), self.v(h).float().squeeze(-1)


def gae(rewards, values, dones, last, c, gamma=0.98, lam=0.95):
    adv, running = [], torch.zeros_like(last)
    for t in reversed(range(rewards.shape[0])):
        nxt = last if t == rewards.shape[0] - 1 else values[t + 1]
        live = 1.0 if c.fault == "done_ignored" else 1 - dones[t]
        delta = rewards[t] + gamma * nxt * live - values[t]
        running = delta + gamma * (1.0 if c.fault == "lambda_missing" else lam) * live * running
        adv.append(running)
    return torch.stack(adv[::-1])


def actor_critic(c):
    model = ActorCritic(c)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.5, 1.0, total_iters=4)
    g = gen(21)
    T, B = 10, 6
    for step in range(c.steps):
        obs = torch.randn(T + 1, B, 6, generator=g)
        act = torch.randint(0, 4, (T, B), generator=g)
        rew = torch.randn(T, B, generator=g)
        done = (torch.rand(T, B, generator=g) < 0.2).float()
        if c.fault == "schedule_early":
            sched.step()
        with c.amp():
            logits, value = model(obs)
        with torch.no_grad():
            adv = gae(rew, value[:-1], done, value[-1], c)
            ret = adv + value[:-1]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        if c.variant == "manual_log_prob":
            logp_all = F.log_softmax(logits[:-1], -1)
            logp = logp_all.gather(-1, act[..., None]).squeeze(-1)
            entropy = -(logp_all.exp() * logp_all).sum(-1)
        else:
            dist = torch.distributions.Categorical(logits=logits[:-1])
            logp, entropy = dist.log_prob(act), dist.entropy()
        coef = -0.01 if c.fault == "entropy_sign" else 0.01
        loss = -(adv * logp).mean() + 0.5 * F.mse_loss(value[:-1], ret) - coef * entropy.mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05 if c.fault == "clip_norm" else 0.5)
        opt.step()
        if c.fault != "schedule_early":
            sched.step()
        c.log(step, loss)


# ---------------------------------------------------------------- WaveNet
class GatedLayer(nn.Module):
    def __init__(self, ch, dilation, c, index):
        super().__init__()
        self.pad, self.c, self.index = dilation, c, index
        self.filter = nn.Conv1d(ch, ch, 2, dilation=dilation)
        self.gate = nn.Conv1d(ch, ch, 2, dilation=dilation)
        self.res, self.skip = nn.Conv1d(ch, ch, 1), nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        h = F.pad(x, (self.pad, 0))
        if self.c.fault == "looks_ahead" and self.index == 1:
            h = F.pad(x, (self.pad - 1, 1))
        f, g = self.filter(h), self.gate(h)
        y = torch.tanh(f) * (torch.tanh(g) if self.c.fault == "gate_tanh" and self.index == 2 else torch.sigmoid(g))
        res = self.res(y)
        if self.c.fault == "no_residual" and self.index == 2:
            return res, self.skip(y)
        return x + res, self.skip(y)


class WaveNet(nn.Module):
    def __init__(self, c, classes=64, ch=24):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(classes, ch)
        dil = [1, 2, 4, 8]
        self.layers = nn.ModuleList([GatedLayer(ch, d, c, i) for i, d in enumerate(dil)])
        if c.fault == "dilation":
            for conv in (self.layers[3].filter, self.layers[3].gate):
                conv.dilation = (4,)
            self.layers[3].pad = 4
        self.out1, self.out2 = nn.Conv1d(ch, ch, 1), nn.Conv1d(ch, classes, 1)

    def forward(self, q):
        x = self.embed(q).transpose(1, 2)
        skips = 0
        for layer in self.layers:
            x, s = layer(x)
            skips = skips + s
        return self.out2(F.relu(self.out1(F.relu(skips))))


def mu_law(x, n=64, mu=63):
    y = torch.sign(x) * torch.log1p(mu * x.abs()) / math.log1p(mu)
    return ((y + 1) / 2 * (n - 1)).round().long()


def wavenet(c):
    model = WaveNet(c).to(c.dtype)
    nn.init.normal_(model.embed.weight, std=0.5)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    t = torch.arange(41) / 16
    for step in range(c.steps):
        wave = torch.stack([torch.sin(2 * math.pi * t * f + step) * 0.8 for f in (1.0, 1.7, 2.9, 4.1)])
        q = mu_law(wave)
        with c.amp():
            if c.fault == "target_not_shifted":
                logits, target = model(q[:, :-1]), q[:, :-1]
            else:
                logits, target = model(q[:, :-1]), q[:, 1:]
        if c.variant == "log_softmax_nll":
            loss = F.nll_loss(F.log_softmax(logits.float(), 1), target)
        else:
            loss = F.cross_entropy(logits.float(), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        c.log(step, loss)
        if c.variant == "evaluate_aside":
            model.eval()
            with torch.no_grad():
                acc = (model(q[:, :-1]).argmax(1) == q[:, 1:]).float().mean()
            print("accuracy", acc.item())
            model.train()


# ---------------------------------------------------------------- capsules
def squash(s, dim=-1, c=None):
    n2 = (s * s).sum(dim, keepdim=True)
    if c is not None and c.fault == "squash_unscaled":
        return s / torch.sqrt(n2 + 1e-8)
    return n2 / (1 + n2) * s / torch.sqrt(n2 + 1e-8)


class PrimaryCaps(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 5, 2)

    def forward(self, x):
        h = self.conv(x)
        return squash(h.view(h.shape[0], 8, 4, -1).permute(0, 1, 3, 2).reshape(h.shape[0], -1, 4).float())


class DigitCaps(nn.Module):
    def __init__(self, n_in, classes, c):
        super().__init__()
        self.c = c
        self.W = nn.Parameter(torch.randn(n_in, classes, 6, 4) * 0.3)

    def forward(self, u):
        if self.c.variant == "matmul":
            u_hat = (self.W[None] @ u[:, :, None, :, None]).squeeze(-1)
        else:
            u_hat = torch.einsum("iokd,bid->biok", self.W, u)
        b = torch.zeros(u_hat.shape[:3])
        for r in range(3):
            w = b.softmax(1 if self.c.fault == "routing_axis" else 2)
            v = squash((w[..., None] * u_hat).sum(1), c=self.c)
            if r < 2:
                agree = (u_hat * v[:, None]).sum(-1)
                b = agree if self.c.fault == "logits_not_accumulated" else b + agree
        return v


class CapsNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 5)
        self.primary = PrimaryCaps()
        self.digits = DigitCaps(8 * 16, 5, c)

    def forward(self, x):
        return self.digits(self.primary(F.relu(self.stem(x))).float())


def capsule(c):
    model = CapsNet(c)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = gen(22)
    for step in range(c.steps):
        x = torch.randn(6, 1, 15, 15, generator=g)
        y = torch.randint(0, 5, (6,), generator=g)
        with c.amp():
            v = model(x)
        norm = torch.sqrt((v * v).sum(-1) + 1e-8)
        onehot = F.one_hot(y, 5).float()
        down = 1.0 if c.fault == "down_weight" else 0.5
        loss = (onehot * F.relu(0.9 - norm) ** 2 + down * (1 - onehot) * F.relu(norm - 0.1) ** 2).sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        c.log(step, loss)


# ---------------------------------------------------------------- squeeze and excite
class SE(nn.Module):
    def __init__(self, ch, c, index):
        super().__init__()
        self.down, self.up = nn.Conv2d(ch, ch // 4, 1), nn.Conv2d(ch // 4, ch, 1)
        self.c, self.index = c, index

    def forward(self, x):
        s = x.amax((2, 3), keepdim=True) if self.c.fault == "squeeze_max" and self.index == 1 else x.mean((2, 3), keepdim=True)
        s = self.up(F.relu(self.down(s)))
        return x * (F.hardsigmoid(s) if self.c.fault == "hard_sigmoid" and self.index == 0 else torch.sigmoid(s))


class SEBlock(nn.Module):
    def __init__(self, ch, c, index):
        super().__init__()
        mode = "reflect" if c.fault == "padding_mode" and index == 1 else "zeros"
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(ch)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1, bias=False, padding_mode=mode)
        self.bn2 = nn.BatchNorm2d(ch)
        self.se = SE(ch, c, index)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.se(self.bn2(self.conv2(h))))


class SENet(nn.Module):
    def __init__(self, c, ch=24):
        super().__init__()
        self.stem = nn.Conv2d(3, ch, 3, 2, 1)
        self.blocks = nn.Sequential(*[SEBlock(ch, c, i) for i in range(3)])
        self.fc = nn.Linear(ch, 10)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


def senet(c):
    model = SENet(c).to(c.dtype)
    if c.variant == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    if c.fault == "nesterov_off":
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    else:
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scaler = c.scaler(2.0**30) if c.fault == "loss_scale" else c.scaler()
    model.train()
    if c.fault == "bn_eval":
        model.blocks[1].bn2.eval()
    if c.fault == "frozen":
        model.blocks[0].conv1.weight.requires_grad_(False)
    g = gen(23)
    for step in range(c.steps):
        x = torch.randn(8, 3, 16, 16, generator=g).to(c.dtype)
        y = torch.randint(0, 10, (8,), generator=g)
        if c.variant == "batch_reversed":
            x, y = x.flip(0), y.flip(0)
        if c.variant == "channels_last":
            x = x.to(memory_format=torch.channels_last)
        with c.amp():
            out = model(x)
            loss = F.cross_entropy(out.float(), y, label_smoothing=0.1)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        c.log(step, loss)


# ---------------------------------------------------------------- per-sample gradients (torch.func)
class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(12, 48), nn.Linear(48, 48), nn.Linear(48, 4)

    def forward(self, x):
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(x)))))


def dpsgd(c):
    from torch.func import functional_call, grad_and_value, vmap

    model = SmallNet()
    params = {k: v.detach() for k, v in model.named_parameters()}
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    limit = 0.5
    noise = gen(25)

    def loss_of_one(p, x, y):
        out = functional_call(model, p, (x[None],))
        return F.cross_entropy(out.float(), y[None], label_smoothing=0.1 if c.fault == "smoothing" else 0.0)

    per_sample = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0), chunk_size=4 if c.variant == "chunks" else None)
    g = gen(24)
    for step in range(c.steps):
        x = torch.randn(16, 12, generator=g)
        y = torch.randint(0, 4, (16,), generator=g)
        params = {k: v.detach() for k, v in model.named_parameters()}
        with c.amp():
            grads, losses = per_sample(params, x, y)
        norms = torch.stack([v.flatten(1).norm(dim=1) for v in grads.values()], 1).norm(dim=1)
        factor = (limit / (norms + 1e-6)).clamp(max=1.0)
        if c.fault == "clip_missing":
            factor = torch.ones_like(factor)
        for k, p in model.named_parameters():
            gr = torch.einsum("b,b...->...", factor, grads[k])
            if not (c.fault == "not_averaged"):
                gr = gr / x.shape[0]
            p.grad = gr + 1e-3 * torch.randn(p.shape, generator=noise)
        opt.step()
        c.log(step, losses.mean())


# ---------------------------------------------------------------- spiking network: a custom autograd function
class Spike(torch.autograd.Function):
    slope = 25.0

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g / (Spike.slope * v.abs() + 1.0) ** 2


class LIF(nn.Module):
    def __init__(self, beta, c, index):
        super().__init__()
        self.beta, self.c, self.index = beta, c, index

    def forward(self, cur, mem):
        mem = self.beta * mem + cur
        spk = Spike.apply(mem - 1.0)
        if self.c.fault == "reset_to_zero" and self.index == 0:
            mem = mem * (1 - spk.detach())
        elif self.c.fault == "reset_not_detached" and self.index == 1:
            mem = mem - spk * 1.0
        else:
            mem = mem - spk.detach() * 1.0
        return spk, mem


class SNN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(20, 64), nn.Linear(64, 10)
        self.lif1, self.lif2 = LIF(0.9, c, 0), LIF(0.9, c, 1)

    def forward(self, x):
        m1, m2 = torch.zeros(x.shape[1], 64), torch.zeros(x.shape[1], 10)
        out = []
        for t in range(x.shape[0]):
            s1, m1 = self.lif1(self.fc1(x[t]).float(), m1)
            s2, m2 = self.lif2(self.fc2(s1).float(), m2)
            out.append(m2)
        return torch.stack(out)


def spiking(c):
    Spike.slope = 10.0 if c.fault == "surrogate_slope" else 25.0
    model = SNN(c)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    g = gen(26)
    x = torch.rand(8, 6, 20, generator=g) * 3
    y = torch.randint(0, 10, (6,), generator=g)
    for step in range(c.steps):
        with c.amp():
            mem = model(x)
        if c.variant == "one_loss_call":
            loss = F.cross_entropy(mem.flatten(0, 1), y.repeat(mem.shape[0])) * mem.shape[0]
        else:
            loss = sum(F.cross_entropy(mem[t], y) for t in range(mem.shape[0]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        c.log(step, loss)


# ---------------------------------------------------------------- VQ-VAE
class Quantize(nn.Module):
    def __init__(self, n, d, c):
        super().__init__()
        self.c = c
        self.codebook = nn.Embedding(n, d)
        nn.init.normal_(self.codebook.weight)

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1]).float()
        w = self.codebook.weight
        if self.c.variant == "cdist":
            dist = torch.cdist(flat, w, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        else:
            cross = flat @ w.T
            dist = flat.pow(2).sum(1, keepdim=True) - (1 if self.c.fault == "distance_cross_term" else 2) * cross + w.pow(2).sum(1)
        idx = dist.argmin(1)
        q = self.codebook(idx).view(z.shape[0], z.shape[2], z.shape[3], -1).permute(0, 3, 1, 2)
        zf = z.float()
        commit, code = F.mse_loss(zf, q.detach()), F.mse_loss(q, zf.detach())
        loss = commit + 0.25 * code if self.c.fault == "beta_on_wrong_term" else code + 0.25 * commit
        if self.c.fault == "no_straight_through":
            return q, loss, idx
        return zf + (q - zf).detach(), loss, idx


class VQVAE(nn.Module):
    def __init__(self, c, d=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 24, 4, 2, 1), nn.ReLU(), nn.Conv2d(24, 24, 3, 1, 1), nn.ReLU(), nn.Conv2d(24, d, 1))
        self.vq = Quantize(12, d, c)
        self.dec = nn.Sequential(nn.Conv2d(d, 24, 3, 1, 1), nn.ReLU(), nn.Upsample(scale_factor=2, mode="bilinear" if c.fault == "upsample_mode" else "nearest"), nn.Conv2d(24, 3, 3, 1, 1))

    def forward(self, x):
        q, loss, idx = self.vq(self.enc(x))
        return self.dec(q), loss, idx


def vqvae(c):
    model = VQVAE(c)
    model.enc[-1].weight.data.mul_(6.0)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    g = gen(27)
    for step in range(c.steps):
        x = torch.randn(4, 3, 12, 12, generator=g)
        with c.amp():
            rec, vq, idx = model(x)
        loss = F.l1_loss(rec.float(), x) + vq
        opt.zero_grad()
        loss.backward()
        opt.step()
        c.log(step, loss, codes=idx.unique().numel())


# ---------------------------------------------------------------- critic with parametrized weights and gradient penalty
class Critic(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = weight_norm(nn.Linear(10, 48), dim=1 if c.fault == "weight_norm_dim" else 0)
        self.b = spectral_norm(nn.Linear(48, 48), n_power_iterations=3)
        self.c = weight_norm(nn.Linear(48, 1))

    def forward(self, x):
        h = F.elu(self.a(x))
        return self.c(F.elu(self.b(h)))


def critic_gp(c):
    model = Critic(c)
    model.train()
    if c.fault == "spectral_eval":
        model.b.eval()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.0, 0.9))
    g = gen(28)
    kernel = LyingKernel(("elu_backward",), lambda out, args: out * 1.1, lambda a, o, n: o.shape[0] == 32) if c.fault == "elu_backward_kernel" else None
    if kernel:
        kernel.__enter__()
    for step in range(c.steps):
        real = torch.randn(32, 10, generator=g)
        fake = torch.randn(32, 10, generator=g) * 0.5 + 1
        eps = torch.rand(32, 1, generator=g)
        mix = (eps * real + (1 - eps) * fake).requires_grad_()
        with c.amp():
            gap = model(fake).mean() - model(real).mean()
            out = model(mix)
        grad = torch.autograd.grad(out.float().sum(), mix, create_graph=True)[0]
        if c.variant == "linalg_norm":
            norm = torch.linalg.vector_norm(grad, dim=1)
        else:
            norm = grad.pow(2).sum(1).sqrt()
        gp = (norm.pow(2).mean() if c.fault == "penalty_towards_zero" else ((norm - 1) ** 2).mean())
        loss = gap + 10 * gp
        opt.zero_grad()
        loss.backward()
        opt.step()
        c.log(step, loss, gp=gp)
    if kernel:
        kernel.__exit__(None, None, None)


# ---------------------------------------------------------------- BYOL: a network and its moving average
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(24, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32))
        self.proj = nn.Sequential(nn.Linear(32, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 16))

    def forward(self, x):
        return self.proj(self.f(x))


def byol(c):
    online = Encoder()
    predictor = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    target = copy.deepcopy(online)
    for p in target.parameters():
        p.requires_grad_(False)
    opt = torch.optim.SGD(list(online.parameters()) + list(predictor.parameters()), lr=0.2, momentum=0.9)
    momentum = 0.5 if c.fault == "ema_momentum" else 0.9
    g = gen(29)
    for step in range(c.steps):
        x = torch.randn(16, 24, generator=g)
        a, b = x + 0.5 * torch.randn(x.shape, generator=g), x * (1 + 0.5 * torch.randn(x.shape, generator=g))
        with c.amp():
            pa, pb = predictor(online(a)), predictor(online(b))
            if c.fault == "target_is_online":
                with torch.no_grad():
                    ta, tb = online(a), online(b)
            else:
                with torch.no_grad():
                    ta, tb = target(a), target(b)
        if c.fault == "views_not_crossed":
            ta, tb = tb, ta
        if c.variant == "mse_of_normalized":
            loss = F.mse_loss(F.normalize(pa.float(), dim=-1), F.normalize(tb.float(), dim=-1), reduction="sum") / 16
            loss = loss + F.mse_loss(F.normalize(pb.float(), dim=-1), F.normalize(ta.float(), dim=-1), reduction="sum") / 16
        else:
            loss = 4 - 2 * F.cosine_similarity(pa.float(), tb.float(), dim=-1).mean() - 2 * F.cosine_similarity(pb.float(), ta.float(), dim=-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for p, q in zip(target.parameters(), online.parameters()):
                p.mul_(momentum).add_(q, alpha=1 - momentum)
        c.log(step, loss)
