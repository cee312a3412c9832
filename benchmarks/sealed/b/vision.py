"""Networks of timm, each with a training loop of its own."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import timm
from timm.loss import LabelSmoothingCrossEntropy
from timm.models.cait import Cait
from timm.models.convnext import ConvNeXt
from timm.models.mlp_mixer import MlpMixer
from timm.models.swin_transformer import SwinTransformer
from timm.optim import param_groups_weight_decay
from timm.utils import ModelEmaV3

from common import LyingKernel, gen


def images(seed, n, size, classes=10):
    g = gen(seed)
    while True:
        y = torch.randint(0, classes, (n,), generator=g)
        yield torch.randn(n, 3, size, size, generator=g) + y[:, None, None, None] * 0.1, y


# ---------------------------------------------------------------- ConvNeXt: AdamW, no decay on norms, cosine schedule
def convnext(c):
    model = ConvNeXt(depths=(1, 1, 2, 1), dims=(16, 24, 32, 48), num_classes=10, ls_init_value=0.5)
    nn.init.normal_(model.head.fc.weight, std=0.1)
    block = model.stages[2].blocks[1]
    if c.fault == "norm_eps":
        block.norm.eps = 0.2
    if c.fault == "layer_scale_missing":
        model.stages[1].blocks[0].gamma = None
    if c.fault == "shortcut_missing":
        block.shortcut = nn.Identity()
        block.shortcut.forward = lambda x: torch.zeros_like(x)
    model = model.to(c.dtype)
    if c.variant == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    groups = param_groups_weight_decay(model, 0.05)
    opt = torch.optim.AdamW(groups, lr=2e-3, foreach=c.variant == "foreach")
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=4)
    lossf = LabelSmoothingCrossEntropy(0.2 if c.fault == "smoothing" else 0.1)
    data = images(60, 4, 32)
    model.train()
    lie = LyingKernel(("gelu",), lambda out, args: out * 1.02, lambda a, o, n: o.shape[-1] == 128 and n % 5 == 2) if c.fault == "gelu_kernel" else None
    if lie:
        lie.__enter__()
    for step in range(c.steps):
        x, y = next(data)
        x = x.to(c.dtype)
        if c.variant == "channels_last":
            x = x.contiguous(memory_format=torch.channels_last)
        with c.amp():
            loss = lossf(model(x).float(), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        c.log(step, loss)
    if lie:
        lie.__exit__(None, None, None)


# ---------------------------------------------------------------- EfficientNet: SGD with warmup, accumulation
def efficientnet(c):
    model = timm.create_model("test_efficientnet", num_classes=10)
    if c.fault == "stride_padding":
        model.blocks[2][0].conv_exp.padding = (0, 0)
    if c.fault == "bn_eval":
        model.train()
        model.blocks[3][0].bn2.eval()
    if c.fault == "se_relu":
        model.blocks[3][0].se.act1 = nn.ReLU()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-5)
    scaler = c.scaler()
    data = images(61, 4, 64)
    for step in range(c.steps):
        opt.zero_grad(set_to_none=True)
        total = 0.0
        batches = [next(data) for _ in range(2)]
        for i, (x, y) in enumerate(batches):
            with c.amp():
                loss = F.cross_entropy(model(x).float(), y) / 2
            if c.fault == "zeroed_between" and i == 1:
                opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(opt)
        scaler.update()
        c.log(step, total)


# ---------------------------------------------------------------- MobileNetV3: RMSprop and a moving average of the weights, evaluated
def mobilenetv3(c):
    model = timm.create_model("mobilenetv3_small_050", num_classes=10, drop_rate=0.0)
    if c.fault == "hardswish_is_silu":
        model.blocks[2][1].bn2.act = nn.SiLU()
    if c.fault == "se_weights_swapped":
        a, b = model.blocks[3][0].se.conv_expand.weight, model.blocks[3][1].se.conv_expand.weight
        a.data, b.data = b.data.clone(), a.data.clone()
    if c.variant == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    ema = ModelEmaV3(model, decay=0.5 if c.fault == "ema_decay" else 0.9)
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-4, alpha=0.9, eps=1e-8 if c.fault == "rmsprop_eps" else 1e-3, momentum=0.9)
    data = images(62, 8, 64)
    model.train()
    for step in range(c.steps):
        x, y = next(data)
        if c.variant == "channels_last":
            x = x.contiguous(memory_format=torch.channels_last)
        with c.amp():
            out = model(x)
        loss = F.cross_entropy(out.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(model, step=step)
        c.log(step, loss)
    if c.variant == "with_log":
        print("weights", sum(p.norm().item() for p in model.parameters()))
    ema.module.train()  # statistics of the batch: two steps are too few for running ones
    with torch.no_grad(), c.amp():
        x, y = next(data)
        c.log(c.steps, F.cross_entropy(ema.module(x).float(), y))


# ---------------------------------------------------------------- Swin
def swin(c):
    model = SwinTransformer(img_size=32, patch_size=2, window_size=4, embed_dim=32, depths=(2, 2), num_heads=(2, 4), num_classes=10, drop_path_rate=0.0)
    for m in model.modules():
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=0.1)
        if hasattr(m, "relative_position_bias_table"):
            nn.init.normal_(m.relative_position_bias_table, std=0.5)
        if hasattr(m, "fused_attn"):
            m.fused_attn = c.variant == "sdpa"
    block = model.layers[0].blocks[1]
    if c.fault == "shift_mask_missing":
        block.attn_mask = None
    if c.fault == "scale":
        model.layers[1].blocks[0].attn.scale *= 1.5
    if c.fault == "unshift":
        block.shift_size = (2, 2)
        roll = torch.roll

        def wrong(x, shifts, dims):
            return roll(x, (1, 1) if tuple(shifts) == (2, 2) else shifts, dims)

        torch.roll = wrong
    if c.fault == "bias_transposed":
        a = model.layers[0].blocks[0].attn
        a.relative_position_index.copy_(a.relative_position_index.t().contiguous())
    model = model.to(c.dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=c.variant == "fused")
    data = images(63, 4, 32)
    for step in range(c.steps):
        x, y = next(data)
        with c.amp():
            loss = F.cross_entropy(model(x.to(c.dtype)).float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        c.log(step, loss)
    if c.fault == "unshift":
        torch.roll = roll


# ---------------------------------------------------------------- CaiT: two optimizers, one for the head
def cait(c):
    model = Cait(img_size=32, patch_size=4, embed_dim=48, depth=2, num_heads=4, depth_token_only=1, init_values=0.5, num_classes=10)
    for m in model.modules():
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=0.12)
        if hasattr(m, "fused_attn"):
            m.fused_attn = c.variant == "sdpa"
    if c.fault == "talking_heads_swapped":
        a = model.blocks[1].attn
        a.proj_l, a.proj_w = a.proj_w, a.proj_l
    if c.fault == "gamma":
        model.blocks[0].gamma_1.data.fill_(1.0)
    head = list(model.head.parameters())
    body = [p for n, p in model.named_parameters() if not n.startswith("head")]
    if c.fault == "head_not_trained":
        head = head[1:]
    if c.variant == "checkpoint":
        model.set_grad_checkpointing(True)
    opts = [torch.optim.AdamW(body, lr=1e-3), torch.optim.SGD(head, lr=0.1)]
    data = images(64, 4, 32)
    for step in range(c.steps):
        x, y = next(data)
        with c.amp():
            out = model(x)
        loss = F.cross_entropy(out.float(), y)
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        c.log(step, loss)


# ---------------------------------------------------------------- MLP-Mixer: soft targets (mixup)
def mixer(c):
    model = MlpMixer(img_size=32, patch_size=8, num_blocks=3, embed_dim=48, num_classes=10)
    for m in model.modules():
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=0.15)
    if c.fault == "gelu_tanh":
        model.blocks[1].mlp_channels.act = nn.GELU(approximate="tanh")
    if c.fault == "gelu_is_relu":
        model.blocks[1].mlp_tokens.act = nn.ReLU()
    if c.fault == "norm_skipped":
        model.blocks[2].norm2 = nn.Identity()
    if c.fault == "fc_transposed":
        w = model.blocks[1].mlp_tokens.fc1.weight  # 24 x 16, laid out as 16 x 24
        w.data = w.data.t().reshape(w.shape).contiguous()
    if c.fault == "clamped":
        fc = model.blocks[0].mlp_channels.fc1
        fc.register_forward_hook(lambda m, i, o: o.clamp(-0.5, 0.5))
    model = model.to(c.dtype)
    opt = torch.optim.NAdam(model.parameters(), lr=1e-3)
    data = images(65, 6, 32)
    for step in range(c.steps):
        x, y = next(data)
        lam = 0.7
        perm = y.flip(0)
        x = lam * x + (1 - lam) * x.flip(0)
        if c.fault == "mixup_target":
            lam = 0.3
        t = lam * F.one_hot(y, 10) + (1 - lam) * F.one_hot(perm, 10)
        with c.amp():
            out = model(x.to(c.dtype))
        if c.variant == "manual_soft":
            loss = -(t * F.log_softmax(out.float(), -1)).sum(-1).mean()
        else:
            loss = F.cross_entropy(out.float(), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
        c.log(step, loss)


# ---------------------------------------------------------------- RegNet: evaluation only
def regnet(c):
    model = timm.create_model("regnety_002", num_classes=10, zero_init_last=False)
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            m.weight.data.mul_(0.6)
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = 0.6
            nn.init.uniform_(m.weight, 0.3, 0.7)
    data = images(66, 4, 48)
    model.train()
    with torch.no_grad():  # running statistics, as if trained
        for _ in range(3):
            model(next(data)[0])
    model.eval().to(c.dtype)
    if c.fault == "bn_train":
        model.s2.b1.conv2.bn.train()
    if c.fault == "running_var_stale":
        model.s3.b2.conv1.bn.running_var.fill_(1.0)
    if c.fault == "se_before":
        b = model.s3.b1
        b.se = nn.Identity()
    if c.variant == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    lie = None
    if c.fault == "conv_stale":
        last = {}

        def stale(out, args):
            old = last.get("out")
            last["out"] = out.clone()
            return out if old is None else torch.cat([out[:3], old[3:]])

        lie = LyingKernel(("convolution", "mkldnn_convolution"), stale, lambda a, o, n: tuple(a[1].shape) == (152, 56, 1, 1) and a[3][0] == 1)
    if lie:
        lie.__enter__()
    right = 0
    for step in range(c.steps):
        x, y = next(data)
        x = x.to(c.dtype)
        if c.variant == "channels_last":
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.inference_mode() if c.variant == "inference_mode" else torch.no_grad(), c.amp():
            out = model(x)
        right += (out.argmax(1) == y).sum().item()
        c.log(step, F.cross_entropy(out.float(), y), right=right)
    if lie:
        lie.__exit__(None, None, None)
