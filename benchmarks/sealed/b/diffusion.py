"""Small networks of diffusers."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDIMScheduler, DDPMScheduler, DiTTransformer2DModel, UNet2DConditionModel, UNet2DModel
from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel

from common import LyingKernel, gen


# ---------------------------------------------------------------- unconditional, noise prediction, with EMA of the weights
def unet2d(c):
    model = UNet2DModel(sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32),
                        norm_num_groups=8, attention_head_dim=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                        up_block_types=("AttnUpBlock2D", "UpBlock2D"))
    if c.fault == "time_flip":
        model.time_proj.flip_sin_to_cos = False
    if c.fault == "rescale":
        model.mid_block.attentions[0].rescale_output_factor = 2.0
    if c.fault == "group_norm_eps":
        model.up_blocks[1].resnets[0].norm2.eps = 0.3
    if c.variant == "eager_attention":
        for m in model.modules():
            if hasattr(m, "set_processor"):
                m.set_processor(AttnProcessor())
    if c.variant == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    if c.variant == "checkpoint":
        model.enable_gradient_checkpointing()
    ddpm = DDPMScheduler(num_train_timesteps=100, beta_schedule="scaled_linear" if c.fault == "beta_schedule" else "linear")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = get_cosine_schedule_with_warmup(opt, 1 if c.fault == "warmup" else 2, 10)
    ema = EMAModel(model.parameters(), decay=0.9)
    g = gen(70)
    model.train()
    for step in range(c.steps):
        x = torch.randn(3, 3, 16, 16, generator=g).clamp(-1, 1)
        noise = torch.randn(x.shape, generator=g)
        t = torch.randint(0, 100, (3,), generator=g)
        noisy = ddpm.add_noise(x, noise, t)
        with c.amp():
            pred = model(noisy, t).sample
        target = x if c.fault == "predicts_sample" else noise
        loss = F.mse_loss(pred.float(), target)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        ema.step(model.parameters())
        c.log(step, loss)


# ---------------------------------------------------------------- conditional: sampling with guidance
def unet_cond(c):
    model = UNet2DConditionModel(sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
                                 norm_num_groups=8, attention_head_dim=8, cross_attention_dim=24,
                                 down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"))
    for n, p in model.named_parameters():
        if "attn2" in n and p.ndim == 2:
            p.data.mul_(3.0)
    model.eval().to(c.dtype)
    if c.fault == "kv_swapped":
        a = model.mid_block.attentions[0].transformer_blocks[0].attn2
        a.to_k, a.to_v = a.to_v, a.to_k
    if c.fault == "cross_scale":
        for m in model.modules():
            if hasattr(m, "set_processor"):
                m.set_processor(AttnProcessor())
        model.down_blocks[1].attentions[0].transformer_blocks[0].attn2.scale = 1.0
    if c.variant in ("eager_attention", "eager_reference"):
        for m in model.modules():
            if hasattr(m, "set_processor"):
                m.set_processor(AttnProcessor())
    sched = DDIMScheduler(num_train_timesteps=100, clip_sample=c.fault == "clip_sample", set_alpha_to_one=True)
    sched.set_timesteps(4)
    g = gen(71)
    latents = torch.randn(1, 4, 8, 8, generator=g)
    text, empty = torch.randn(1, 5, 24, generator=g), torch.zeros(1, 5, 24)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    context = torch.cat([text, empty] if c.fault == "guidance_order" else [empty, text]).to(c.dtype)
    mask = mask.flip(0)
    if c.fault == "text_mask_missing":
        mask = None
    with torch.no_grad():
        for step, t in enumerate(sched.timesteps):
            with c.amp():
                pair = torch.cat([latents, latents]).to(c.dtype)
                noise = model(pair, t, encoder_hidden_states=context, encoder_attention_mask=mask).sample.float()
            uncond, cond = noise.chunk(2)
            guided = uncond + 4.0 * (cond - uncond)
            latents = sched.step(guided, t - 25 if c.fault == "timestep_shifted" and step == 1 else t, latents).prev_sample
            c.log(step, latents.pow(2).mean())


# ---------------------------------------------------------------- KL autoencoder
def autoencoder_kl(c):
    model = AutoencoderKL(in_channels=3, out_channels=3, block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2,
                          up_block_types=("UpDecoderBlock2D",) * 2, layers_per_block=1, latent_channels=4, norm_num_groups=8, sample_size=16)
    if c.fault == "groups":
        model.decoder.up_blocks[0].resnets[1].norm1.num_groups = 4
    if c.fault == "conv_out_padding":
        conv = model.decoder.up_blocks[0].upsamplers[0].conv
        conv.padding_mode = "replicate"
        conv._reversed_padding_repeated_twice = [1, 1, 1, 1]
    if c.fault == "shortcut_weight":
        w = model.encoder.down_blocks[1].resnets[0].conv_shortcut.weight
        w.data = w.data.roll(1, 1).contiguous()
    if c.variant == "checkpoint":
        model.enable_gradient_checkpointing()
    model = model.to(c.dtype).train()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.9))
    scaler = c.scaler()
    g, draw = gen(72), gen(73)
    for step in range(c.steps):
        x = torch.randn(2, 3, 16, 16, generator=g).to(c.dtype)
        with c.amp():
            post = model.encode(x).latent_dist
            if c.fault == "mode_not_sample":
                z = post.mode()
            else:
                z = post.mean + post.std * torch.randn(post.mean.shape, generator=draw).to(post.mean.dtype)
            rec = model.decode(z).sample
        kl = post.kl().float().mean() / 256
        loss = F.l1_loss(rec.float(), x.float()) + 0.1 * kl
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        c.log(step, loss)


# ---------------------------------------------------------------- DiT, class-conditional velocity prediction
def dit(c):
    model = DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=12, in_channels=4, out_channels=4, num_layers=3,
                                  sample_size=8, patch_size=2, num_embeds_ada_norm=10)
    for b in model.transformer_blocks:
        b.norm1.emb.class_embedder.dropout_prob = 0.0
    for m in model.modules():
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=0.1)
    if c.fault == "embedding_shared":
        model.transformer_blocks[1].norm1.emb.class_embedder.embedding_table.weight = model.transformer_blocks[0].norm1.emb.class_embedder.embedding_table.weight
    if c.fault == "shift_scale_swapped":
        n = model.transformer_blocks[2].norm1
        w, b = n.linear.weight.data, n.linear.bias.data
        n.linear.weight.data = torch.cat([w[48:96], w[:48], w[96:]])
        n.linear.bias.data = torch.cat([b[48:96], b[:48], b[96:]])
    if c.fault == "pos_embed_missing":
        model.pos_embed.pos_embed.zero_()
    if c.fault == "head_scale":
        for b in model.transformer_blocks:
            b.attn1.set_processor(AttnProcessor())
        model.transformer_blocks[1].attn1.scale = 1.0
    if c.variant in ("eager_attention", "eager_reference"):
        for b in model.transformer_blocks:
            b.attn1.set_processor(AttnProcessor())
    model = model.to(c.dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    g = gen(74)
    lie = LyingKernel(("mm", "addmm"), lambda out, args: torch.cat([out[:-1], out[-1:] * 2]), lambda a, o, n: tuple(o.shape) == (48, 192)) if c.fault == "gemm_last_row" else None
    if lie:
        lie.__enter__()
    for step in range(c.steps):
        x1, x0 = torch.randn(3, 4, 8, 8, generator=g), torch.randn(3, 4, 8, 8, generator=g)
        t = torch.rand(3, generator=g)
        y = torch.randint(0, 10, (3,), generator=g)
        xt = (1 - t)[:, None, None, None] * x0 + t[:, None, None, None] * x1
        target = x0 - x1 if c.fault == "velocity_sign" else x1 - x0
        with c.amp():
            v = model(xt.to(c.dtype), timestep=(t * 1000).to(c.dtype), class_labels=y).sample
        loss = F.mse_loss(v.float(), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        c.log(step, loss)
    if lie:
        lie.__exit__(None, None, None)
