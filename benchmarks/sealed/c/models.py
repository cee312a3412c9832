"""Small configurations of library models, built from a seed, nothing downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf


def gpt_neox(attention: str = "sdpa", **changes: Any) -> hf.GPTNeoXForCausalLM:
    """A decoder with partial rotary embeddings and parallel residuals."""
    settings: dict[str, Any] = {
        "vocab_size": 120,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "rotary_pct": 0.5,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
        "attn_implementation": attention,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(11)
    return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**{**settings, **changes}))


def deberta_v2() -> hf.DebertaV2ForSequenceClassification:
    """A classifier with disentangled attention."""
    torch.manual_seed(12)
    return hf.DebertaV2ForSequenceClassification(
        hf.DebertaV2Config(
            vocab_size=150,
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pooler_dropout=0.0,
            max_position_embeddings=64,
            type_vocab_size=0,
            relative_attention=True,
            position_buckets=8,
            pos_att_type=["c2p", "p2c"],
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_biased_input=False,
            initializer_range=0.12,
            pooler_hidden_size=64,
            num_labels=3,
        )
    )


def modernbert(**changes: Any) -> hf.ModernBertForMaskedLM:
    """A masked language model with alternating local and global attention."""
    settings: dict[str, Any] = {
        "vocab_size": 130,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "global_attn_every_n_layers": 2,
        "local_attention": 8,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
        "initializer_cutoff_factor": 2.0,
        "reference_compile": False,
        "attn_implementation": "sdpa",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    }
    torch.manual_seed(13)
    return hf.ModernBertForMaskedLM(hf.ModernBertConfig(**{**settings, **changes}))


def gpt_oss() -> hf.GptOssForCausalLM:
    """A decoder with experts, attention sinks and sliding windows."""
    torch.manual_seed(14)
    model = hf.GptOssForCausalLM(
        hf.GptOssConfig(
            vocab_size=110,
            hidden_size=64,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
            max_position_embeddings=128,
            rope_scaling=None,
            initializer_range=0.08,
            attn_implementation="eager",
            pad_token_id=0,
        )
    )
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.router.weight.mul_(4.0)
            layer.self_attn.sinks.normal_(0.5, 0.5)
    return model


def lfm2(attention: str = "sdpa") -> hf.Lfm2ForCausalLM:
    """A hybrid of short convolutions and attention."""
    torch.manual_seed(15)
    return hf.Lfm2ForCausalLM(
        hf.Lfm2Config(
            vocab_size=100,
            hidden_size=64,
            intermediate_size=96,
            block_auto_adjust_ff_dim=False,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            layer_types=["conv", "full_attention", "conv", "full_attention"],
            conv_L_cache=3,
            max_position_embeddings=128,
            initializer_range=0.15,
            attn_implementation=attention,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=99,
        )
    )


def gpt_bigcode(**changes: Any) -> hf.GPTBigCodeForSequenceClassification:
    """A reward model: multi-query decoder with one score a sequence."""
    settings: dict[str, Any] = {
        "vocab_size": 90,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_inner": 128,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "multi_query": True,
        "initializer_range": 0.15,
        "num_labels": 1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "sdpa",
    }
    torch.manual_seed(16)
    return hf.GPTBigCodeForSequenceClassification(hf.GPTBigCodeConfig(**{**settings, **changes}))


def siglip() -> hf.SiglipModel:
    """Two towers for images and text under a sigmoid loss."""
    torch.manual_seed(17)
    common = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {**common, "image_size": 32, "patch_size": 8}
    text = {**common, "vocab_size": 80, "max_position_embeddings": 12, "projection_size": 48, "pad_token_id": 1}
    model = hf.SiglipModel(hf.SiglipConfig(text_config=text, vision_config=vision, attn_implementation="sdpa"))
    with torch.no_grad():
        model.logit_scale.fill_(1.5)
        model.logit_bias.fill_(-1.0)
    return model


def lxmert() -> hf.LxmertForQuestionAnswering:
    """Question answering over regions of an image, with cross attention."""
    torch.manual_seed(18)
    return hf.LxmertForQuestionAnswering(
        hf.LxmertConfig(
            vocab_size=90,
            hidden_size=48,
            num_attention_heads=4,
            num_qa_labels=10,
            intermediate_size=96,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=32,
            initializer_range=0.2,
            l_layers=2,
            x_layers=2,
            r_layers=2,
            visual_feat_dim=24,
            visual_pos_dim=4,
        )
    )


def patchtst(**changes: Any) -> hf.PatchTSTForPrediction:
    """A forecaster over patches of a multivariate series."""
    settings: dict[str, Any] = {
        "num_input_channels": 3,
        "context_length": 48,
        "patch_length": 8,
        "patch_stride": 8,
        "prediction_length": 12,
        "d_model": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 64,
        "attention_dropout": 0.0,
        "positional_dropout": 0.0,
        "path_dropout": 0.0,
        "ff_dropout": 0.0,
        "head_dropout": 0.0,
        "scaling": "std",
        "loss": "mse",
        "do_mask_input": False,
    }
    torch.manual_seed(19)
    return hf.PatchTSTForPrediction(hf.PatchTSTConfig(**{**settings, **changes}))


def codegen() -> hf.CodeGenForCausalLM:
    """A decoder with attention and feed-forward side by side, to be adapted."""
    torch.manual_seed(20)
    return hf.CodeGenForCausalLM(
        hf.CodeGenConfig(
            vocab_size=100,
            n_positions=64,
            n_ctx=64,
            n_embd=64,
            n_layer=3,
            n_head=4,
            rotary_dim=8,
            n_inner=128,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            initializer_range=0.1,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def mpnet() -> hf.MPNetModel:
    """A sentence encoder with relative position buckets."""
    torch.manual_seed(21)
    model = hf.MPNetModel(
        hf.MPNetConfig(
            vocab_size=120,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=48,
            initializer_range=0.1,
            relative_attention_num_buckets=32,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
        ),
        add_pooling_layer=False,
    )
    with torch.no_grad():
        model.encoder.relative_attention_bias.weight.mul_(8.0)
    return model
