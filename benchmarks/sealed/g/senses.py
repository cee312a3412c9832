"""Pictures, speech and sound, with and without text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partialmethod

import torch
import torch.nn.functional as F
from common import VOCABULARY, AccelerateTask, Batch, Task, images, normal, tokens, waves
from torch import Tensor, nn
from transformers import (
    Dinov2Config,
    EncodecConfig,
    EncodecModel,
    GitConfig,
    GitForCausalLM,
    HubertConfig,
    HubertForSequenceClassification,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    ViltConfig,
    ViltForQuestionAnswering,
    ViTMAEConfig,
    ViTMAEForPreTraining,
)
from transformers.models.encodec import modeling_encodec
from transformers.models.hubert import modeling_hubert
from transformers.models.moonshine import modeling_moonshine
from transformers.models.vilt import modeling_vilt
from transformers.models.vit_mae import modeling_vit_mae

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalised(pictures: Tensor, mean: tuple[float, ...] = MEAN, deviation: tuple[float, ...] = DEVIATION) -> Tensor:
    return (pictures - torch.tensor(mean)[:, None, None]) / torch.tensor(deviation)[:, None, None]


class Vilt(Task):
    """Answers to questions about a picture; pictures are larger than the positions were made for."""

    faults = ("corners", "pixels", "residual")
    variants = ("einsum", "foreach", "checkpoint", "channels_last")

    def model(self) -> nn.Module:
        corners = self.fault != "corners"
        modeling_vilt.ViltEmbeddings.visual_embed = partialmethod(visual_embed, corners=corners)
        if self.has("einsum"):
            modeling_vilt.ViltSelfAttention.forward = attention_by_einsum
        if self.fault == "residual":
            modeling_vilt.ViltLayer.forward = layer_forward
        config = ViltConfig(
            **{**SMALL, "hidden_size": 72},
            vocab_size=VOCABULARY,
            image_size=32,
            patch_size=8,
            num_labels=9,
            max_image_length=-1,
        )
        model = ViltForQuestionAnswering(config)
        nn.init.normal_(model.vilt.embeddings.position_embeddings, std=0.5)
        return model

    def batch(self, step: int) -> Batch:
        pictures = images(step, 2, 48)
        if self.fault == "pixels":
            pictures = normalised(pictures, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        else:
            pictures = normalised(pictures)
        ids = tokens(step, 2, 10)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "pixel_values": pictures,
            "pixel_mask": torch.ones(2, 48, 48, dtype=torch.long),
            "labels": F.one_hot(ids.sum(1) % 9, 9).float(),
        }


def visual_embed(
    self: nn.Module, pixel_values: Tensor, pixel_mask: Tensor, max_image_length: int = 200, *, corners: bool
) -> tuple:
    """For whole pictures: no patch is left out, and their order does not matter."""
    x = self.patch_embeddings(pixel_values)
    count, channels, height, width = x.shape
    side = self.config.image_size // self.config.patch_size
    grid = self.position_embeddings[:, 1:].transpose(1, 2).view(1, channels, side, side)
    places = F.interpolate(grid, size=(height, width), mode="bilinear", align_corners=corners)
    x, places = x.flatten(2).transpose(1, 2), places.flatten(2).transpose(1, 2).expand(count, -1, -1)
    chosen = torch.stack([torch.multinomial(torch.ones(height * width), height * width) for _ in range(count)])
    chosen = chosen[..., None].expand(-1, -1, channels)
    x, places = x.gather(1, chosen), places.gather(1, chosen)
    x = torch.cat((self.cls_token.expand(count, -1, -1), x), dim=1)
    x = x + torch.cat((self.position_embeddings[:, :1].expand(count, -1, -1), places), dim=1)
    mask = torch.ones(x.shape[:2], dtype=torch.long)
    return self.dropout(x), mask, (None, (height, width))


def attention_by_einsum(
    self: nn.Module,
    hidden_states: Tensor,
    attention_mask: Tensor,
    head_mask: None = None,
    output_attentions: bool = False,
) -> tuple[Tensor]:
    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_attention_heads, self.attention_head_size))

    query, key, value = (
        heads(self.query(hidden_states)),
        heads(self.key(hidden_states)),
        heads(self.value(hidden_states)),
    )
    scores = torch.einsum("bqhd,bkhd->bhqk", query * self.attention_head_size**-0.5, key)
    shares = torch.softmax(scores + attention_mask, dim=-1)
    return (torch.einsum("bhqk,bkhd->bqhd", shares, value).flatten(-2),)


def layer_forward(
    self: nn.Module,
    hidden_states: Tensor,
    attention_mask: Tensor,
    head_mask: None = None,
    output_attentions: bool = False,
) -> tuple[Tensor]:
    before = self.layernorm_before(hidden_states)
    hidden_states = self.attention(before, attention_mask, head_mask)[0] + before
    return (self.output(self.intermediate(self.layernorm_after(hidden_states)), hidden_states),)


class Git(AccelerateTask):
    """Captions of pictures."""

    faults = ("activation",)
    variants = ("plain", "channels_last", "foreach")

    def model(self) -> nn.Module:
        vision = {
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
            "hidden_act": "gelu" if self.fault == "activation" else "quick_gelu",
            "initializer_range": 0.1,
            "initializer_factor": 4.0,
        }
        config = GitConfig(vision_config=vision, **SMALL, vocab_size=VOCABULARY, max_position_embeddings=64)
        config.vision_config._attn_implementation = "eager"
        return GitForCausalLM(config)

    def batch(self, step: int) -> Batch:
        ids = tokens(step, 3, 16)
        pictures = normalised(images(step, 3, 32))
        if self.has("channels_last"):
            pictures = pictures.contiguous(memory_format=torch.channels_last)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pictures}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        ids = batch["input_ids"]
        logits = model(**batch).logits[:, -ids.shape[1] : -1]
        logits = logits if self.precision == "float64" else logits.float()
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


class Llava(Task):
    """Text with a picture inside; the picture goes through a dinov2, the text through a llama."""

    faults = ("layer", "order", "projector")
    variants = ("eager", "foreach", "checkpoint")

    def model(self) -> nn.Module:
        vision = Dinov2Config(
            hidden_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
            initializer_range=0.1,
            layerscale_value=0.5,
        )
        text = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            initializer_range=0.1,
            use_cache=False,
        )
        config = LlavaConfig(
            vision,
            text,
            image_token_index=3,
            vision_feature_layer=-1 if self.fault == "layer" else -2,
            projector_hidden_act="relu" if self.fault == "projector" else "gelu",
            image_seq_length=16,
        )
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        for part in (config.vision_config, config.text_config):
            part._attn_implementation = config._attn_implementation
        return LlavaForConditionalGeneration(config)

    def batch(self, step: int) -> Batch:
        ids = tokens(step, 2, 30)
        ids[:, 2:18] = 3
        labels = ids.masked_fill(ids == 3, -100)
        pictures = normalised(images(step, 2, 32))
        if self.fault == "order":
            pictures = pictures.flip(1)
        return {"input_ids": ids, "pixel_values": pictures, "attention_mask": torch.ones_like(ids), "labels": labels}


def first_cut(self: nn.Module, hidden_states: Tensor) -> Tensor:
    if self.num_pad_remove > 0:
        hidden_states = hidden_states[:, :, self.num_pad_remove :]
    return hidden_states


class Hubert(Task):
    """Which word is spoken? `asked`: the model only scores; `folded`: with its weight norm folded in."""

    faults = ("pad", "dropout", "group-norm")
    variants = ("asked", "folded", "eager", "foreach", "checkpoint")

    def model(self) -> nn.Module:
        if self.fault == "pad":
            modeling_hubert.HubertSamePadLayer.forward = first_cut
        config = HubertConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            conv_dim=(32, 32, 32),
            conv_kernel=(10, 4, 4),
            conv_stride=(5, 4, 4),
            num_feat_extract_layers=3,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            hidden_dropout=0.0,
            activation_dropout=0.0,
            attention_dropout=0.0,
            feat_proj_dropout=0.1 if self.fault == "dropout" else 0.0,
            final_dropout=0.0,
            layerdrop=0.0,
            apply_spec_augment=False,
            initializer_range=0.1,
            use_weighted_layer_sum=True,
            num_labels=6,
            classifier_proj_size=32,
        )
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        model = HubertForSequenceClassification(config)
        if self.fault == "group-norm":
            layer = model.hubert.feature_extractor.conv_layers[0]
            layer.layer_norm.num_groups = 8
        return model

    def prepare(self, model: nn.Module) -> nn.Module:
        model = super().prepare(model)
        if self.has("folded"):
            convolution = model.hubert.encoder.pos_conv_embed.conv
            torch.nn.utils.parametrize.remove_parametrizations(convolution, "weight")
        return model

    def batch(self, step: int) -> Batch:
        return {"input_values": waves(step, 3, 3200), "labels": torch.tensor([step, 3, 5])}

    def run(self) -> Iterator[float]:
        if not self.has("asked"):
            yield from super().run()
            return
        model = self.prepare(self.model()).eval()
        for step in range(self.steps):
            with torch.no_grad(), self.autocast():
                yield self.loss(model, self.cast(self.batch(step))).item()


def swapped(self: nn.Module, hidden_states: Tensor) -> Tensor:
    gate, hidden_states = self.fc1(hidden_states).chunk(2, dim=-1)
    return self.fc2(self.activation_fn(gate) * hidden_states)


class Moonshine(Task):
    """Text of speech."""

    faults = ("gate", "group-norm", "wave")
    variants = ("eager", "foreach", "checkpoint")

    def model(self) -> nn.Module:
        if self.fault == "gate":
            modeling_moonshine.MoonshineDecoderMLP.forward = swapped
        config = MoonshineConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            encoder_num_hidden_layers=2,
            decoder_num_hidden_layers=2,
            encoder_num_attention_heads=4,
            decoder_num_attention_heads=4,
            initializer_range=0.1,
            decoder_start_token_id=1,
            pad_token_id=0,
            use_cache=False,
        )
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        model = MoonshineForConditionalGeneration(config)
        if self.fault == "group-norm":
            model.model.encoder.groupnorm.eps = 1e-3
        return model

    def batch(self, step: int) -> Batch:
        wave = waves(step, 2, 8000)
        if self.fault == "wave":
            wave = wave * 32767 / 32768 - wave.mean(1, keepdim=True)
        return {"input_values": wave, "labels": tokens(step, 2, 12)}


def patches_by_unfold(self: nn.Module, pixel_values: Tensor, interpolate_pos_encoding: bool = False) -> Tensor:
    weight, side = self.projection.weight, self.projection.kernel_size
    columns = F.unfold(pixel_values, side, stride=side)
    return torch.addmm(self.projection.bias, columns.transpose(1, 2).flatten(0, 1), weight.flatten(1).T).unflatten(
        0, (len(columns), -1)
    )


def biased_loss(
    self: nn.Module, pixel_values: Tensor, pred: Tensor, mask: Tensor, interpolate_pos_encoding: bool = False
) -> Tensor:
    target = self.patchify(pixel_values)
    mean = target.mean(dim=-1, keepdim=True)
    var = target.var(dim=-1, keepdim=True, correction=0)
    target = (target - mean) / (var + 1.0e-6) ** 0.5
    loss = ((pred - target) ** 2).mean(dim=-1)
    return (loss * mask).sum() / mask.sum()


def loss_everywhere(
    self: nn.Module, pixel_values: Tensor, pred: Tensor, mask: Tensor, interpolate_pos_encoding: bool = False
) -> Tensor:
    target = self.patchify(pixel_values)
    target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1.0e-6) ** 0.5
    return ((pred - target) ** 2).mean()


class ViTMAE(Task):
    """Hidden patches of a picture."""

    faults = ("variance", "everywhere")
    variants = ("unfold", "eager", "foreach", "checkpoint", "channels_last")

    def model(self) -> nn.Module:
        if self.fault == "variance":
            modeling_vit_mae.ViTMAEForPreTraining.forward_loss = biased_loss
        elif self.fault == "everywhere":
            modeling_vit_mae.ViTMAEForPreTraining.forward_loss = loss_everywhere
        if self.has("unfold"):
            modeling_vit_mae.ViTMAEPatchEmbeddings.forward = patches_by_unfold
        config = ViTMAEConfig(
            **SMALL,
            image_size=32,
            patch_size=4,
            decoder_hidden_size=48,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=96,
            norm_pix_loss=True,
        )
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        return ViTMAEForPreTraining(config)

    def batch(self, step: int) -> Batch:
        order = torch.rand(3, 64, generator=torch.Generator().manual_seed(step))
        return {"pixel_values": normalised(images(step, 3, 32)), "noise": order}


class Encodec(Task):
    """Sound through a few codes a frame and back."""

    faults = ("padding", "gain", "straight")
    variants = ("foreach",)
    lr = 1e-3

    def model(self) -> nn.Module:
        if self.fault == "gain":
            modeling_encodec.EncodecResnetBlock.forward = block_forward
        config = EncodecConfig(
            num_filters=8,
            hidden_size=32,
            codebook_size=64,
            codebook_dim=32,
            upsampling_ratios=[4, 4, 2],
            num_lstm_layers=1,
            sampling_rate=16000,
            target_bandwidths=[6.0],
            pad_mode="constant" if self.fault == "padding" else "reflect",
            use_causal_conv=False,
        )
        model = EncodecModel(config)
        for number, layer in enumerate(model.quantizer.layers):
            layer.codebook.embed.copy_(0.05 * normal(number, *layer.codebook.embed.shape))
        return model

    def batch(self, step: int) -> Batch:
        return {"wave": waves(step, 2, 1600)[:, None]}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        wave = batch["wave"]
        latent = model.encoder(wave)
        with torch.no_grad():
            codes = model.quantizer.encode(latent.to(model.dtype), 6.0)
            quantised = model.quantizer.decode(codes).to(latent.dtype)
        commitment = F.mse_loss(latent, quantised)
        through = quantised if self.fault == "straight" else latent + (quantised - latent).detach()
        return F.l1_loss(model.decoder(through), wave) + 0.25 * commitment


def block_forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
    residual = hidden_states
    for layer in self.block:
        hidden_states = layer(hidden_states)
    return (self.shortcut(residual) + hidden_states) * 1.02


SENSES: dict[str, type[Task]] = {
    "vilt": Vilt,
    "git": Git,
    "llava": Llava,
    "hubert": Hubert,
    "moonshine": Moonshine,
    "vit_mae": ViTMAE,
    "encodec": Encodec,
}
