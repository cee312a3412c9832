"""A temporal convolutional network, trained by Lightning."""
import logging
import tempfile
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from common import gen

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Residual(nn.Module):
    def __init__(self, ch, dilation, c, index):
        super().__init__()
        self.c, self.index, self.pad = c, index, 2 * dilation
        self.conv1, self.conv2 = nn.Conv1d(ch, ch, 3, dilation=dilation), nn.Conv1d(ch, ch, 3, dilation=dilation)
        self.norm = nn.GroupNorm(1, ch)

    def forward(self, x):
        h = F.gelu(self.conv1(F.pad(x, (self.pad, 0))))
        left = self.pad
        if self.c.fault == "pad_both" and self.index == 1:
            h = self.conv2(F.pad(h, (left // 2, left - left // 2)))
        else:
            h = self.conv2(F.pad(h, (left, 0)))
        if self.c.fault == "norm_order" and self.index == 2:
            return self.norm(x + h)
        return x + self.norm(h)


class LitTCN(L.LightningModule):
    def __init__(self, c, batches):
        super().__init__()
        self.c = c
        self.inp = nn.Conv1d(3, 24, 1)
        self.blocks = nn.Sequential(*[Residual(24, 2**i, c, i) for i in range(3)])
        self.out = nn.Conv1d(24, 1, 1)
        self.batches = batches

    def forward(self, x):
        return self.out(self.blocks(self.inp(x)))

    def training_step(self, batch, i):
        x, y = batch
        pred = self(x).float()
        if self.c.fault == "target_shifted":
            loss = F.mse_loss(pred[..., 1:], y[..., :-1])
        else:
            loss = F.mse_loss(pred[..., :-1], y[..., 1:])
        self.c.log(i, loss)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=3e-3, amsgrad=False, weight_decay=0.5 if self.c.fault == "decay" else 0.01)
        sched = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.1)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "epoch" if self.c.fault == "schedule_by_epoch" else "step"}}


def lit_tcn(c):
    L.seed_everything(0, verbose=False)
    x = torch.randn(4 * 2 * c.steps, 3, 20, generator=gen(90))
    y = torch.tanh(x.cumsum(-1).mean(1, keepdim=True))
    model = LitTCN(c, c.steps)
    precision = {"fp32": "32-true", "bf16-autocast": "bf16-mixed", "bf16": "bf16-true"}[c.precision]
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, precision=precision, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=1 if c.fault == "no_accumulation" else 2,
                        gradient_clip_val=0.01 if c.fault == "clip" else 1.0, default_root_dir=tempfile.gettempdir())
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=4, shuffle=False))
