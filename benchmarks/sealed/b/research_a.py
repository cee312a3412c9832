import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from common import gen


# ---------------------------------------------------------------- normalising flow
class Coupling(nn.Module):
    def __init__(self, dim, hidden, flip, c, index):
        super().__init__()
        self.c, self.index = c, index
        mask = (torch.arange(dim) % 2).float()
        if flip:
            mask = 1 - mask
        self.register_buffer("mask", mask)
        self.s = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.t = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.scale = nn.Parameter(torch.full((dim,), 0.7))

    def forward(self, x, logdet):
        frozen = x * self.mask
        s = self.s(frozen).float()
        if not (self.c.fault == "no_tanh" and self.index == 2):
            s = torch.tanh(s)
        s = s * self.scale * (1 - self.mask)
        t = self.t(frozen).float() * (1 - self.mask)
        y = frozen + (1 - self.mask) * (x * torch.exp(s) + t)
        if self.c.fault == "logdet_sign" and self.index == 1:
            return y, logdet - s.sum(dim=1)
        return y, logdet + s.sum(dim=1)


class RealNVP(nn.Module):
    def __init__(self, dim, hidden, n, c):
        super().__init__()
        self.c = c
        self.layers = nn.ModuleList([Coupling(dim, hidden, i % 2 == 1, c, i) for i in range(n)])
        if c.fault == "mask_not_alternating":
            self.layers[2].mask.copy_(1 - self.layers[2].mask)

    def forward(self, x):
        logdet = x.new_zeros(x.shape[0])
        for layer in self.layers:
            x, logdet = layer(x, logdet)
        return x, logdet

    def log_prob(self, x):
        z, logdet = self(x)
        if self.c.variant == "distributions":
            base = torch.distributions.Normal(torch.zeros_like(z), torch.ones_like(z)).log_prob(z).sum(1)
        else:
            base = -0.5 * (z * z).sum(1) - 0.5 * z.shape[1] * math.log(2 * math.pi)
        return base + logdet


def realnvp(c):
    model = RealNVP(8, 64, 4, c)
    for layer in model.layers:
        nn.init.normal_(layer.s[-1].weight, std=0.3)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.randn(c.steps, 32, 8, generator=gen(1)) @ torch.randn(8, 8, generator=gen(2)) * 0.5
    for step in range(c.steps):
        opt.zero_grad()
        with c.amp():
            loss = -model.log_prob(data[step]).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        c.log(step, loss)


# ---------------------------------------------------------------- NeRF
class PosEnc(nn.Module):
    def __init__(self, n, c, first=0):
        super().__init__()
        self.register_buffer("freqs", 2.0 ** torch.arange(first, n + first), persistent=False)

    def forward(self, x):
        a = x[..., None, :] * self.freqs[:, None]
        return torch.cat([x, torch.sin(a).flatten(-2), torch.cos(a).flatten(-2)], -1)


class NeRF(nn.Module):
    def __init__(self, c, width=64):
        super().__init__()
        self.c = c
        self.enc_x = PosEnc(4, c, first=1 if c.fault == "freq_off_by_one" else 0)
        self.enc_d = PosEnc(2, c)
        self.l1 = nn.Linear(3 + 24, width)
        self.l2 = nn.Linear(width, width)
        self.l3 = nn.Linear(width + 27, width)
        self.sigma = nn.Linear(width, 1)
        self.feat = nn.Linear(width, width)
        self.view = nn.Linear(width + 15, width // 2)
        self.rgb = nn.Linear(width // 2, 3)

    def forward(self, x, d):
        e = self.enc_x(x)
        h = F.relu(self.l1(e))
        h = F.relu(self.l2(h))
        h = F.relu(self.l3(torch.cat([e, h] if self.c.fault == "skip_concat_swapped" else [h, e], -1)))
        sigma = F.relu(self.sigma(h)) if self.c.fault == "relu_density" else F.softplus(self.sigma(h))
        v = F.relu(self.view(torch.cat([self.feat(h), self.enc_d(d)], -1)))
        return torch.sigmoid(self.rgb(v)), sigma.squeeze(-1)


def render(c, rgb, sigma, z):
    delta = z[:, 1:] - z[:, :-1]
    delta = torch.cat([delta, torch.full_like(delta[:, :1], 1e2)], -1)
    tau = sigma.float() * delta
    alpha = 1 - torch.exp(-tau)
    if c.variant == "cumsum":
        trans = torch.exp(-(torch.cumsum(tau, -1) - tau))
    elif c.fault == "transmittance_inclusive":
        trans = torch.cumprod(1 - alpha + 1e-10, -1)
    else:
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    w = alpha * trans
    return (w[..., None] * rgb.float()).sum(1), (w * z).sum(1)


def nerf(c):
    model = NeRF(c)
    opt = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.999), eps=1e-8)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    g = gen(3)
    n = 12
    for step in range(c.steps):
        o = torch.rand(24, 3, generator=g) - 0.5
        d = F.normalize(torch.randn(24, 3, generator=g), dim=-1)
        target = torch.rand(24, 3, generator=g)
        z = torch.linspace(0.2, 2.0, n) + torch.rand(24, n, generator=g) * 0.1
        pts = o[:, None] + d[:, None] * z[..., None]
        with c.amp():
            rgb, sigma = model(pts, d[:, None].expand_as(pts))
        color, depth = render(c, rgb, sigma, z)
        loss = F.mse_loss(color, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        c.log(step, loss, psnr=-10 * torch.log10(loss.detach()))


# ---------------------------------------------------------------- physics-informed network
class PINN(nn.Module):
    def __init__(self, width=48, depth=3):
        super().__init__()
        dims = [2] + [width] * depth
        self.hidden = nn.ModuleList([nn.Linear(a, b) for a, b in zip(dims, dims[1:])])
        self.out = nn.Linear(width, 1)
        for m in self.hidden:
            nn.init.xavier_normal_(m.weight, gain=1.6)

    def forward(self, x, t):
        h = torch.cat([x, t], 1)
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.out(h)


def burgers_residual(model, x, t, c):
    u = model(x, t)
    one = torch.ones_like(u)
    if c.variant == "joint_grad":
        u_x, u_t = torch.autograd.grad(u, (x, t), one, create_graph=True)
    else:
        u_x = torch.autograd.grad(u, x, one, create_graph=True)[0]
        u_t = torch.autograd.grad(u, t, one, create_graph=True)[0]
    u_xx = torch.autograd.grad(u_x, t if c.fault == "wrong_variable" else x, one, create_graph=True)[0]
    nu = 0.5 if c.fault == "viscosity" else 0.05
    if c.fault == "convection_sign":
        return u_t - u * u_x - nu * u_xx
    return u_t + u * u_x - nu * u_xx


def pinn(c):
    model = PINN()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    g = gen(4)
    for step in range(c.steps):
        x = (torch.rand(64, 1, generator=g) * 2 - 1).requires_grad_()
        t = torch.rand(64, 1, generator=g).requires_grad_()
        x0 = torch.rand(32, 1, generator=g) * 2 - 1
        tb = torch.rand(32, 1, generator=g)
        with c.amp():
            f = burgers_residual(model, x, t, c)
            initial = model(x0, torch.zeros_like(x0)) + torch.sin(math.pi * x0)
            left, right = model(-torch.ones_like(tb), tb), model(torch.ones_like(tb), tb)
        loss_f = f.float().pow(2).mean()
        loss_u = initial.float().pow(2).mean() + left.float().pow(2).mean() + right.float().pow(2).mean()
        loss = loss_u + loss_f
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        c.log(step, loss, residual=loss_f)


# ---------------------------------------------------------------- neural ODE
class Dynamics(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, dim))

    def forward(self, t, y):
        return self.net(torch.cat([y, t.expand(y.shape[0], 1)], 1))


class ODEBlock(nn.Module):
    def __init__(self, func, n, c):
        super().__init__()
        self.func, self.n, self.c = func, n, c

    def rk4(self, t, y, dt):
        f = self.func
        k1 = f(t, y)
        k2 = f(t + (dt if self.c.fault == "stage_time" else dt / 2), y + dt / 2 * k1)
        k3 = f(t + dt / 2, y + dt / 2 * (k1 if self.c.fault == "stale_stage" else k2))
        k4 = f(t + dt, y + dt * k3)
        if self.c.variant == "tensordot":
            w = torch.tensor([1, 2, 2, 1], dtype=y.dtype) * (dt / 6)
            return y + torch.tensordot(w, torch.stack([k1, k2, k3, k4]).to(y.dtype), dims=1)
        w3 = 1 if self.c.fault == "rk4_weight" else 2
        return y + dt / 6 * (k1 + 2 * k2 + w3 * k3 + k4)

    def forward(self, y):
        dt = 1.0 / self.n
        for i in range(self.n):
            t = torch.full((1, 1), i * dt)
            y = checkpoint(self.rk4, t, y, dt, use_reentrant=False) if self.c.variant == "checkpoint" else self.rk4(t, y, dt)
        return y


class ODENet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.stem = nn.Linear(4, 16)
        self.ode = ODEBlock(Dynamics(16, 48), 3, c)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.ode(self.stem(x)))


def neural_ode(c):
    model = ODENet(c)
    for p in model.ode.func.parameters():
        p.data.mul_(2.5)
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.95)
    x = torch.randn(32, 4, generator=gen(5))
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    for step in range(c.steps):
        opt.zero_grad()
        with c.amp():
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        c.log(step, loss)


# ---------------------------------------------------------------- selective state space model
class RMS(nn.Module):
    def __init__(self, d, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class SelectiveSSM(nn.Module):
    def __init__(self, d, n, c, index):
        super().__init__()
        self.c, self.index, self.n = c, index, n
        e = 2 * d
        self.in_proj = nn.Linear(d, 2 * e, bias=False)
        self.conv = nn.Conv1d(e, e, 4, groups=e)
        self.x_proj = nn.Linear(e, 2 * n + 4, bias=False)
        self.dt_proj = nn.Linear(4, e)
        nn.init.uniform_(self.dt_proj.bias, -2.0, 0.0)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, n + 1).float()).repeat(e, 1))
        self.D = nn.Parameter(torch.ones(e))
        self.out_proj = nn.Linear(e, d, bias=False)
        nn.init.normal_(self.x_proj.weight, std=0.6)
        self.state = None

    def scan(self, decay, drive):
        if self.c.variant == "parallel_scan":
            a, b, shift, length = decay, drive, 1, decay.shape[1]
            while shift < length:  # recursive doubling
                pa = F.pad(a, (0, 0, 0, 0, shift, 0), value=1.0)[:, :length]
                pb = F.pad(b, (0, 0, 0, 0, shift, 0))[:, :length]
                a, b = a * pa, b + a * pb
                shift *= 2
            return b
        h = torch.zeros_like(drive[:, 0])
        if self.c.fault == "stale_state" and self.index == 1 and self.state is not None:
            h = self.state
        out = []
        for i in range(decay.shape[1]):
            h = decay[:, i] * h + drive[:, i]
            out.append(h)
        self.state = h.detach()
        return torch.stack(out, 1)

    def forward(self, x):
        u, z = self.in_proj(x).chunk(2, -1)
        pad = (0, 3) if self.c.fault == "anticausal_conv" and self.index == 0 else (3, 0)
        u = F.silu(self.conv(F.pad(u.transpose(1, 2), pad)).transpose(1, 2))
        dt, B, C = self.x_proj(u).split([4, self.n, self.n], -1)
        if self.c.fault == "b_c_swapped" and self.index == 1:
            B, C = C, B
        dt = self.dt_proj(dt).float()
        dt = torch.exp(dt) if self.c.fault == "exp_for_softplus" and self.index == 0 else F.softplus(dt)
        A = -torch.exp(self.A_log.float())
        decay = torch.exp(dt[..., None] * A)
        drive = dt[..., None] * B.float()[:, :, None, :] * u.float()[..., None]
        if self.c.fault == "scan_in_bf16" and self.index == 1:
            decay, drive = decay.bfloat16(), drive.bfloat16()
        h = self.scan(decay, drive).float()
        if self.c.variant == "einsum":
            y = torch.einsum("bten,btn->bte", h, C.float())
        else:
            y = (h * C.float()[:, :, None, :]).sum(-1)
        y = y + self.D * u.float()
        return self.out_proj(y.to(z.dtype) * F.silu(z))


class SSMBlock(nn.Module):
    def __init__(self, d, n, c, index):
        super().__init__()
        self.norm, self.mixer = RMS(d), SelectiveSSM(d, n, c, index)

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class SSMModel(nn.Module):
    def __init__(self, c, vocab=50, d=32, n=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList([SSMBlock(d, n, c, i) for i in range(2)])
        self.norm_f = RMS(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        h = self.embed(ids)
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm_f(h))


def ssm(c):
    model = SSMModel(c).to(c.dtype)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)
    ids = torch.randint(0, 50, (c.steps, 3, 17), generator=gen(6))
    for step in range(c.steps):
        with c.amp():
            logits = model(ids[step, :, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[step, :, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        c.log(step, loss)


# ---------------------------------------------------------------- Perceiver
class Attend(nn.Module):
    def __init__(self, dq, dk, heads, c, name):
        super().__init__()
        self.heads, self.c, self.name = heads, c, name
        self.nq, self.nk = nn.LayerNorm(dq), nn.LayerNorm(dk)
        self.q = nn.Linear(dq, dq, bias=False)
        self.kv = nn.Linear(dk, 2 * dq, bias=False)
        self.o = nn.Linear(dq, dq)

    def forward(self, x, context=None, keep=None):
        xq = self.nq(x)
        ctx = xq if context is None else self.nk(context)
        b, n, d = xq.shape
        k, v = self.kv(ctx).chunk(2, -1)
        q, k, v = (s.unflatten(-1, (self.heads, -1)).transpose(1, 2) for s in (self.q(xq), k, v))
        bias = None if keep is None else keep[:, None, None, :]
        if self.c.fault == "padding_attended" and self.name == "cross1":
            bias = None
        if self.c.variant == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scale = q.shape[-1] ** (-1.0 if self.c.fault == "scale" and self.name == "self0" else -0.5)
            s = torch.einsum("bhid,bhjd->bhij", q, k) * scale
            if bias is not None:
                s = s.masked_fill(~bias, -torch.finfo(s.dtype).max)
            y = torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v)
        return self.o(y.transpose(1, 2).flatten(2))


class FF(nn.Module):
    def __init__(self, d, c):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(2 * d, d)
        self.c = c

    def forward(self, x):
        a, g = self.up(self.norm(x)).chunk(2, -1)
        if self.c.fault == "gate_swapped":
            a, g = g, a
        return self.down(a * F.gelu(g))


class Perceiver(nn.Module):
    def __init__(self, c, d=48, di=20, n=8):
        super().__init__()
        self.c = c
        self.latents = nn.Parameter(torch.randn(n, d) * 0.5)
        self.cross = nn.ModuleList([Attend(d, di, 4, c, f"cross{i}") for i in range(2)])
        self.self_ = nn.ModuleList([Attend(d, d, 4, c, f"self{i}") for i in range(2)])
        self.ff = nn.ModuleList([FF(d, c) for _ in range(2)])
        self.head = nn.Linear(d, 7)

    def forward(self, x, keep):
        z = self.latents.expand(x.shape[0], -1, -1)
        for i in range(2):
            z = z + self.cross[i](z, x, keep)
            z = z + self.self_[i](z)
            z = self.ff[i](z) if self.c.fault == "no_residual" and i == 0 else z + self.ff[i](z)
        return self.head(z.mean(1))


def perceiver(c):
    model = Perceiver(c).to(c.dtype)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3, fused=c.variant == "fused")
    scaler = c.scaler()
    g = gen(7)
    for step in range(c.steps):
        for micro in range(2):
            x = torch.randn(4, 24, 20, generator=g).to(c.dtype)
            keep = torch.arange(24)[None] < torch.tensor([24, 15, 9, 20])[:, None]
            y = torch.randint(0, 7, (4,), generator=g)
            with c.amp():
                loss = F.cross_entropy(model(x, keep).float(), y)
            scaler.scale(loss if c.fault == "accumulation_not_divided" else loss / 2).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        c.log(step, loss)


# ---------------------------------------------------------------- Siamese, contrastive
class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 2, 1)
        self.gn1 = nn.GroupNorm(4, 16)
        self.conv2 = nn.Conv2d(16, 32, 3, 2, 1)
        self.gn2 = nn.GroupNorm(4, 32)
        self.proj = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        x = F.leaky_relu(self.gn1(self.conv1(x)), 0.1)
        x = F.leaky_relu(self.gn2(self.conv2(x)), 0.1)
        return self.proj(x.mean((2, 3)))


def nt_xent(z1, z2, c, temperature=0.2):
    z = torch.cat([z1, z2]).float()
    n = z1.shape[0]
    if c.fault == "temperature":
        temperature = 0.1
    if c.variant == "cosine_similarity":
        sim = F.cosine_similarity(z[:, None], z[None], dim=-1) / temperature
    else:
        dim = 0 if c.fault == "normalize_axis" else -1
        z = F.normalize(z, dim=dim)
        sim = z @ z.T / temperature
    if c.fault != "diagonal_not_masked":
        sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    labels = torch.cat([torch.arange(n) + n, torch.arange(n)])
    if c.fault == "positives_shifted":
        labels = labels.roll(1)
    return F.cross_entropy(sim, labels)


def siamese(c):
    model = Tower()
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(m.weight)
            nn.init.zeros_(m.bias)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, foreach=c.variant == "foreach")
    scaler = c.scaler()
    g = gen(8)
    for step in range(c.steps):
        base = torch.randn(6, 3, 16, 16, generator=g)
        a = base + 0.1 * torch.randn(base.shape, generator=g)
        b = base.flip(-1) + 0.1 * torch.randn(base.shape, generator=g)
        with c.amp():
            za, zb = model(a), model(b)
        loss = nt_xent(za, zb, c)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        c.log(step, loss)


# ---------------------------------------------------------------- VAE
class ConvVAE(nn.Module):
    def __init__(self, c, z=8):
        super().__init__()
        self.c = c
        self.enc = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.SiLU(), nn.Flatten())
        self.to_mu, self.to_logvar = nn.Linear(32 * 16, z), nn.Linear(32 * 16, z)
        self.up = nn.Linear(z, 32 * 16)
        pad = 1
        self.dec1 = nn.ConvTranspose2d(32, 16, 4, 2, pad)
        self.dec2 = nn.ConvTranspose2d(16, 1, 4, 2, pad)

    def reparameterize(self, mu, logvar):
        std = torch.exp(logvar if self.c.fault == "std_not_halved" else 0.5 * logvar)
        eps = torch.randn_like(mu)
        return mu + eps * std

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.to_mu(h).float(), self.to_logvar(h).float()
        if self.c.fault == "heads_swapped":
            mu, logvar = logvar, mu
        z = self.reparameterize(mu, logvar)
        h = self.up(z).unflatten(1, (32, 4, 4))
        h = F.relu(self.dec1(h)) if self.c.fault == "relu_in_decoder" else F.silu(self.dec1(h))
        return self.dec2(h), mu, logvar


def vae(c):
    model = ConvVAE(c)
    if c.variant == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    opt = torch.optim.Adamax(model.parameters(), lr=2e-3)
    data = (torch.rand(c.steps, 8, 1, 16, 16, generator=gen(9)) > 0.6).float()
    torch.manual_seed(11 if c.fault == "other_seed" else 10)
    for step in range(c.steps):
        x = data[step]
        opt.zero_grad()
        with c.amp():
            logits, mu, logvar = model(x)
        if c.variant == "softplus_bce":
            rec = (F.softplus(logits.float()) - x * logits.float()).sum() / x.shape[0]
        else:
            rec = F.binary_cross_entropy_with_logits(logits.float(), x, reduction="sum") / x.shape[0]
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
        kl = kl.mean() if c.fault == "kl_mean" else kl.sum(1).mean()
        loss = rec + kl
        loss.backward()
        opt.step()
        c.log(step, loss, kl=kl.detach())
