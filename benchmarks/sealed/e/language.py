"""Speech to text, state spaces, mixtures of experts, sliding windows, linear attention, long convolutions."""

import math
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
import transformers
from common import Task, bound, randint, randn, rng, spread, task, token_loss
from torch import nn
from transformers.models.qwen3_next import modeling_qwen3_next as next_code

transformers.logging.set_verbosity_error()


class Text(Task):
    """Next words of random sentences."""

    vocabulary, length, size = 48, 16, 4

    def batch(self, step, micro):
        return {"input_ids": randint(3, self.vocabulary, (self.size, self.length), step, micro, 1)}

    def loss(self, s, model, batch):
        ids = batch["input_ids"]
        logits = model(input_ids=ids, use_cache=False).logits
        return token_loss(logits[:, :-1], ids[:, 1:])


@task("s2t")
class SpeechToText(Task):
    options: ClassVar = {"smoothing": 0.1}

    def build(self, s):
        config = transformers.Speech2TextConfig(
            vocab_size=40,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_conv_layers=2,
            conv_channels=48,
            input_feat_per_channel=12,
            max_source_positions=64,
            max_target_positions=32,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            pad_token_id=1,
            attn_implementation="eager",
        )
        return spread(transformers.Speech2TextForConditionalGeneration(config))

    def batch(self, step, micro):
        features = randn(4, 32, 12, step=step, micro=micro, salt=2)
        lengths = torch.tensor([32, 28, 24, 32])
        mask = (torch.arange(32)[None] < lengths[:, None]).long()
        words = randint(3, 40, (4, 10), step, micro, 3)
        return {"input_features": features, "attention_mask": mask, "words": words}

    def loss(self, s, model, batch):
        words = batch.pop("words")
        start = words.new_full((len(words), 1), 2)
        out = model(**batch, decoder_input_ids=torch.cat([start, words[:, :-1]], 1), use_cache=False)
        return token_loss(out.logits, words, s.smoothing)

    def fault_late_positions(self, model, s):
        """The positions of the decoder are one too high, as if there were a past of one word."""
        positions = model.model.decoder.embed_positions
        create = positions.create_position_ids_from_input_ids
        positions.create_position_ids_from_input_ids = lambda ids, pad, past=0: create(ids, pad, past + 1)

    def fault_unscaled(self, model, s):
        """What the convolutions of the encoder give is not multiplied by sqrt(d)."""
        model.model.encoder.embed_scale = 1.0

    def fault_no_smoothing(self, model, s):
        s.smoothing = 0.0


@task("mamba2")
class Mamba2(Text):
    def build(self, s):
        config = transformers.Mamba2Config(
            vocab_size=48,
            hidden_size=32,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=16,
            expand=2,
            state_size=8,
            n_groups=2,
            chunk_size=8,
            tie_word_embeddings=False,
        )
        return spread(transformers.Mamba2ForCausalLM(config))

    def fault_norm_first(self, model, s):
        """Layer 1 normalises before it gates, as another implementation's norm_before_gate=True."""

        def forward(self, hidden_states, gate=None):
            dtype = hidden_states.dtype
            hidden_states = hidden_states.to(torch.float32)
            variance = hidden_states.pow(2).mean(-1, keepdim=True)
            hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
            hidden_states = hidden_states * F.silu(gate.to(torch.float32))
            return self.weight * hidden_states.to(dtype)

        bound(model.backbone.layers[1].mixer.norm, forward)


@task("qwen2_moe")
class Qwen2Moe(Text):
    style = "accumulate"
    options: ClassVar = {"optimizer": "sgd", "lr": 0.05}

    def build(self, s):
        config = transformers.Qwen2MoeConfig(
            vocab_size=48,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=40,
            num_experts=4,
            num_experts_per_tok=2,
            attn_implementation=s.attn,
        )
        return spread(transformers.Qwen2MoeForCausalLM(config))

    def variant_divide_gradients(self, model, s):
        s.averaged = "gradient"

    def fault_normed_routing(self, model, s):
        """The weights of the chosen experts of layer 1 are made to sum to one."""
        model.model.layers[1].mlp.norm_topk_prob = True

    def fault_open_gate(self, model, s):
        """The gate of the shared expert of layer 1 has lost its sigmoid."""
        block = model.model.layers[1].mlp

        def forward(self, hidden_states):
            shape = hidden_states.shape
            hidden_states = hidden_states.view(-1, shape[-1])
            router_logits = self.gate(hidden_states)
            weights = F.softmax(router_logits, dim=1, dtype=torch.float)
            weights, selected = torch.topk(weights, self.top_k, dim=-1)
            weights = weights.to(hidden_states.dtype)
            final = torch.zeros((len(hidden_states), shape[-1]), dtype=hidden_states.dtype, device=hidden_states.device)
            mask = F.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
            for number in hit:
                idx, top_x = torch.where(mask[number].squeeze(0))
                state = hidden_states[None, top_x].reshape(-1, shape[-1])
                state = self.experts[number](state) * weights[top_x, idx, None]
                final.index_add_(0, top_x, state.to(hidden_states.dtype))
            shared = self.shared_expert(hidden_states)
            shared = self.shared_expert_gate(hidden_states) * shared
            final = final + shared
            return final.reshape(shape), router_logits

        bound(block, forward)


@task("cohere2")
class Cohere2(Text):
    style = "accelerate"
    options: ClassVar = {"optimizer": "sgd", "lr": 0.2}

    def build(self, s):
        config = transformers.Cohere2Config(
            vocab_size=48,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            logit_scale=0.25,
            pad_token_id=0,
            attn_implementation=s.attn,
        )
        return spread(transformers.Cohere2ForCausalLM(config))

    def fault_window(self, model, s):
        """The sliding window is one shorter."""
        model.config.sliding_window = 5
        for layer in model.model.layers:
            if layer.self_attn.sliding_window:
                layer.self_attn.sliding_window = 5

    def fault_clip_value(self, model, s):
        """Gradients are clipped by value instead of by norm."""
        s.clipping = "value"

    def fault_rotary_everywhere(self, model, s):
        """Layer 1, of full attention, is rotated, too."""
        model.model.layers[1].self_attn.sliding_window = 6


@task("qwen3_next")
class Qwen3Next(Text):
    def build(self, s):
        config = transformers.Qwen3NextConfig(
            vocab_size=48,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            linear_conv_kernel_dim=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            num_experts=0,
            mlp_only_layers=[0, 1, 2],
            layer_types=["linear_attention", "linear_attention", "full_attention"],
            attn_implementation=s.attn,
        )
        model = spread(transformers.Qwen3NextForCausalLM(config))
        for layer in model.model.layers[:2]:
            layer.linear_attn.chunk_gated_delta_rule = partial(next_code.torch_chunk_gated_delta_rule, chunk_size=8)
            with torch.no_grad():
                layer.linear_attn.A_log.copy_(torch.linspace(0.02, 0.4, 4).log())
                layer.linear_attn.dt_bias.fill_(-1.0)
        return model

    def variant_recurrent(self, model, s):
        """Word by word instead of in chunks."""
        for layer in model.model.layers[:2]:
            layer.linear_attn.chunk_gated_delta_rule = next_code.torch_recurrent_gated_delta_rule

    def fault_unnormed_keys(self, model, s):
        """Queries and keys of layer 1 are not normalised."""
        layer = model.model.layers[1].linear_attn
        rule = layer.chunk_gated_delta_rule
        layer.chunk_gated_delta_rule = lambda *a, **k: rule(*a, **{**k, "use_qk_l2norm_in_kernel": False})


@task("rgemma")
class RecurrentGemma(Text):
    length = 12

    def build(self, s):
        config = transformers.RecurrentGemmaConfig(
            vocab_size=48,
            hidden_size=32,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=1,
            lru_width=32,
            attention_window_size=8,
            block_types=["recurrent", "recurrent", "attention"],
        )
        model = spread(transformers.RecurrentGemmaForCausalLM(config), embedding=0.3)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "gate_weight" in name:
                    p.copy_(torch.randn(p.shape, generator=rng(0, 0, 8)) / math.sqrt(p.shape[-1]))
                elif "recurrent_param" in name:
                    p.copy_(torch.rand(p.shape, generator=rng(0, 0, 9)) * 2 - 4)
        return model

    def loss(self, s, model, batch):
        for layer in model.model.layers[:2]:
            layer.temporal_block.rg_lru.recurrent_states = None
        return super().loss(s, model, batch)

    def fault_no_gamma(self, model, s):
        """Inputs of the recurrence of layer 0 are not multiplied by sqrt(1 - a^2)."""

        def forward(self, activations, position_ids):
            size, length, width = activations.shape
            reset = position_ids[:, :, None] == 0
            heads = activations.reshape(size * length, self.num_attention_heads, self.block_width).permute(1, 0, 2)
            res = torch.baddbmm(self.input_gate_bias[:, None, :], heads, self.input_gate_weight)
            input_gate = torch.sigmoid(res.transpose(0, 1).reshape(size, length, width))
            res = torch.baddbmm(self.recurrent_gate_bias[:, None, :], heads, self.recurrent_gate_weight)
            recurrent_gate = torch.sigmoid(res.transpose(0, 1).reshape(size, length, width))
            log_gate = -8.0 * recurrent_gate * F.softplus(self.recurrent_param)
            recurrent_gate = torch.exp(log_gate)
            hidden_states, self.recurrent_states = self._rnn_scan(
                hidden_states=activations * input_gate,
                recurrent_gate=recurrent_gate,
                reset=reset,
                recurrent_states=self.recurrent_states,
            )
            return hidden_states

        bound(model.model.layers[0].temporal_block.rg_lru, forward)


@task("granite")
class Granite(Text):
    style = "generate"

    def build(self, s):
        config = transformers.GraniteConfig(
            vocab_size=48,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            embedding_multiplier=3.0,
            residual_multiplier=0.4,
            attention_multiplier=0.35,
            logits_scaling=0.5,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
            tie_word_embeddings=False,
            attn_implementation=s.attn,
        )
        return spread(transformers.GraniteForCausalLM(config), gain=1.2)

    def prompt(self, step):
        ids = randint(3, 48, (2, 7), step, 0, 4)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def variant_beams(self, model, s):
        s.generate.update(num_beams=3)

    def variant_sampled(self, model, s):
        s.generate.update(do_sample=True, temperature=0.8, top_k=8)

    def fault_residual(self, model, s):
        """Layer 1 has lost the multiplier of its residual branches."""
        model.model.layers[1].residual_multiplier = 1.0

    def fault_next_position(self, model, s):
        """While decoding, positions are one too high."""
        prepare = model.prepare_inputs_for_generation

        def shifted(*args, **kwargs):
            inputs = prepare(*args, **kwargs)
            if inputs["input_ids"].shape[1] == 1:
                inputs["position_ids"] = inputs["position_ids"] + 1
            return inputs

        model.prepare_inputs_for_generation = shifted

    def fault_temperature_twice(self, model, s):
        """Logits are divided by the temperature before the sampler does it again."""
        plain = model.lm_head.forward

        def forward(self, hidden):
            return plain(hidden) / 0.8

        bound(model.lm_head, forward)


class LongConvolution(nn.Module):
    """y[t] = sum over j <= t of h[j] u[t - j], where a small network of the position gives h."""

    def __init__(self, width, length, order=8):
        super().__init__()
        self.length = length
        t = torch.linspace(0, 1, length)[:, None]
        waves = 2 * math.pi * t * torch.arange(1, order + 1)
        self.register_buffer("features", torch.cat([t, waves.sin(), waves.cos()], 1))
        self.register_buffer("decay", torch.exp(-t * torch.linspace(1, 12, width)))
        self.implicit = nn.Sequential(nn.Linear(2 * order + 1, 24), nn.GELU(), nn.Linear(24, width))
        self.skip = nn.Parameter(torch.full((width,), 0.5))
        self.padded = 2 * length

    def window(self):
        return self.decay

    def taps(self):
        return (self.implicit(self.features) * self.window()).t()

    def forward(self, u):
        h = self.taps().float()
        u = u.transpose(1, 2).float()
        spectrum = torch.fft.rfft(u, n=self.padded) * torch.fft.rfft(h, n=self.padded)
        y = torch.fft.irfft(spectrum, n=self.padded)[..., : self.length]
        return (y + u * self.skip[:, None]).transpose(1, 2)


class HyenaBlock(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner = nn.Linear(width, 3 * width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.long = LongConvolution(width, length)
        self.outer = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        z = self.inner(self.norm1(x)).transpose(1, 2)
        z = self.short(z)[..., : x.shape[1]].transpose(1, 2)
        a, b, v = z.chunk(3, dim=-1)
        x = x + self.outer(a * self.long(b * v))
        return x + self.mlp(self.norm2(x))


class HyenaModel(nn.Module):
    def __init__(self, vocabulary, width, length, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(HyenaBlock(width, length) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@task("hyena")
class Hyena(Text):
    length = 32

    def build(self, s):
        return spread(HyenaModel(48, 32, 32, 2))

    def loss(self, s, model, batch):
        ids = batch["input_ids"]
        return token_loss(model(ids)[:, :-1], ids[:, 1:])

    def variant_direct(self, model, s):
        """Without Fourier transforms: a convolution with the reversed filter."""

        def forward(self, u):
            h = self.taps().float()
            u = u.transpose(1, 2).float()
            y = F.conv1d(F.pad(u, (self.length - 1, 0)), h.flip(-1)[:, None], groups=len(h))
            return (y + u * self.skip[:, None]).transpose(1, 2)

        for block in model.blocks:
            bound(block.long, forward)

    def fault_circular(self, model, s):
        """Transforms of block 1 are not padded, so the end of a text reaches its beginning."""
        model.blocks[1].long.padded = 32

    def fault_slow_decay(self, model, s):
        """The window of the filters of block 0 decays with the wrong axis' rates: channels reversed."""
        long = model.blocks[0].long
        long.decay = long.decay.flip(1)
