"""Flows, adversarial networks, diffusion, codes."""
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from common import autocast, build, cfg, fault, generator, probe, rand, randint, randn, report, variant


class MaskedLinear(nn.Linear):
    def __init__(self, inputs, outputs, mask):
        super().__init__(inputs, outputs)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


class MADE(nn.Module):
    def __init__(self, size, hidden, strict=False):
        super().__init__()
        first, middle = torch.arange(1, size + 1), torch.arange(hidden) % (size - 1) + 1
        last = torch.arange(1, size + 1)
        inner = middle[:, None] > middle[None, :] if strict else middle[:, None] >= middle[None, :]
        self.one = MaskedLinear(size, hidden, (middle[:, None] >= first[None, :]).float())
        self.two = MaskedLinear(hidden, hidden, inner.float())
        self.three = MaskedLinear(hidden, 2 * size, (last[:, None] > middle[None, :]).float().repeat(2, 1))

    def forward(self, x):
        h = torch.tanh(self.one(x))
        h = torch.tanh(self.two(h))
        shift, scale = self.three(h).chunk(2, -1)
        scale = 2 * torch.tanh(scale / 2)
        return (x - shift) * torch.exp(-scale), -scale.sum(-1)


class BatchNormFlow(nn.Module):
    def __init__(self, size, momentum=0.1):
        super().__init__()
        self.log_gamma, self.beta = nn.Parameter(torch.full((size,), 0.1)), nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.momentum = momentum

    def forward(self, x):
        mean, var = x.mean(0), x.var(0, unbiased=False) + 1e-5
        with torch.no_grad():
            self.mean.lerp_(mean.to(self.mean.dtype), self.momentum)
            self.var.lerp_(var.to(self.var.dtype), self.momentum)
        y = (x - mean) / var.sqrt() * self.log_gamma.exp() + self.beta
        half = 1.0 if fault("double_log_var") else 0.5
        return y, (self.log_gamma - half * var.log()).sum().expand(len(x))


class Reverse(nn.Module):
    def forward(self, x):
        return x.flip(-1), torch.zeros(len(x), dtype=x.dtype)


def maf():
    """Masked autoregressive flow with batch norms between."""
    class Flow(nn.Module):
        def __init__(self, size=8):
            super().__init__()
            self.flows = nn.ModuleList()
            for k in range(3):
                self.flows.extend([MADE(size, 32, k == 1 and fault("strict_mask")), BatchNormFlow(size), Reverse()])

        def forward(self, x):
            total = 0
            for flow in self.flows:
                x, log_det = flow(x)
                total = total + log_det
            return x, total

    flow = build("flow", Flow)
    optimizer = torch.optim.Adamax(flow.parameters(), lr=2e-3)
    for step in range(cfg.steps):
        x = randn(step, 64, 8)
        x = torch.cat([x[:, :4], x[:, :4] * 0.5 + 0.3 * x[:, 4:].sin()], 1)
        optimizer.zero_grad()
        with autocast():
            z, log_det = flow(x)
        probe("log_det", log_det)
        z, log_det = z.to(torch.promote_types(z.dtype, torch.float32)), log_det.to(torch.promote_types(z.dtype, torch.float32))
        loss = (0.5 * z.pow(2).sum(-1) + 4 * math.log(2 * math.pi) - log_det).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        optimizer.step()
        report(step, loss)


class Up(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b)

    def forward(self, x):
        return F.relu(self.norm(self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))))


class Down(nn.Module):
    def __init__(self, a, b, slope=0.2):
        super().__init__()
        spectral = nn.utils.parametrizations.spectral_norm
        self.conv, self.skip = spectral(nn.Conv2d(a, b, 3, padding=1)), spectral(nn.Conv2d(a, b, 1, bias=False))
        self.slope = slope

    def forward(self, x):
        y = F.avg_pool2d(F.leaky_relu(self.conv(x), self.slope), 2)
        return (y + F.avg_pool2d(self.skip(x), 2)) / math.sqrt(2)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(16, 32 * 16)
        self.ups = nn.Sequential(Up(32, 24), Up(24, 16))
        self.rgb = nn.Conv2d(16, 3, 1)

    def forward(self, z):
        return torch.tanh(self.rgb(self.ups(self.start(z).view(-1, 32, 4, 4))))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.downs = nn.Sequential(Down(3, 16), Down(16, 24, 0.01 if fault("default_slope") else 0.2))
        self.out = nn.Linear(24 * 16, 1)

    def forward(self, x):
        return self.out(self.downs(x).flatten(1)).squeeze(1)


def r1gan():
    """Hinge losses, gradient penalty on real images, an average of the generator."""
    gen, disc = build("gen", Generator, 1), build("disc", Critic, 2)
    average = copy.deepcopy(gen).requires_grad_(False)
    g_step = torch.optim.Adam(gen.parameters(), lr=2e-3, betas=(0.0, 0.99))
    d_step = torch.optim.Adam(disc.parameters(), lr=2e-3, betas=(0.0, 0.99))
    for step in range(cfg.steps):
        real = (rand(step, 12, 3, 16, 16) * 2 - 1).requires_grad_()
        with autocast():
            fake = gen(randn(20 + step, 12, 16))
            on_real, on_fake = disc(real), disc(fake.detach().to(real.dtype))
        slopes, = torch.autograd.grad(on_real.sum(), real, create_graph=True)
        norms = slopes.flatten(1).norm(dim=1) if fault("unsquared_penalty") else slopes.pow(2).flatten(1).sum(1)
        penalty = probe("penalty", norms).mean()
        d_loss = F.relu(1 - on_real.float()).mean() + F.relu(1 + on_fake.float()).mean() + 5.0 * penalty
        d_step.zero_grad()
        d_loss.backward()
        d_step.step()
        with autocast():
            fake = gen(randn(40 + step, 12, 16))
            g_loss = -disc(fake.to(real.dtype)).mean()
        g_step.zero_grad()
        g_loss.backward()
        g_step.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), gen.parameters()):
                a.lerp_(p, 0.05)
            for a, b in zip(average.buffers(), gen.buffers()):
                a.copy_(b)
        report(step, d_loss, g_loss=g_loss)


class TimeEmbedding(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.SiLU(), nn.Linear(4 * size, size))

    def forward(self, t):
        half = self.size // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half) / (half if not fault("half_minus_one") else half - 1))
        angles = t[:, None].float() * rates
        parts = [angles.cos(), angles.sin()] if fault("cos_first") else [angles.sin(), angles.cos()]
        return self.mlp(torch.cat(parts, 1).to(cfg.dtype))


class ResBlock(nn.Module):
    def __init__(self, a, b, time):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, a), nn.Conv2d(a, b, 3, padding=1)
        self.shift = nn.Linear(time, b)
        self.norm2, self.conv2 = nn.GroupNorm(4, b), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.shift(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Denoiser(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.time = TimeEmbedding(32)
        self.begin = nn.Conv2d(3, width, 3, padding=1)
        self.down = ResBlock(width, 2 * width, 32)
        self.mid = ResBlock(2 * width, 2 * width, 32)
        self.up = ResBlock(3 * width, width, 32)
        self.end = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, t):
        t = self.time(t)
        a = self.begin(x)
        b = self.mid(self.down(F.avg_pool2d(a, 2), t), t)
        return self.end(self.up(torch.cat([a, F.interpolate(b, scale_factor=2)], 1), t))


def ddpm():
    """Diffusion by hand: cosine schedule, warm-up, average of weights."""
    net = build("net", Denoiser, 4)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 5))
    steps = 100
    curve = torch.cos((torch.arange(steps + 1, dtype=torch.float64) / steps + 0.008) / 1.008 * math.pi / 2) ** 2
    betas = (1 - curve[1:] / curve[:-1]).clamp(max=0.999)
    alpha_bar = torch.cumprod(1 - betas, 0).to(torch.float64 if cfg.precision == "fp64" else torch.float32)
    for step in range(cfg.steps):
        x, noise, t = rand(step, 8, 3, 8, 8) * 2 - 1, randn(20 + step, 8, 3, 8, 8), randint(40 + step, steps - 1, 8) + 1
        level = probe("level", alpha_bar[t - 1 if fault("level_before") else t].view(-1, 1, 1, 1).to(cfg.dtype))
        noisy = level.sqrt() * x + (1 - level).sqrt() * noise
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            guess = net(noisy, t)
        loss = F.mse_loss(guess.to(noise.dtype), noise)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), net.parameters()):
                a.mul_(0.95).add_(p.detach(), alpha=0.05)
        if variant("sampling"):
            average.eval()
            with torch.no_grad(), autocast():
                sample, own = torch.randn(2, 3, 8, 8, generator=generator(5)).to(cfg.dtype), generator(6)
                for k in (99, 60, 20):
                    level = alpha_bar[k]
                    guess = average(sample, torch.full((2,), k))
                    clean = (sample - (1 - level).sqrt() * guess) / level.sqrt()
                    sample = clean.clamp(-1, 1) + 0.1 * torch.randn(2, 3, 8, 8, generator=own).to(cfg.dtype)
        report(step, loss)


class Codebook(nn.Module):
    def __init__(self, codes, size, decay=0.8):
        super().__init__()
        codebook = torch.randn(codes, size)
        self.register_buffer("codebook", codebook)
        self.register_buffer("sums", codebook.clone())
        self.register_buffer("counts", torch.ones(codes))
        self.decay, self.stale = decay, False

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codebook.t() + self.codebook.pow(2).sum(1)
        index = distance.argmin(1)
        code = self.codebook[index].view_as(x)
        with torch.no_grad():
            hot = F.one_hot(index, len(self.codebook)).to(flat.dtype)
            self.counts.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
            self.sums.mul_(self.decay).add_(hot.t() @ flat, alpha=1 - self.decay)
            total = self.counts.sum()
            smooth = (self.counts + 1e-5) / (total + len(self.counts) * 1e-5) * total
            if not self.stale:
                self.codebook.copy_(self.sums / smooth[:, None])
        return code, F.mse_loss(x, code.detach())


def rvq():
    """Sound to residual codes and back: straight-through gradients, averaged codebooks."""
    class Codec(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv1d(1, 16, 8, 4, 2), nn.ELU(), nn.Conv1d(16, 24, 8, 4, 2), nn.ELU(), nn.Conv1d(24, 8, 1))
            self.quantizers = nn.ModuleList(Codebook(16, 8) for _ in range(3))
            self.decoder = nn.Sequential(nn.Conv1d(8, 24, 1), nn.ELU(), nn.ConvTranspose1d(24, 16, 8, 4, 2), nn.ELU(),
                                         nn.ConvTranspose1d(16, 1, 8, 4, 2))
            self.quantizers[0].stale = fault("stale_codebook")

        def forward(self, wave):
            z = self.encoder(wave).transpose(1, 2)
            left, total, commit = z, torch.zeros_like(z), 0
            for quantizer in self.quantizers:
                code, loss = quantizer(left)
                left, total, commit = left - code.detach(), total + code, commit + loss
            straight = z + (total - z).detach()
            if variant("straight_difference"):
                straight = total.detach() + (z - z.detach())
            return self.decoder(straight.transpose(1, 2)), commit

    codec = build("codec", Codec, 6)
    optimizer = torch.optim.AdamW(codec.parameters(), lr=2e-3, betas=(0.8, 0.99))
    for step in range(cfg.steps):
        t = torch.arange(256).to(cfg.dtype) / 256
        wave = (rand(step, 6, 1, 1) * 40 * t).sin() + 0.2 * randn(20 + step, 6, 1, 256)
        optimizer.zero_grad()
        with autocast():
            again, commit = codec(wave)
        a, b = (torch.stft(w.squeeze(1).to(torch.promote_types(w.dtype, torch.float32)), 32, 8, window=torch.hann_window(32).to(wave.dtype),
                           return_complex=True).abs() for w in (wave, again))
        loss = F.l1_loss(again.to(wave.dtype), wave) + F.l1_loss((b + 1e-3).log(), (a + 1e-3).log()) + 0.25 * commit
        loss.backward()
        optimizer.step()
        report(step, loss)
