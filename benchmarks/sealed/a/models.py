"""Small models from configs, and their batches. Nothing is downloaded."""
import math

import torch
import transformers as tf
from torch import nn

VOCAB = 120
NORMS = ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm")


def season(model, seed):
    """Weights as of a model that has been trained for a while: no zeros, no ones, activations of usual size."""
    g = torch.Generator().manual_seed(seed)
    seen = set()

    def fill(p, mean, std):
        if p is not None and id(p) not in seen:
            seen.add(id(p))
            p.data.copy_(mean + std * torch.randn(p.shape, generator=g))

    for module in model.modules():
        kind = type(module).__name__
        if hasattr(module, "parametrizations"):
            continue
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            fill(module.weight, 0.0, 1.0 / math.sqrt(module.weight[0].numel()))
            if kind != "MambaDt" and module.bias is not None:
                fill(module.bias, 0.0, 0.1)
        elif isinstance(module, nn.Embedding):
            fill(module.weight, 0.0, 0.3)
        elif any(n in kind for n in NORMS) and getattr(module, "weight", None) is not None and isinstance(module.weight, nn.Parameter):
            fill(module.weight, 0.0 if kind.startswith("Gemma3") else 1.0, 0.15)
            if getattr(module, "bias", None) is not None:
                fill(module.bias, 0.0, 0.1)
    for name, p in model.named_parameters():
        if id(p) in seen:
            continue
        if name.endswith(("gate.weight", "relative_position_bias_table", "class_embedding", "query_position_embeddings.weight")):
            fill(p, 0.0, 0.3)
    return model


def _lm(cls, config, **kw):
    return cls(config, **kw) if kw else cls(config)


def bart():
    return tf.BartForConditionalGeneration(tf.BartConfig(
        vocab_size=VOCAB, d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=96, decoder_ffn_dim=96, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2))


def whisper():
    return tf.WhisperForConditionalGeneration(tf.WhisperConfig(
        vocab_size=VOCAB, num_mel_bins=16, encoder_layers=2, decoder_layers=2, d_model=48, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, max_source_positions=30, max_target_positions=32,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=3, dropout=0.0,
        suppress_tokens=None, begin_suppress_tokens=None))


def clip():
    return tf.CLIPModel(tf.CLIPConfig(
        projection_dim=32,
        text_config=dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                         max_position_embeddings=24, eos_token_id=5, bos_token_id=0, pad_token_id=1),
        vision_config=dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, image_size=24, patch_size=6)))


def swin():
    return tf.SwinForImageClassification(tf.SwinConfig(
        image_size=32, patch_size=2, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4, drop_path_rate=0.0, num_labels=10))


def qwen3():
    return tf.Qwen3ForCausalLM(tf.Qwen3Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=64, rope_theta=1000000.0, tie_word_embeddings=False,
        pad_token_id=1, bos_token_id=0, eos_token_id=2))


def gemma3():
    return tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
        head_dim=16, query_pre_attn_scalar=16, sliding_window=8, max_position_embeddings=64,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], pad_token_id=1, bos_token_id=0, eos_token_id=2))


def mistral():
    return tf.MistralForCausalLM(tf.MistralConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, sliding_window=12, pad_token_id=1, bos_token_id=0, eos_token_id=2))


def bloom():
    return tf.BloomForCausalLM(tf.BloomConfig(
        vocab_size=VOCAB, hidden_size=64, n_layer=3, n_head=4, hidden_dropout=0.0, attention_dropout=0.0,
        pad_token_id=1, bos_token_id=0, eos_token_id=2))


def mamba():
    return tf.MambaForCausalLM(tf.MambaConfig(
        vocab_size=VOCAB, hidden_size=48, state_size=8, num_hidden_layers=3, expand=2, conv_kernel=4, use_mambapy=False,
        pad_token_id=1, bos_token_id=0, eos_token_id=2))


def rwkv():
    model = tf.RwkvForCausalLM(tf.RwkvConfig(
        vocab_size=VOCAB, hidden_size=48, num_hidden_layers=4, context_length=32, rescale_every=2, use_cache=False,
        pad_token_id=1, bos_token_id=0, eos_token_id=2))
    return model


def deepseek_v2():
    return tf.DeepseekV2ForCausalLM(tf.DeepseekV2Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
        n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, topk_method="greedy",
        routed_scaling_factor=2.5, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2))


def deepseek_v3():
    model = tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
        n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, n_group=2, topk_group=1,
        routed_scaling_factor=2.5, norm_topk_prob=True, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2))
    g = torch.Generator().manual_seed(5)
    for layer in model.model.layers[1:]:
        layer.mlp.gate.e_score_correction_bias.copy_(0.3 * torch.randn(8, generator=g))
    return model


def phi():
    return tf.PhiForCausalLM(tf.PhiConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, partial_rotary_factor=0.5,
        max_position_embeddings=64, resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0,
        pad_token_id=1, bos_token_id=0, eos_token_id=2))


def falcon():
    return tf.FalconForCausalLM(tf.FalconConfig(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, new_decoder_architecture=False, multi_query=True,
        parallel_attn=True, alibi=False, hidden_dropout=0.0, attention_dropout=0.0, max_position_embeddings=64,
        pad_token_id=1, bos_token_id=0, eos_token_id=2))


def distilbert():
    return tf.DistilBertForTokenClassification(tf.DistilBertConfig(
        vocab_size=VOCAB, dim=48, n_layers=3, n_heads=4, hidden_dim=96, dropout=0.0, attention_dropout=0.0,
        max_position_embeddings=64, num_labels=7, pad_token_id=1))


def wav2vec2():
    return tf.Wav2Vec2ForCTC(tf.Wav2Vec2Config(
        vocab_size=20, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, conv_dim=(24, 24, 24),
        conv_stride=(4, 3, 2), conv_kernel=(8, 3, 3), num_feat_extract_layers=3, num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0,
        final_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0, apply_spec_augment=False, ctc_loss_reduction="mean", pad_token_id=0,
        ctc_zero_infinity=True))


def segformer():
    return tf.SegformerForSemanticSegmentation(tf.SegformerConfig(
        num_encoder_blocks=2, depths=[2, 2], sr_ratios=[2, 1], hidden_sizes=[24, 48], patch_sizes=[7, 3], strides=[4, 2],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0, drop_path_rate=0.0, decoder_hidden_size=32, num_labels=6))


def detr():
    model = tf.DetrForObjectDetection(tf.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        backbone_config=tf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", out_features=["stage2"]),
        num_queries=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, num_labels=5))
    model.model.backbone.requires_grad_(True)                   # all of it is trained
    return model


def lora():
    from peft import LoraConfig, get_peft_model
    base = season(mistral(), 3)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "down_proj"],
                                            task_type="CAUSAL_LM"))
    g = torch.Generator().manual_seed(9)
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.data.copy_(0.15 * torch.randn(p.shape, generator=g))
    return model


ATTN_EAGER = {"bart", "qwen3", "gemma3", "phi", "lora", "deepseek_v2", "detr", "clip", "swin"}      # the others use sdpa where they can


def build(name, attn=None):
    torch.manual_seed(1234)
    maker = globals()[name]
    model = maker()
    if name != "lora":
        season(model, 3)
    attn = attn or ("eager" if name in ATTN_EAGER else "sdpa")
    try:
        (model.base_model.model if name == "lora" else model).set_attn_implementation(attn)
    except Exception:
        pass                                                    # models with one implementation only
    return model


# ---------------------------------------------------------------- batches

def _gen(step, micro=0):
    return torch.Generator().manual_seed(1000 + 17 * step + micro)


def causal(step, micro=0, batch=4, length=20):
    g = _gen(step, micro)
    ids = torch.randint(6, VOCAB, (batch, length), generator=g)
    mask = torch.ones_like(ids)
    for row, cut in enumerate((0, 3, 5, 0)[:batch]):
        if cut:
            ids[row, -cut:] = 1
            mask[row, -cut:] = 0
    return dict(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))


def unpadded(step, micro=0, batch=4, length=18):
    ids = torch.randint(6, VOCAB, (batch, length), generator=_gen(step, micro))
    return dict(input_ids=ids, labels=ids.clone())


def seq2seq(step, micro=0):
    b = causal(step, micro, length=16)
    g = _gen(step, micro + 7)
    labels = torch.randint(6, VOCAB, (4, 11), generator=g)
    labels[1, -4:] = -100
    labels[3, -2:] = -100
    return dict(input_ids=b["input_ids"], attention_mask=b["attention_mask"], labels=labels)


def speech(step, micro=0):
    g = _gen(step, micro)
    labels = torch.randint(6, VOCAB, (3, 12), generator=g)
    labels[2, -3:] = -100
    return dict(input_features=torch.randn(3, 16, 60, generator=g), labels=labels)


def pairs(step, micro=0):
    g = _gen(step, micro)
    ids = torch.randint(6, VOCAB, (6, 14), generator=g)
    ends = torch.randint(6, 14, (6,), generator=g)
    mask = (torch.arange(14)[None] <= ends[:, None]).long()
    ids[torch.arange(6), ends] = 5
    ids = ids.masked_fill(mask == 0, 1)
    return dict(input_ids=ids, attention_mask=mask, pixel_values=torch.randn(6, 3, 24, 24, generator=g))


def images(step, micro=0):
    g = _gen(step, micro)
    return dict(pixel_values=torch.randn(4, 3, 32, 32, generator=g), labels=torch.randint(0, 10, (4,), generator=g))


def segments(step, micro=0):
    g = _gen(step, micro)
    labels = torch.randint(0, 6, (3, 48, 48), generator=g)
    labels[:, :4] = 255
    return dict(pixel_values=torch.randn(3, 3, 48, 48, generator=g), labels=labels)


def tags(step, micro=0):
    b = causal(step, micro)
    labels = torch.randint(0, 7, b["input_ids"].shape, generator=_gen(step, micro + 5)).masked_fill(b["attention_mask"] == 0, -100)
    return dict(input_ids=b["input_ids"], attention_mask=b["attention_mask"], labels=labels)


def audio(step, micro=0):
    g = _gen(step, micro)
    wave = 0.3 + 2.0 * torch.randn(3, 1200, generator=g)
    wave = (wave - wave.mean(-1, keepdim=True)) / (wave.var(-1, keepdim=True) + 1e-7).sqrt()
    labels = torch.randint(1, 20, (3, 9), generator=g)
    labels[1, -3:] = -100
    return dict(input_values=wave, labels=labels)


def boxes(step, micro=0):
    g = _gen(step, micro)
    mask = torch.ones(2, 48, 48, dtype=torch.long)
    mask[1, :, 36:] = 0
    pixels = torch.randn(2, 3, 48, 48, generator=g) * mask[:, None]
    labels = []
    for n in (3, 2):
        xy = 0.3 + 0.4 * torch.rand(n, 2, generator=g)
        wh = 0.1 + 0.2 * torch.rand(n, 2, generator=g)
        labels.append(dict(class_labels=torch.randint(0, 5, (n,), generator=g), boxes=torch.cat([xy, wh], 1)))
    return dict(pixel_values=pixels, pixel_mask=mask, labels=labels)


BATCH = dict(bart=seq2seq, whisper=speech, clip=pairs, swin=images, qwen3=causal, gemma3=causal, mistral=causal, bloom=causal,
             mamba=unpadded, rwkv=unpadded, deepseek_v2=causal, deepseek_v3=causal, phi=causal, falcon=causal, distilbert=tags,
             wav2vec2=audio, segformer=segments, detr=boxes, lora=causal)
