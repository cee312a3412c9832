"""Graph networks of torch_geometric on a random graph."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool
from torch_geometric.utils import to_undirected

from common import gen


def graph(seed, nodes=60, edges=180, features=16, classes=5):
    g = gen(seed)
    e = torch.randint(0, nodes, (2, edges), generator=g)
    e = to_undirected(e[:, e[0] != e[1]])
    return torch.randn(nodes, features, generator=g), e, torch.randint(0, classes, (nodes,), generator=g), torch.rand(nodes, generator=g) < 0.5


class GCN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.conv1, self.conv2, self.conv3 = GCNConv(16, 32), GCNConv(32, 32), GCNConv(32, 5)
        if c.fault == "no_self_loops":
            self.conv2.add_self_loops = False
        if c.fault == "not_normalised":
            self.conv2.normalize = False

    def forward(self, x, e):
        if self.c.fault == "weight_of_edges":
            w = torch.ones(e.shape[1])
            w[: e.shape[1] // 4] = 2.0
            h = self.conv1(x, e, w).relu()
        else:
            h = self.conv1(x, e).relu()
        h = h + self.conv2(h, e).relu()
        return self.conv3(h, e)


def gcn(c):
    model = GCN(c).to(c.dtype)
    opt = torch.optim.Adam([{"params": model.conv1.parameters(), "weight_decay": 5e-4}, {"params": list(model.conv2.parameters()) + list(model.conv3.parameters())}],
                           lr=0.02 if c.fault == "rate" else 0.01)
    x, e, y, train = graph(80)
    if c.variant == "edges_reordered":
        e = e[:, torch.randperm(e.shape[1], generator=gen(1))]
    if c.fault == "test_nodes_in_loss":
        train = torch.ones_like(train)
    for step in range(c.steps):
        model.train()
        opt.zero_grad()
        with c.amp():
            out = model(x.to(c.dtype), e)
        loss = F.cross_entropy(out[train].float(), y[train])
        loss.backward()
        opt.step()
        c.log(step, loss)
        if c.variant == "evaluate_aside":
            model.eval()
            with torch.no_grad():
                acc = (model(x, e).argmax(1) == y)[~train].float().mean()
            print("accuracy", acc.item())


class GAT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.conv1 = GATConv(16, 8, heads=4, negative_slope=0.01 if c.fault == "slope" else 0.2)
        self.conv2 = GATConv(32, 8, heads=4, concat=True, dropout=0.4 if c.fault == "dropout" else 0.0)
        self.lin = nn.Linear(32, 5)
        if c.fault == "src_dst_swapped":
            a, b = self.conv2.att_src, self.conv2.att_dst
            a.data, b.data = b.data, a.data

    def forward(self, x, e, batch):
        h = F.elu(self.conv1(x, e))
        h = F.elu(self.conv2(h, e.flip(0) if self.c.fault == "edge_direction" else e))
        return self.lin(global_mean_pool(h, batch))


def gat(c):
    """Graph classification, several graphs in a batch."""
    model = GAT(c)
    for conv in (model.conv1, model.conv2):
        for p in (conv.att_src, conv.att_dst):
            p.data.mul_(3.0)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    scaler = c.scaler()
    g = gen(81)
    x = torch.randn(60, 16, generator=g)
    e = torch.cat([torch.randint(0, 15, (2, 40), generator=g) + 15 * i for i in range(4)], 1)
    batch = torch.arange(4).repeat_interleave(15)
    y = torch.tensor([0, 3, 1, 2])
    for step in range(c.steps):
        opt.zero_grad()
        with c.amp():
            out = model(x, e, batch)
        loss = F.cross_entropy(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        c.log(step, loss)


class SAGE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = SAGEConv(16, 32, normalize=c.fault == "normalized")
        self.conv2 = SAGEConv(32, 24, aggr="max" if c.fault == "aggregation_max" else "mean")
        if c.fault == "root_weight":
            self.conv2.root_weight = False

    def forward(self, x, e):
        return self.conv2(self.conv1(x, e).relu(), e)


def sage(c):
    """Link prediction: dot products of node embeddings, negatives drawn."""
    model = SAGE(c).to(c.dtype)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
    x, e, _, _ = graph(82)
    neg = gen(83)
    for step in range(c.steps):
        n = torch.randint(0, 60, e.shape, generator=neg)
        opt.zero_grad()
        with c.amp():
            z = model(x.to(c.dtype), e)
        z = z.float()
        if c.variant == "einsum":
            pos, ng = torch.einsum("ed,ed->e", z[e[0]], z[e[1]]), torch.einsum("ed,ed->e", z[n[0]], z[n[1]])
        else:
            pos, ng = (z[e[0]] * z[e[1]]).sum(-1), (z[n[0]] * z[n[1]]).sum(-1)
        score = torch.cat([pos, ng])
        label = torch.cat([torch.ones_like(pos), torch.zeros_like(ng)])
        if c.fault == "labels_swapped":
            label = 1 - label
        loss = F.binary_cross_entropy_with_logits(score, label)
        loss.backward()
        opt.step()
        c.log(step, loss)
