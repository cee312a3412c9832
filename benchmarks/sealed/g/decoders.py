"""Decoders: trained from nothing, tuned by adapters, or asked for text."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from common import VOCABULARY, Batch, Task, TrainerTask, tokens
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)
from transformers.models.glm import modeling_glm
from transformers.models.jamba import modeling_jamba
from transformers.models.mixtral import modeling_mixtral

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "use_cache": False,
}


class Text(Task):
    """Next tokens of a text."""

    count, length = 4, 32

    def batch(self, step: int) -> Batch:
        ids = tokens(step, self.count, self.length)
        return {"input_ids": ids, "labels": ids.clone()}


class Starcoder2(Text):
    """Low-rank adapters on the attention.

    `asked`: the tuned model only scores texts; `merged`: with its adapters folded in.
    """

    faults = ("rank-scale", "only-a", "alpha")
    variants = ("merged", "asked", "foreach", "eager")

    def model(self) -> nn.Module:
        config = Starcoder2Config(**SMALL, embedding_dropout=0.0, residual_dropout=0.0)
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        adapters = LoraConfig(
            r=8,
            lora_alpha=12 if self.fault == "alpha" else 16,
            use_rslora=self.fault == "rank-scale",
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        )
        model = get_peft_model(Starcoder2ForCausalLM(config), adapters)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.05)
        return model

    def prepare(self, model: nn.Module) -> nn.Module:
        model = super().prepare(model)
        return model.merge_and_unload() if self.has("merged") else model

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["input_ids"]).logits[:, :-1]
        logits = logits if self.precision == "float64" else logits.float()
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.fault == "only-a":
            return torch.optim.AdamW([p for n, p in model.named_parameters() if "lora_A" in n], lr=self.lr)
        return super().optimizer(model)

    def run(self) -> Iterator[float]:
        if not self.has("asked"):
            yield from super().run()
            return
        model = self.prepare(self.model()).eval()
        for step in range(self.steps):
            with torch.no_grad(), self.autocast():
                yield self.loss(model, self.batch(step)).item()


class Olmo2(Text):
    """Weight decay for matrices only."""

    faults = ("decay", "key-norm", "betas")
    variants = ("foreach", "fused", "eager", "checkpoint")

    def model(self) -> nn.Module:
        config = Olmo2Config(**SMALL)
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        model = Olmo2ForCausalLM(config)
        if self.fault == "key-norm":
            for layer in model.model.layers:
                layer.self_attn.k_norm = nn.Identity()
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        how = {"foreach": self.has("foreach")} if not self.has("fused") else {"fused": True}
        matrices = [p for p in model.parameters() if p.ndim > 1]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.1 if self.fault == "decay" else 0.0},
        ]
        betas = (0.9, 0.999) if self.fault == "betas" else (0.9, 0.95)
        return torch.optim.AdamW(groups, lr=self.lr, betas=betas, **how)


def rotated_in_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Glm(Text):
    faults = ("halves", "gate")
    variants = ("eager", "foreach", "checkpoint", "compile")

    def model(self) -> nn.Module:
        if self.fault == "halves":
            modeling_glm.rotate_half = rotated_in_halves
        if self.fault == "gate":
            modeling_glm.GlmMLP.forward = gate_last
        config = GlmConfig(**SMALL, head_dim=16, eos_token_id=1)
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        return GlmForCausalLM(config)


def gate_last(self: nn.Module, hidden_states: Tensor) -> Tensor:
    up_states, gate = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
    return self.down_proj(up_states * self.activation_fn(gate))


class Cut(nn.Conv1d):
    """A convolution that looks one step ahead."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., 1:]


class Jamba(Text):
    """State-space layers, attention and experts."""

    faults = ("convolution", "step-norm", "a-log")
    variants = ("foreach", "eager")
    length = 20

    def model(self) -> nn.Module:
        config = JambaConfig(
            **SMALL,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=2,
            num_experts_per_tok=2,
            mamba_d_state=8,
            mamba_expand=2,
            use_mamba_kernels=False,
        )
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        model = JambaForCausalLM(config)
        for module in model.modules():
            if isinstance(module, modeling_jamba.JambaMambaMixer):
                if self.fault == "convolution":
                    module.conv1d.__class__ = Cut
                if self.fault == "step-norm":
                    module.dt_layernorm = nn.Identity()
                if self.fault == "a-log":
                    nn.init.zeros_(module.A_log)
        return model


def mixed(self: nn.Module, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """Every expert sees every token."""
    flat = hidden_states.flatten(0, 1)
    router_logits = self.gate(flat)
    weights, chosen = torch.topk(F.softmax(router_logits, dim=1, dtype=torch.float), self.top_k, dim=-1)
    weights = (weights / weights.sum(dim=-1, keepdim=True)).to(flat.dtype)
    shares = torch.zeros_like(router_logits).to(weights.dtype).scatter(1, chosen, weights)
    outputs = torch.stack([expert(flat) for expert in self.experts], dim=1)
    return torch.einsum("te,ted->td", shares.to(outputs.dtype), outputs).view_as(hidden_states), router_logits


def unnormalised(self: nn.Module, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    flat = hidden_states.flatten(0, 1)
    router_logits = self.gate(flat)
    weights, chosen = torch.topk(F.softmax(router_logits, dim=1, dtype=torch.float), self.top_k, dim=-1)
    weights = weights.to(flat.dtype)
    final = torch.zeros_like(flat)
    mask = F.one_hot(chosen, num_classes=self.num_experts).permute(2, 1, 0)
    for number, expert in enumerate(self.experts):
        slot, token = torch.where(mask[number])
        if len(token):
            final.index_add_(0, token, (expert(flat[token]) * weights[token, slot, None]).to(final.dtype))
    return final.view_as(hidden_states), router_logits


class Mixtral(Text):
    faults = ("unnormalised", "balance")
    variants = ("dense", "eager", "foreach")
    count, length = 2, 20

    def model(self) -> nn.Module:
        block = modeling_mixtral.MixtralSparseMoeBlock
        if self.fault == "unnormalised":
            block.forward = unnormalised
        elif self.has("dense"):
            block.forward = mixed
        config = MixtralConfig(
            **SMALL,
            num_local_experts=3,
            num_experts_per_tok=2,
            output_router_logits=True,
            router_aux_loss_coef=0.001 if self.fault == "balance" else 0.1,
        )
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        model = MixtralForCausalLM(config)
        for layer in model.model.layers:
            nn.init.normal_(layer.block_sparse_moe.gate.weight, std=0.3)
        return model


class Gemma2(TrainerTask):
    faults = ("scale", "cap", "window")
    variants = ("plain", "workers", "checkpoint")

    def model(self) -> nn.Module:
        config = Gemma2Config(
            **SMALL,
            head_dim=16,
            query_pre_attn_scalar=16 if self.fault == "scale" else 24,
            final_logit_softcapping=None if self.fault == "cap" else 6.0,
            attn_logit_softcapping=4.0,
            sliding_window=7 if self.fault == "window" else 8,
            attn_implementation="eager",
        )
        return Gemma2ForCausalLM(config)

    def batch(self, step: int) -> Batch:
        ids = tokens(step, self.size, 32)
        labels = ids.clone()
        labels[:, 0] = -100
        return {"input_ids": ids, "labels": labels}


class GPTJ(Text):
    """Scores given continuations, one token at a time, with a cache."""

    faults = ("position",)

    def model(self) -> nn.Module:
        config = GPTJConfig(
            vocab_size=VOCABULARY,
            n_positions=64,
            n_embd=64,
            n_layer=2,
            n_head=4,
            rotary_dim=8,
            initializer_range=0.15,
            use_cache=True,
        )
        return GPTJForCausalLM(config)

    @torch.no_grad()
    def run(self) -> Iterator[float]:
        model = self.prepare(self.model()).eval()
        ids = tokens(3, 3, 12 + self.steps)
        with self.autocast():
            out = model(ids[:, :12], use_cache=True)
            for step in range(self.steps):
                at = 12 + step
                yield F.cross_entropy(out.logits[:, -1].float(), ids[:, at]).item()
                position = at - 1 if self.fault == "position" else at
                out = model(
                    ids[:, at : at + 1],
                    past_key_values=out.past_key_values,
                    position_ids=torch.full((3, 1), position),
                    use_cache=True,
                )


class StableLm(Text):
    faults = ("rotary", "bias", "parallel")
    variants = ("eager", "foreach", "checkpoint", "generate")

    def model(self) -> nn.Module:
        config = StableLmConfig(
            **{**SMALL, "use_cache": self.has("generate")},
            partial_rotary_factor=0.5 if self.fault == "rotary" else 0.25,
            use_qkv_bias=True,
            use_parallel_residual=self.fault == "parallel",
            bos_token_id=1,
            eos_token_id=None,
        )
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        model = StableLmForCausalLM(config)
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.bias"):
                nn.init.normal_(parameter, std=0.1)
                if self.fault == "bias" and "v_proj" in name:
                    nn.init.zeros_(parameter)
        return model

    def run(self) -> Iterator[float]:
        if not self.has("generate"):
            yield from super().run()
            return
        model = self.prepare(self.model()).eval()
        for step in range(self.steps):
            prompt = tokens(step, 2, 10)
            with self.autocast():
                out = model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=5,
                    do_sample=False,
                    output_logits=True,
                    return_dict_in_generate=True,
                )
            yield torch.stack(out.logits).float().logsumexp(-1).mean().item()


DECODERS: dict[str, type[Task]] = {
    "starcoder2": Starcoder2,
    "olmo2": Olmo2,
    "glm": Glm,
    "jamba": Jamba,
    "mixtral": Mixtral,
    "gemma2": Gemma2,
    "gptj": GPTJ,
    "stablelm": StableLm,
}
