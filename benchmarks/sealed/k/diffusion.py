"""What makes pictures out of noise, and what makes pictures small."""

from __future__ import annotations

import diffusers
import torch
import torch.nn.functional as F
from common import Script, script
from torch import Tensor, nn


class Shapes(Script):
    """Soft discs."""

    def shapes(self, batch: int, channels: int, size: int) -> Tensor:
        at = torch.linspace(-1, 1, size, dtype=torch.get_default_dtype())
        middle = self.uniform(batch, channels, 2, 1).to(at.dtype) - 0.5
        far = (at - middle[:, :, 0])[..., None].square() + (at - middle[:, :, 1])[:, :, None].square()
        return ((1 - 4 * far).tanh() * 0.8).to(self.dtype) + 0.05 * self.normal(batch, channels, size, size)


@script("vqmodel")
class VQModel(Shapes):
    faults = ("other_weighted", "decoder_from_codes")

    def build(self) -> None:
        self.net = diffusers.VQModel(
            block_out_channels=(16, 24),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            num_vq_embeddings=12,
            norm_num_groups=4,
        )
        nn.init.normal_(self.net.quantize.embedding.weight, std=0.5)
        self.net.quantize.legacy = self.has("other_weighted")
        self.net = self.add(self.net).train()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3)

    def loss(self, number: int) -> Tensor:
        pictures = self.shapes(4, 3, 16)
        hidden = self.net.encode(pictures).latents
        codes, commitment, _ = self.net.quantize(hidden)
        if self.has("decoder_from_codes"):
            codes = codes.detach()
        found = self.net.decoder(self.net.post_quant_conv(codes))
        return F.l1_loss(self.wide(found), self.wide(pictures)) + self.wide(commitment)


@script("auraflow")
class AuraFlow(Shapes):
    """From noise to pictures on straight lines."""

    faults = ("time_in_thousands", "backwards")

    def build(self) -> None:
        self.net = diffusers.AuraFlowTransformer2DModel(
            sample_size=8,
            in_channels=4,
            num_mmdit_layers=1,
            num_single_dit_layers=2,
            attention_head_dim=12,
            num_attention_heads=4,
            joint_attention_dim=24,
            caption_projection_dim=48,
            pos_embed_max_size=16,
        )
        self.net = self.add(self.net).train()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, betas=(0.9, 0.95))

    def loss(self, number: int) -> Tensor:
        pictures, noise = self.shapes(4, 4, 8), self.normal(4, 4, 8, 8)
        time = self.normal(4).sigmoid()
        at = time.view(-1, 1, 1, 1)
        mixed = (1 - at) * pictures + at * noise
        told = 1000 * time if self.has("time_in_thousands") else time
        found = self.net(mixed, encoder_hidden_states=self.normal(4, 6, 24), timestep=told, return_dict=False)[0]
        truth = pictures - noise if self.has("backwards") else noise - pictures
        return F.mse_loss(self.wide(found), self.wide(truth))


class Denoiser(nn.Module):
    """Told how much noise there is, by scale and shift of a norm."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.told = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.norm = nn.GroupNorm(4, width)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        angles = noise[:, None] * torch.arange(1, 5).to(noise.dtype)
        scale, shift = self.told(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None].chunk(2, 1)
        hidden = self.first(x)
        return self.last(F.silu(hidden + self.middle(F.silu(self.norm(hidden) * (1 + scale) + shift))))


@script("edm")
class Preconditioned(Shapes):
    """Input, output and noise level scaled so that the network sees numbers near one; a shadow of its weights."""

    faults = ("whole_logarithm", "data_spread", "shadow_first")
    variants = ("lerp",)

    def build(self) -> None:
        self.net = self.add(Denoiser())
        self.shadow = self.add(Denoiser()).requires_grad_(False)
        self.shadow.load_state_dict(self.net.state_dict())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=5e-3)

    def denoised(self, net: nn.Module, noisy: Tensor, sigma: Tensor) -> Tensor:
        spread = 1.0 if self.has("data_spread") else 0.5
        total = (sigma**2 + spread**2).sqrt()
        level = sigma.log().flatten() / (1 if self.has("whole_logarithm") else 4)
        out = net(noisy / total, level)
        return (spread / total) ** 2 * noisy + sigma * spread / total * out

    @torch.no_grad()
    def follow(self, number: int) -> None:
        share = min(0.9, (1 + number) / (5 + number))
        for old, new in zip(self.shadow.parameters(), self.net.parameters(), strict=True):
            if self.way("lerp"):
                old.lerp_(new, 1 - share)
            else:
                old.copy_(share * old + (1 - share) * new)

    def step(self, number: int) -> float:
        if self.has("shadow_first"):
            self.follow(number)
        super().step(number)
        if not self.has("shadow_first"):
            self.follow(number)
        with torch.no_grad(), self.autocast():
            clean = self.shapes(4, 3, 12)
            noisy = clean + 0.7 * self.normal(*clean.shape)
            best = self.denoised(self.shadow, noisy, torch.full((4, 1, 1, 1), 0.7, dtype=self.dtype))
            return float(F.mse_loss(self.wide(best), self.wide(clean)))

    def loss(self, number: int) -> Tensor:
        clean = self.shapes(8, 3, 12)
        sigma = (1.2 * self.normal(8, 1, 1, 1) - 0.8).exp()
        found = self.denoised(self.net, clean + sigma * self.normal(*clean.shape), sigma)
        weight = self.wide((sigma**2 + 0.25) / (0.5 * sigma) ** 2)
        return (weight * (self.wide(found) - self.wide(clean)).square()).mean()
