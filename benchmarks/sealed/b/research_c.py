import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from common import LyingKernel, gen


# ---------------------------------------------------------------- sharpness-aware minimisation
class TabNet(nn.Module):
    def __init__(self, c, d=48):
        super().__init__()
        self.c = c
        self.inp = nn.Linear(10, d)
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(3)])
        self.fcs = nn.ModuleList([nn.Linear(d, d) for _ in range(3)])
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        h = self.inp(x)
        for i, (n, f) in enumerate(zip(self.norms, self.fcs)):
            if self.c.fault == "post_norm" and i == 1:
                h = n(h + F.mish(f(h)))
            else:
                h = h + F.mish(f(n(h)))
        return self.out(h).squeeze(-1)


class SAM:
    def __init__(self, params, base, rho, c):
        self.params, self.base, self.rho, self.c = list(params), base, rho, c

    @torch.no_grad()
    def first(self):
        if self.c.variant == "total_norm":
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.params])
        else:
            norm = torch.stack([p.grad.norm() for p in self.params]).norm()
        scale = self.rho / (norm + 1e-12)
        self.eps = [p.grad * (self.rho if self.c.fault == "ascent_not_normalised" else scale) for p in self.params]
        for p, e in zip(self.params, self.eps):
            p.add_(e)

    @torch.no_grad()
    def second(self):
        if self.c.fault != "not_restored":
            for p, e in zip(self.params, self.eps):
                p.sub_(e)
        self.base.step()


def sam(c):
    model = TabNet(c).to(c.dtype)
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = SAM(model.parameters(), base, 0.1, c)
    g = gen(40)
    for step in range(c.steps):
        x = torch.randn(24, 10, generator=g)
        y = torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2]

        def closure():
            base.zero_grad()
            with c.amp():
                out = model(x.to(c.dtype))
            loss = F.smooth_l1_loss(out.float(), y, beta=0.5 if c.fault == "huber_beta" else 1.0)
            loss.backward()
            return loss

        loss = closure()
        opt.first()
        closure()
        opt.second()
        c.log(step, loss)


# ---------------------------------------------------------------- LBFGS with a closure: Gaussian-kernel regression net
class RBF(nn.Module):
    def __init__(self, c, n=20):
        super().__init__()
        self.c = c
        self.centers = nn.Parameter(torch.randn(n, 3, generator=gen(41)))
        self.log_width = nn.Parameter(torch.zeros(n))
        self.out = nn.Linear(n, 2)

    def forward(self, x):
        d2 = (x[:, None] - self.centers).pow(2).sum(-1)
        w = self.log_width.exp()
        if self.c.fault == "width_not_squared":
            return self.out(torch.exp(-d2 / (2 * w)) + 0 * w)
        return self.out(torch.exp(-d2 * 0.25 * w.pow(2)))


def lbfgs(c):
    dtype = torch.float64 if c.variant == "float64" else torch.float32
    model = RBF(c).to(dtype)
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=2 if c.fault == "history" else 10)
    x = torch.randn(40, 3, generator=gen(42)).to(dtype)
    y = torch.stack([x[:, 0] * x[:, 1], torch.cos(x[:, 2])], 1)

    def closure():
        if c.fault != "not_zeroed":
            opt.zero_grad()
        with c.amp():
            out = model(x)
        loss = F.mse_loss(out.to(dtype), y) + (1e-3 if c.fault == "penalty" else 1e-4) * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        return loss

    for step in range(c.steps):
        loss = opt.step(closure)
        c.log(step, loss)


# ---------------------------------------------------------------- MAML
class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(1, 40), nn.Linear(40, 40), nn.Linear(40, 1)

    def forward(self, x):
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(x)))))


def maml(c):
    from torch.func import functional_call

    model = Sine()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = gen(43)
    lr = 0.2
    for step in range(c.steps):
        opt.zero_grad()
        total = 0.0
        for task in range(3):
            amp, phase = torch.rand(2, generator=g) * 2 + 0.5
            xs, xq = torch.rand(10, 1, generator=g) * 6 - 3, torch.rand(10, 1, generator=g) * 6 - 3
            ys, yq = amp * torch.sin(xs + phase), amp * torch.sin(xq + phase)
            fast = dict(model.named_parameters())
            for inner in range(2):
                with c.amp():
                    loss = F.mse_loss(functional_call(model, fast, (xs,)).float(), ys)
                grads = torch.autograd.grad(loss, list(fast.values()), create_graph=c.fault != "first_order")
                rate = lr * 0.5 if c.fault == "inner_rate" and inner == 1 else lr
                fast = {k: p - rate * d for (k, p), d in zip(fast.items(), grads)}
            if c.fault == "query_is_support":
                xq, yq = xs, ys
            with c.amp():
                outer = F.mse_loss(functional_call(model, fast, (xq,)).float(), yq)
            outer.backward()
            total += outer.item()
        for p in model.parameters():
            p.grad.div_(3)
        opt.step()
        c.log(step, total / 3)


# ---------------------------------------------------------------- Fourier neural operator
class SpectralConv(nn.Module):
    def __init__(self, ch, modes, c, index):
        super().__init__()
        self.modes, self.c, self.index = modes, c, index
        self.weight = nn.Parameter(torch.randn(ch, ch, modes, 2) / ch)

    def forward(self, x):
        xf = torch.fft.rfft(x.float(), norm="ortho" if self.c.fault == "fft_norm" and self.index == 1 else None)
        w = torch.view_as_complex(self.weight)
        if self.c.fault == "weight_conjugated" and self.index == 0:
            w = w.conj()
        m = self.modes
        out = torch.zeros_like(xf)
        lo = 1 if self.c.fault == "mode_offset" and self.index == 2 else 0
        out[:, :, lo : m + lo] = torch.einsum("bix,iox->box", xf[:, :, lo : m + lo], w)
        return torch.fft.irfft(out, n=x.shape[-1])


class FNO(nn.Module):
    def __init__(self, c, ch=16, modes=6):
        super().__init__()
        self.lift = nn.Conv1d(2, ch, 1)
        self.spectral = nn.ModuleList([SpectralConv(ch, modes, c, i) for i in range(3)])
        self.local = nn.ModuleList([nn.Conv1d(ch, ch, 1) for _ in range(3)])
        self.proj = nn.Sequential(nn.Conv1d(ch, 32, 1), nn.GELU(), nn.Conv1d(32, 1, 1))

    def forward(self, x):
        x = self.lift(x)
        for s, l in zip(self.spectral, self.local):
            x = F.gelu(s(x) + l(x))
        return self.proj(x)


def fno(c):
    model = FNO(c)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=10)
    grid = torch.linspace(0, 1, 32).expand(4, 1, 32)
    g = gen(44)
    for step in range(c.steps):
        a = torch.randn(4, 1, 32, generator=g).cumsum(-1) * 0.3
        u = torch.tanh(a.flip(-1))
        with c.amp():
            out = model(torch.cat([a, grid], 1))
        d = (out.float() - u).flatten(1).norm(dim=1)
        loss = d.mean() if c.fault == "absolute_loss" else (d / u.flatten(1).norm(dim=1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        c.log(step, loss)


# ---------------------------------------------------------------- axial attention, in the style of einops
class AxialAttention(nn.Module):
    def __init__(self, d, heads, c, name):
        super().__init__()
        self.heads, self.c, self.name = heads, c, name
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.rel = nn.Parameter(torch.randn(heads, 15) * 0.3)

    def forward(self, x):  # (n, length, d)
        n, l, d = x.shape
        q, k, v = self.qkv(x).view(n, l, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if self.c.fault == "kv_swapped" and self.name == "1.col":
            k, v = v, k
        i = torch.arange(l)
        off = i[None] - i[:, None] + 7
        if self.c.fault == "relative_sign" and self.name == "0.row":
            off = i[:, None] - i[None] + 7
        bias = self.rel[:, off]
        if self.c.variant == "einsum":
            s = torch.einsum("nhid,nhjd->nhij", q, k) * (d // self.heads) ** -0.5 + bias
            y = torch.einsum("nhij,nhjd->nihd", s.softmax(-1), v).reshape(n, l, d)
        elif self.c.variant == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)).transpose(1, 2).reshape(n, l, d)
        else:
            s = (q @ k.transpose(-1, -2)) * (d // self.heads) ** -0.5 + bias
            y = (s.softmax(-1) @ v).transpose(1, 2).reshape(n, l, d)
        return self.out(y)


class AxialBlock(nn.Module):
    def __init__(self, d, c, index):
        super().__init__()
        self.c, self.index = c, index
        self.norm = nn.LayerNorm(d)
        self.row, self.col = AxialAttention(d, 4, c, f"{index}.row"), AxialAttention(d, 4, c, f"{index}.col")
        self.norm2 = nn.LayerNorm(d, eps=1e-1 if c.fault == "norm2_eps" and index == 1 else 1e-6)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):  # (b, h, w, d)
        b, h, w, d = x.shape
        y = self.norm(x)
        r = self.row(y.reshape(b * h, w, d)).view(b, h, w, d)
        cols = y.permute(0, 2, 1, 3)
        if self.c.fault == "axis_not_permuted" and self.index == 1:
            cols = y
        co = self.col(cols.reshape(b * w, h, d)).view(b, w, h, d).permute(0, 2, 1, 3)
        x = x + r + co
        return x + self.mlp(self.norm2(x))


class AxialNet(nn.Module):
    def __init__(self, c, d=32):
        super().__init__()
        self.c = c
        self.patch = nn.Linear(12, d)
        self.pos_h, self.pos_w = nn.Parameter(torch.randn(8, 1, d) * 0.2), nn.Parameter(torch.randn(8, d) * 0.2)
        self.blocks = nn.ModuleList([AxialBlock(d, c, i) for i in range(3)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 5)

    def forward(self, img):
        b = img.shape[0]
        x = img.view(b, 3, 8, 2, 8, 2).permute(0, 2, 4, 3, 5, 1).reshape(b, 8, 8, 12)
        x = self.patch(x) + self.pos_h + self.pos_w
        for blk in self.blocks:
            x = checkpoint(blk, x, use_reentrant=False) if self.c.variant == "checkpoint" else blk(x)
        return self.head(self.norm(x).mean((1, 2)))


def axial(c):
    model = AxialNet(c).to(c.dtype)
    no_decay = [p for n, p in model.named_parameters() if p.ndim == 1 or "pos" in n or n.endswith("rel")]
    ids = {id(p) for p in no_decay}
    groups = [{"params": [p for p in model.parameters() if id(p) not in ids], "weight_decay": 0.1},
              {"params": no_decay, "weight_decay": 0.1 if c.fault == "decay_on_norms" else 0.0}]
    opt = torch.optim.AdamW(groups, lr=3e-2 if c.fault == "decay_on_norms" or c.variant == "decay_reference" else 1e-3)
    g = gen(45)
    lie = LyingKernel(("_softmax",), lambda out, args: torch.cat([out[:1] * 1.0, out[1:2].roll(1, -1), out[2:]]), lambda a, o, n: o.dim() == 4 and n % 6 == 3) if c.fault == "softmax_row" else None
    if lie:
        lie.__enter__()
    for step in range(c.steps):
        x = torch.randn(2, 3, 16, 16, generator=g).to(c.dtype)
        y = torch.randint(0, 5, (2,), generator=g)
        with c.amp():
            loss = F.cross_entropy(model(x).float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        c.log(step, loss)
    if lie:
        lie.__exit__(None, None, None)


# ---------------------------------------------------------------- point clouds: EdgeConv
def knn(x, k):
    d = torch.cdist(x, x)
    return d.topk(k, dim=-1, largest=False).indices


class EdgeConv(nn.Module):
    def __init__(self, i, o, c, index):
        super().__init__()
        self.lin = nn.Linear(2 * i, o)
        self.bn = nn.BatchNorm1d(o, momentum=0.1)
        self.c, self.index = c, index

    def forward(self, x, idx):
        b, n, f = x.shape
        nb = torch.gather(x[:, None].expand(b, n, n, f), 2, idx[..., None].expand(-1, -1, -1, f))
        ctr = x[:, :, None].expand_as(nb)
        e = torch.cat([ctr, nb] if self.c.fault == "absolute_neighbours" and self.index == 1 else [ctr, nb - ctr], -1)
        h = self.lin(e)
        h = F.leaky_relu(self.bn(h.flatten(0, 2)).view_as(h), 0.2)
        return h.mean(2) if self.c.fault == "mean_aggregation" and self.index == 0 else h.amax(2)


class PointNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.convs = nn.ModuleList([EdgeConv(3, 24, c, 0), EdgeConv(24, 32, c, 1)])
        self.glob = nn.Linear(56, 64)
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3 if c.fault == "dropout_on" else 0.0), nn.Linear(32, 6))

    def forward(self, x):
        idx = knn(x, 5 if self.c.fault == "k" else 6)
        h1 = self.convs[0](x, idx)
        h2 = self.convs[1](h1, idx)
        return self.head(self.glob(torch.cat([h1, h2], -1)).amax(1))


def pointnet(c):
    model = PointNet(c)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, maximize=False)
    g = gen(46)
    for step in range(c.steps):
        x = torch.randn(4, 20, 3, generator=g)
        y = torch.randint(0, 6, (4,), generator=g)
        with c.amp():
            out = model(x)
        loss = F.cross_entropy(out.float(), y, reduction="sum" if c.fault == "loss_sum" else "mean")
        opt.zero_grad()
        loss.backward()
        opt.step()
        c.log(step, loss)


# ---------------------------------------------------------------- speech: convolutions and CTC
class ConvModule(nn.Module):
    def __init__(self, d, c, index):
        super().__init__()
        self.c, self.index = c, index
        self.norm = nn.LayerNorm(d)
        self.pw1, self.dw, self.pw2 = nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 5, padding=2, groups=d), nn.Conv1d(d, d, 1)
        self.gn = nn.GroupNorm(2 if c.fault == "groups" and index == 1 else 4, d)

    def forward(self, x, keep):
        h = F.glu(self.pw1(self.norm(x).transpose(1, 2)), dim=1)
        if not (self.c.fault == "mask_missing" and self.index == 1):
            h = h * keep[:, None]
        h = self.pw2(F.silu(self.gn(self.dw(h))))
        return x + h.transpose(1, 2)


class Speech(nn.Module):
    def __init__(self, c, d=32, vocab=12):
        super().__init__()
        self.front = nn.Linear(16, d)
        self.blocks = nn.ModuleList([ConvModule(d, c, i) for i in range(3)])
        self.head = nn.Linear(d, vocab)

    def forward(self, x, lengths):
        keep = (torch.arange(x.shape[1])[None] < lengths[:, None]).to(x.dtype)
        h = self.front(x)
        for b in self.blocks:
            h = b(h, keep)
        return self.head(h)


def ctc(c):
    model = Speech(c).to(c.dtype)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.9 if c.fault == "beta2" else 0.98), eps=1e-9)
    warm = lambda s: min((s + (2 if c.fault == "warmup_off_by_one" else 1)) / 4, 1.0)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, warm)
    lossf = nn.CTCLoss(blank=11 if c.fault == "blank_index" else 0, zero_infinity=True)
    g = gen(47)
    for step in range(c.steps):
        x = torch.randn(4, 30, 16, generator=g).to(c.dtype)
        lengths = torch.tensor([30, 22, 26, 18])
        y = torch.randint(1, 11, (4, 6), generator=g)
        ylen = torch.tensor([6, 4, 5, 3])
        with c.amp():
            logits = model(x, lengths)
        logp = logits.float().log_softmax(-1).transpose(0, 1)
        loss = lossf(logp, y, torch.full_like(lengths, 30) if c.fault == "full_lengths" else lengths, ylen)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        c.log(step, loss)


# ---------------------------------------------------------------- linear attention, with recurrent generation
class LinearAttention(nn.Module):
    def __init__(self, d, heads, c, index):
        super().__init__()
        self.h, self.c, self.index = heads, c, index
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, state=None):
        b, l, d = x.shape
        q, k, v = (m(x).view(b, l, self.h, -1) for m in (self.q, self.k, self.v))
        q = F.elu(q.float()) + 1
        k = (F.relu(k.float()) if self.c.fault == "feature_map" and self.index == 1 else F.elu(k.float()) + 1)
        v = v.float()
        kv = torch.einsum("blhd,blhe->blhde", k, v)
        s, z = kv.cumsum(1), k.cumsum(1)
        if state is not None:
            s, z = s + state[0], z + state[1]
        num = torch.einsum("blhd,blhde->blhe", q, s)
        eps = 1.0 if self.c.fault == "denominator_eps" and self.index == 0 else 1e-6
        den = (q * z).sum(-1, keepdim=True) + eps
        y = self.o((num / den).reshape(b, l, d).to(x.dtype))
        return y, (s[:, -1:], z[:, -1:])


class LinearLM(nn.Module):
    def __init__(self, c, vocab=40, d=32):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(64, d) * 0.3)
        self.n1 = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])
        self.att = nn.ModuleList([LinearAttention(d, 4, c, i) for i in range(2)])
        self.n2 = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])
        self.ff = nn.ModuleList([nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh" if c.fault == "gelu_variant" else "none"), nn.Linear(4 * d, d)) for _ in range(2)])
        self.head = nn.Linear(d, vocab)

    def forward(self, ids, states=None, start=0):
        h = self.embed(ids) + self.pos[start : start + ids.shape[1]]
        new = []
        for i in range(2):
            a, st = self.att[i](self.n1[i](h), None if states is None else states[i])
            new.append(st)
            h = h + a
            h = h + self.ff[i](self.n2[i](h))
        return self.head(h), new


def linear_attention(c):
    """Evaluation only: a score of given text, then tokens one by one with the recurrent state."""
    model = LinearLM(c).eval().to(c.dtype)
    ids = torch.randint(0, 40, (3, 10), generator=gen(48))
    forced = torch.randint(0, 40, (3, 8), generator=gen(49))
    with torch.no_grad(), c.amp():
        logits, states = model(ids)
        c.log(0, F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()))
        pos = ids.shape[1]
        for step in range(6):
            token = forced[:, step : step + 1]
            start = pos + step - 1 if c.fault == "position_off_by_one" else pos + step
            logits, new = model(token, states, start)
            if c.fault == "stale_cache" and step == 2:
                new = [new[0], states[1]]
            states = new
            c.log(step + 1, F.cross_entropy(logits[:, -1].float(), forced[:, step + 1]))
