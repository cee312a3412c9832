"""One fault each. A fault gets the model and the settings of the training script before training begins."""
import math
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

FAULTS = {}
WHEN = {}


def fault(f, when="ready"):
    FAULTS[f.__name__] = f
    WHEN[f.__name__] = when
    return f


def early(f):
    """Made on the float32 model, before it is cast."""
    return fault(f, "built")


aten = torch.ops.aten


class Lie(TorchDispatchMode):
    """A kernel that gives something else than it should. change(result, n) for the n-th call (from 0)."""

    def __init__(self, ops, change):
        super().__init__()
        self.ops, self.change, self.n = ops, change, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in self.ops:
            out = self.change(out, self.n)
            self.n += 1
        return out


def lie(module, ops, change):
    plain = module.forward
    mode = Lie(ops, change)

    def forward(*args, **kwargs):
        with mode:
            return plain(*args, **kwargs)
    module.forward = forward


LIES = []


def lie_everywhere(ops, change):
    mode = Lie(ops, change)
    mode.__enter__()
    LIES.append(mode)


def swap(a, b):
    with torch.no_grad():
        kept = a.detach().clone()
        a.copy_(b)
        b.copy_(kept)


PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.linear)


# ---------------------------------------------------------------- bart

@fault
def bart_cross_scale(model, s):
    model.model.decoder.layers[1].encoder_attn.scaling = 1.0 / model.model.decoder.layers[1].encoder_attn.head_dim


@fault
def bart_teacher_forcing(model, s):
    def prepare(batch):
        return dict(batch, decoder_input_ids=batch["labels"].masked_fill(batch["labels"] == -100, 1))
    s.prepare.append(prepare)


@fault
def bart_no_encoder_mask(model, s):
    s.prepare.append(lambda batch: {k: v for k, v in batch.items() if k != "attention_mask"})


@early
def bart_swapped_qk(model, s):
    attention = model.model.encoder.layers[1].self_attn
    swap(attention.q_proj.weight, attention.k_proj.weight)


@fault
def bart_norm_backward(model, s):
    def change(out, n):
        return (out[0] * 1.1, out[1], out[2]) if n % 12 == 0 else out
    lie_everywhere((aten.native_layer_norm_backward,), change)


@fault
def bart_pre_norm(model, s):
    """The first layer of the encoder normalises before its feed-forward instead of behind it."""
    layer = model.model.encoder.layers[0]

    def forward(self, hidden_states, attention_mask=None, layer_head_mask=None, output_attentions=False, **kwargs):
        residual = hidden_states
        hidden_states, weights = self.self_attn(hidden_states=hidden_states, attention_mask=attention_mask,
                                                layer_head_mask=layer_head_mask, output_attentions=output_attentions)
        hidden_states = self.self_attn_layer_norm(residual + hidden_states)
        residual = hidden_states
        hidden_states = self.final_layer_norm(hidden_states)
        hidden_states = self.fc2(self.activation_fn(self.fc1(hidden_states)))
        hidden_states = residual + hidden_states
        return (hidden_states,) + ((weights,) if output_attentions else ())
    layer.forward = forward.__get__(layer)


# ---------------------------------------------------------------- whisper

@fault
def whisper_position(model, s):
    positions = model.model.decoder.embed_positions
    positions.forward = lambda ids, past_key_values_length=0, position_ids=None: positions.weight[1:ids.shape[1] + 1]


@fault
def whisper_gelu(model, s):
    model.model.encoder.layers[1].activation_fn = nn.GELU(approximate="tanh")


@fault
def whisper_no_clip(model, s):
    s.clip = None


@fault
def whisper_eps(model, s):
    model.model.encoder.layers[1].final_layer_norm.eps = 0.1


@fault
def whisper_not_unscaled(model, s):
    s.unscale = False


@fault
def whisper_conv_stride_pad(model, s):
    conv = model.model.encoder.conv2
    conv.forward = lambda x: F.conv1d(F.pad(x, (1, 1), mode="replicate"), conv.weight, conv.bias, stride=2)


# ---------------------------------------------------------------- clip

@fault
def clip_one_direction(model, s):
    s.both_directions = False


@fault
def clip_pool(model, s):
    """The text is pooled at the largest token instead of at its end."""
    model.text_model.eos_token_id = 2


@fault
def clip_normalize_axis(model, s):
    s.normalize_dim = 0


@fault
def clip_no_pre_norm(model, s):
    model.vision_model.pre_layrnorm.forward = lambda x: x


@early
def clip_patch_transposed(model, s):
    w = model.vision_model.embeddings.patch_embedding.weight
    w.data.copy_(w.data.transpose(2, 3).clone())


@fault
def clip_not_causal(model, s):
    """The text sees what is to come."""
    from transformers.models.clip import modeling_clip
    plain = modeling_clip._create_4d_causal_attention_mask
    modeling_clip._create_4d_causal_attention_mask = lambda *a, **k: torch.zeros_like(plain(*a, **k))


# ---------------------------------------------------------------- swin

@early
def swin_bias_index(model, s):
    attention = model.swin.encoder.layers[0].blocks[1].attention.self
    attention.relative_position_index.copy_(attention.relative_position_index.t().clone())


@fault
def swin_no_shift_mask(model, s):
    block = model.swin.encoder.layers[0].blocks[1]
    block.get_attn_mask = lambda height, width, dtype, device: None


@fault
def swin_merge_order(model, s):
    merge = model.swin.encoder.layers[0].downsample

    def forward(x, size):
        b, _, c = x.shape
        x = x.view(b, *size, c)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 0::2], x[:, 1::2, 1::2]], -1)
        return merge.reduction(merge.norm(x.view(b, -1, 4 * c)))
    merge.forward = forward


@fault
def swin_label_smoothing(model, s):
    s.label_smoothing = 0.1


# ---------------------------------------------------------------- qwen3

@early
def qwen3_rope_base(model, s):
    rope = model.model.rotary_emb
    inv = 1.0 / (10000.0 ** (torch.arange(0, 16, 2).float() / 16))
    rope.inv_freq.copy_(inv)
    rope.original_inv_freq = rope.inv_freq


@early
def qwen3_norms_swapped(model, s):
    attention = model.model.layers[1].self_attn
    swap(attention.q_norm.weight, attention.k_norm.weight)


@fault
def qwen3_kernel_factor(model, s):
    lie(model.model.layers[1].mlp.down_proj, PRODUCTS, lambda out, n: out * 1.05)


@fault
def qwen3_pads_in_loss(model, s):
    s.prepare.append(lambda batch: dict(batch, labels=batch["input_ids"].clone()))


@fault
def qwen3_stale_cache(model, s):
    """While generating, layer 1 gets the keys of one token ago for the newest token."""
    from transformers.cache_utils import DynamicCache
    plain = DynamicCache.update

    def update(self, key, value, layer_idx, cache_kwargs=None):
        keys, values = plain(self, key, value, layer_idx, cache_kwargs)
        if layer_idx == 1 and key.shape[2] == 1:
            keys = torch.cat([keys[:, :, :-1], keys[:, :, -2:-1]], 2)
        return keys, values
    DynamicCache.update = update


@fault
def qwen3_eps_adam(model, s):
    s.eps = 1e-3


@fault
def qwen3_no_left_mask(model, s):
    """A prompt that is padded on the left, and no mask."""
    s.prepare.append(lambda batch: {k: v for k, v in batch.items() if k != "attention_mask"})
    model.generation_config.pad_token_id = None


@fault
def qwen3_mask_after_softmax(model, s):
    """Attention of the last layer is masked behind its softmax."""
    from transformers.models.qwen3 import modeling_qwen3 as m
    plain = m.eager_attention_forward

    def attend(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        if module.layer_idx != 2:
            return plain(module, query, key, value, attention_mask, scaling, dropout, **kwargs)
        keys, values = m.repeat_kv(key, module.num_key_value_groups), m.repeat_kv(value, module.num_key_value_groups)
        weights = torch.matmul(query, keys.transpose(2, 3)) * scaling
        weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
        weights = weights.masked_fill(attention_mask < 0, 0.0)
        return torch.matmul(weights, values).transpose(1, 2).contiguous(), weights
    m.eager_attention_forward = attend


# ---------------------------------------------------------------- gemma3

@fault
def gemma3_window(model, s):
    model.config.sliding_window = 9


@fault
def gemma3_no_embed_scale(model, s):
    model.model.embed_tokens.embed_scale.fill_(1.0)


@fault
def gemma3_norm_weight(model, s):
    norm = model.model.layers[1].post_attention_layernorm
    norm.forward = lambda x: (norm._norm(x.float()) * norm.weight.float()).type_as(x)


@fault
def gemma3_scale(model, s):
    model.model.layers[2].self_attn.scaling = 64 ** -0.5


@fault
def gemma3_beta2(model, s):
    s.betas = (0.9, 0.9)


# ---------------------------------------------------------------- mistral

@fault
def mistral_schedule_first(model, s):
    s.schedule_first = True


@fault
def mistral_repeat_kv(model, s):
    """Heads of keys and values are tiled, where each should be repeated."""
    from transformers.integrations import sdpa_attention
    sdpa_attention.use_gqa_in_sdpa = lambda *a, **k: False
    sdpa_attention.repeat_kv = lambda x, n: x.repeat(1, n, 1, 1)


@fault
def mistral_no_residual(model, s):
    layer = model.model.layers[1]

    def forward(self, hidden_states, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False,
                cache_position=None, position_embeddings=None, **kwargs):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, attention_mask=attention_mask, position_ids=position_ids,
                                          past_key_values=past_key_values, use_cache=use_cache, cache_position=cache_position,
                                          position_embeddings=position_embeddings, **kwargs)
        hidden_states = residual + hidden_states
        return self.mlp(self.post_attention_layernorm(hidden_states))
    layer.forward = forward.__get__(layer)


@fault
def mistral_momentum(model, s):
    s.betas = (0.5, 0.999)


@fault
def mistral_row(model, s):
    """One row of the embedding's result is that of another token."""
    def change(out, n):
        out = out.clone()
        out[2, 7] = out[2, 6]
        return out
    lie(model.model.embed_tokens, (aten.embedding,), change)


@fault
def mistral_silu_backward(model, s):
    def change(out, n):
        return out * 1.2 if n % 3 == 1 else out
    lie_everywhere((aten.silu_backward,), change)


# ---------------------------------------------------------------- bloom

@fault
def bloom_alibi(model, s):
    from transformers.models.bloom import modeling_bloom
    plain = modeling_bloom.build_alibi_tensor

    def build(attention_mask, num_heads, dtype):
        b, t = attention_mask.shape
        return plain(attention_mask, 2 * num_heads, dtype).view(b, 2 * num_heads, 1, t)[:, :num_heads].reshape(-1, 1, t)
    modeling_bloom.build_alibi_tensor = build
    model.transformer.build_alibi_tensor = build


@fault
def bloom_decay_all(model, s):
    s.decay_all = True


@fault
def bloom_weight_decay(model, s):
    s.weight_decay = 0.5


@fault
def bloom_dropout(model, s):
    for block in model.transformer.h:
        block.mlp.hidden_dropout = 0.1


@fault
def bloom_gelu(model, s):
    """x * sigmoid(1.702 x)"""
    gelu = model.transformer.h[2].mlp.gelu_impl
    gelu.forward = lambda x: x * torch.sigmoid(1.702 * x)


# ---------------------------------------------------------------- mamba

@fault
def mamba_conv_shift(model, s):
    mixer = model.backbone.layers[1].mixer
    conv = mixer.conv1d
    conv.forward = lambda x: F.conv1d(x, conv.weight, conv.bias, padding=3, groups=conv.groups)[..., 1:]


@fault
def mamba_gate(model, s):
    model.backbone.layers[1].mixer.act = nn.GELU()


@fault
def mamba_clip(model, s):
    s.clip = 0.1


@early
def mamba_dt_bias(model, s):
    model.backbone.layers[2].mixer.dt_proj.bias.data.zero_()


@fault
def mamba_label_shift(model, s):
    s.shift = 2


@fault
def mamba_stale_state(model, s):
    """While generating, the state of layer 1 is not written back."""
    mixer = model.backbone.layers[1].mixer
    plain = mixer.slow_forward

    def slow_forward(input_states, cache_params=None, cache_position=None, attention_mask=None):
        kept = cache_params.ssm_states[1].clone() if cache_params is not None and cache_position.shape[0] == 1 else None
        out = plain(input_states, cache_params, cache_position, attention_mask)
        if kept is not None:
            cache_params.ssm_states[1].copy_(kept)
        return out
    mixer.slow_forward = slow_forward


# ---------------------------------------------------------------- rwkv

@fault
def rwkv_decay(model, s):
    from transformers.models.rwkv import modeling_rwkv
    plain = modeling_rwkv.rwkv_linear_attention_cpu
    modeling_rwkv.rwkv_linear_attention_cpu = lambda decay, first, *a, **k: plain(-decay, first, *a, **k)


@fault
def rwkv_shift(model, s):
    model.rwkv.blocks[1].attention.time_shift.padding = (0, 0, -1, 1)


@fault
def rwkv_not_rescaled(model, s):
    """The weights count as rescaled for inference, and are not."""
    model.rwkv.layers_are_rescaled = True


@fault
def rwkv_relu(model, s):
    """relu instead of its square in the channel mixing of one block."""
    mix = model.rwkv.blocks[2].feed_forward

    def forward(hidden, state=None):
        shifted = mix.time_shift(hidden)
        key = hidden * mix.time_mix_key + shifted * (1 - mix.time_mix_key)
        receptance = hidden * mix.time_mix_receptance + shifted * (1 - mix.time_mix_receptance)
        return torch.sigmoid(mix.receptance(receptance)) * mix.value(torch.relu(mix.key(key))), state
    mix.forward = forward


@fault
def rwkv_nesterov(model, s):
    s.nesterov = True


# ---------------------------------------------------------------- deepseek

@early
def v2_experts_swapped(model, s):
    experts = model.model.layers[1].mlp.experts
    for name in ("gate_proj", "up_proj", "down_proj"):
        swap(getattr(experts[1], name).weight, getattr(experts[4], name).weight)


@fault
def v2_routed_scale(model, s):
    model.model.layers[1].mlp.gate.routed_scaling_factor = 1.0


@fault
def v2_softmax_axis(model, s):
    """Scores of the second router are a softmax over tokens instead of experts."""
    gate = model.model.layers[2].mlp.gate

    def forward(hidden):
        hidden = hidden.view(-1, hidden.shape[-1])
        logits = F.linear(hidden.float(), gate.weight.float(), None)
        scores = logits.softmax(dim=0, dtype=torch.float32)
        weight, index = torch.topk(scores, k=gate.top_k, dim=-1, sorted=False)
        return index, weight * gate.routed_scaling_factor
    gate.forward = forward


@fault
def v2_no_kv_norm(model, s):
    model.model.layers[1].self_attn.kv_a_layernorm.forward = lambda x: x


@fault
def v3_not_normalised(model, s):
    model.model.layers[1].mlp.gate.norm_topk_prob = False


@early
def v3_no_correction(model, s):
    model.model.layers[1].mlp.gate.e_score_correction_bias.zero_()


@fault
def v3_no_shared(model, s):
    """The shared expert of the last layer is not added."""
    mlp = model.model.layers[2].mlp

    def forward(hidden):
        index, weight = mlp.gate(hidden)
        return mlp.moe(hidden.view(-1, hidden.shape[-1]), index, weight).view(hidden.shape)
    mlp.forward = forward


@fault
def v3_undivided(model, s):
    s.divide = False


@fault
def v3_kernel_stale(model, s):
    """down_proj of the first layer gives every third call the result of the call before."""
    last = deque(maxlen=1)

    def change(out, n):
        stale = last[0] if last and n % 3 == 2 and last[0].shape == out.shape else out
        last.append(out)
        return stale
    lie(model.model.layers[0].mlp.down_proj, PRODUCTS, change)


# ---------------------------------------------------------------- phi

@fault
def phi_interleaved(model, s):
    from transformers.models.phi import modeling_phi

    def rotate(x):
        return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    modeling_phi.rotate_half = rotate


@fault
def phi_mlp_unnormed(model, s):
    layer = model.model.layers[1]

    def forward(self, hidden_states, attention_mask=None, position_ids=None, past_key_values=None, output_attentions=False,
                use_cache=False, cache_position=None, position_embeddings=None, **kwargs):
        residual = hidden_states
        normed = self.input_layernorm(hidden_states)
        attention, _ = self.self_attn(hidden_states=normed, attention_mask=attention_mask, position_ids=position_ids,
                                      past_key_values=past_key_values, use_cache=use_cache, cache_position=cache_position,
                                      position_embeddings=position_embeddings, **kwargs)
        return (self.resid_dropout(attention) + self.resid_dropout(self.mlp(residual)) + residual,)
    layer.forward = forward.__get__(layer)


@fault
def phi_not_zeroed(model, s):
    s.zero_grad = False


@fault
def phi_quantised(model, s):
    """What one layer's attention gives goes through five bits."""
    attention = model.model.layers[2].self_attn
    plain = attention.dense.forward

    def dense(x):
        scale = x.detach().abs().max() / 15
        return plain(x + ((x / scale).round() * scale - x).detach())
    attention.dense.forward = dense


@fault
def phi_bias_lost(model, s):
    dense = model.model.layers[0].mlp.fc2
    dense.forward = lambda x: F.linear(x, dense.weight)


# ---------------------------------------------------------------- falcon

@fault
def falcon_untied(model, s):
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())


@fault
def falcon_clamped(model, s):
    act = model.transformer.h[1].mlp.act
    plain = act.forward
    act.forward = lambda x: plain(x).clamp(max=0.5)


@fault
def falcon_kv_swapped(model, s):
    attention = model.transformer.h[1].self_attention
    plain = attention._split_heads

    def split(fused):
        query, key, value = plain(fused)
        return query, value, key
    attention._split_heads = split


@fault
def falcon_sum(model, s):
    s.reduction = "sum"


@fault
def falcon_norm_eps(model, s):
    model.transformer.h[2].input_layernorm.eps = 0.05


# ---------------------------------------------------------------- distilbert

@fault
def distilbert_frozen(model, s):
    model.distilbert.transformer.layer[0].attention.q_lin.requires_grad_(False)


@fault
def distilbert_smoothing(model, s):
    s.label_smoothing = 0.1


@fault
def distilbert_positions(model, s):
    embeddings = model.distilbert.embeddings
    embeddings.position_ids.copy_((embeddings.position_ids + 2).clamp(max=63))


@fault
def distilbert_gelu_grad(model, s):
    lie_everywhere((aten.gelu_backward,), lambda out, n: out * 0.8 if n % 3 == 2 else out)


@fault
def distilbert_labels(model, s):
    s.prepare.append(lambda b: dict(b, labels=b["labels"].roll(1, 1).masked_fill(b["attention_mask"] == 0, -100)))


# ---------------------------------------------------------------- wav2vec2

@fault
def wav2vec2_ctc_sum(model, s):
    model.config.ctc_loss_reduction = "sum"


@fault
def wav2vec2_mulaw(model, s):
    """Audio is still companded."""
    def prepare(batch):
        x = batch["input_values"]
        x = torch.sign(x) * torch.log1p(255 * x.abs() / 4) / math.log(256)
        return dict(batch, input_values=(x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True))
    s.prepare.append(prepare)


@fault
def wav2vec2_same_pad(model, s):
    pad = model.wav2vec2.encoder.pos_conv_embed.padding
    pad.forward = lambda x: x[:, :, 1:]


@fault
def wav2vec2_head_rate(model, s):
    s.head_lr = 2.0


@fault
def wav2vec2_groupnorm(model, s):
    """The first convolution's channels are normalised together instead of each alone."""
    norm = model.wav2vec2.feature_extractor.conv_layers[0].layer_norm
    norm.forward = lambda x: F.group_norm(x, 1, norm.weight, norm.bias, norm.eps)


# ---------------------------------------------------------------- segformer

@fault
def segformer_corners(model, s):
    from transformers.models.segformer import modeling_segformer as m
    head = model.decode_head
    plain, resize = head.forward, F.interpolate

    def interpolate(x, size=None, mode="nearest", align_corners=None):
        return resize(x, size=size, mode=mode, align_corners=True)

    def forward(*args, **kwargs):
        m.nn.functional.interpolate = interpolate
        try:
            return plain(*args, **kwargs)
        finally:
            m.nn.functional.interpolate = resize
    head.forward = forward


@fault
def segformer_bn_eval(model, s):
    norm = model.decode_head.batch_norm
    norm.train = lambda mode=True: norm
    norm.training = False


@fault
def segformer_dwconv_row(model, s):
    """A convolution's second image is that of the first."""
    def change(out, n):
        out = out.clone()
        out[1] = out[0]
        return out
    lie(model.segformer.encoder.block[0][1].mlp.dwconv, (aten.convolution, aten.mkldnn_convolution), change)


@fault
def segformer_reflect(model, s):
    conv = model.segformer.encoder.patch_embeddings[0].proj
    conv.forward = lambda x: F.conv2d(F.pad(x, (3, 3, 3, 3), mode="reflect"), conv.weight, conv.bias, stride=conv.stride)


@fault
def segformer_momentum(model, s):
    s.momentum = 0.5


@fault
def segformer_ignored(model, s):
    """Pixels that should not count are class 0."""
    s.prepare.append(lambda b: dict(b, labels=b["labels"].masked_fill(b["labels"] == 255, 0)))


# ---------------------------------------------------------------- detr

@fault
def detr_temperature(model, s):
    for module in model.modules():
        if type(module).__name__ == "DetrSinePositionEmbedding":
            module.temperature = 20


@fault
def detr_no_key_positions(model, s):
    attention = model.model.decoder.layers[1].encoder_attn
    plain = attention.forward

    def forward(*args, **kwargs):
        kwargs["spatial_position_embeddings"] = torch.zeros_like(kwargs["spatial_position_embeddings"])
        return plain(*args, **kwargs)
    attention.forward = forward


@fault
def detr_empty_weight(model, s):
    model.config.eos_coefficient = 1.0


@fault
def detr_no_pixel_mask(model, s):
    s.prepare.append(lambda b: dict(b, pixel_mask=torch.ones_like(b["pixel_mask"])))


@fault
def detr_box_order(model, s):
    """Boxes are given by corners, where the loss takes centre and size."""
    def prepare(batch):
        out = []
        for one in batch["labels"]:
            c, wh = one["boxes"].split(2, 1)
            out.append(dict(one, boxes=torch.cat([c - wh / 2, c + wh / 2], 1)))
        return dict(batch, labels=out)
    s.prepare.append(prepare)


# ---------------------------------------------------------------- lora

@fault
def lora_scale(model, s):
    for name, module in model.named_modules():
        if name.endswith("layers.1.self_attn.q_proj"):
            module.scaling["default"] = 1.0


@early
def lora_other_adapter(model, s):
    g = torch.Generator().manual_seed(77)
    for name, p in model.named_parameters():
        if "layers.2.mlp.down_proj.lora_A" in name:
            p.data.copy_(0.15 * torch.randn(p.shape, generator=g))


@fault
def lora_base_trained(model, s):
    for name, p in model.named_parameters():
        if "layers.0.self_attn.v_proj.base_layer" in name:
            p.requires_grad_(True)


@fault
def lora_dropout(model, s):
    for name, module in model.named_modules():
        if name.endswith("layers.0.self_attn.v_proj"):
            module.lora_dropout["default"] = nn.Dropout(0.2)


@fault
def lora_rms_sum(model, s):
    """A norm divides by the root of the sum of squares over half of the channels."""
    norm = model.base_model.model.model.layers[1].input_layernorm

    def forward(x):
        half = x.float()[..., :32]
        return norm.weight * (x.float() * torch.rsqrt(half.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)).to(x.dtype)
    norm.forward = forward


# ---------------------------------------------------------------- generate

@fault
def bart_generate_no_mask(model, s):
    s.prepare.append(lambda b: dict(b, attention_mask=torch.ones_like(b["attention_mask"])))


@fault
def whisper_cross_stale(model, s):
    """Cross-attention of the last layer keeps the first prompt's keys."""
    attention = model.model.decoder.layers[1].encoder_attn
    plain = attention.k_proj.forward
    kept = []

    def forward(x):
        if not kept:
            kept.append(plain(x))
        return kept[0]
    attention.k_proj.forward = forward
