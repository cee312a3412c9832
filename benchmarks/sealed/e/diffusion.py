"""Diffusion: a loop of denoising, a linear transformer, an autoencoder of sound, a control network."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from common import Task, autocast, bound, randint, randn, rng, spread, task
from diffusers import (
    AutoencoderOobleck,
    ControlNetModel,
    DDIMScheduler,
    DDPMScheduler,
    SanaTransformer2DModel,
    UNet1DModel,
    UNet2DConditionModel,
)
from torch import nn


@task("unet1d")
class UNet1D(Task):
    """Trajectories, denoised by DDIM."""

    style = "sample"

    def build(self, s):
        self.scheduler = DDIMScheduler(num_train_timesteps=100, clip_sample=True, beta_schedule="squaredcos_cap_v2")
        model = UNet1DModel(
            sample_size=16,
            in_channels=4,
            out_channels=4,
            time_embedding_type="positional",
            use_timestep_embedding=True,
            flip_sin_to_cos=False,
            freq_shift=1,
            down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
            up_block_types=("UpResnetBlock1D",),
            mid_block_type="MidResTemporalBlock1D",
            out_block_type="OutConv1DBlock",
            block_out_channels=(16, 32),
            act_fn="mish",
            norm_num_groups=8,
        )
        return spread(model)

    def sampled(self, s, model, step):
        self.scheduler.set_timesteps(5)
        x = self.cast(s, randn(3, 4, 16, step=step, salt=41))
        for t in self.scheduler.timesteps:
            with autocast(s):
                noise = model(x, t).sample
            x = self.scheduler.step(noise, t, x).prev_sample
        return x.float().abs().mean()

    def fault_unclipped(self, model, s):
        """The estimate of the clean signal is not clipped."""
        self.scheduler.register_to_config(clip_sample=False)

    def fault_last_alpha(self, model, s):
        """The last step goes to the first alpha instead of to one."""
        self.scheduler.final_alpha_cumprod = self.scheduler.alphas_cumprod[0]


@task("sana")
class Sana(Task):
    """Flow matching."""

    def build(self, s):
        model = SanaTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_attention_heads=4,
            attention_head_dim=8,
            num_layers=2,
            num_cross_attention_heads=4,
            cross_attention_head_dim=8,
            cross_attention_dim=32,
            caption_channels=24,
            mlp_ratio=2.0,
            sample_size=8,
            patch_size=1,
        )
        return spread(model)

    def batch(self, step, micro):
        clean = randn(2, 4, 8, 8, step=step, micro=micro, salt=42)
        noise = randn(2, 4, 8, 8, step=step, micro=micro, salt=43)
        sigma = torch.rand(2, generator=rng(step, micro, 44)) * 0.8 + 0.1
        words = randn(2, 6, 24, step=step, micro=micro, salt=45)
        return {"clean": clean, "noise": noise, "sigma": sigma, "words": words}

    def timestep(self, sigma):
        return sigma.float() * 100

    def loss(self, s, model, batch):
        sigma = batch["sigma"][:, None, None, None]
        noisy = (1 - sigma) * batch["clean"] + sigma * batch["noise"]
        t = self.cast(s, self.timestep(batch["sigma"]))
        flow = model(noisy, encoder_hidden_states=batch["words"], timestep=t).sample
        return F.mse_loss(flow.float(), (batch["noise"] - batch["clean"]).float())

    def fault_whole_steps(self, model, s):
        """Times are cut to whole numbers."""
        self.timestep = lambda sigma: (sigma.float() * 100).long().float()

    def fault_elu_keys(self, model, s):
        """Keys of the linear attention of block 1 are made positive by elu + 1 instead of by relu."""

        class Processor:
            def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None):
                dtype = hidden_states.dtype
                query, key, value = attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)
                query = query.transpose(1, 2).unflatten(1, (attn.heads, -1))
                key = key.transpose(1, 2).unflatten(1, (attn.heads, -1)).transpose(2, 3)
                value = value.transpose(1, 2).unflatten(1, (attn.heads, -1))
                query = F.relu(query)
                key = F.elu(key) + 1
                query, key, value = query.float(), key.float(), value.float()
                value = F.pad(value, (0, 0, 0, 1), mode="constant", value=1.0)
                scores = torch.matmul(value, key)
                hidden_states = torch.matmul(scores, query)
                hidden_states = hidden_states[:, :, :-1] / (hidden_states[:, :, -1:] + 1e-15)
                hidden_states = hidden_states.flatten(1, 2).transpose(1, 2).to(dtype)
                return attn.to_out[1](attn.to_out[0](hidden_states))

        model.transformer_blocks[1].attn1.set_processor(Processor())


@task("oobleck")
class Oobleck(Task):
    def build(self, s):
        model = AutoencoderOobleck(
            encoder_hidden_size=8,
            downsampling_ratios=[2, 4],
            channel_multiples=[1, 2],
            decoder_channels=8,
            decoder_input_channels=4,
            audio_channels=2,
            sampling_rate=16000,
        )
        with torch.no_grad():
            g = rng(0, 0, 46)
            for name, p in model.named_parameters():
                if name.endswith(("alpha", "beta")):
                    p.copy_(0.4 * torch.randn(p.shape, generator=g))
        return model

    def batch(self, step, micro):
        t = torch.arange(128) / 16.0
        pitch = 1 + torch.rand(3, 2, 1, generator=rng(step, micro, 47))
        sound = torch.sin(pitch * t) + 0.1 * randn(3, 2, 128, step=step, micro=micro, salt=48)
        return {"sound": sound, "noise": randn(3, 4, 16, step=step, micro=micro, salt=49)}

    def divergence(self, posterior):
        return (posterior.mean**2 + posterior.var - posterior.logvar - 1.0).sum(1).mean()

    def loss(self, s, model, batch):
        posterior = model.encode(batch["sound"]).latent_dist
        latent = posterior.mean + posterior.std * batch["noise"]
        again = model.decode(latent).sample
        return F.mse_loss(again.float(), batch["sound"].float()) + 0.01 * self.divergence(posterior).float()

    def variant_cosine(self, model, s):
        """sin(x)^2 as (1 - cos 2x) / 2."""

        def forward(self, x):
            alpha, beta = self.alpha.exp(), self.beta.exp()
            return x + (0.5 - 0.5 * torch.cos(2 * alpha * x)) / (beta + 1e-9)

        for module in model.modules():
            if type(module).__name__ == "Snake1d":
                bound(module, forward)

    def fault_mean_divergence(self, model, s):
        """The divergence is a mean over channels, too."""
        self.divergence = lambda posterior: (posterior.mean**2 + posterior.var - posterior.logvar - 1.0).mean()

    def fault_one_parameter(self, model, s):
        """One snake divides by alpha instead of by beta, as the variant with one parameter."""

        def forward(self, hidden_states):
            shape = hidden_states.shape
            alpha = torch.exp(self.alpha)
            hidden_states = hidden_states.reshape(shape[0], shape[1], -1)
            hidden_states = hidden_states + (alpha + 1e-9).reciprocal() * torch.sin(alpha * hidden_states).pow(2)
            return hidden_states.reshape(shape)

        bound(model.decoder.block[0].res_unit1.snake2, forward)


class Controlled(nn.Module):
    def __init__(self, control, unet):
        super().__init__()
        self.control, self.unet = control, unet
        self.guess = False
        self.hold = None

    def forward(self, noisy, t, words, condition):
        down, middle = self.control(
            noisy, t, encoder_hidden_states=words, controlnet_cond=condition, guess_mode=self.guess, return_dict=False
        )
        if self.hold is not None:
            down = [x.detach() if i == self.hold else x for i, x in enumerate(down)]
        return self.unet(
            noisy,
            t,
            encoder_hidden_states=words,
            down_block_additional_residuals=down,
            mid_block_additional_residual=middle,
        ).sample


@task("controlnet")
class ControlNet(Task):
    """A control network is trained, the U-Net that it steers is not."""

    options: ClassVar = {"lr": 2e-3}

    def build(self, s):
        self.scheduler = DDPMScheduler(num_train_timesteps=50)
        unet = UNet2DConditionModel(
            sample_size=8,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            block_out_channels=(16, 32),
            layers_per_block=1,
            cross_attention_dim=24,
            attention_head_dim=4,
            norm_num_groups=8,
        )
        spread(unet)
        control = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(8, 8))
        with torch.no_grad():
            blocks = [*control.controlnet_down_blocks, control.controlnet_mid_block, control.controlnet_cond_embedding]
            for block in blocks:
                spread(block, 0.7, seed=50)
        unet.requires_grad_(False)
        return Controlled(control, unet)

    def batch(self, step, micro):
        return {
            "clean": randn(2, 4, 8, 8, step=step, micro=micro, salt=51),
            "noise": randn(2, 4, 8, 8, step=step, micro=micro, salt=52),
            "t": randint(0, 50, (2,), step, micro, 53),
            "words": randn(2, 5, 24, step=step, micro=micro, salt=54),
            "condition": randn(2, 3, 16, 16, step=step, micro=micro, salt=55),
        }

    def loss(self, s, model, batch):
        noisy = self.scheduler.add_noise(batch["clean"], batch["noise"], batch["t"])
        guess = model(noisy, batch["t"], batch["words"], batch["condition"])
        return F.mse_loss(guess.float(), batch["noise"].float())

    def fault_detached(self, model, s):
        """The second residual of the control network is detached."""
        model.hold = 1

    def fault_guess(self, model, s):
        """The control network is in guess mode, which makes its first residuals small."""
        model.guess = True
