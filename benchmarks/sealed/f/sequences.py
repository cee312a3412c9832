"""Speech, tags, video, world models, text."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from common import autocast, build, cfg, fault, grad_scaler, probe, rand, randint, randn, report, variant


def wide(tensor):
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class LogMel(nn.Module):
    def __init__(self, size=64, hop=32, bands=16, rate=8000):
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size, periodic=not fault("symmetric_window")))
        mel = torch.linspace(0, 2595 * math.log10(1 + rate / 2 / 700), bands + 2)
        edges = 700 * (10 ** (mel / 2595) - 1)
        at = torch.linspace(0, rate / 2, size // 2 + 1)
        rising, falling = (at - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None], (edges[2:, None] - at) / (edges[2:] - edges[1:-1])[:, None]
        self.register_buffer("bank", torch.min(rising, falling).clamp(min=0) + 1e-4)

    def forward(self, wave):
        with torch.autocast("cpu", enabled=False):
            spectrum = torch.stft(wide(wave), self.size, self.hop, window=wide(self.window), return_complex=True)
            mel = (wide(self.bank) @ spectrum.abs().pow(2)).clamp(min=1e-5).log()
            return (mel - mel.mean(-1, keepdim=True)).transpose(1, 2)


class Predictor(nn.Module):
    def __init__(self, tokens, size):
        super().__init__()
        self.embed = nn.Embedding(tokens, size)
        self.rnn = nn.GRU(size, size, batch_first=True)

    def forward(self, labels):
        if fault("no_start"):
            given = torch.cat([labels, labels.new_zeros(len(labels), 1)], 1)
        else:
            given = torch.cat([labels.new_zeros(len(labels), 1), labels], 1)
        return self.rnn(self.embed(given))[0]


class Transducer(nn.Module):
    def __init__(self, tokens=12, size=32):
        super().__init__()
        self.frontend = LogMel()
        self.subsample = nn.Conv1d(16, size, 3, 2, 1)
        self.encoder = nn.GRU(size, size, batch_first=True, bidirectional=True)
        self.project = nn.Linear(2 * size, size)
        self.predictor = Predictor(tokens, size)
        self.joint = nn.Sequential(nn.Tanh(), nn.Linear(size, tokens))

    def forward(self, wave, labels):
        x = self.subsample(self.frontend(wave).transpose(1, 2).to(cfg.dtype)).transpose(1, 2)
        a, b = self.project(self.encoder(x)[0]), self.predictor(labels)
        return self.joint(a[:, :, None] + b[:, None])


def transducer_loss(logits, labels, frames, lengths):
    """The negative log of the sum over all alignments; blank is 0."""
    logs = wide(logits).log_softmax(-1)
    n, T, U = logs.shape[:3]
    blank = logs[..., 0]
    emit = logs[:, :, :-1].gather(3, labels[:, None, :, None].expand(n, T, U - 1, 1)).squeeze(3)
    if variant("cumulative"):
        rows = []
        for t in range(T):
            along = F.pad(emit[:, t].cumsum(1), (1, 0))
            if t == 0:
                rows.append(along)
            else:
                rows.append(torch.logcumsumexp(rows[-1] + blank[:, t - 1] - along, 1) + along)
        alpha = torch.stack(rows, 1)
    else:
        rows = []
        for t in range(T):
            row = []
            for u in range(U):
                parts = []
                if t > 0:
                    parts.append(rows[t - 1][u] + blank[:, t - 1, u])
                if u > 0:
                    parts.append(row[u - 1] + emit[:, t, u - 1])
                row.append(torch.logsumexp(torch.stack(parts), 0) if len(parts) == 2 else parts[0] if parts else torch.zeros_like(blank[:, 0, 0]))
            rows.append(row)
        alpha = torch.stack([torch.stack(row, 1) for row in rows], 1)
    every = torch.arange(n)
    return -(alpha[every, frames - 1, lengths] + blank[every, frames - 1, lengths]).mean()


def rnnt():
    """Transducer: spectrogram, encoder, predictor, joiner, and the loss by hand."""
    net = build("net", Transducer, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for step in range(cfg.steps):
        t = torch.arange(480).to(cfg.dtype) / 8000
        wave = (2 * math.pi * (300 + 1500 * rand(step, 4, 1)) * t).sin() + 0.3 * randn(20 + step, 4, 480)
        labels = randint(40 + step, 11, 4, 5) + 1
        optimizer.zero_grad()
        with autocast():
            logits = net(wave, labels)
        loss = transducer_loss(logits, labels, torch.tensor([8, 7, 8, 6]), torch.tensor([5, 4, 3, 5]))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        report(step, loss)


class CRF(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(tags, tags) * 0.5)
        self.start, self.end = nn.Parameter(torch.randn(tags) * 0.5), nn.Parameter(torch.randn(tags) * 0.5)

    def forward(self, scores, tags, mask):
        n, length, _ = scores.shape
        every = torch.arange(n)
        move = self.transitions
        score = self.start[tags[:, 0]] + scores[every, 0, tags[:, 0]]
        alpha = self.start + scores[:, 0]
        for t in range(1, length):
            step = move[tags[:, t], tags[:, t - 1]] if fault("moves_turned") else move[tags[:, t - 1], tags[:, t]]
            score = score + (step + scores[every, t, tags[:, t]]) * mask[:, t]
            if variant("exp_matmul"):
                top = alpha.amax(1, keepdim=True).detach()
                after = ((alpha - top).exp() @ move.exp()).log() + top + scores[:, t]
            else:
                after = torch.logsumexp(alpha[:, :, None] + move[None] + scores[:, t, None], 1)
            alpha = torch.where(mask[:, t, None] > 0, after, alpha)
        last = tags[every, mask.sum(1).long() - 1]
        return probe("score", torch.logsumexp(alpha + self.end, 1) - score - self.end[last])


class Tagger(nn.Module):
    def __init__(self, words=50, tags=6, size=24):
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.rnn = nn.LSTM(size, size, batch_first=True, bidirectional=True)
        self.emit = nn.Linear(2 * size, tags)
        self.crf = CRF(tags)

    def forward(self, words, tags, mask):
        scores = self.emit(self.rnn(self.embed(words))[0])
        with torch.autocast("cpu", enabled=False):
            return self.crf(wide(scores), tags, mask.to(wide(scores).dtype)).mean()


def crf():
    """Tags of words: a conditional random field on a bidirectional LSTM."""
    net = build("net", Tagger, 2)
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)
    for step in range(cfg.steps):
        words, tags = randint(step, 50, 6, 9), randint(20 + step, 6, 6, 9)
        mask = torch.arange(9)[None] < torch.tensor([9, 7, 5, 9, 8, 6])[:, None]
        optimizer.zero_grad()
        with autocast():
            loss = net(words, tags, mask)
        loss.backward()
        optimizer.step()
        report(step, loss)


class Contrast(nn.Module):
    def __init__(self, size=24, ahead=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, size, 10, 5, 3), nn.ReLU(), nn.Conv1d(size, size, 8, 4, 2), nn.ReLU())
        self.context = nn.GRU(size, size, batch_first=True)
        self.ahead = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(ahead))

    def forward(self, wave):
        z = self.encoder(wave).transpose(1, 2)
        c = self.context(z)[0]
        total = 0
        for k, predict in enumerate(self.ahead, 1):
            guess, true = predict(c[:, :-k]), z[:, k:]
            if variant("by_einsum"):
                scores = torch.einsum("itc,jtc->tij", guess, true)
            else:
                scores = guess.transpose(0, 1) @ true.permute(1, 2, 0)
            scores = wide(scores)
            labels = torch.arange(scores.shape[1]).expand(scores.shape[:2])
            total = total + F.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return total / len(self.ahead)


def cpc():
    """Contrastive predictive coding in Lightning."""
    import lightning as L

    class Task(L.LightningModule):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def training_step(self, batch, index):
            loss = self.net(batch)
            report(index, loss.detach())
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=8)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch" if fault("schedule_per_epoch") else "step"}}

    net = build("net", Contrast, 3)
    with torch.no_grad():
        for p in net.ahead.parameters():
            p.mul_(4)
    data = [randn(step, 6, 1, 400) for step in range(cfg.steps)]
    precision = {"fp64": "64-true", "bf16-autocast": "bf16-mixed", "bf16": "bf16-true"}.get(cfg.precision, "32-true")
    L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, precision=precision,
              enable_model_summary=False, gradient_clip_val=1.0).fit(Task(net), torch.utils.data.DataLoader(data, batch_size=None))


class ConvLSTMCell(nn.Module):
    def __init__(self, inputs, hidden, index):
        super().__init__()
        self.gates = nn.Conv2d(inputs + hidden, 4 * hidden, 3, padding=1)
        self.peep_i, self.peep_f = nn.Parameter(torch.randn(hidden, 1, 1) * 0.1), nn.Parameter(torch.randn(hidden, 1, 1) * 0.1)
        self.index = index

    def forward(self, x, state):
        h, c = state
        i, f, o, g = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        if self.index == 1 and fault("gates_swapped"):
            i, f = f, i
        i, f = torch.sigmoid(i + self.peep_i * c), torch.sigmoid(f + self.peep_f * c + 1.0)
        c = f * c + i * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Video(nn.Module):
    def __init__(self, hidden=12):
        super().__init__()
        self.cells = nn.ModuleList(ConvLSTMCell(1 if k == 0 else hidden, hidden, k) for k in range(2))
        self.out = nn.Conv2d(hidden, 1, 1)
        self.hidden = hidden

    def forward(self, frames):
        n, length, _, h, w = frames.shape
        states = [(frames.new_zeros(n, self.hidden, h, w),) * 2 for _ in self.cells]
        out = []
        for t in range(length):
            x = frames[:, t]
            for k, cell in enumerate(self.cells):
                states[k] = cell(x, states[k])
                x = states[k][0]
            out.append(self.out(x))
        return torch.stack(out, 1)


def convlstm():
    """The next frame of moving blobs."""
    net = build("net", Video, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = grad_scaler(1024.0)
    for step in range(cfg.steps):
        grid = torch.arange(10).to(cfg.dtype)
        start, speed = rand(step, 4, 2) * 6, rand(20 + step, 4, 2) * 2 - 0.5
        spots = start[:, None] + speed[:, None] * torch.arange(6).to(cfg.dtype)[None, :, None]
        video = torch.exp(-((grid[None, None, :, None] - spots[..., 0, None, None]) ** 2 + (grid - spots[..., 1, None, None]) ** 2) / 4)[:, :, None]
        optimizer.zero_grad()
        with autocast():
            guess = net(video[:, :-1])
        loss = F.binary_cross_entropy_with_logits(wide(guess), wide(video[:, 1:]), reduction="none").sum((2, 3, 4)).mean()
        scaler.scale(loss).backward()
        if not fault("clip_before_unscale"):
            scaler.unscale_(optimizer)
        if fault("clip_max_norm"):
            nn.utils.clip_grad_norm_(net.parameters(), 1.0, norm_type=float("inf"))
        else:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if cfg.listener:
            for name, p in net.named_parameters():
                probe(f"clipped.{name}", p.grad)
        scaler.step(optimizer)
        scaler.update()
        report(step, loss)


class Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive steps."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            (b1, b2), eps, decay = group["betas"], group["eps"], group["weight_decay"]
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p].update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                self.state[p]["step"] += 1
            if variant("foreach_lamb"):
                grads, m, v = [p.grad for p in params], [self.state[p]["m"] for p in params], [self.state[p]["v"] for p in params]
                k = self.state[params[0]]["step"]
                torch._foreach_mul_(m, b1)
                torch._foreach_add_(m, grads, alpha=1 - b1)
                torch._foreach_mul_(v, b2)
                torch._foreach_addcmul_(v, grads, grads, 1 - b2)
                below = torch._foreach_add(torch._foreach_sqrt(torch._foreach_div(v, 1 - b2 ** k)), eps)
                updates = torch._foreach_div(torch._foreach_div(m, 1 - b1 ** k), below)
                torch._foreach_add_(updates, params, alpha=decay)
                ratios = [torch.where((a > 0) & (b > 0), a / b, 1.0) for a, b in zip(torch._foreach_norm(params), torch._foreach_norm(updates))]
                torch._foreach_mul_(updates, ratios)
                torch._foreach_add_(params, updates, alpha=-group["lr"])
                continue
            for p in params:
                state = self.state[p]
                m, v, k = state["m"], state["v"], state["step"]
                m.mul_(b1).add_(p.grad, alpha=1 - b1)
                v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                update = (m / (1 - b1 ** k)) / ((v / (1 - b2 ** k)).sqrt() + eps) + decay * p
                w, u = p.norm(), update.norm()
                ratio = u / w if fault("ratio_turned") else w / u
                ratio = torch.where((w > 0) & (u > 0), ratio, torch.ones_like(ratio))
                p.add_(probe("lamb", update * ratio), alpha=-group["lr"])


class World(nn.Module):
    def __init__(self, latent=8, actions=2, hidden=32, mixtures=4):
        super().__init__()
        self.rnn = nn.LSTM(latent + actions, hidden, batch_first=True)
        self.heads = nn.Linear(hidden, latent * mixtures * 3)
        self.done = nn.Linear(hidden, 1)
        self.latent, self.mixtures = latent, mixtures

    def forward(self, z, a):
        h = self.rnn(torch.cat([z, a], -1))[0]
        pi, mean, log_sigma = self.heads(h).view(*z.shape[:2], 3, self.latent, self.mixtures).unbind(2)
        return pi, mean, log_sigma, self.done(h).squeeze(-1)


def mixture_loss(pi, mean, log_sigma, value):
    log_pi = F.log_softmax(pi, -1)
    inner = -0.5 * ((value[..., None] - mean) / log_sigma.exp()).pow(2) - log_sigma - 0.5 * math.log(2 * math.pi)
    together = inner if fault("no_mixture_weights") else inner + log_pi
    return -probe("likelihood", torch.logsumexp(together, -1)).mean()


def mdn():
    """World model: an LSTM with a mixture of Gaussians, trained by LAMB."""
    net = build("net", World, 5)
    with torch.no_grad():
        net.heads.weight.mul_(4)
    optimizer = Lamb(net.parameters(), lr=5e-3)
    for step in range(cfg.steps):
        z, a, done = randn(step, 4, 9, 8).cumsum(1) * 0.4, randn(20 + step, 4, 8, 2), (rand(40 + step, 4, 8) < 0.2).to(cfg.dtype)
        optimizer.zero_grad()
        with autocast():
            pi, mean, log_sigma, logit = net(z[:, :-1], a)
        loss = mixture_loss(wide(pi), wide(mean), wide(log_sigma), wide(z[:, 1:])) + F.binary_cross_entropy_with_logits(wide(logit), wide(done))
        loss.backward()
        optimizer.step()
        report(step, loss)


class LocalAttention(nn.Module):
    """Each token sees `window` tokens before it and the first one; slopes as in ALiBi."""

    def __init__(self, size, heads, window, index):
        super().__init__()
        self.heads, self.window, self.index = heads, window, index
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, heads + 1).float())

    def forward(self, x):
        n, length, size = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        at = torch.arange(length)
        back = at[:, None] - at[None]
        window = self.window - 1 if self.index == 1 and fault("window_short") else self.window
        seen = (back >= 0) & ((back < window) | (at[None] == 0))
        bias = (-self.slopes[:, None, None] * back.to(self.slopes.dtype)).masked_fill(~seen, float("-inf")).to(q.dtype)
        if variant("by_query"):
            rows = []
            for t in range(length):
                some = seen[t].nonzero().squeeze(1)
                scores = torch.einsum("nhd,nhsd->nhs", q[:, :, t], k[:, :, some]) / math.sqrt(q.shape[-1]) + bias[:, t, some]
                rows.append(torch.einsum("nhs,nhsd->nhd", scores.softmax(-1), v[:, :, some]))
            y = torch.stack(rows, 2)
        elif variant("sdpa"):
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            y = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias).softmax(-1).to(v.dtype) @ v
        return self.out(y.transpose(1, 2).reshape(n, length, size))


class LocalLayer(nn.Module):
    def __init__(self, size, index):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = LocalAttention(size, 4, 6, index)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def local():
    """Characters, sparse attention."""
    class Chars(nn.Module):
        def __init__(self, tokens=40, size=32):
            super().__init__()
            self.embed = nn.Embedding(tokens, size)
            self.layers = nn.ModuleList(LocalLayer(size, k) for k in range(3))
            self.norm = nn.LayerNorm(size)

        def forward(self, x):
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x)
            return self.norm(x) @ self.embed.weight.t()

    net = build("net", Chars, 6)
    with torch.no_grad():
        net.embed.weight.mul_(0.3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.1)
    for step in range(cfg.steps):
        text = randint(step, 40, 4, 25)
        optimizer.zero_grad()
        with autocast():
            logits = net(text[:, :-1])
        loss = F.cross_entropy(wide(logits).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        report(step, loss)
