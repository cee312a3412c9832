"""Language models of transformers, small, and one tuned by adapters."""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

import peft
import torch
import torch.nn.functional as F
import transformers
from common import Script, modules_of, script
from torch import Tensor

TINY = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
}
BOUNDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Words(Script):
    """Sentences in which a word depends upon the one before, of unequal lengths."""

    words, batch, length = 97, 4, 24

    def sentences(self, length: int = 0) -> tuple[Tensor, Tensor]:
        """Words, and where there are any: behind the end of a sentence is padding, word 0."""
        length = length or self.length
        ids = self.integers(3, self.words, self.batch, length)
        for at in range(1, length):
            known = self.integers(0, 4, self.batch) > 0
            ids[:, at] = torch.where(known, 3 + (ids[:, at - 1] * 7 + 5) % (self.words - 3), ids[:, at])
        ends = self.integers(length // 2, length + 1, self.batch)
        ends[0] = length
        mask = torch.arange(length) < ends[:, None]
        return ids.masked_fill(~mask, 0), mask.long()

    def adamw(self, lr: float = 2e-3) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in self.net.parameters() if p.requires_grad], lr=lr, weight_decay=0.01)


class Causal(Words):
    """Learns the next word."""

    variants: tuple[str, ...] = ("sdpa",)

    def config(self) -> Any:
        raise NotImplementedError

    def build(self) -> None:
        way = "sdpa" if self.way("sdpa") else "eager"
        net = transformers.AutoModelForCausalLM.from_config(self.config(), attn_implementation=way)
        self.net = self.add(net).train()
        self.optimizer = self.adamw()

    def loss(self, number: int) -> Tensor:
        ids, mask = self.sentences()
        labels = ids.masked_fill(mask == 0, -100)
        return self.net(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss


@script("nemotron")
class Nemotron(Causal):
    faults = ("not_squared", "untied")

    def config(self) -> Any:
        return transformers.NemotronConfig(
            **TINY,
            **BOUNDS,
            num_key_value_heads=2,
            hidden_act="relu" if self.has("not_squared") else "relu2",
            tie_word_embeddings=True,
        )

    def build(self) -> None:
        super().build()
        if self.has("untied"):
            head = self.net.lm_head
            head.weight = torch.nn.Parameter(head.weight.detach().clone())
            self.optimizer = self.adamw()


@script("smollm3")
class SmolLM3(Causal):
    """Every second layer knows no positions."""

    faults = ("turned_everywhere", "mask_of_ones")
    variants = ()

    def config(self) -> Any:
        layers = [1, 1, 1, 1] if self.has("turned_everywhere") else [1, 0, 1, 0]
        sizes = {**TINY, "num_hidden_layers": 4}
        return transformers.SmolLM3Config(**sizes, **BOUNDS, num_key_value_heads=2, no_rope_layers=layers)

    def sentences(self, length: int = 0) -> tuple[Tensor, Tensor]:
        """Padding stands in front."""
        ids, mask = super().sentences(length)
        ids, mask = ids.flip(1), mask.flip(1)
        return ids, torch.ones_like(mask) if self.has("mask_of_ones") else mask

    def loss(self, number: int) -> Tensor:
        ids, mask = self.sentences()
        labels = ids.masked_fill(ids == 0, -100)
        return self.net(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss


@script("falcon_h1")
class FalconH1(Causal):
    """State spaces beside attention, each scaled."""

    faults = ("key_scale", "gate_first")

    def config(self) -> Any:
        return transformers.FalconH1Config(
            **TINY,
            **BOUNDS,
            num_key_value_heads=2,
            mamba_d_ssm=64,
            mamba_n_heads=4,
            mamba_d_state=8,
            mamba_chunk_size=8,
            mamba_rms_norm=True,
            mamba_norm_before_gate=self.has("gate_first"),
            key_multiplier=1.0 if self.has("key_scale") else 0.5,
            ssm_out_multiplier=0.7,
            attention_out_multiplier=0.9,
        )


@script("diffllama")
class DiffLlama(Causal):
    faults = ("depth_from_one",)

    def config(self) -> Any:
        return transformers.DiffLlamaConfig(**TINY, **BOUNDS, num_key_value_heads=2)

    def build(self) -> None:
        super().build()
        if self.has("depth_from_one"):
            for layer in self.net.model.layers:
                depth = layer.self_attn.layer_idx + 1
                layer.self_attn.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)


@script("gpt_neo")
class GPTNeo(Causal):
    """Layers that see all and layers that see what is near, in turn."""

    faults = ("window",)
    variants = ()

    def config(self) -> Any:
        return transformers.GPTNeoConfig(
            vocab_size=97,
            max_position_embeddings=64,
            hidden_size=48,
            num_layers=2,
            attention_types=[[["global", "local"], 1]],
            num_heads=4,
            window_size=5 if self.has("window") else 6,
            initializer_range=0.15,
            bos_token_id=1,
            eos_token_id=2,
        )


@script("olmoe")
class Olmoe(Causal):
    """Experts, of which two are asked for each word."""

    faults = ("weights_made_one", "balance_of_padding")
    variants = ("all_experts", "sdpa")

    def config(self) -> Any:
        return transformers.OlmoeConfig(
            **{**TINY, "intermediate_size": 32},
            **BOUNDS,
            num_key_value_heads=4,
            num_experts=6,
            num_experts_per_tok=2,
            norm_topk_prob=self.has("weights_made_one"),
            output_router_logits=True,
            router_aux_loss_coef=0.05,
        )

    def build(self) -> None:
        super().build()
        if self.way("all_experts"):
            for _, block in modules_of(self.net, transformers.models.olmoe.modeling_olmoe.OlmoeSparseMoeBlock):
                block.forward = MethodType(asked_all, block)

    def loss(self, number: int) -> Tensor:
        ids, mask = self.sentences()
        labels = ids.masked_fill(mask == 0, -100)
        seen = None if self.has("balance_of_padding") else mask
        return self.net(input_ids=ids, attention_mask=seen, labels=labels, use_cache=False).loss


def asked_all(block: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """What OlmoeSparseMoeBlock computes, by asking all experts and not taking what most of them answer."""
    batch, length, width = hidden.shape
    rows = hidden.reshape(-1, width)
    logits = block.gate(rows)
    chances = logits.softmax(-1, dtype=torch.float)
    best, which = chances.topk(block.top_k, dim=-1)
    if block.norm_topk_prob:
        best = best / best.sum(-1, keepdim=True)
    weights = torch.zeros_like(chances).scatter(-1, which, best).to(rows.dtype)
    answers = torch.stack([expert(rows) for expert in block.experts], dim=1)
    return torch.einsum("re,rew->rw", weights, answers).view(batch, length, width), logits


@script("vera")
class Vera(Words):
    """Ernie, tuned by vectors around matrices that all layers share."""

    faults = ("other_draw", "small_start")

    def build(self) -> None:
        base = transformers.Ernie4_5ForCausalLM._from_config(
            transformers.Ernie4_5Config(**TINY, **BOUNDS, num_key_value_heads=2, head_dim=16),
            attn_implementation="sdpa",
        )
        tuning = peft.VeraConfig(
            r=8,
            target_modules=["q_proj", "v_proj"],
            projection_prng_key=7 if self.has("other_draw") else 3,
            d_initial=0.01 if self.has("small_start") else 0.1,
        )
        self.net = self.add(peft.get_peft_model(base, tuning)).train()
        for name, p in self.net.named_parameters():
            if "vera_lambda_b" in name:
                torch.nn.init.normal_(p, generator=self.random)
        self.optimizer = self.adamw(1e-2)

    def loss(self, number: int) -> Tensor:
        ids, mask = self.sentences()
        return self.net(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss


@script("funnel")
class Funnel(Words):
    """Sentences grow shorter from block to block, and long again to name the kind of each word."""

    faults = ("greatest", "uncut")
    variants = ("factorized",)
    batch, length = 4, 16

    def build(self) -> None:
        config = transformers.FunnelConfig(
            vocab_size=97,
            block_sizes=[1, 1, 1],
            num_decoder_layers=1,
            d_model=48,
            n_head=4,
            d_head=12,
            d_inner=96,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            pooling_type="max" if self.has("greatest") else "mean",
            truncate_seq=not self.has("uncut"),
            attention_type="factorized" if self.way("factorized") else "relative_shift",
            num_labels=5,
        )
        self.net = self.add(transformers.FunnelForTokenClassification(config)).train()
        self.optimizer = self.adamw()

    def loss(self, number: int) -> Tensor:
        ids, mask = self.sentences()
        labels = (ids % 5).masked_fill(mask == 0, -100)
        return self.net(input_ids=ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids), labels=labels).loss


class Translation(Words):
    """The words of a sentence are said in another order and by other names."""

    def pair(self) -> tuple[Tensor, Tensor, Tensor]:
        ids, mask = self.sentences()
        said = torch.where(mask > 0, 3 + (ids * 11 + 2) % (self.words - 3), 0)
        return ids, mask, said[:, : self.length // 2]


@script("longt5")
class LongT5(Translation):
    """Attention to what is near and to summaries of blocks."""

    faults = ("far", "block")
    length = 32

    def build(self) -> None:
        config = transformers.LongT5Config(
            vocab_size=97,
            d_model=48,
            d_kv=12,
            d_ff=96,
            num_layers=2,
            num_heads=4,
            local_radius=5,
            global_block_size=8 if self.has("block") else 4,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=24 if self.has("far") else 16,
            dropout_rate=0.0,
            encoder_attention_type="transient-global",
            decoder_start_token_id=0,
        )
        self.net = self.add(transformers.LongT5ForConditionalGeneration(config)).train()
        self.optimizer = self.adamw()

    def loss(self, number: int) -> Tensor:
        ids, mask, said = self.pair()
        return self.net(input_ids=ids, attention_mask=mask, labels=said.masked_fill(said == 0, -100)).loss


@script("marian")
class Marian(Translation):
    faults = ("unshifted", "source_seen")
    variants = ("checkpoint", "sdpa")

    def build(self) -> None:
        config = transformers.MarianConfig(
            vocab_size=97,
            max_position_embeddings=64,
            encoder_layers=2,
            encoder_ffn_dim=96,
            encoder_attention_heads=4,
            decoder_layers=2,
            decoder_ffn_dim=96,
            decoder_attention_heads=4,
            activation_function="swish",
            d_model=48,
            dropout=0.0,
            init_std=0.15,
            scale_embedding=True,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=2,
        )
        way = "sdpa" if self.way("sdpa") else "eager"
        self.net = self.add(transformers.MarianMTModel._from_config(config, attn_implementation=way)).train()
        if self.way("checkpoint"):
            self.net.gradient_checkpointing_enable({"use_reentrant": False})
        self.optimizer = self.adamw()

    def loss(self, number: int) -> Tensor:
        ids, mask, said = self.pair()
        if self.has("source_seen"):
            mask = torch.ones_like(mask)
        start = said if self.has("unshifted") else F.pad(said[:, :-1], (1, 0))
        out = self.net(input_ids=ids, attention_mask=mask, decoder_input_ids=start, use_cache=False)
        return F.cross_entropy(self.wide(out.logits).flatten(0, 1), said.flatten(), ignore_index=0, label_smoothing=0.1)


@script("reformer")
class Reformer(Words):
    """Layers that can be gone through backwards; attention in chunks, and among what hashes alike."""

    faults = ("no_look_back",)
    variants = ("chunked",)
    length = 32

    def build(self) -> None:
        config = transformers.ReformerConfig(
            attention_head_size=12,
            attn_layers=["local", "lsh"],
            axial_pos_shape=[4, 8],
            axial_pos_embds_dim=[16, 32],
            feed_forward_size=96,
            hidden_size=48,
            hidden_dropout_prob=0.0,
            local_attention_probs_dropout_prob=0.0,
            is_decoder=True,
            local_attn_chunk_length=8,
            lsh_attn_chunk_length=8,
            local_num_chunks_before=0 if self.has("no_look_back") else 1,
            max_position_embeddings=32,
            num_attention_heads=4,
            num_buckets=4,
            num_hashes=2,
            hash_seed=5,
            vocab_size=97,
            initializer_range=0.15,
            chunk_size_feed_forward=8 if self.way("chunked") else 0,
            use_cache=False,
        )
        self.net = self.add(transformers.ReformerModelWithLMHead(config)).train()
        self.optimizer = self.adamw()

    def loss(self, number: int) -> Tensor:
        ids, mask = self.sentences()
        return self.net(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss


@script("exaone4")
class Exaone4(Words):
    """Only reads: a beginning at once, then word by word with what it remembers; some layers remember little."""

    faults = ("position_behind", "window")

    def build(self) -> None:
        config = transformers.Exaone4Config(
            **{**TINY, "num_hidden_layers": 3},
            **BOUNDS,
            num_key_value_heads=2,
            sliding_window=5 if self.has("window") else 6,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
        self.net = self.add(transformers.Exaone4ForCausalLM._from_config(config, attn_implementation="eager")).eval()

    @torch.no_grad()
    def step(self, number: int) -> float:
        self.batch = 3
        ids = self.sentences(16)[0].clamp(min=3)
        cache = transformers.DynamicCache(config=self.net.config)
        losses, start = [], 0
        for end in range(10, 16):
            at = torch.arange(start, end)
            told = at - 1 if start and self.has("position_behind") else at
            with self.autocast():
                out = self.net(ids[:, start:end], position_ids=told[None], cache_position=at, past_key_values=cache)
            losses.append(F.cross_entropy(self.wide(out.logits[:, -1]), ids[:, end]))
            start = end
        return float(torch.stack(losses).mean())


@script("helium")
class Helium(Causal):
    """Several sentences in a row, which must not see each other."""

    faults = ("seen_across", "said_across")

    def config(self) -> Any:
        return transformers.HeliumConfig(**TINY, **BOUNDS, num_key_value_heads=2, head_dim=12)

    def loss(self, number: int) -> Tensor:
        ids = torch.cat([self.sentences(8)[0].clamp(min=3) for _ in range(3)], 1)
        part = torch.arange(24) // 8
        near = torch.ones(24, 24, dtype=torch.bool).tril()
        near = near if self.has("seen_across") else near & (part[:, None] == part)
        mask = torch.zeros(24, 24, dtype=self.dtype).masked_fill(~near, torch.finfo(self.dtype).min)
        first = torch.zeros(24, dtype=torch.bool) if self.has("said_across") else torch.arange(24) % 8 == 0
        out = self.net(
            input_ids=ids,
            attention_mask=mask.expand(4, 1, -1, -1),
            position_ids=(torch.arange(24) % 8)[None],
            use_cache=False,
        )
        labels = ids.masked_fill(first, -100)[:, 1:]
        return F.cross_entropy(self.wide(out.logits[:, :-1]).flatten(0, 1), labels.flatten())
