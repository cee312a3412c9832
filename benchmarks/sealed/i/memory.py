"""Memory: a neural Turing machine, a pointer network, an end-to-end memory network, a Hopfield layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Script, dtype, fault, full, generator, noise, variant
from torch import Tensor, nn


class Head(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.controls = nn.Linear(hidden, width + 6)

    def forward(self, h: Tensor, memory: Tensor, before: Tensor) -> Tensor:
        c = self.controls(h)
        key = torch.tanh(c[:, : self.width])
        strength = F.softplus(c[:, self.width, None])
        gate = torch.sigmoid(c[:, self.width + 1, None])
        shift = c[:, self.width + 2 : self.width + 5].softmax(-1)
        sharp = 1 + F.softplus(c[:, self.width + 5, None])
        content = (strength * F.cosine_similarity(key[:, None], memory, dim=-1, eps=1e-8)).softmax(-1)
        if fault("gate_swapped"):
            gate = 1 - gate
        w = gate * content + (1 - gate) * before
        if variant("conv"):
            n = w.shape[-1]
            padded = torch.cat([w[:, -1:], w, w[:, :1]], -1).unfold(1, 3, 1)
            w = (padded * shift.flip(-1)[:, None]).sum(-1).view(-1, n)
        else:
            way = -1 if fault("shift_sign") else 1
            rolled = torch.stack([torch.roll(w, way * (i - 1), -1) for i in range(3)], -1)
            w = (rolled * shift[:, None]).sum(-1)
        w = full(w + 1e-6) ** full(sharp)
        return (w / w.sum(-1, keepdim=True)).to(h.dtype)


class Turing(nn.Module):
    def __init__(self, bits: int = 6, hidden: int = 40, slots: int = 16, width: int = 12) -> None:
        super().__init__()
        self.slots, self.width = slots, width
        self.controller = nn.LSTMCell(bits + 1 + width, hidden)
        self.read = Head(hidden, width)
        self.write = Head(hidden, width)
        self.erase = nn.Linear(hidden, width)
        self.add = nn.Linear(hidden, width)
        self.out = nn.Linear(hidden + width, bits)
        self.start = nn.Parameter(torch.randn(slots, width) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        b = x.shape[1]
        kind = x.dtype
        memory = self.start.expand(b, -1, -1)
        r = torch.zeros(b, self.width, dtype=kind)
        wr = ww = F.one_hot(torch.zeros(b, dtype=torch.long), self.slots).to(kind)
        h = c = torch.zeros(b, self.controller.hidden_size, dtype=kind)
        outs = []
        for step in x:
            h, c = self.controller(torch.cat([step, r], -1), (h, c))
            ww = self.write(h, memory, ww).to(kind)
            erase = torch.sigmoid(self.erase(h))
            if not fault("no_erase"):
                memory = memory * (1 - ww[..., None] * erase[:, None])
            memory = memory + ww[..., None] * torch.tanh(self.add(h))[:, None]
            wr = self.read(h, memory, wr).to(kind)
            r = (wr[:, None] @ memory).squeeze(1).to(kind)
            outs.append(self.out(torch.cat([h.to(kind), r], -1)))
        return torch.stack(outs)


class TuringScript(Script):
    faults = ("gate_swapped", "shift_sign", "no_erase")
    variants = ("conv",)
    clip = 10.0

    def setup(self) -> None:
        self.model = self.net(Turing())
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=1e-3, momentum=0.9, alpha=0.95, centered=False)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        bits = (torch.rand(5, 8, 6, generator=generator(900 + step)) < 0.5).to(dtype())
        x = torch.zeros(11, 8, 7, dtype=dtype())
        x[:5, :, :6] = bits
        x[5, :, 6] = 1
        return x, bits

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.model(batch[0])[6:], batch[1])


class Pointer(nn.Module):
    """Sorts numbers by pointing at them, one after another."""

    def __init__(self, dim: int = 48) -> None:
        super().__init__()
        self.embed = nn.Linear(2, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRUCell(dim, dim)
        self.w1 = nn.Linear(dim, dim, bias=False)
        self.w2 = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, 1, bias=False)
        self.start = nn.Parameter(torch.randn(dim) * 0.1)

    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        e = self.embed(x)
        keys, h = self.encoder(e)
        h = h[0]
        b, n = order.shape
        taken = torch.zeros(b, n, dtype=torch.bool)
        y = self.start.expand(b, -1).to(e.dtype)
        rows = torch.arange(b)
        scores = []
        for i in range(n):
            h = self.decoder(y, h)
            s = self.v(torch.tanh(self.w1(keys) + self.w2(h)[:, None])).squeeze(-1)
            s = 10 * torch.tanh(full(s)) if not fault("no_clip") else full(s)
            if not fault("revisit"):
                s = s.masked_fill(taken, -1e4)
            scores.append(s)
            taken = taken.clone()
            taken[rows, order[:, i]] = True
            y = e[rows, order[:, i - 1]] if fault("teacher_shift") else e[rows, order[:, i]]
        return torch.stack(scores, 1)


class PointerScript(Script):
    faults = ("no_clip", "revisit", "teacher_shift")
    variants = ("nll",)

    def setup(self) -> None:
        self.model = self.net(Pointer())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(16, 7, 2, generator=generator(910 + step))
        return x.to(dtype()), x[..., 0].argsort(-1)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, order = batch
        scores = self.model(x, order).flatten(0, 1)
        if variant("nll"):
            return -scores.log_softmax(-1).gather(1, order.flatten()[:, None]).mean()
        return F.cross_entropy(scores, order.flatten())


class MemoryNet(nn.Module):
    """Three hops over sentences, with adjacent weight sharing and position encoding."""

    def __init__(self, words: int = 60, dim: int = 32, hops: int = 3, sentences: int = 10) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(words, dim, padding_idx=0) for _ in range(hops + 1))
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.2)
        self.times = nn.ParameterList(torch.randn(sentences, dim) * 0.1 for _ in range(hops + 1))
        self.hops = hops

    def position(self, length: int, dim: int) -> Tensor:
        j = torch.arange(1.0, length + 1)[:, None]
        k = torch.arange(1.0, dim + 1)[None]
        if fault("position_zero"):
            j = j - 1
        return ((1 - j / length) - (k / dim) * (1 - 2 * j / length)).to(dtype())

    def encode(self, table: nn.Embedding, words: Tensor) -> Tensor:
        weight = self.position(words.shape[-1], table.embedding_dim)
        if variant("einsum"):
            return torch.einsum("...ld,ld->...d", table(words), weight)
        return (table(words) * weight).sum(-2)

    def forward(self, story: Tensor, question: Tensor) -> Tensor:
        u = self.encode(self.tables[0], question)
        for hop in range(self.hops):
            m = self.encode(self.tables[hop], story) + self.times[hop]
            c = self.encode(self.tables[hop + 1], story) + self.times[hop + 1]
            p = (m @ u[..., None]).squeeze(-1).softmax(-1)
            o = (p[:, None] @ c).squeeze(1)
            u = o if fault("no_query") else u + o
        return u @ self.tables[-1].weight.T


class MemoryScript(Script):
    faults = ("position_zero", "no_query")
    variants = ("einsum",)
    clip = 1.0

    def setup(self) -> None:
        self.model = self.net(MemoryNet())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(920 + step)
        story = torch.randint(1, 60, (16, 10, 6), generator=g)
        story[:, :, 5] = 0
        return story, torch.randint(1, 60, (16, 4), generator=g), torch.randint(1, 60, (16,), generator=g)

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0], batch[1]), batch[2])


class Hopfield(nn.Module):
    """Stored patterns, retrieved by a few steps of the modern update rule."""

    def __init__(self, inputs: int = 12, dim: int = 32, stored: int = 40, steps: int = 3) -> None:
        super().__init__()
        self.steps = steps
        self.beta = 1.0 if fault("beta") else dim**-0.5
        self.query = nn.Linear(inputs, dim)
        self.norm = nn.LayerNorm(dim)
        self.patterns = nn.Parameter(torch.randn(stored, dim))
        self.values = nn.Linear(dim, dim)
        self.pattern_norm = nn.LayerNorm(dim, eps=1e-2 if fault("pattern_eps") else 1e-5)
        self.head = nn.Linear(dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.pattern_norm(self.patterns)
        state = self.norm(self.query(x))
        for _ in range(self.steps):
            if variant("sdpa"):
                state = F.scaled_dot_product_attention(state[None], keys[None], keys[None], scale=self.beta)[0]
            else:
                state = (self.beta * state @ keys.T).softmax(-1) @ keys
        return self.head(torch.relu(self.values(state)))


class HopfieldScript(Script):
    faults = ("beta", "pattern_eps")
    variants = ("sdpa",)

    def setup(self) -> None:
        self.model = self.net(Hopfield())
        self.optimizer = torch.optim.ASGD(self.model.parameters(), lr=0.05)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = noise(32, 12, seed=930 + step)
        return x, x[:, :3].argmax(-1)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])


SCRIPTS = {"turing": TuringScript, "pointer": PointerScript, "memory": MemoryScript, "hopfield": HopfieldScript}
