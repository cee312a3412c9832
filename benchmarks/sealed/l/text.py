"""Language: decoders, encoders and pairs of both, of transformers, from tiny configurations."""

from __future__ import annotations

import functools
from typing import Any

import torch
from common import Script, replace, script
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import (
    ApertusConfig,
    ApertusForCausalLM,
    BlenderbotConfig,
    BlenderbotForConditionalGeneration,
    ConvBertConfig,
    ConvBertForTokenClassification,
    JetMoeConfig,
    JetMoeForCausalLM,
    MiniMaxConfig,
    MiniMaxForCausalLM,
    MobileBertConfig,
    MobileBertForMaskedLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    ProphetNetConfig,
    ProphetNetForConditionalGeneration,
)


class Decoder(Script):
    """Next tokens of short sequences; AdamW without weight decay of norms and biases."""

    vocabulary, length, batch = 96, 16, 3
    rate = 2e-3

    def build(self) -> None:
        self.net = self.add(self.model())
        matrices = [p for p in self.net.parameters() if p.ndim > 1]
        vectors = [p for p in self.net.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=self.rate, foreach=self.way("foreach") or None)
        self.ids = [self.integers(3, self.vocabulary, self.batch, self.length) for _ in range(self.options.steps)]

    def model(self) -> Any:
        raise NotImplementedError

    def loss(self, number: int) -> Tensor:
        ids = self.ids[number]
        logits = self.net(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(self.wide(logits[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class Expanded(nn.Module):
    """A quadratic above zero, an exponential below."""

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.alpha_p, self.alpha_n = like.alpha_p, like.alpha_n
        self.register_buffer("beta", like.beta)

    def forward(self, x: Tensor) -> Tensor:
        above = F.softplus(self.alpha_p) * x.square() + self.beta * x
        below = F.softplus(self.alpha_n) * (torch.expm1(x.clamp(max=-1e-6)) - x) + self.beta * x
        return torch.where(x > 0, above, below)


@script("apertus")
class Apertus(Decoder):
    faults = ("no_offset",)

    def model(self) -> Any:
        config = ApertusConfig(
            vocab_size=96,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.15,
            rope_scaling=None,
            attn_implementation="eager",
        )
        net = ApertusForCausalLM(config)
        if self.has("no_offset"):
            replace(net, "model.layers.1.mlp.act_fn", Expanded(net.model.layers[1].mlp.act_fn))
        return net


@script("jetmoe")
class JetMoe(Decoder):
    faults = ("gates_of_all",)
    variants = ("sdpa",)

    def model(self) -> Any:
        config = JetMoeConfig(
            vocab_size=96,
            hidden_size=32,
            num_hidden_layers=2,
            num_key_value_heads=2,
            kv_channels=8,
            intermediate_size=48,
            num_local_experts=4,
            num_experts_per_tok=2,
            max_position_embeddings=64,
            initializer_range=0.2,
            attn_implementation="sdpa" if self.way("sdpa") else "eager",
        )
        net = JetMoeForCausalLM(config)
        if self.has("gates_of_all"):
            router = net.model.layers[0].mlp.router
            chosen = router.forward

            def of_all(states: Tensor) -> tuple[Any, ...]:
                order, batch, gates, sizes, logits = chosen(states)
                experts = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
                gates = torch.softmax(logits, dim=1)[batch, experts].type_as(gates)
                return order, batch, gates, sizes, logits

            router.forward = of_all
        return net


@script("minimax")
class MiniMax(Decoder):
    faults = ("next_slope",)
    variants = ("blocks", "checkpoint")

    def model(self) -> Any:
        config = MiniMaxConfig(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            num_local_experts=3,
            num_experts_per_tok=1,
            block_size=4 if self.way("blocks") else 16,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            max_position_embeddings=64,
            initializer_range=0.2,
            attn_implementation="eager",
        )
        net = MiniMaxForCausalLM(config)
        if self.has("next_slope"):
            attention = net.model.layers[0].self_attn
            attention.layer_idx = 1
            attention.slope_rate = attention.get_slope_rate()
            query, key, diagonal = attention.decay_factors(attention.slope_rate)
            attention.query_decay, attention.key_decay, attention.diagonal_decay = query, key, diagonal
            attention.layer_idx = 0
        if self.way("checkpoint"):
            for layer in net.model.layers:
                layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
        return net


class SigmoidGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


@script("openai")
class OpenAI(Decoder):
    faults = ("sigmoid_gelu",)
    variants = ("foreach",)

    def model(self) -> Any:
        config = OpenAIGPTConfig(
            vocab_size=96,
            n_positions=32,
            n_embd=48,
            n_layer=2,
            n_head=4,
            initializer_range=0.15,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
        )
        net = OpenAIGPTLMHeadModel(config)
        if self.has("sigmoid_gelu"):
            net.transformer.h[0].mlp.act = SigmoidGelu()
        return net

    def loss(self, number: int) -> Tensor:
        ids = self.ids[number]
        logits = self.net(input_ids=ids).logits
        return F.cross_entropy(self.wide(logits[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class Mirrored(nn.Linear):
    """Kernels of a convolution for every position and head."""

    width = 5

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).unflatten(-1, (-1, self.width)).flip(-1).flatten(-2)


@script("convbert")
class ConvBert(Script):
    faults = ("mirrored_kernel",)

    def build(self) -> None:
        config = ConvBertConfig(
            vocab_size=90,
            hidden_size=48,
            embedding_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            conv_kernel_size=5,
            max_position_embeddings=32,
            initializer_range=0.15,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=5,
        )
        net = ConvBertForTokenClassification(config)
        if self.has("mirrored_kernel"):
            attention = net.convbert.encoder.layer[1].attention.self
            attention.conv_kernel_layer.__class__ = Mirrored
        self.net = self.add(net)
        self.optimizer = torch.optim.NAdam(self.net.parameters(), lr=1e-3)
        self.ids = self.integers(1, 90, 3, 18)
        self.labels = self.integers(0, 5, 3, 18)
        self.mask = torch.ones(3, 18, dtype=torch.long)
        self.mask[1, 12:] = 0

    def loss(self, number: int) -> Tensor:
        logits = self.net(input_ids=self.ids, attention_mask=self.mask).logits
        labels = self.labels.masked_fill(self.mask == 0, -100)
        return F.cross_entropy(self.wide(logits).flatten(0, 1), labels.flatten())


class PreviousFirst(nn.Linear):
    """Of three tokens one: the one before, this one, the next."""

    def forward(self, x: Tensor) -> Tensor:
        following, here, previous = x.chunk(3, dim=-1)
        return super().forward(torch.cat([previous, here, following], dim=-1))


@script("mobilebert")
class MobileBert(Script):
    faults = ("previous_first",)
    variants = ("checkpoint",)
    clip = 1.0

    def build(self) -> None:
        config = MobileBertConfig(
            vocab_size=90,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            embedding_size=16,
            intra_bottleneck_size=24,
            num_feedforward_networks=2,
            max_position_embeddings=32,
            initializer_range=0.15,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        net = MobileBertForMaskedLM(config)
        if self.has("previous_first"):
            net.mobilebert.embeddings.embedding_transformation.__class__ = PreviousFirst
        if self.way("checkpoint"):
            for layer in net.mobilebert.encoder.layer:
                layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
        self.net = self.add(net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.ids = self.integers(5, 90, 4, 14)
        self.hidden = torch.rand(4, 14, generator=self.random) < 0.3
        self.hidden[:, 3] = True

    def loss(self, number: int) -> Tensor:
        logits = self.net(input_ids=self.ids.masked_fill(self.hidden, 4)).logits
        return F.cross_entropy(self.wide(logits)[self.hidden], self.ids[self.hidden])


@script("prophetnet")
class ProphetNet(Script):
    faults = ("last_gram_only",)

    def build(self) -> None:
        config = ProphetNetConfig(
            vocab_size=90,
            hidden_size=32,
            encoder_ffn_dim=48,
            num_encoder_layers=1,
            num_encoder_attention_heads=4,
            decoder_ffn_dim=48,
            num_decoder_layers=2,
            num_decoder_attention_heads=4,
            max_position_embeddings=40,
            ngram=2,
            num_buckets=8,
            relative_max_distance=16,
            init_std=0.15,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            disable_ngram_loss=self.has("last_gram_only"),
        )
        self.net = self.add(ProphetNetForConditionalGeneration(config))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.source = self.integers(3, 90, 2, 11)
        self.labels = self.integers(3, 90, 2, 9)

    def loss(self, number: int) -> Tensor:
        return self.net(input_ids=self.source, labels=self.labels, use_cache=False).loss


@script("blenderbot")
class Blenderbot(Script):
    """Learns from answers, then answers greedily."""

    faults = ("small_embedding", "position_offset")
    variants = ("recompute",)

    def build(self) -> None:
        config = BlenderbotConfig(
            vocab_size=90,
            d_model=32,
            encoder_layers=1,
            encoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_layers=2,
            decoder_attention_heads=4,
            decoder_ffn_dim=48,
            max_position_embeddings=40,
            init_std=0.15,
            dropout=0.0,
            scale_embedding=True,
            attn_implementation="eager",
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=None,
            forced_eos_token_id=None,
            decoder_start_token_id=1,
        )
        net = BlenderbotForConditionalGeneration(config)
        if self.has("small_embedding"):
            net.model.encoder.embed_tokens.embed_scale = 1.0
        if self.has("position_offset"):
            positions = net.model.decoder.embed_positions
            place = positions.forward
            positions.forward = lambda shape, past=0, position_ids=None: place(shape, past + 1)
        self.net = self.add(net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-3)
        self.source = self.integers(3, 90, 2, 10)
        self.answers = self.integers(3, 90, 2, 8)

    def loss(self, number: int) -> Tensor:
        return self.net(input_ids=self.source, labels=self.answers, use_cache=False).loss

    def step(self, number: int) -> float:
        value = super().step(number)
        self.net.eval()
        with torch.no_grad(), self.autocast():
            answer = self.net.generate(
                self.source,
                max_new_tokens=4,
                do_sample=False,
                use_cache=not self.way("recompute"),
                output_scores=True,
                return_dict_in_generate=True,
            )
        self.net.train()
        return value + float(torch.stack(answer.scores).double().logsumexp(-1).mean())
