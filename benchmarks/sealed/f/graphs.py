"""Graph networks."""
import torch
import torch.nn.functional as F
from torch import nn

from common import autocast, build, cfg, fault, probe, randint, randn, report, variant


def sage():
    """GraphSAGE of torch_geometric: prediction of links."""
    from torch_geometric.nn import BatchNorm, JumpingKnowledge, SAGEConv

    class Encoder(nn.Module):
        def __init__(self, features=20, hidden=32, layers=3):
            super().__init__()
            aggr = ["mean"] * layers
            if fault("sum_neighbours"):
                aggr[1] = "sum"
            self.convs = nn.ModuleList(SAGEConv(features if i == 0 else hidden, hidden, aggr=aggr[i], normalize=i == layers - 1)
                                       for i in range(layers))
            self.norms = nn.ModuleList(BatchNorm(hidden) for _ in range(layers))
            self.jump = JumpingKnowledge("cat")
            self.out = nn.Linear(hidden * layers, 16)

        def forward(self, x, edges):
            kept = []
            for conv, norm in zip(self.convs, self.norms):
                x = norm(conv(x, edges)).relu()
                kept.append(x)
            return self.out(self.jump(kept))

    encoder = build("encoder", Encoder)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3, weight_decay=1e-3)
    x = randn(1, 60, 20)
    edges = torch.stack([randint(2, 60, 240), randint(3, 60, 240)])
    edges = torch.cat([edges, edges.flip(0)], 1)
    for step in range(cfg.steps):
        wrong = torch.stack([randint(10 + step, 60, 240), randint(20 + step, 60, 240)])
        optimizer.zero_grad()
        with autocast():
            z = encoder(x, edges)
            pairs = torch.cat([edges[:, :240], wrong], 1)
            score = (z[pairs[0]] * z[pairs[1]]).sum(-1)
        labels = torch.cat([torch.ones(240), torch.zeros(240)]).to(cfg.dtype)
        loss = F.binary_cross_entropy_with_logits(score.to(labels.dtype), labels)
        loss.backward()
        optimizer.step()
        report(step, loss)


class Equivariant(nn.Module):
    def __init__(self, hidden, index):
        super().__init__()
        self.index = index
        self.edge = nn.Sequential(nn.Linear(2 * hidden + 1, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.coord = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1, bias=False))
        self.node = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.gate = nn.Sequential(nn.Linear(hidden, 1), nn.Sigmoid())

    def forward(self, h, x, i, j):
        def gathered(values):
            if variant("incidence"):
                matrix = F.one_hot(i, len(h)).t().to(values.dtype)
                return matrix @ values
            return torch.zeros(len(h), values.shape[1], dtype=values.dtype).index_add(0, i, values)

        apart = x[i] - x[j]
        radial = apart.pow(2).sum(1, keepdim=True)
        m = self.edge(torch.cat([h[i], h[j], radial], 1))
        m = m * self.gate(m)
        length = radial if self.index == 1 and fault("no_sqrt") else (radial + 1e-8).sqrt()
        x = x + gathered((apart / (length + 1) * self.coord(m)).to(x.dtype)) / 7
        h = h + self.node(torch.cat([h, gathered(m)], 1))
        return h, x


class EGNN(nn.Module):
    def __init__(self, hidden=32, layers=3):
        super().__init__()
        self.embed = nn.Embedding(5, hidden)
        self.layers = nn.ModuleList(Equivariant(hidden, k) for k in range(layers))
        self.energy = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, kinds, x, i, j):
        h = self.embed(kinds)
        for layer in self.layers:
            h, x = layer(h, x, i, j)
        return self.energy(h).view(4, 8).sum(1), x


def egnn():
    """Equivariant network by hand: energies and forces (double backward)."""
    net = build("net", EGNN, 5)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    pairs = torch.tensor([(8 * g + a, 8 * g + b) for g in range(4) for a in range(8) for b in range(8) if a != b]).t()
    for step in range(cfg.steps):
        x = (randn(step, 32, 3) * 1.5).requires_grad_()
        kinds, energy, force = randint(20 + step, 5, 32), randn(40 + step, 4), randn(60 + step, 32, 3)
        optimizer.zero_grad()
        with autocast():
            e, moved = net(kinds, x, *pairs)
        probe("moved", moved)
        e = e.to(energy.dtype)
        f = -torch.autograd.grad(e.sum(), x, create_graph=True)[0]
        loss = F.l1_loss(e, energy) + 10 * F.mse_loss(f, force) + 0.1 * (moved - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        report(step, loss)
