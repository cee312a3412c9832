"""What makes pictures, sounds and text: diffusion, autoencoders, and one against another."""

from __future__ import annotations

import torch
from common import Script, modules_of, replace, script
from diffusers import AutoencoderDC, StableAudioDiTModel
from diffusers.models.embeddings import get_1d_rotary_pos_embed
from torch import Tensor, nn
from torch.nn import functional as F


@script("audio_dit")
class AudioDit(Script):
    """Velocity of a diffusion over latents of sound."""

    faults = ("fast_rotation", "noise_target")

    def build(self) -> None:
        net = StableAudioDiTModel(
            sample_size=12,
            in_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=4,
            num_key_value_attention_heads=2,
            out_channels=4,
            cross_attention_dim=24,
            time_proj_dim=16,
            global_states_input_dim=20,
            cross_attention_input_dim=24,
        )
        for _, layer in modules_of(net, nn.Linear):
            nn.init.normal_(layer.weight, std=0.08)
        self.net = self.add(net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.latents, self.noise = self.normal(2, 4, 12), self.normal(2, 4, 12)
        self.words, self.seconds = self.normal(2, 5, 24), self.normal(2, 1, 20)
        self.times = self.uniform(2)
        theta = 100.0 if self.has("fast_rotation") else 10000.0
        kind = self.wide(torch.zeros(1)).dtype
        self.rotation = get_1d_rotary_pos_embed(
            8, 13, theta=theta, use_real=True, repeat_interleave_real=False, freqs_dtype=kind
        )

    def loss(self, number: int) -> Tensor:
        angle = (self.times * torch.pi / 2)[:, None, None]
        sign = -1 if number % 2 else 1
        noise = sign * self.noise
        noisy = angle.cos() * self.latents + angle.sin() * noise
        target = noise if self.has("noise_target") else angle.cos() * noise - angle.sin() * self.latents
        made = self.net(
            noisy,
            timestep=self.times,
            encoder_hidden_states=self.words,
            global_hidden_states=self.seconds,
            rotary_embedding=self.rotation,
        ).sample
        return F.mse_loss(self.wide(made), self.wide(target))


class Tiled(nn.Module):
    """Twice as large, beside a shortcut of tiled channels."""

    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        self.conv, self.repeats = like.conv, like.repeats

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.conv(x), 2) + F.pixel_shuffle(x.repeat(1, self.repeats, 1, 1), 2)


@script("deep_codec")
class DeepCodec(Script):
    faults = ("tiled_shortcut",)

    def build(self) -> None:
        net = AutoencoderDC(
            latent_channels=4,
            attention_head_dim=4,
            encoder_block_types=("ResBlock", "EfficientViTBlock"),
            decoder_block_types=("ResBlock", "EfficientViTBlock"),
            encoder_block_out_channels=(8, 16),
            decoder_block_out_channels=(8, 16),
            encoder_layers_per_block=(1, 1),
            decoder_layers_per_block=(1, 1),
            encoder_qkv_multiscales=((), (5,)),
            decoder_qkv_multiscales=((), (5,)),
        )
        if self.has("tiled_shortcut"):
            name = next(n for n, m in net.named_modules() if type(m).__name__ == "DCUpBlock2d")
            replace(net, name, Tiled(net.get_submodule(name)))
        self.net = self.add(net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.pictures = self.uniform(2, 3, 16, 16)

    def loss(self, number: int) -> Tensor:
        made = self.net(self.pictures).sample
        return F.l1_loss(self.wide(made), self.wide(self.pictures))


class Unmask(nn.Module):
    def __init__(self, vocabulary: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary + 1, 40)
        self.places = nn.Parameter(torch.randn(length, 40))
        layer = nn.TransformerEncoderLayer(40, 4, 80, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.time = nn.Sequential(nn.Linear(1, 40), nn.SiLU(), nn.Linear(40, 40))
        self.out = nn.Linear(40, vocabulary)

    def forward(self, ids: Tensor, time: Tensor) -> Tensor:
        x = self.words(ids) + self.places + self.time(time[:, None])[:, None]
        return self.out(self.layers(x))


@script("unmask")
class MaskedDiffusion(Script):
    """Text by diffusion: what is hidden at a time is guessed, weighed by one over that time."""

    faults = ("unweighed", "all_positions")
    variants = ("accumulate",)

    def build(self) -> None:
        self.net = self.add(Unmask(50, 16))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, betas=(0.9, 0.98))
        self.ids = self.integers(0, 50, 4, 16)
        self.times = (0.2 + 0.7 * torch.rand(4, 1, generator=self.random)).to(self.dtype)
        self.hidden = torch.rand(4, 16, generator=self.random) < self.times

    def part(self, rows: slice) -> Tensor:
        ids, hidden, times = self.ids[rows], self.hidden[rows], self.times[rows]
        logits = self.net(ids.masked_fill(hidden, 50), times[:, 0])
        missed = F.cross_entropy(self.wide(logits).flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
        if not self.has("unweighed"):
            missed = missed / self.wide(times)
        if not self.has("all_positions"):
            missed = missed * hidden
        return missed.sum() / self.ids.numel()

    def step(self, number: int) -> float:
        parts = [slice(0, 1), slice(1, 4)] if self.way("accumulate") else [slice(0, 4)]
        total = 0.0
        for rows in parts:
            with self.autocast():
                loss = self.part(rows)
            self.scaler.scale(loss).backward()
            total += float(loss.detach())
        self.apply(self.optimizer)
        return total


@script("regularised_gan")
class RegularisedGan(Script):
    """A critic whose slope at real pictures is kept small; averaged weights of the maker."""

    faults = ("light_penalty", "critic_learns_maker")
    variants = ("summed_slope",)

    def build(self) -> None:
        self.maker = self.add(
            nn.Sequential(
                nn.Linear(12, 128),
                nn.Unflatten(1, (8, 4, 4)),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(8, 8, 3, padding=1),
                nn.Softplus(),
                nn.Conv2d(8, 3, 3, padding=1),
                nn.Tanh(),
            )
        )
        self.critic = self.add(
            nn.Sequential(
                nn.Conv2d(3, 16, 4, stride=2, padding=1),
                nn.Softplus(),
                nn.Conv2d(16, 16, 4, stride=2, padding=1),
                nn.Softplus(),
                nn.Flatten(),
                nn.Linear(64, 1),
            )
        )
        self.makes = torch.optim.Adam(self.maker.parameters(), lr=1e-3, betas=(0.0, 0.99))
        self.judges = torch.optim.Adam(self.critic.parameters(), lr=1e-3, betas=(0.0, 0.99))
        self.real, self.seeds = self.normal(4, 3, 8, 8), self.normal(4, 12)

    def step(self, number: int) -> float:
        real = self.real.clone().requires_grad_()
        with self.autocast():
            made = self.maker(self.seeds)
            judged = self.critic(real)
            loss = F.softplus(-self.wide(judged)).mean() + F.softplus(self.wide(self.critic(made.detach()))).mean()
        if self.way("summed_slope"):
            slopes = [torch.autograd.grad(j, real, create_graph=True)[0][i] for i, j in enumerate(judged.flatten())]
            slope = torch.stack(slopes)
        else:
            (slope,) = torch.autograd.grad(judged.sum(), real, create_graph=True)
        weight = 8.0 if self.has("light_penalty") else 10.0
        loss = loss + weight / 2 * self.wide(slope).square().sum((1, 2, 3)).mean()
        value = self.optimize(loss, self.judges)
        with self.autocast():
            fooled = F.softplus(-self.wide(self.critic(self.maker(self.seeds)))).mean()
        if self.has("critic_learns_maker"):
            self.scaler.scale(fooled).backward()
        else:
            self.scaler.scale(fooled).backward(inputs=[*self.maker.parameters()])
        self.apply(self.makes)
        return value + float(fooled.detach())
