"""Language models of transformers from small configurations."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from common import Script, modules_of, replace, script
from torch import Tensor, nn
from transformers.models.cohere import modeling_cohere
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.mpt import modeling_mpt
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Causal(Script):
    """Next tokens of noisy arithmetic sequences, some padded on the right."""

    variants = ("sdpa", "checkpointing", "logging")
    batch, length = 4, 24
    rate = 2e-3

    def config(self) -> Any:
        raise NotImplementedError

    def model(self) -> Any:
        attention = "sdpa" if self.way("sdpa") else "eager"
        return transformers.AutoModelForCausalLM.from_config(self.config(), attn_implementation=attention)

    def build(self) -> None:
        self.net = self.add(self.model()).train()
        if self.way("checkpointing"):
            self.net.gradient_checkpointing_enable({"use_reentrant": False})
        self.norms: dict[str, float] = {}
        if self.way("logging"):
            for name, module in modules_of(self.net, nn.Linear):
                module.register_forward_hook(self.watch(name))
        self.change()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=self.rate, weight_decay=0.01)

    def change(self) -> None:
        """What a script does to the model after it is made."""

    def watch(self, name: str) -> Any:
        def hook(_: Any, __: Any, output: Tensor) -> None:
            self.norms[name] = output.detach().float().pow(2).mean().sqrt().item()

        return hook

    def data(self) -> dict[str, Tensor]:
        start, pace = self.integers(3, 97, self.batch, 1), self.integers(1, 7, self.batch, 1)
        ids = 3 + (start + pace * torch.arange(self.length) + self.integers(0, 2, self.batch, self.length)) % 94
        lengths = self.integers(self.length // 2, self.length + 1, self.batch, 1)
        mask = (torch.arange(self.length) < lengths).long()
        ids = ids * mask
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    def step(self, number: int) -> float:
        batch = self.data()
        with self.autocast():
            loss = self.net(**batch).loss
        return self.optimize(loss, self.optimizer, clip=1.0)


@script("phi")
class Phi(Causal):
    faults = ("rotary_part",)

    def config(self) -> Any:
        part = 0.25 if self.has("rotary_part") else 0.5
        return transformers.PhiConfig(**SIZES, partial_rotary_factor=part, resid_pdrop=0.0)


@script("falcon")
class Falcon(Causal):
    faults = ("norm_eps",)

    def config(self) -> Any:
        sizes = {k: v for k, v in SIZES.items() if k != "intermediate_size"}
        eps = 1e-3 if self.has("norm_eps") else 1e-5
        return transformers.FalconConfig(**sizes, multi_query=True, layer_norm_epsilon=eps, hidden_dropout=0.0)


@script("mpt")
class Mpt(Causal):
    faults = ("slopes",)
    variants = ("checkpointing", "logging")

    def config(self) -> Any:
        return transformers.MptConfig(
            d_model=64, n_heads=4, n_layers=2, max_seq_len=64, vocab_size=97, initializer_range=0.12, expansion_ratio=2
        )

    def change(self) -> None:
        if self.has("slopes"):
            right = modeling_mpt.build_mpt_alibi_tensor

            def wrong(heads: int, length: int, bias_max: int = 8, device: Any = None) -> Tensor:
                return right(heads, length, bias_max // 2, device)

            self.patches.enter_context(mock.patch.object(modeling_mpt, "build_mpt_alibi_tensor", wrong))


def rotate_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


@script("cohere")
class Cohere(Causal):
    faults = ("logit_scale", "halves")

    def config(self) -> Any:
        scale = 1.0 if self.has("logit_scale") else 0.25
        return transformers.CohereConfig(**SIZES, num_key_value_heads=2, logit_scale=scale)

    def change(self) -> None:
        if self.has("halves"):
            self.patches.enter_context(mock.patch.object(modeling_cohere, "rotate_half", rotate_halves))


@script("granite")
class Granite(Causal):
    faults = ("attention_scale", "residual_scale")

    def config(self) -> Any:
        scale = 0.25 if self.has("attention_scale") else 0.0625
        residual = 1.0 if self.has("residual_scale") else 0.97
        return transformers.GraniteConfig(
            **SIZES,
            num_key_value_heads=2,
            attention_multiplier=scale,
            embedding_multiplier=4.0,
            residual_multiplier=residual,
            logits_scaling=2.0,
        )


class FusedNorm(nn.Module):
    """RMS norm by the function of torch."""

    def __init__(self, norm: Olmo2RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@script("olmo2")
class Olmo2(Causal):
    faults = ("no_query_norm", "norm_eps")
    variants = (*Causal.variants, "fused_norm")

    def config(self) -> Any:
        return transformers.Olmo2Config(**SIZES, num_key_value_heads=2, rms_norm_eps=1e-6)

    def change(self) -> None:
        for name, module in modules_of(self.net, Olmo2RMSNorm):
            if self.has("no_query_norm") and name.endswith("1.self_attn.q_norm"):
                replace(self.net, name, nn.Identity())
            elif self.has("norm_eps"):
                module.variance_epsilon = 1e-5
            elif self.way("fused_norm"):
                replace(self.net, name, FusedNorm(module))


@script("starcoder2")
class Starcoder2(Causal):
    faults = ("window",)

    def config(self) -> Any:
        window = 6 if self.has("window") else 7
        return transformers.Starcoder2Config(
            **SIZES, num_key_value_heads=2, sliding_window=window, residual_dropout=0.0, embedding_dropout=0.0
        )


class Masked(Causal):
    """Tokens hidden at random are to be found."""

    mask_token = 96

    def model(self) -> Any:
        attention = "sdpa" if self.way("sdpa") else "eager"
        return transformers.AutoModelForMaskedLM.from_config(self.config(), attn_implementation=attention)

    def data(self) -> dict[str, Tensor]:
        batch = super().data()
        hidden = (torch.rand(self.batch, self.length, generator=self.random) < 0.2) & (batch["attention_mask"] == 1)
        batch["labels"] = batch["input_ids"].masked_fill(~hidden, -100)
        batch["input_ids"] = batch["input_ids"].masked_fill(hidden, self.mask_token)
        return batch


@script("modernbert")
class ModernBert(Masked):
    faults = ("local_theta", "ignore_index")

    def config(self) -> Any:
        theta = 160000.0 if self.has("local_theta") else 100.0
        return transformers.ModernBertConfig(
            **{k: v for k, v in SIZES.items() if k != "initializer_range"},
            initializer_range=0.12,
            local_attention=8,
            global_attn_every_n_layers=2,
            local_rope_theta=theta,
            reference_compile=False,
            cls_token_id=1,
            sep_token_id=2,
        )

    def data(self) -> dict[str, Tensor]:
        batch = super().data()
        if self.has("ignore_index"):
            batch["labels"] = batch["labels"].masked_fill(batch["labels"] == -100, 0)
        return batch


@script("deberta")
class Deberta(Masked):
    faults = ("scale",)
    variants = ("checkpointing", "logging")

    def config(self) -> Any:
        return transformers.DebertaV2Config(
            **SIZES,
            type_vocab_size=0,
            relative_attention=True,
            position_buckets=8,
            max_relative_positions=64,
            pos_att_type="p2c|c2p",
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_biased_input=False,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )

    def change(self) -> None:
        if self.has("scale"):
            right = modeling_deberta_v2.scaled_size_sqrt

            def wrong(query: Tensor, _: int) -> Tensor:
                return right(query, 1)

            self.patches.enter_context(mock.patch.object(modeling_deberta_v2, "scaled_size_sqrt", wrong))


@script("nystromformer")
class Nystromformer(Masked):
    faults = ("landmarks",)
    variants = ("checkpointing", "logging")

    def config(self) -> Any:
        return transformers.NystromformerConfig(
            **SIZES,
            num_landmarks=4 if self.has("landmarks") else 8,
            segment_means_seq_len=self.length,
            conv_kernel_size=5,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )


@script("xlnet")
class XlNet(Causal):
    """Permutation language model: a token sees those before it in a random order."""

    faults = ("permutation",)
    variants = ("logging",)

    def model(self) -> Any:
        return transformers.XLNetLMHeadModel(
            transformers.XLNetConfig(
                vocab_size=97, d_model=64, n_layer=2, n_head=4, d_inner=128, dropout=0.0, initializer_range=0.12
            )
        )

    def data(self) -> dict[str, Tensor]:
        ids = super().data()["input_ids"]
        order = torch.stack([torch.randperm(self.length, generator=self.random) for _ in range(self.batch)])
        hidden = (order[:, :, None] <= order[:, None, :]).to(self.dtype)
        if self.has("permutation"):
            hidden = hidden.transpose(1, 2)
        last = order.argsort(1)[:, -6:]
        mapping = F.one_hot(last, self.length).to(self.dtype)
        return {"input_ids": ids, "perm_mask": hidden, "target_mapping": mapping, "labels": ids.gather(1, last)}


@script("ctrl")
class Ctrl(Causal):
    faults = ("positions",)
    variants = ("logging",)

    def config(self) -> Any:
        return transformers.CTRLConfig(
            vocab_size=97,
            n_positions=64,
            n_embd=64,
            dff=128,
            n_layer=2,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            initializer_range=0.12,
        )

    def data(self) -> dict[str, Tensor]:
        batch = super().data()
        first = 1 if self.has("positions") else 0
        positions = torch.arange(first, first + self.length).expand(self.batch, -1)
        return {**batch, "position_ids": positions}


@script("jamba")
class Jamba(Causal):
    faults = ("skip", "step_norm")
    length = 12

    def config(self) -> Any:
        return transformers.JambaConfig(
            **{**SIZES, "num_hidden_layers": 3},
            num_key_value_heads=2,
            attn_layer_period=3,
            attn_layer_offset=1,
            expert_layer_period=3,
            expert_layer_offset=1,
            num_experts=4,
            use_mamba_kernels=False,
            mamba_d_state=8,
            mamba_dt_rank=8,
        )

    def change(self) -> None:
        mixer = self.net.model.layers[2].mamba
        if self.has("skip"):
            mixer.D.data.zero_()
        if self.has("step_norm"):
            mixer.dt_layernorm = nn.Identity()


@script("esm")
class Esm(Masked):
    faults = ("token_dropout", "norm_eps")

    def config(self) -> Any:
        return transformers.EsmConfig(
            **SIZES,
            mask_token_id=self.mask_token,
            position_embedding_type="rotary",
            token_dropout=not self.has("token_dropout"),
            layer_norm_eps=2e-3 if self.has("norm_eps") else 1e-5,
            emb_layer_norm_before=False,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
