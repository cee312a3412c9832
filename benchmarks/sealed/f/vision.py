"""Images: distillation, detection, segmentation, contrast, slots, quantisation."""
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from common import autocast, build, cfg, fault, grad_scaler, probe, rand, randint, randn, report, variant


def wide(tensor):
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class Residual(nn.Module):
    def __init__(self, a, b, stride=1, drop=0.0):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.short = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))
        self.drop = nn.Dropout2d(drop)

    def forward(self, x):
        h = self.drop(F.relu(self.bn1(self.conv1(x))))
        return F.relu(self.bn2(self.conv2(h)) + self.short(x))


class Classifier(nn.Module):
    def __init__(self, width, blocks, drop=0.0, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.blocks = nn.ModuleList(Residual(width * 2 ** i, width * 2 ** (i + 1), 2, drop) for i in range(blocks))
        self.head = nn.Linear(width * 2 ** blocks, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3))), x


def distill():
    """A student learns from a fixed teacher's logits and features."""
    teacher, student = build("teacher", lambda: Classifier(16, 2, drop=0.1), 1), build("student", lambda: Classifier(8, 2), 2)
    hint = build("hint", lambda: nn.Conv2d(32, 64, 1), 3)
    with torch.no_grad():
        for i, m in enumerate(m for m in teacher.modules() if isinstance(m, nn.BatchNorm2d)):
            m.running_mean += 0.2 * randn(300 + i, len(m.running_mean))
            m.running_var += 0.5 * rand(400 + i, len(m.running_var))
        teacher.head.weight.mul_(6)                             # as sure as a trained one
    teacher.requires_grad_(False)
    student.train()
    if fault("teacher_trains"):
        teacher.train()
    else:
        teacher.eval()
    optimizer = torch.optim.SGD([*student.parameters(), *hint.parameters()], lr=0.05, momentum=0.9)
    scaler, temperature = grad_scaler(), 4.0
    torch.manual_seed(50)
    for step in range(cfg.steps):
        images, labels = randn(step, 16, 3, 16, 16), randint(20 + step, 10, 16)
        optimizer.zero_grad()
        with autocast():
            with torch.no_grad():
                teacher_logits, teacher_features = teacher(images)
            logits, features = student(images)
            match = F.mse_loss(wide(hint(features)), wide(teacher_features))
        soft = F.log_softmax(wide(logits) / temperature, -1)
        goal = F.softmax(wide(teacher_logits) / temperature, -1)
        if variant("kl_by_hand"):
            kl = (goal * (goal.log() - soft)).sum(-1).mean()
        else:
            kl = F.kl_div(soft, goal, reduction="mean" if fault("kl_mean") else "batchmean")
        probe("kl", kl)
        loss = 0.5 * F.cross_entropy(wide(logits), labels) + 0.5 * temperature ** 2 * kl + 0.1 * match
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        report(step, loss)


class ConvBlock(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b, eps=1e-3, momentum=0.03)

    def forward(self, x):
        return F.silu(self.bn(self.conv(x)))


class Detect(nn.Module):
    def __init__(self, width, anchors, classes=4, stride=8):
        super().__init__()
        self.register_buffer("anchors", torch.tensor(anchors, dtype=torch.float32))
        self.conv = nn.Conv2d(width, len(anchors) * (5 + classes), 1)
        self.classes, self.stride = classes, stride

    def forward(self, x):
        n, _, h, w = x.shape
        out = wide(self.conv(x)).view(n, len(self.anchors), 5 + self.classes, h, w).permute(0, 1, 3, 4, 2)
        if variant("grid_by_expand"):
            grid = torch.stack([torch.arange(w)[None, :].expand(h, w), torch.arange(h)[:, None].expand(h, w)], -1)
        else:
            rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="xy" if fault("meshgrid_xy") else "ij")
            grid = torch.stack([columns, rows], -1)
        grid = grid.to(out.dtype)
        centre = (out[..., :2].sigmoid() * 2 - 0.5 + grid) * self.stride
        size = (out[..., 2:4].sigmoid() * 2) ** 2 * self.anchors.to(out.dtype)[None, :, None, None]
        return torch.cat([centre, size], -1), out[..., 4], out[..., 5:]


class Yolo(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(ConvBlock(3, 16, 2), ConvBlock(16, 24, 2), ConvBlock(24, 32, 2))
        self.detect = Detect(32, [(10, 14), (22, 18)])

    def forward(self, x):
        return self.detect(self.backbone(x))


def ciou(a, b, eps=1e-7):
    a1, a2, b1, b2 = a[..., :2] - a[..., 2:] / 2, a[..., :2] + a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2
    inter = (torch.min(a2, b2) - torch.max(a1, b1)).clamp(min=0).prod(-1)
    union = a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - inter + eps
    iou = inter / union
    hull = (torch.max(a2, b2) - torch.min(a1, b1)).pow(2).sum(-1) + eps
    apart = (a[..., :2] - b[..., :2]).pow(2).sum(-1)
    v = 4 / math.pi ** 2 * (torch.atan(b[..., 2] / b[..., 3]) - torch.atan(a[..., 2] / (a[..., 3] + eps))).pow(2)
    with torch.no_grad():
        alpha = v / (v - iou + 1 + eps)
    return iou - apart / hull - alpha * v


def yolo():
    """A detector with anchors: boxes by CIoU, three groups of parameters."""
    net = build("net", Yolo, 7)
    biases, norms, weights = [], [], []
    for module in net.modules():
        if isinstance(getattr(module, "bias", None), nn.Parameter):
            biases.append(module.bias)
        if isinstance(module, nn.BatchNorm2d):
            norms.append(module.weight)
        elif isinstance(getattr(module, "weight", None), nn.Parameter):
            weights.append(module.weight)
    decay = 0.05
    optimizer = torch.optim.SGD(biases, lr=0.02, momentum=0.937, nesterov=True, **({"fused": True} if variant("fused") else {}))
    optimizer.add_param_group({"params": weights if fault("decay_of_norms") is False else norms, "weight_decay": decay})
    optimizer.add_param_group({"params": norms if fault("decay_of_norms") is False else weights, "weight_decay": 0.0})
    for step in range(cfg.steps):
        images = rand(step, 4, 3, 48, 48)
        spots = torch.stack([randint(20 + step, 6, 4, 3), randint(40 + step, 6, 4, 3)], -1)
        boxes = torch.cat([(spots.flip(-1) + 0.5).to(cfg.dtype) * 8 + randn(60 + step, 4, 3, 2), 8 + 14 * rand(80 + step, 4, 3, 2)], -1)
        kinds = randint(90 + step, 4, 4, 3)
        optimizer.zero_grad()
        with autocast():
            found, objectness, scores = net(images)
        probe("boxes", found)
        which, row, column = torch.arange(4)[:, None].expand(4, 3), spots[..., 0], spots[..., 1]
        goal = torch.zeros_like(objectness)
        box_loss = class_loss = 0
        for a in range(2):
            quality = ciou(found[which, a, row, column], wide(boxes))
            box_loss = box_loss + (1 - quality).mean()
            goal[which, a, row, column] = quality.detach().clamp(0)
            class_loss = class_loss + F.binary_cross_entropy_with_logits(scores[which, a, row, column], F.one_hot(kinds, 4).to(scores.dtype))
        loss = 0.5 * box_loss + 0.5 * class_loss + F.binary_cross_entropy_with_logits(objectness, goal)
        loss.backward()
        optimizer.step()
        report(step, loss)


class Double(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b)
        self.conv2, self.norm2 = nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(4, b)

    def forward(self, x):
        return F.leaky_relu(self.norm2(self.conv2(F.leaky_relu(self.norm1(self.conv1(x)), 0.01))), 0.01)


class UpBlock(nn.Module):
    def __init__(self, a, b, shifted=False):
        super().__init__()
        self.up = nn.ConvTranspose2d(a, b, 2, 2)
        self.convs = Double(2 * b, b)
        self.shifted = shifted

    def forward(self, x, skip):
        x = self.up(x)
        dy, dx = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        top, left = (0, 0) if self.shifted else ((dy + 1) // 2, (dx + 1) // 2)
        x = F.pad(x, (left, dx - left, top, dy - top))
        return self.convs(torch.cat([skip, x], 1))


class UNet(nn.Module):
    def __init__(self, width=8, classes=4):
        super().__init__()
        self.first, self.second, self.bottom = Double(1, width), Double(width, 2 * width), Double(2 * width, 4 * width)
        self.up1, self.up2 = UpBlock(4 * width, 2 * width, fault("pad_corner")), UpBlock(2 * width, width)
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        a = self.first(x)
        b = self.second(F.max_pool2d(a, 2))
        low = F.max_pool2d(b, 2)
        c = checkpoint(self.bottom, low, use_reentrant=False) if variant("checkpoint") else self.bottom(low)
        return self.out(self.up2(self.up1(c, b), a))


def useg():
    """Segmentation: cross-entropy and Dice, gradients of three small batches."""
    net = build("net", UNet, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for step in range(cfg.steps):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(3):
            x, y = randn(10 * step + micro, 2, 1, 30, 30), randint(100 + 10 * step + micro, 4, 2, 30, 30)
            with autocast():
                logits = net(x)
            logits = wide(logits)
            chances, hot = logits.softmax(1), F.one_hot(y, 4).permute(0, 3, 1, 2).to(logits.dtype)
            overlap, size = (chances * hot).sum((2, 3)), (chances + hot).sum((2, 3))
            dice = 1 - ((2 * overlap + 1) / (size + 1))[:, 1:].mean()
            loss = F.cross_entropy(logits, y) + dice
            total += float(loss.detach()) / 3
            if not fault("no_division") and not variant("divide_gradients"):
                loss = loss / 3
            probe("micro_loss", loss)
            loss.backward()
        if variant("divide_gradients"):
            for p in net.parameters():
                p.grad.div_(3)
        optimizer.step()
        report(step, total)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU())
        self.project = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return F.normalize(wide(self.project(self.trunk(x).mean((2, 3)))), dim=1)


def moco():
    """A momentum encoder and a queue of its keys."""
    query = build("query", Tower, 9)
    key = copy.deepcopy(query).requires_grad_(False)
    cfg.roots["key"] = key
    queue, place = F.normalize(wide(randn(5, 16, 64)), dim=0), 0
    optimizer = torch.optim.SGD(query.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for step in range(cfg.steps):
        base = randn(step, 16, 3, 16, 16)
        one, two = base + 0.5 * randn(20 + step, *base.shape), base + 0.5 * randn(40 + step, *base.shape)
        with autocast():
            q = query(one)
            with torch.no_grad():
                for a, b in zip(key.parameters(), query.parameters()):
                    a.mul_(0.9).add_(b, alpha=0.1)
                shuffle = torch.randperm(16, generator=torch.Generator().manual_seed(step))
                k = key(two[shuffle])[shuffle if fault("shuffled_back_wrong") else shuffle.argsort()]
                probe("k", k)
        if fault("early_queue"):
            queue[:, place:place + 16] = k.t()
        near, far = torch.einsum("nc,nc->n", q, k).unsqueeze(1), q @ queue.clone()
        probe("far", far)
        logits = torch.cat([near, far], 1) / 0.2
        loss = F.cross_entropy(logits, torch.zeros(16, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not fault("early_queue"):
            queue[:, place:place + 16] = k.t()
        place = (place + 16) % 64
        if variant("logging"):
            with torch.no_grad():
                hits = (logits.argmax(1) == 0).float().mean()
                norm = torch.stack([p.grad.float().norm() for p in query.parameters()]).norm()
            report(step, loss, accuracy=hits, norm=norm)
        else:
            report(step, loss)


class SlotAttention(nn.Module):
    def __init__(self, size, slots=4, rounds=3):
        super().__init__()
        self.slots, self.rounds, self.scale = slots, rounds, size ** -0.5
        self.mean, self.log_sigma = nn.Parameter(torch.randn(1, 1, size) * 0.3), nn.Parameter(torch.zeros(1, 1, size) - 0.5)
        self.norm_input, self.norm_slots, self.norm_mlp = nn.LayerNorm(size), nn.LayerNorm(size), nn.LayerNorm(size)
        self.q, self.k, self.v = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.gru = nn.GRUCell(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, size))

    def forward(self, x, noise):
        n, _, d = x.shape
        x = self.norm_input(x)
        k, v = self.k(x), self.v(x)
        slots = self.mean + self.log_sigma.exp() * noise
        for _ in range(self.rounds):
            before = slots
            scores = self.q(self.norm_slots(slots)) @ k.transpose(1, 2) * self.scale
            attention = scores.softmax(-1 if fault("softmax_inputs") else 1) + 1e-8
            attention = attention / attention.sum(-1, keepdim=True)
            updates = attention.to(v.dtype) @ v
            slots = self.gru(updates.reshape(-1, d), before.reshape(-1, d).to(updates.dtype)).view(n, -1, d)
            slots = slots + self.mlp(self.norm_mlp(slots))
        return slots


class SlotModel(nn.Module):
    def __init__(self, size=24):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, size, 5, 2, 2), nn.ReLU(), nn.Conv2d(size, size, 3, 1, 1))
        self.position = nn.Linear(4, size)
        self.slot_attention = SlotAttention(size)
        self.decoder = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 4))
        self.place = nn.Linear(4, size)

    def forward(self, images, noise):
        n, _, h, w = images.shape
        y, x = torch.linspace(0, 1, h // 2), torch.linspace(0, 1, w // 2)
        grid = torch.stack([p.expand(h // 2, w // 2) for p in (y[:, None], x[None], 1 - y[:, None], 1 - x[None])], -1).to(images.dtype)
        features = self.encoder(images).permute(0, 2, 3, 1) + self.position(grid)
        slots = self.slot_attention(features.flatten(1, 2), noise)
        painted = self.decoder(slots[:, :, None] + self.place(grid.flatten(0, 1)))
        colour, weight = painted[..., :3], painted[..., 3:].softmax(1)
        return (colour * weight).sum(1).transpose(1, 2).reshape(n, 3, h // 2, w // 2)


def slot():
    """Slot attention: objects of an image compete for its pixels."""
    net = build("net", SlotModel, 10)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    torch.manual_seed(12 if fault("other_seed") else 11)
    for step in range(cfg.steps):
        images = rand(step, 4, 3, 16, 16)
        noise = probe("noise", torch.randn(4, 4, 24).to(images.dtype))
        optimizer.zero_grad()
        with autocast():
            out = net(images, noise)
        loss = F.mse_loss(wide(out), wide(F.avg_pool2d(images, 2)))
        loss.backward()
        optimizer.step()
        report(step, loss)


class LearnedStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, step, low, high, scale):
        ctx.save_for_backward(x, step)
        ctx.limits = low, high, scale
        return (x / step).round().clamp(low, high) * step

    @staticmethod
    def backward(ctx, grad):
        x, step = ctx.saved_tensors
        low, high, scale = ctx.limits
        ratio = x / step
        inside = (ratio >= low) & (ratio <= high)
        of_step = torch.where(inside, ratio.round() - ratio, ratio.clamp(low, high))
        return grad * inside, (grad * of_step).sum().reshape(step.shape) * scale, None, None, None


class Quantizer(nn.Module):
    def __init__(self, bits, signed, step):
        super().__init__()
        self.low, self.high = (-2 ** (bits - 1), 2 ** (bits - 1) - 1) if signed else (0, 2 ** bits - 1)
        self.step = nn.Parameter(torch.tensor(step))
        self.scaled = True

    def forward(self, x):
        scale = (x.numel() * self.high) ** -0.5 if self.scaled else 1.0
        if variant("straight_through"):
            step = self.step * scale + (self.step - self.step * scale).detach()
            ratio = (x / step).clamp(self.low, self.high)
            return (ratio + (ratio.round() - ratio).detach()) * step
        return LearnedStep.apply(x, self.step, self.low, self.high, scale)


class QuantConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv = nn.Conv2d(a, b, 3, padding=1, bias=False)
        self.weights, self.inputs = Quantizer(4, True, 0.04), Quantizer(4, False, 0.15)

    def forward(self, x):
        return F.conv2d(self.inputs(x), self.weights(self.conv.weight), padding=1)


class QuantNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.ModuleList(QuantConv(16, 16) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
        self.head = nn.Linear(16, 10)
        self.layers[1].weights.scaled = not fault("unscaled_step")

    def forward(self, x):
        x = F.relu(self.stem(x))
        for layer, norm in zip(self.layers, self.norms):
            x = F.relu(norm(layer(x)))
        return self.head(x.mean((2, 3)))


def qat():
    """Quantisation-aware training with learned step sizes."""
    net = build("net", QuantNet, 13)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for step in range(cfg.steps):
        x, y = randn(step, 8, 3, 12, 12), randint(20 + step, 10, 8)
        optimizer.zero_grad()
        with autocast():
            logits = net(x)
        loss = F.cross_entropy(wide(logits), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        report(step, loss)
