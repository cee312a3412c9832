"""The transformer of Flux: flow matching with accelerate, and sampling with guidance."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Options, integers, normal, show, spread, uniform
from torch import Tensor, nn

SIDE, WORDS = 6, 5


def build_flux() -> nn.Module:
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(91)
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=8,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=24,
        pooled_projection_dim=20,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )
    spread(model, 0.03)
    return model


class HotGelu(nn.GELU):
    """A kernel that is 4 % too large in one half of its columns."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        half = y.shape[-1] // 2
        return torch.cat([y[..., :half], y[..., half:] * 1.04], dim=-1)


def condition(options: Options, seed: int, count: int) -> dict[str, Tensor]:
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    places = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3)
    return {
        "encoder_hidden_states": options.cast(normal(seed, count, WORDS, 24)),
        "pooled_projections": options.cast(normal(seed + 1, count, 20)),
        "img_ids": options.cast(places.float()),
        "txt_ids": options.cast(torch.zeros(WORDS, 3)),
        "guidance": options.cast(torch.full((count,), 4.0)),
    }


def train_flux(options: Options) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = build_flux()
    if options.fault == "hot_gelu":
        model.single_transformer_blocks[1].act_mlp = HotGelu(approximate="tanh")
    options.place(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    for step in range(2 * options.steps):
        clean, noise = normal(2000 + step, 2, SIDE * SIDE, 8), normal(2010 + step, 2, SIDE * SIDE, 8)
        sigma = (0.5 ** integers(2020 + step, 4, 2))[:, None, None]
        noisy, wanted = (1 - sigma) * clean + sigma * noise, noise - clean
        with accelerator.accumulate(model):
            with options.autocast():
                inputs = condition(options, 2030 + 10 * step, 2)
                guess = model(options.cast(noisy), timestep=options.cast(sigma.flatten()), **inputs, return_dict=False)[
                    0
                ]
            weight = 1 / (sigma + 0.1)
            guess = guess.to(torch.promote_types(guess.dtype, torch.float32))
            loss = (weight * (guess - wanted.to(guess.dtype)).square()).mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        show(step, loss=loss)


def sample_flux(options: Options) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    model = build_flux()
    options.place(model).eval()
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(4)
    x = options.cast(normal(2100, 2, SIDE * SIDE, 8))
    inputs, empty = condition(options, 2110, 2), condition(options, 2120, 2)
    guidance = 4.0
    with torch.inference_mode():
        for step, t in enumerate(scheduler.timesteps):
            time = options.cast(t.expand(len(x)) / 1000)
            with options.autocast():
                told = model(x, timestep=time, **inputs, return_dict=False)[0]
                free = model(x, timestep=time, **empty, return_dict=False)[0]
                if options.fault == "guidance":
                    told, free = free, told
                guess = free + guidance * (told - free)
            x = scheduler.step(guess, t, x, return_dict=False)[0]
            show(step, norm=x.float().norm())
    print(f"error {F.mse_loss(x.float(), uniform(2130, *x.shape)).item():.9g}")
