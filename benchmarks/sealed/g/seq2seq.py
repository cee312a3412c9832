"""Encoder-decoders: summaries, long texts, translation, a mixture of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import VOCABULARY, AccelerateTask, Batch, Task, tokens
from torch import Tensor, nn
from transformers import (
    LEDConfig,
    LEDForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)
from transformers.models.led import modeling_led
from transformers.models.m2m_100 import modeling_m2m_100
from transformers.models.switch_transformers import modeling_switch_transformers as switch

SMALL = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "init_std": 0.1,
}


class Pegasus(Task):
    """Summaries."""

    faults = ("scale", "smoothing")
    variants = ("eager", "checkpoint", "foreach", "nll")
    lr = 4e-3

    def model(self) -> nn.Module:
        config = PegasusConfig(**SMALL, scale_embedding=True, max_position_embeddings=64)
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        model = PegasusForConditionalGeneration(config)
        if self.fault == "scale":
            model.model.decoder.embed_scale = 1.0
        return model

    def batch(self, step: int) -> Batch:
        text = tokens(step, 4, 40)
        text[2, 30:] = 0
        return {"input_ids": text, "attention_mask": text.ne(0).long(), "labels": tokens(step + 9, 4, 14)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        labels = batch["labels"]
        logits = model(**batch).logits
        if self.has("nll"):
            logs = F.log_softmax(logits, dim=-1)
            right = -logs.gather(-1, labels[..., None]).mean()
            return 0.9 * right + 0.1 * -logs.mean()
        smoothing = 0.0 if self.fault == "smoothing" else 0.1
        return F.cross_entropy(logits.transpose(1, 2), labels, label_smoothing=smoothing)


class LED(Task):
    """Long texts, whose first token sees and is seen by all."""

    faults = ("global", "decoder-start")
    variants = ("foreach", "checkpoint")

    def model(self) -> nn.Module:
        if self.fault == "decoder-start":
            modeling_led.shift_tokens_right = unshifted
        config = LEDConfig(
            **SMALL, attention_window=16, max_encoder_position_embeddings=128, max_decoder_position_embeddings=64
        )
        return LEDForConditionalGeneration(config)

    def batch(self, step: int) -> Batch:
        text = tokens(step, 2, 80)
        seen = torch.zeros_like(text)
        if self.fault != "global":
            seen[:, 0] = 1
        return {"input_ids": text, "global_attention_mask": seen, "labels": tokens(step + 9, 2, 20)}


def unshifted(input_ids: Tensor, pad_token_id: int, decoder_start_token_id: int) -> Tensor:
    shifted = input_ids.clone()
    shifted[:, 0] = decoder_start_token_id
    return shifted.masked_fill(shifted == -100, pad_token_id)


class M2M100(AccelerateTask):
    """Translation of texts of unequal length."""

    faults = ("cross-mask", "offset")
    variants = ("plain", "eager", "foreach", "checkpoint")

    def model(self) -> nn.Module:
        if self.fault == "offset":
            modeling_m2m_100.create_position_ids_from_input_ids = positions
        config = M2M100Config(**SMALL, max_position_embeddings=64)
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        return M2M100ForConditionalGeneration(config)

    def batch(self, step: int) -> Batch:
        text, labels = tokens(step, 4, 24), tokens(step + 9, 4, 20)
        text[1, 15:] = text[2, 9:] = 1
        labels[1, 12:] = -100
        return {"input_ids": text, "attention_mask": text.ne(1).long(), "labels": labels}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.fault != "cross-mask":
            return model(**batch).loss
        encoded = model.get_encoder()(batch["input_ids"], batch["attention_mask"])
        return model(encoder_outputs=encoded, labels=batch["labels"]).loss


def positions(input_ids: Tensor, padding_idx: int, past_key_values_length: int = 0) -> Tensor:
    mask = input_ids.ne(padding_idx).int()
    return (torch.cumsum(mask, dim=1).type_as(mask) - 1 + past_key_values_length) * mask


class Switch(Task):
    """One expert for each token."""

    faults = ("weight", "half-router", "auxiliary")
    variants = ("foreach", "dense")

    def model(self) -> nn.Module:
        config = SwitchTransformersConfig(
            vocab_size=VOCABULARY,
            d_model=64,
            d_kv=16,
            d_ff=96,
            num_layers=2,
            num_decoder_layers=2,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
            num_heads=4,
            num_experts=4,
            expert_capacity=64,
            router_jitter_noise=0.0,
            router_dtype="bfloat16" if self.fault == "half-router" else "float32",
            dropout_rate=0.0,
            initializer_factor=1.0,
            decoder_start_token_id=0,
            router_aux_loss_coef=0.02,
        )
        if self.fault == "weight":
            switch.SwitchTransformersSparseMLP.forward = unweighted
        if self.has("dense"):
            switch.SwitchTransformersSparseMLP.forward = dense
        model = SwitchTransformersForConditionalGeneration(config)
        for name, parameter in model.named_parameters():
            if "router" in name:
                nn.init.normal_(parameter, std=0.5)
            elif "relative_attention_bias" in name:
                nn.init.normal_(parameter, std=1.0)
        return model

    def batch(self, step: int) -> Batch:
        return {
            "input_ids": tokens(step, 3, 24),
            "labels": tokens(step + 9, 3, 16),
            "output_router_logits": self.fault != "auxiliary",
        }


def unweighted(self: nn.Module, hidden_states: Tensor) -> tuple:
    router_mask, _, router_logits = self.router(hidden_states)
    expert_index = torch.argmax(router_mask, dim=-1)
    router_mask = router_mask.bool()
    next_states = torch.zeros_like(hidden_states)
    for idx in range(router_mask.shape[-1]):
        chosen = router_mask[:, :, idx]
        if chosen.any():
            next_states[chosen] = self.experts[f"expert_{idx}"](hidden_states[chosen]).to(next_states.dtype)
    return next_states, (router_logits, expert_index)


def dense(self: nn.Module, hidden_states: Tensor) -> tuple:
    """Every expert sees every token; the router's mask picks."""
    router_mask, router_probs, router_logits = self.router(hidden_states)
    expert_index = torch.argmax(router_mask, dim=-1)
    outputs = torch.stack([expert(hidden_states) for expert in self.experts.values()], dim=-1)
    picked = (outputs * router_mask.to(outputs.dtype)[:, :, None, :]).sum(-1)
    return router_probs * picked, (router_logits, expert_index)


SEQ2SEQ: dict[str, type[Task]] = {"pegasus": Pegasus, "led": LED, "m2m_100": M2M100, "switch_transformers": Switch}
