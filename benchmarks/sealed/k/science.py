"""Equations, transport, folding, trees and long texts, written by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Script, script
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacfwd, jacrev, vmap


class Field(nn.Module):
    def __init__(self, state: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.body = nn.Sequential(nn.Linear(state, 32), nn.Softplus(), nn.Linear(32, state * channels), nn.Tanh())

    def forward(self, state: Tensor, slope: Tensor) -> Tensor:
        return (self.body(state).unflatten(-1, (-1, self.channels)) @ slope[..., None]).squeeze(-1)


class Driven(nn.Module):
    """An equation driven by a path through what is observed (neural CDE), followed by the midpoint rule."""

    def __init__(self, forward_slopes: bool, euler: bool) -> None:
        super().__init__()
        self.forward_slopes, self.euler = forward_slopes, euler
        self.start = nn.Linear(3, 12)
        self.field = Field(12, 3)
        self.head = nn.Linear(12, 4)

    def slopes(self, path: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Of a cubic path at the beginning and in the middle of an interval; slopes at points come from before."""
        here = path[:, number + 1] - path[:, number]
        before = here if number == 0 or self.forward_slopes else path[:, number] - path[:, number - 1]
        return before, 1.5 * here - 0.25 * (before + here)

    def forward(self, path: Tensor) -> Tensor:
        state = self.start(path[:, 0])
        for number in range(path.shape[1] - 1):
            first, middle = self.slopes(path, number)
            change = self.field(state, first)
            state = state + (change if self.euler else self.field(state + 0.5 * change, middle))
        return self.head(state)


@script("cde")
class Controlled(Script):
    """Kinds of paths, seen at uneven times."""

    faults = ("slopes_ahead", "euler", "time_restarts")
    variants = ("compiled",)

    def build(self) -> None:
        self.net = self.add(Driven(self.has("slopes_ahead"), self.has("euler")))
        self.called = torch.compile(self.net, backend="aot_eager") if self.way("compiled") else self.net
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=5e-3)

    def loss(self, number: int) -> Tensor:
        time = (0.1 + self.uniform(16, 10)).cumsum(1) / 5
        if self.has("time_restarts"):
            time = time - time[:, :1]
        kinds = self.integers(0, 4, 16)
        seen = torch.stack([(time * (1 + kinds[:, None])).sin(), (time * kinds[:, None]).cos()], -1)
        path = torch.cat([time[..., None], seen.to(time.dtype) + 0.1 * self.normal(16, 10, 2)], -1)
        return F.cross_entropy(self.wide(self.called(path)), kinds)


class Energy(nn.Module):
    """A Lagrangian of two angles and their speeds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Softplus(), nn.Linear(24, 24), nn.Softplus(), nn.Linear(24, 1))

    def forward(self, angles: Tensor, speeds: Tensor) -> Tensor:
        seen = torch.cat([angles.sin(), angles.cos(), speeds], -1)
        return self.body(seen).squeeze(-1) + speeds.square().sum(-1)


@script("lagrange")
class Lagrange(Script):
    """Accelerations out of second derivatives of a network."""

    faults = ("no_coriolis", "mixed_transposed")
    variants = ("reverse",)

    def build(self) -> None:
        self.net = self.add(Energy())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3)

    def acceleration(self, weights: dict[str, Tensor], angles: Tensor, speeds: Tensor) -> Tensor:
        def energy(q: Tensor, v: Tensor) -> Tensor:
            return functional_call(self.net, weights, (q, v))

        force = jacrev(energy, 0)(angles, speeds)
        if self.way("reverse"):
            mass = jacrev(jacrev(energy, 1), 1)(angles, speeds)
            mixed = jacrev(jacrev(energy, 1), 0)(angles, speeds)
        else:
            mass = hessian(energy, 1)(angles, speeds)
            mixed = jacfwd(jacrev(energy, 1), 0)(angles, speeds)
        if self.has("mixed_transposed"):
            mixed = mixed.T
        drag = torch.zeros_like(force) if self.has("no_coriolis") else mixed @ speeds
        return torch.linalg.solve(self.wide(mass), self.wide(force - drag))

    def loss(self, number: int) -> Tensor:
        angles, speeds = 2 * self.normal(16, 2), self.normal(16, 2)
        weights = dict(self.net.named_parameters())
        found = vmap(lambda q, v: self.acceleration(weights, q, v))(angles, speeds)
        truth = -angles.sin() - 0.3 * angles.flip(-1).sin() * speeds.flip(-1).square()
        return F.mse_loss(found, self.wide(truth))


@script("transport")
class Transport(Script):
    """Clouds of points moved onto each other at the least cost, less what moving onto themselves costs (Sinkhorn)."""

    faults = ("cost_unscaled", "no_debias", "few_rounds")
    variants = ("kernel",)

    def build(self) -> None:
        self.net = self.add(nn.Sequential(nn.Linear(3, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 2)))
        self.optimizer = torch.optim.NAdam(self.net.parameters(), lr=5e-3)

    def cost(self, a: Tensor, b: Tensor) -> Tensor:
        far = (a[:, None] - b[None]).square().sum(-1)
        far = far if self.has("cost_unscaled") else 0.5 * far
        rounds, blur = (3 if self.has("few_rounds") else 15), 0.5
        if self.way("kernel"):
            kernel = (-far / blur).exp()
            v = far.new_ones(len(b))
            for _ in range(rounds):
                u = 1 / (kernel @ v * len(a))
                v = 1 / (kernel.T @ u * len(b))
            return (u[:, None] * kernel * v * far).sum()
        f, g = far.new_zeros(len(a)), far.new_zeros(len(b))
        own = torch.tensor(float(len(a))).log(), torch.tensor(float(len(b))).log()
        for _ in range(rounds):
            f = -blur * (((g - far) / blur).logsumexp(1) + own[0])
            g = -blur * (((f[:, None] - far) / blur).logsumexp(0) + own[1])
        return (((f[:, None] + g - far) / blur).exp() * far).sum()

    def loss(self, number: int) -> Tensor:
        made = self.wide(self.net(self.normal(24, 3)))
        angle = 6.3 * self.wide(self.uniform(20))
        truth = torch.stack([angle.cos(), angle.sin()], -1)
        if self.has("no_debias"):
            return self.cost(made, truth)
        return self.cost(made, truth) - 0.5 * self.cost(made, made) - 0.5 * self.cost(truth, truth)


class Triangle(nn.Module):
    """Edges between residues updated by the two other sides of each triangle (AlphaFold)."""

    def __init__(self, incoming: bool, in_parts: bool) -> None:
        super().__init__()
        self.incoming, self.in_parts = incoming, in_parts
        self.norm, self.norm_out = nn.LayerNorm(16), nn.LayerNorm(16)
        self.left, self.right, self.out, self.gate = (nn.Linear(16, 16) for _ in range(4))
        self.gates = nn.Linear(16, 32)

    def forward(self, pair: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(pair)
        gates = self.gates(x).sigmoid()
        sides = zip((self.left, self.right), gates.chunk(2, -1), strict=True)
        a, b = (side(x) * gate * mask[..., None] for side, gate in sides)
        way, axis = ("bkic,bkjc->bijc", 1) if self.incoming else ("bikc,bjkc->bijc", 2)
        parts = zip(*(side.chunk(3 if self.in_parts else 1, axis) for side in (a, b)), strict=True)
        made = sum(torch.einsum(way, *part) for part in parts)
        return self.out(self.norm_out(made)) * self.gate(x).sigmoid()


class Pairs(nn.Module):
    def __init__(self, swapped: bool, in_parts: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.apart = nn.Embedding(9, 16)
        self.outgoing, self.incoming = Triangle(swapped, in_parts), Triangle(True, in_parts)
        self.grow = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor, apart: Tensor, mask: Tensor) -> Tensor:
        one = self.embed(x)
        pair = one[:, :, None] + one[:, None].roll(1, -1) + self.apart(apart)
        for layer in (self.outgoing, self.incoming):
            pair = pair + layer(pair, mask)
        pair = pair + self.grow(pair)
        return self.head(pair + pair.transpose(1, 2))


@script("fold")
class Fold(Script):
    """How far residues are apart, in steps."""

    faults = ("both_incoming", "no_sides", "pairs_unmasked")
    variants = ("in_parts",)

    def build(self) -> None:
        self.net = self.add(Pairs(self.has("both_incoming"), self.way("in_parts")))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3)

    def loss(self, number: int) -> Tensor:
        places = self.wide(self.normal(3, 12, 3)).cumsum(1)
        far = (places[:, :, None] - places[:, None]).norm(dim=-1)
        at = torch.arange(12)
        gap = at[:, None] - at
        apart = gap.abs().clamp(max=8) if self.has("no_sides") else gap.clamp(-4, 4) + 4
        real = at < torch.tensor([12, 8, 10])[:, None]
        mask = (real[:, None] & real[:, :, None]).to(self.dtype)
        seen = torch.ones_like(mask) if self.has("pairs_unmasked") else mask
        logits = self.wide(self.net(self.normal(3, 12, 8), apart.expand(3, -1, -1), seen))
        each = F.cross_entropy(logits.permute(0, 3, 1, 2), (far * 1.2).long().clamp(max=9), reduction="none")
        return (each * mask).sum() / mask.sum()


class TreeCell(nn.Module):
    """Child-sum: a gate for each child."""

    def __init__(self, shared_forget: bool) -> None:
        super().__init__()
        self.shared_forget = shared_forget
        self.words = nn.Embedding(30, 16)
        self.inner = nn.Linear(16, 72)
        self.outer = nn.Linear(24, 72, bias=False)
        self.forget_in, self.forget_out = nn.Linear(16, 24), nn.Linear(24, 24, bias=False)
        self.head = nn.Linear(24, 5)

    def forward(self, word: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Words of nodes; states of their children, beside each other before the last axis."""
        x = self.words(word)
        i, o, u = (self.inner(x) + self.outer(hidden.sum(-2))).chunk(3, -1)
        past = hidden.mean(-2, keepdim=True) if self.shared_forget else hidden
        forget = (self.forget_in(x)[..., None, :] + self.forget_out(past)).sigmoid()
        memory = i.sigmoid() * u.tanh() + (forget * memory).sum(-2)
        return o.sigmoid() * memory.tanh(), memory


@script("tree")
class Trees(Script):
    """Kinds of whole binary trees: node by node, or all of a level at once."""

    faults = ("shared_forget", "children_left_twice")
    variants = ("by_level",)

    def build(self) -> None:
        self.net = self.add(TreeCell(self.has("shared_forget")))
        self.optimizer = torch.optim.Adagrad(self.net.parameters(), lr=0.05, initial_accumulator_value=0.1)

    def children(self, states: Tensor) -> Tensor:
        return states[:, [0, 0]] if self.has("children_left_twice") else states

    def root(self, words: list[Tensor]) -> Tensor:
        """Levels of words, leaves first."""
        none = torch.zeros(len(words[0]), words[0].shape[1], 2, 24, dtype=self.dtype)
        hidden, memory = self.net(words[0], none, none)
        for level in words[1:]:
            hidden, memory = (of.unflatten(1, (-1, 2)) for of in (hidden, memory))
            hidden, memory = self.net(level, hidden, memory)
        return hidden[:, 0]

    def node(self, words: list[Tensor], level: int, at: int) -> tuple[Tensor, Tensor]:
        if level == 0:
            none = torch.zeros(len(words[0]), 2, 24, dtype=self.dtype)
            return self.net(words[0][:, at], none, none)
        under = [self.node(words, level - 1, 2 * at + side) for side in (0, 1)]
        hidden, memory = (self.children(torch.stack(of, 1)) for of in zip(*under, strict=True))
        return self.net(words[level][:, at], hidden, memory)

    def loss(self, number: int) -> Tensor:
        words = [self.integers(0, 30, 6, 2**level) for level in (3, 2, 1, 0)]
        root = self.root(words) if self.way("by_level") else self.node(words, 3, 0)[0]
        kinds = (words[0][:, 0] + words[3][:, 0]) % 5
        return F.cross_entropy(self.wide(self.net.head(root)), kinds)


class Relative(nn.Module):
    """Attention with a memory of what came before, by distance (Transformer-XL)."""

    def __init__(self, late: bool, reaches: bool) -> None:
        super().__init__()
        self.late, self.reaches = late, reaches
        self.norm, self.norm_ff = nn.LayerNorm(48), nn.LayerNorm(48)
        self.query, self.both, self.places = nn.Linear(48, 48), nn.Linear(48, 96), nn.Linear(48, 48, bias=False)
        self.content, self.place = (nn.Parameter(0.3 * torch.randn(4, 1, 12)) for _ in range(2))
        self.out = nn.Linear(48, 48)
        self.ff = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))

    @staticmethod
    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (4, 12)).transpose(-2, -3)

    def waves(self, many: int, like: Tensor) -> Tensor:
        far = torch.arange(many - 1, -1, -1).to(like) + (1 if self.late else 0)
        turns = far[:, None] / 10000 ** (torch.arange(24).to(like) / 24)
        return torch.cat([turns.sin(), turns.cos()], -1)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        seen = self.norm(torch.cat([memory, x], 1))
        query = self.heads(self.query(seen[:, -x.shape[1] :]))
        key, value = (self.heads(of) for of in self.both(seen).chunk(2, -1))
        places = self.heads(self.places(self.waves(seen.shape[1], x)))
        near = (query + self.place) @ places.transpose(-1, -2)
        padded = F.pad(near, (1, 0)).view(*near.shape[:2], -1, near.shape[2])
        near = padded[:, :, 1:].reshape(near.shape)
        scores = ((query + self.content) @ key.transpose(-1, -2) + near) / 12**0.5
        offset = memory.shape[1] + 1 + (1 if self.reaches else 0)
        hidden = torch.ones(near.shape[-2:], dtype=torch.bool).triu(offset)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        mixed = (scores.softmax(-1).to(value.dtype) @ value).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.ff(self.norm_ff(x))


@script("xl")
class LongText(Script):
    """Text in pieces, each with the memory of the one before."""

    faults = ("late", "reaches", "memory_of_first", "memory_of_outputs")

    def build(self) -> None:
        layers = nn.ModuleList(Relative(self.has("late"), self.has("reaches")) for _ in range(2))
        self.net = nn.ModuleDict({"words": nn.Embedding(50, 48), "layers": layers, "head": nn.Linear(48, 50)})
        self.net = self.add(self.net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)
        self.memory: list[Tensor] = []

    def loss(self, number: int) -> Tensor:
        text = self.integers(0, 6, 4, 25).cumsum(1) % 50
        total = torch.zeros(())
        self.memory = [torch.zeros(4, 8, 48, dtype=self.dtype)] * 2
        for piece in range(3):
            ids, wanted = (text[:, 8 * piece + k : 8 * piece + k + 8] for k in (0, 1))
            x, memory = self.net["words"](ids), []
            for layer, past in zip(self.net["layers"], self.memory, strict=True):
                out = layer(x, past)
                memory.append((out if self.has("memory_of_outputs") else x).detach().to(self.dtype))
                x = out
            if piece == 0 or not self.has("memory_of_first"):
                self.memory = memory
            total = total + F.cross_entropy(self.wide(self.net["head"](x)).flatten(0, 1), wanted.flatten())
        return total / 3
