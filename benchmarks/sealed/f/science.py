"""Fields, mechanics, imaging, learning to learn."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from common import autocast, build, cfg, fault, probe, rand, randn, report, variant


def wide(tensor):
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class Sine(nn.Module):
    def __init__(self, a, b, first=False, w0=12.0, index=0):
        super().__init__()
        self.linear, self.w0, self.index = nn.Linear(a, b), w0, index
        bound = 1 / a if first else math.sqrt(6 / a) / w0
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        if self.index == 2 and fault("bias_outside"):
            return torch.sin(self.w0 * F.linear(x, self.linear.weight) + self.linear.bias)
        return torch.sin(self.w0 * self.linear(x))


def siren():
    """A field of sines, fitted to values and to gradients."""
    class Field(nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.layers = nn.Sequential(Sine(2, width, True), Sine(width, width, index=1), Sine(width, width, index=2), nn.Linear(width, 1))

        def forward(self, x):
            return self.layers(x)

    field = build("field", Field, 1)
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
    for step in range(cfg.steps):
        x = rand(step, 100, 2) * 2 - 1
        value = (3 * x[:, :1]).sin() * (2 * x[:, 1:]).cos()
        slope = torch.cat([3 * (3 * x[:, :1]).cos() * (2 * x[:, 1:]).cos(), -2 * (3 * x[:, :1]).sin() * (2 * x[:, 1:]).sin()], 1)
        optimizer.zero_grad()
        if variant("functional"):
            params = dict(field.named_parameters())
            one = torch.func.grad_and_value(lambda point: torch.func.functional_call(field, params, (point[None],)).sum())
            grad, y = torch.func.vmap(one)(x)
            y = y[:, None]
        else:
            x.requires_grad_()
            y = field(x)
            grad, = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        loss = 10 * F.mse_loss(y, value) + F.mse_loss(grad, slope)
        loss.backward()
        optimizer.step()
        report(step, loss)


class Hamiltonian(nn.Module):
    def __init__(self, dims=3, width=40):
        super().__init__()
        self.potential = nn.Sequential(nn.Linear(dims, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.inverse_mass = nn.Parameter(torch.randn(dims, dims) * 0.3 + torch.eye(dims))

    def kinetic(self, p):
        return 0.5 * (p @ self.inverse_mass).pow(2).sum(-1)


def hnn():
    """Hamiltonian network: leapfrog steps, gradients through gradients."""
    net = build("net", Hamiltonian, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def slope(energy, at):
        if variant("functional"):
            return torch.func.vmap(torch.func.grad(lambda one: energy(one).sum()))(at)
        return torch.autograd.grad(energy(at).sum(), at, create_graph=True)[0]

    for step in range(cfg.steps):
        start = randn(step, 32, 6)
        q, p = (start[:, :3].clone().requires_grad_(), start[:, 3:].clone().requires_grad_())
        goal = torch.cat([start[:, :3] * math.cos(0.6) + start[:, 3:] * math.sin(0.6), start[:, 3:] * math.cos(0.6) - start[:, :3] * math.sin(0.6)], 1)
        optimizer.zero_grad()
        with autocast():
            for k in range(3):
                p = p - 0.1 * slope(net.potential, q)
                q = q + 0.2 * slope(net.kinetic, p)
                last = slope(net.potential, q)
                p = p + 0.1 * last if k == 1 and fault("kick_sign") else p - 0.1 * last
                probe("p", p)
        loss = F.mse_loss(torch.cat([q, p], 1), goal) * 10
        loss.backward()
        optimizer.step()
        report(step, loss)


class Consistency(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.weight, self.index = nn.Parameter(torch.tensor(0.7)), index

    def forward(self, image, measured, mask):
        """Complex images; odd sizes, so that the two shifts differ."""
        if variant("scaled_fft"):
            size = math.sqrt(image.shape[-1] * image.shape[-2])
            k = torch.fft.fft2(image) / size
        else:
            k = torch.fft.fft2(image, norm="ortho")
        k = torch.fft.fftshift(k, dim=(-2, -1))
        k = k - self.weight * mask * (k - measured)
        if self.index == 0 and fault("wrong_shift"):
            k = torch.fft.fftshift(k, dim=(-2, -1))
        else:
            k = torch.fft.ifftshift(k, dim=(-2, -1))
        if variant("scaled_fft"):
            return torch.fft.ifft2(k) * size
        return torch.fft.ifft2(k, norm=None if self.index == 1 and fault("no_ortho") else "ortho")


class Cascade(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.prior = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1))
        self.consistency = Consistency(index)

    def forward(self, image, measured, mask):
        planes = torch.view_as_real(image).permute(0, 3, 1, 2)
        planes = (planes + self.prior(planes)).permute(0, 2, 3, 1).to(wide(self.consistency.weight).dtype)
        return self.consistency(torch.view_as_complex(planes.contiguous()), measured, mask)


def mri():
    """Unrolled reconstruction from samples of the Fourier plane."""
    class Unrolled(nn.Module):
        def __init__(self):
            super().__init__()
            self.cascades = nn.ModuleList(Cascade(k) for k in range(3))

        def forward(self, image, measured, mask):
            for cascade in self.cascades:
                image = cascade(image, measured, mask)
            return image

    net = build("net", Unrolled, 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(cfg.steps):
        truth = torch.complex(randn(step, 4, 15, 15), randn(20 + step, 4, 15, 15))
        mask = (rand(40 + step, 15) < 0.4).to(cfg.dtype)
        mask[6:9] = 1
        full = torch.fft.fftshift(torch.fft.fft2(truth, norm="ortho"), dim=(-2, -1))
        measured = full * mask
        start = torch.fft.ifft2(torch.fft.ifftshift(measured, dim=(-2, -1)), norm="ortho")
        optimizer.zero_grad()
        with autocast():
            out = net(start, measured, mask)
        loss = (out - truth).abs().mean() + 0.1 * (out.abs() - truth.abs()).pow(2).mean()
        loss.backward()
        optimizer.step()
        report(step, loss)


def metasgd():
    """Meta-SGD: two inner steps with learned rates, tasks of sines."""
    class Learner(nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
            self.rates = nn.ParameterList(nn.Parameter(torch.full_like(p, 0.05)) for p in self.net.parameters())

    learner = build("learner", Learner, 4)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=2e-3)
    names = [name for name, _ in learner.net.named_parameters()]

    def loss_of(params, x, y):
        return F.mse_loss(torch.func.functional_call(learner.net, dict(zip(names, params)), (x,)), y)

    def task(x, y, x2, y2):
        params = tuple(learner.net.parameters())
        for _ in range(2):
            grads = torch.func.grad(loss_of)(params, x, y)
            params = tuple(p - r * g for p, r, g in zip(params, learner.rates, grads))
        return loss_of(params, x2, y2)

    for step in range(cfg.steps):
        size, phase = 0.5 + 2 * rand(step, 5, 1, 1), math.pi * rand(20 + step, 5, 1, 1)
        x, x2 = rand(40 + step, 5, 10, 1) * 6 - 3, rand(60 + step, 5, 12, 1) * 6 - 3
        y, y2 = size * (x + phase).sin(), size * (x2 + phase).sin()
        optimizer.zero_grad()
        if variant("vmap"):
            loss = torch.func.vmap(task)(x, y, x2, y2).mean()
        else:
            loss = torch.stack([task(*one) for one in zip(x, y, x2, y2)]).mean()
        loss.backward()
        optimizer.step()
        report(step, loss)


class HyperLayer(nn.Module):
    def __init__(self, code, a, b, index):
        super().__init__()
        self.a, self.b, self.index = a, b, index
        self.weight, self.bias = nn.Linear(code, a * b), nn.Linear(code, b)

    def forward(self, x, code):
        if self.index == 2 and fault("detached_code"):
            w = self.weight(code.detach()).view(-1, self.b, self.a) / math.sqrt(self.a)
        elif self.index == 1 and fault("turned_weights"):
            w = self.weight(code).view(-1, self.a, self.b).transpose(1, 2) / math.sqrt(self.a)
        else:
            w = self.weight(code).view(-1, self.b, self.a) / math.sqrt(self.a)
        if variant("by_einsum"):
            return torch.einsum("npa,nba->npb", x, w) + self.bias(code)[:, None]
        return torch.baddbmm(self.bias(code)[:, None], x, w.transpose(1, 2))


def hyper():
    """A hypernetwork makes the weights of a small network for each signal."""
    class Hyper(nn.Module):
        def __init__(self, code=16, width=24):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(40, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, code))
            self.layers = nn.ModuleList(HyperLayer(code, a, b, k) for k, (a, b) in enumerate([(2, width), (width, width), (width, 1)]))

        def forward(self, signal, points):
            code = self.encoder(signal)
            x = points
            for k, layer in enumerate(self.layers):
                x = layer(x, code)
                x = F.gelu(x, approximate="tanh") if k < 2 else x
            return x

    net = build("net", Hyper, 5)
    optimizer = torch.optim.RAdam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for step in range(cfg.steps):
        signal, points = randn(step, 8, 40), rand(20 + step, 8, 30, 2)
        goal = (points.sum(-1, keepdim=True) * signal[:, None, :1] * 3).sin()
        optimizer.zero_grad()
        with autocast():
            out = net(signal, points)
        loss = F.huber_loss(wide(out), wide(goal))
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.05)
        optimizer.step()
        schedule.step()
        report(step, loss)
