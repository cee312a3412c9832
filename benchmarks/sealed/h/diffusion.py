"""Denoisers and autoencoders of diffusers, small, with random weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from common import Batch, Task, full, swap, task
from diffusers import (
    AsymmetricAutoencoderKL,
    CogVideoXDDIMScheduler,
    CogVideoXTransformer3DModel,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    HunyuanDiT2DModel,
    LTXVideoTransformer3DModel,
    LuminaNextDiT2DModel,
    PixArtTransformer2DModel,
    PriorTransformer,
    SD3Transformer2DModel,
    UNetMotionModel,
    UniPCMultistepScheduler,
    UVit2DModel,
    WanTransformer3DModel,
)
from diffusers.models.attention_processor import AttnProcessor
from diffusers.models.embeddings import (
    SinusoidalPositionalEmbedding,
    get_2d_rotary_pos_embed,
    get_2d_rotary_pos_embed_lumina,
)
from diffusers.models.transformers.hunyuan_transformer_2d import HunyuanDiTBlock
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
from torch import Tensor, nn


def smooth(g: torch.Generator, *shape: int) -> Tensor:
    """Latents with a structure: noise plus a coarse part."""
    coarse = torch.randn(*shape[:-2], shape[-2] // 4, shape[-1] // 4, generator=g)
    coarse = coarse.repeat_interleave(4, -2).repeat_interleave(4, -1)
    return coarse + 0.3 * torch.randn(*shape, generator=g)


class JointAttention:
    """Attention of the image and the text together, both normalised."""

    def __call__(self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, *args: Any, **_: Any) -> Any:
        b, n, _ = hidden_states.shape

        def heads(x: Tensor) -> Tensor:
            return x.view(b, -1, attn.heads, x.shape[-1] // attn.heads).transpose(1, 2)

        q, k, v = heads(attn.to_q(hidden_states)), heads(attn.to_k(hidden_states)), heads(attn.to_v(hidden_states))
        q = attn.norm_q(q)
        k = attn.norm_k(k)
        text_q = heads(attn.add_q_proj(encoder_hidden_states))
        text_k = heads(attn.add_k_proj(encoder_hidden_states))
        text_v = heads(attn.add_v_proj(encoder_hidden_states))
        text_q = attn.norm_added_q(text_q)
        q, k, v = torch.cat([q, text_q], 2), torch.cat([k, text_k], 2), torch.cat([v, text_v], 2)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        image, text = out[:, :n], out[:, n:]
        if not attn.context_pre_only:
            text = attn.to_add_out(text)
        return attn.to_out[1](attn.to_out[0](image)), text


class Flow(Task):
    """Rectified flow: the model predicts noise minus data."""

    shape: tuple[int, ...] = (2, 4, 16, 16)
    text = (2, 6, 24)

    def data(self, g: torch.Generator) -> Batch:
        latents = smooth(g, *self.shape)
        return {
            "latents": latents,
            "noise": torch.randn(*self.shape, generator=g),
            "sigma": torch.rand(self.shape[0], generator=g) * 0.8 + 0.1,
            "text": torch.randn(*self.text, generator=g),
            "pooled": torch.randn(self.text[0], 20, generator=g),
        }

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        sigma = batch["sigma"].view(-1, *[1] * (len(self.shape) - 1))
        noisy = sigma * batch["noise"] + (1 - sigma) * batch["latents"]
        target = batch["noise"] - batch["latents"]
        return F.mse_loss(full(self.predict(model, noisy, batch)), full(target))

    def predict(self, model: nn.Module, noisy: Tensor, batch: Batch) -> Tensor:
        raise NotImplementedError


@task("sd3")
class Sd3(Flow):
    faults = ("text_key_norm", "fuse", "coupled_decay")
    ways = ("fuse_qkv",)
    norm: str | None = "rms_norm"

    def build(self) -> nn.Module:
        model = SD3Transformer2DModel(
            sample_size=16,
            patch_size=2,
            in_channels=4,
            num_layers=3,
            attention_head_dim=12,
            num_attention_heads=4,
            joint_attention_dim=24,
            caption_projection_dim=48,
            pooled_projection_dim=20,
            out_channels=4,
            pos_embed_max_size=16,
            qk_norm=self.norm,
        )
        if self.has("fuse_qkv") or self.fault == "fuse":
            model = model.to(self.dtype)
            model.fuse_qkv_projections()
        if self.fault == "text_key_norm":
            model.set_attn_processor(JointAttention())
        return model

    def parameters(self, model: nn.Module) -> Any:
        return [p for n, p in model.named_parameters() if self.trained(n)]

    def trained(self, name: str) -> bool:
        """Attention stays as it is, so that merged projections train the same."""
        return ".attn." not in name

    def predict(self, model: nn.Module, noisy: Tensor, batch: Batch) -> Tensor:
        return model(noisy, batch["text"], batch["pooled"], batch["sigma"] * 1000, return_dict=False)[0]


@task("sd3-plain")
class Sd3Plain(Sd3):
    """Without norms of queries and keys."""

    faults = ()
    norm = None


class WanPositions(WanRotaryPosEmbed):
    """Rotations for frames, rows and columns."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        frames, rows, columns = (n // p for n, p in zip(hidden_states.shape[2:], self.patch_size, strict=True))
        third = self.attention_head_dim // 3
        sizes = [self.attention_head_dim - 2 * third, third, third]

        def table(values: Tensor) -> Tensor:
            t, h, w = values.split(sizes, dim=1)
            parts = [
                t[:frames].view(frames, 1, 1, -1).expand(frames, rows, columns, -1),
                h[:columns].view(1, 1, columns, -1).expand(frames, rows, columns, -1),
                w[:rows].view(1, rows, 1, -1).expand(frames, rows, columns, -1),
            ]
            return torch.cat(parts, dim=-1).reshape(1, frames * rows * columns, 1, -1)

        return table(self.freqs_cos), table(self.freqs_sin)


@task("wan")
class Wan(Flow):
    faults = ("rope_axes",)
    shape = (1, 4, 3, 16, 16)
    text = (1, 6, 24)

    def build(self) -> nn.Module:
        model = WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=2,
            attention_head_dim=24,
            in_channels=4,
            out_channels=4,
            text_dim=24,
            freq_dim=32,
            ffn_dim=96,
            num_layers=2,
            rope_max_seq_len=32,
        )
        if self.fault == "rope_axes":
            swap(model, WanRotaryPosEmbed, WanPositions)
        return model

    def predict(self, model: nn.Module, noisy: Tensor, batch: Batch) -> Tensor:
        return model(noisy, batch["sigma"] * 1000, batch["text"], return_dict=False)[0]


@task("ltx")
class Ltx(Flow):
    faults = ("mask_shift",)
    ways = ("checkpoint", "mask_bias")
    shape = (2, 32, 8, 8)

    def build(self) -> nn.Module:
        model = LTXVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            num_attention_heads=4,
            attention_head_dim=12,
            cross_attention_dim=48,
            num_layers=3,
            caption_channels=24,
        )
        if self.has("checkpoint"):
            model.enable_gradient_checkpointing()
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens = {k: v.view(2, 8, 4, 64).flatten(2).transpose(1, 2) for k, v in batch.items() if v.ndim == 4}
        sigma = batch["sigma"].view(-1, 1, 1)
        noisy = sigma * tokens["noise"] + (1 - sigma) * tokens["latents"]
        mask = torch.ones(2, 6, dtype=torch.long)
        mask[1, 4:] = 0
        if self.fault == "mask_shift":
            mask[1, 3:] = 0
        given: Tensor = mask
        if self.has("mask_bias"):
            given = ((1 - mask.to(noisy.dtype)) * -10000.0).unsqueeze(1)
        out = model(noisy, batch["text"], batch["sigma"] * 1000, given, 4, 8, 8, return_dict=False)[0]
        return F.mse_loss(full(out), full(tokens["noise"] - tokens["latents"]))


@task("lumina")
class Lumina(Flow):
    faults = ("no_correction",)

    def build(self) -> nn.Module:
        return LuminaNextDiT2DModel(
            sample_size=16,
            patch_size=2,
            in_channels=4,
            hidden_size=48,
            num_layers=2,
            num_attention_heads=4,
            num_kv_heads=2,
            multiple_of=16,
            cross_attention_dim=24,
        )

    def predict(self, model: nn.Module, noisy: Tensor, batch: Batch) -> Tensor:
        rotary = get_2d_rotary_pos_embed_lumina(12, 384, 384)
        mask = torch.ones(2, 6, dtype=torch.long)
        out = model(noisy, batch["sigma"], batch["text"], mask, rotary, cross_attention_kwargs={}, return_dict=False)[0]
        return out.chunk(2, dim=1)[0]


@task("lumina-euler")
class LuminaEuler(Lumina):
    """Draws latents by Euler steps."""

    faults = ("shift",)
    inference = True

    def infer(self, model: nn.Module) -> None:
        model.eval()
        scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0 if self.fault == "shift" else 3.0)
        scheduler.set_timesteps(self.options.steps)
        batch = self.batches(0)[0]
        latents = batch["noise"]
        with torch.no_grad():
            for t in scheduler.timesteps:
                batch["sigma"] = (1 - t / 1000).expand(2).to(self.dtype)
                with self.amp():
                    velocity = self.predict(model, latents, batch)
                latents = scheduler.step(velocity.to(self.dtype), t, latents, return_dict=False)[0]
                self.say(full(latents).square().mean())


class Noise(Task):
    """The model predicts the noise (or v) of a DDPM."""

    shape: tuple[int, ...] = (2, 4, 16, 16)
    text = (2, 6, 24)
    prediction = "epsilon"

    def data(self, g: torch.Generator) -> Batch:
        return {
            "latents": smooth(g, *self.shape),
            "noise": torch.randn(*self.shape, generator=g),
            "t": torch.randint(100, 900, (self.shape[0],), generator=g),
            "text": torch.randn(*self.text, generator=g),
        }

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scheduler = DDPMScheduler(prediction_type=self.prediction)
        noisy = scheduler.add_noise(batch["latents"], batch["noise"], batch["t"])
        target = batch["noise"]
        if self.prediction == "v_prediction":
            target = scheduler.get_velocity(batch["latents"], batch["noise"], batch["t"])
        return F.mse_loss(full(self.predict(model, noisy, batch)), full(target))

    def predict(self, model: nn.Module, noisy: Tensor, batch: Batch) -> Tensor:
        raise NotImplementedError


@task("pixart")
class PixArt(Noise):
    faults = ("t_offset", "mask")
    ways = ("eager",)

    def build(self) -> nn.Module:
        model = PixArtTransformer2DModel(
            num_attention_heads=4,
            attention_head_dim=12,
            in_channels=4,
            out_channels=8,
            num_layers=2,
            cross_attention_dim=48,
            sample_size=16,
            caption_channels=24,
        )
        if self.has("eager"):
            model.set_attn_processor(AttnProcessor())
        return model

    def predict(self, model: nn.Module, noisy: Tensor, batch: Batch) -> Tensor:
        mask = torch.ones(2, 6)
        mask[0, 3:] = 0
        t = batch["t"] - 1 if self.fault == "t_offset" else batch["t"]
        out = model(
            noisy,
            encoder_hidden_states=batch["text"],
            timestep=t,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
            encoder_attention_mask=None if self.fault == "mask" else mask.to(noisy.dtype),
            return_dict=False,
        )[0]
        return out.chunk(2, dim=1)[0]


@task("pixart-dpm")
class PixArtDpm(PixArt):
    """Draws latents by DPM-Solver++ or UniPC."""

    faults = ("solver_type", "spacing")
    ways = ("eager",)
    inference = True

    def infer(self, model: nn.Module) -> None:
        model.eval()
        kind = "heun" if self.fault == "solver_type" else "midpoint"
        spacing = "trailing" if self.fault == "spacing" else "linspace"
        scheduler = DPMSolverMultistepScheduler(solver_type=kind, timestep_spacing=spacing, lower_order_final=False)
        scheduler.set_timesteps(self.options.steps + 1)
        batch = self.batches(0)[0]
        latents = batch["noise"]
        with torch.no_grad():
            for t in scheduler.timesteps[: self.options.steps]:
                batch["t"] = t.expand(2)
                with self.amp():
                    noise = self.predict(model, latents, batch)
                latents = scheduler.step(noise.to(self.dtype), t, latents, return_dict=False)[0]
                self.say(full(latents).square().mean())


@task("pixart-unipc")
class PixArtUniPc(PixArt):
    inference = True

    def infer(self, model: nn.Module) -> None:
        model.eval()
        scheduler = UniPCMultistepScheduler()
        scheduler.set_timesteps(self.options.steps + 2)
        batch = self.batches(0)[0]
        latents = batch["noise"]
        with torch.no_grad():
            for t in scheduler.timesteps[: self.options.steps]:
                batch["t"] = t.expand(2)
                with self.amp():
                    noise = self.predict(model, latents, batch)
                latents = scheduler.step(noise.to(self.dtype), t, latents, return_dict=False)[0]
                self.say(full(latents).square().mean())


@task("cogvideox")
class CogVideoX(Noise):
    faults = ("accumulate_sum",)
    shape = (1, 3, 4, 16, 16)
    text = (1, 6, 24)
    prediction = "v_prediction"
    micro = 2

    def build(self) -> nn.Module:
        return CogVideoXTransformer3DModel(
            num_attention_heads=4,
            attention_head_dim=12,
            in_channels=4,
            out_channels=4,
            time_embed_dim=32,
            text_embed_dim=24,
            num_layers=2,
            dropout=0.1 if self.inference else 0.0,
            sample_width=16,
            sample_height=16,
            sample_frames=9,
            max_text_seq_length=6,
        )

    def predict(self, model: nn.Module, noisy: Tensor, batch: Batch) -> Tensor:
        return model(noisy, batch["text"], batch["t"], return_dict=False)[0]


@task("cogvideox-ddim")
class CogVideoXDdim(CogVideoX):
    """Draws a video by DDIM."""

    faults = ("train_mode",)
    inference = True

    def infer(self, model: nn.Module) -> None:
        if self.fault != "train_mode":
            model.eval()
        scheduler = CogVideoXDDIMScheduler(prediction_type="v_prediction")
        scheduler.set_timesteps(self.options.steps + 1)
        batch = self.batches(0)[0]
        latents = batch["noise"]
        with torch.no_grad():
            for t in scheduler.timesteps[: self.options.steps]:
                batch["t"] = t.expand(1)
                with self.amp():
                    v = self.predict(model, latents, batch)
                latents = scheduler.step(v.to(self.dtype), t, latents, return_dict=False)[0].to(self.dtype)
                self.say(full(latents).square().mean())


class HunyuanBlock(HunyuanDiTBlock):
    """A block of the second half: takes the state of its partner in the first half."""

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        temb: Tensor | None = None,
        image_rotary_emb: Any = None,
        skip: Tensor | None = None,
    ) -> Tensor:
        if self.skip_linear is not None:
            joined = torch.cat([skip, hidden_states], dim=-1)
            hidden_states = self.skip_linear(self.skip_norm(joined))
        x = self.norm1(hidden_states, temb)
        hidden_states = hidden_states + self.attn1(x, image_rotary_emb=image_rotary_emb)
        x = self.attn2(
            self.norm2(hidden_states), encoder_hidden_states=encoder_hidden_states, image_rotary_emb=image_rotary_emb
        )
        hidden_states = hidden_states + x
        return hidden_states + self.ff(self.norm3(hidden_states))


@task("hunyuan")
class Hunyuan(Noise):
    faults = ("skip_order",)
    prediction = "v_prediction"

    def build(self) -> nn.Module:
        model = HunyuanDiT2DModel(
            num_attention_heads=4,
            attention_head_dim=16,
            in_channels=4,
            patch_size=2,
            sample_size=16,
            hidden_size=64,
            num_layers=4,
            mlp_ratio=2.0,
            cross_attention_dim=24,
            cross_attention_dim_t5=24,
            pooled_projection_dim=16,
            text_len=6,
            text_len_t5=6,
            use_style_cond_and_image_meta_size=False,
        )
        if self.fault == "skip_order":
            swap(model, HunyuanDiTBlock, HunyuanBlock)
        return model

    def predict(self, model: nn.Module, noisy: Tensor, batch: Batch) -> Tensor:
        rotary = get_2d_rotary_pos_embed(16, ((0, 0), (8, 8)), (8, 8), output_type="pt")
        mask = torch.ones(2, 6, dtype=torch.long)
        out = model(
            noisy,
            batch["t"].to(noisy.dtype),
            encoder_hidden_states=batch["text"],
            text_embedding_mask=mask,
            encoder_hidden_states_t5=batch["text"].flip(1),
            text_embedding_mask_t5=mask,
            image_rotary_emb=rotary,
            return_dict=False,
        )[0]
        return out.chunk(2, dim=1)[0]


@task("prior")
class Prior(Task):
    """Embeddings of images from those of texts."""

    faults = ("causal", "betas")

    def build(self) -> nn.Module:
        model = PriorTransformer(
            num_attention_heads=4, attention_head_dim=12, num_layers=3, embedding_dim=24, num_embeddings=7
        )
        if self.fault == "causal":
            # Buffers that the checkpoint does not have.
            for buffer in model.buffers():
                buffer.zero_()
        return model

    def data(self, g: torch.Generator) -> Batch:
        return {
            "image": torch.randn(4, 24, generator=g),
            "noise": torch.randn(4, 24, generator=g),
            "pooled": torch.randn(4, 24, generator=g),
            "text": torch.randn(4, 7, 24, generator=g),
            "t": torch.randint(100, 900, (4,), generator=g),
        }

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        noisy = DDPMScheduler().add_noise(batch["image"], batch["noise"], batch["t"])
        mask = torch.ones(4, 7, dtype=torch.bool)
        mask[2:, 5:] = False
        out = model(noisy, batch["t"], batch["pooled"], batch["text"], mask, return_dict=False)[0]
        return F.mse_loss(full(out), full(batch["image"]))


class FramePositions(SinusoidalPositionalEmbedding):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[:, 1 : x.shape[1] + 1]


@task("unet_motion")
class UNetMotion(Noise):
    faults = ("frames",)
    ways = ("checkpoint",)
    shape = (1, 4, 4, 16, 16)
    text = (1, 6, 24)

    def build(self) -> nn.Module:
        model = UNetMotionModel(
            sample_size=16,
            block_out_channels=(16, 32),
            down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"),
            up_block_types=("UpBlockMotion", "CrossAttnUpBlockMotion"),
            layers_per_block=1,
            norm_num_groups=8,
            cross_attention_dim=24,
            num_attention_heads=2,
            motion_num_attention_heads=2,
            motion_max_seq_length=8,
        )
        if self.has("checkpoint"):
            model.enable_gradient_checkpointing()
        if self.fault == "frames":
            swap(model, SinusoidalPositionalEmbedding, FramePositions)
        g = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "motion_modules" in name and name.endswith("proj_out.weight"):
                    p.copy_(0.1 * torch.randn(p.shape, generator=g))
        return model

    def predict(self, model: nn.Module, noisy: Tensor, batch: Batch) -> Tensor:
        return model(noisy, batch["t"], batch["text"].repeat_interleave(4, dim=0), return_dict=False)[0]


@task("asym_kl")
class AsymKl(Task):
    """Inpainting autoencoder; the decoder sees the masked image."""

    faults = ("mask_inverted", "no_zero_grad")

    def build(self) -> nn.Module:
        return AsymmetricAutoencoderKL(
            down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
            down_block_out_channels=(16, 24),
            up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
            up_block_out_channels=(16, 32),
            norm_num_groups=8,
            sample_size=32,
        )

    def data(self, g: torch.Generator) -> Batch:
        images = smooth(g, 2, 3, 32, 32).tanh()
        mask = torch.zeros(2, 1, 32, 32)
        mask[:, :, 8:24, 12:28] = 1.0
        return {"images": images, "mask": mask}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, mask = batch["images"], batch["mask"]
        given = 1 - mask if self.fault == "mask_inverted" else mask
        posterior = model.encode(images).latent_dist
        out = model.decode(posterior.mode(), image=images, mask=given, return_dict=False)[0]
        return F.l1_loss(full(out), full(images)) + 1e-3 * full(posterior.kl()).mean() / images[0].numel()


@task("uvit")
class UVit(Task):
    """Masked tokens of images (aMUSEd)."""

    faults = ("labels",)
    ways = ("nll",)

    def build(self) -> nn.Module:
        return UVit2DModel(
            hidden_size=48,
            cond_embed_dim=16,
            micro_cond_encode_dim=8,
            micro_cond_embed_dim=40,
            encoder_hidden_size=24,
            vocab_size=33,
            codebook_size=32,
            in_channels=24,
            block_out_channels=24,
            num_res_blocks=1,
            block_num_heads=4,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            sample_size=8,
        )

    def data(self, g: torch.Generator) -> Batch:
        tokens = torch.randint(32, (3, 8, 8), generator=g)
        return {
            "tokens": tokens,
            "hidden": torch.rand(3, 8, 8, generator=g) < 0.5,
            "text": torch.randn(3, 5, 24, generator=g),
            "pooled": torch.randn(3, 16, generator=g),
            "sizes": torch.tensor([[64, 64, 0, 0, 6]] * 3).float(),
        }

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        ids = batch["tokens"].masked_fill(batch["hidden"], 32)
        labels = batch["tokens"].flatten()
        if self.fault == "labels":
            labels = labels.roll(-1)
        labels = labels.masked_fill(~batch["hidden"].flatten(), -100)
        logits = full(model(ids, batch["text"], batch["pooled"], batch["sizes"]))
        logits = logits.permute(0, 2, 3, 1).reshape(-1, 32)
        if self.has("nll"):
            return F.nll_loss(F.log_softmax(logits, -1), labels)
        return F.cross_entropy(logits, labels)
