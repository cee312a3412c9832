"""Every fault of the zoo, with the answers that name it."""

from __future__ import annotations

from zoo.expectations import (
    INPUT,
    OPTIMIZER,
    OUTSIDE,
    RANDOMNESS,
    Answer,
    Fault,
    backward,
    between,
    computation,
    overflow,
    parameter,
    structure,
)

ONLY_FP32 = ("fp32",)
JITTER, DROPOUT = ("--jitter", "yes"), ("--dropout", "yes")
SPLIT, DDP = ("--mode", "split"), ("--mode", "ddp")


def one(family: str, fault: str, *answers: Answer, **rest: object) -> Fault:
    return Fault(family, fault, answers, **rest)  # type: ignore[arg-type]


LLAMA = (
    one("llama", "norm_eps", computation("model.layers.1.middle_norm")),
    one("llama", "rotary_base", computation("model.rotary")),
    one("llama", "rotary_pairs", computation("model.layers.2.attention")),
    one("llama", "kv_repeat", computation("model.layers.0.attention")),
    one("llama", "swiglu_swapped", computation("model.layers.1.mlp")),
    one("llama", "residual_98", computation("model.layers.2")),
    one("llama", "causal_mask", computation("model")),
    one("llama", "scale_missing", computation("model.layers.3.attention")),
    one("llama", "label_smoothing", computation("model")),
    one("llama", "late_gate", computation("model.layers.2.mlp"), step=1),
    one("llama", "clip_norm", between(), OPTIMIZER),
    one("llama", "weight_decay", OPTIMIZER),
    one("llama", "betas", OPTIMIZER, variants=ONLY_FP32),
    one("llama", "schedule_early", OPTIMIZER, step=1),
    one("llama", "flipped_weight", parameter("model.layers.1.mlp.down_proj")),
    one(
        "llama",
        "none",
        overflow("model.layers.2.mlp", "model.layers.2.mlp.down_proj"),
        label="outliers",
        flags=("--outliers", "yes"),
        variants=("fp16",),
    ),
)

GPT = (
    one("gpt", "gelu_tanh", computation("model.blocks.2.mlp")),
    one("gpt", "norm_eps", computation("model.blocks.1.norm2")),
    one("gpt", "causal_mask", computation("model.blocks.1.attention")),
    one("gpt", "padding_mask", computation("model")),
    one("gpt", "head_scale", computation("model.blocks.2.attention")),
    one("gpt", "dropout_seed", RANDOMNESS, flags=DROPOUT),
    one("gpt", "dropout_rate", computation("model.blocks.1.dropout"), flags=DROPOUT),
    one(
        "gpt",
        "bias_dropped",
        computation("model.blocks.1.mlp.up"),
        structure("model.blocks.1.mlp.up"),
        parameter("model.blocks.1.mlp.up"),
    ),
    one("gpt", "positions_shifted", computation("model")),
    one(
        "gpt",
        "head_untied",
        structure("model.head", "model.tokens", "model", OUTSIDE),
        parameter("model.head", "model.tokens"),
        between("model.head", "model.tokens", "model", OUTSIDE),
        OPTIMIZER,
    ),
    one("gpt", "decayed_norm", OPTIMIZER),
    one("gpt", "order_late", INPUT),
    one("gpt", "ignore_index", computation(OUTSIDE), variants=ONLY_FP32),
    one("gpt", "middle_left_out", structure("model", "model.blocks.1"), computation("model", "model.blocks.1")),
    one("gpt", "stale_gradients", between(), OPTIMIZER, step=1),
)

RESNET = (
    one("resnet", "bn_eps", computation("model.stages.1.0.bn1")),
    one("resnet", "bn_momentum", computation("model.stages.0.1.bn2"), parameter("model.stages.0.1.bn2")),
    one("resnet", "bn_eval", computation("model.stages.1.1.bn1")),
    one("resnet", "conv_padding", computation("model.stages.1.0.conv1")),
    one("resnet", "pooling", computation("model.pool")),
    one("resnet", "relu_early", computation("model.stages.0.1", "model.stages.0.1.relu")),
    one("resnet", "channel_order", INPUT),
    one(
        "resnet",
        "normalised_twice",
        INPUT,
        computation(OUTSIDE, phases=("setup", "other")),
        variants=ONLY_FP32,
    ),
    one(
        "resnet",
        "flipped_activation",
        computation("model.stages.2.0.conv1", "model.stages.2.0.bn1", "model.stages.2.0"),
        step=1,
    ),
    one("resnet", "momentum", OPTIMIZER, variants=ONLY_FP32),
    one("resnet", "nesterov", OPTIMIZER, variants=ONLY_FP32),
)

VIT = (
    one("vit", "variance_unbiased", computation("model.blocks.1.norm2")),
    one("vit", "patch_order", computation("model.patches")),
    one("vit", "attention_scale", computation("model.blocks.2.attention")),
    one(
        "vit",
        "detached",
        backward("model.blocks.1", "model.blocks.1.norm2"),
        computation("model.blocks.1"),
    ),
    one("vit", "transposed_weight", parameter("model.blocks.1.attention.proj")),
    one("vit", "bias_correction", OPTIMIZER),
    one("vit", "layer_scale", parameter("model.blocks.2")),
    one("vit", "class_position", computation("model")),
    one("vit", "token_pooling", computation("model"), variants=ONLY_FP32),
    one("vit", "mixup_seed", RANDOMNESS),
    one("vit", "flipped_gradient", between("model.blocks.1.attention.proj", OUTSIDE), step=1),
)

MOE = (
    one("moe", "weights_unnormalised", computation("model.layers.1.moe")),
    one("moe", "softmax_after", computation("model.layers.0.moe")),
    one("moe", "overwritten", computation("model.layers.2.moe")),
    one(
        "moe",
        "expert_skipped",
        structure("model.layers.1.moe", "model.layers.1.moe.experts.3"),
        computation("model.layers.1.moe", "model.layers.1.moe.experts.3"),
    ),
    one("moe", "top_one", computation("model.layers.2.moe"), variants=ONLY_FP32),
    one("moe", "balance_weight", computation("model")),
    one("moe", "jitter_seed", RANDOMNESS, flags=JITTER),
    one("moe", "router_weight", parameter("model.layers.1.moe.router")),
    one("moe", "shuffled", INPUT, variants=ONLY_FP32),
    one("moe", "expert_activation", computation("model.layers.1.moe.experts.2")),
)

TAGGER = (
    one("tagger", "reset_after", computation("model.gru")),
    one("tagger", "state_carried", computation("model", "model.lstm")),
    one("tagger", "ignore_index", computation(OUTSIDE)),
    one("tagger", "parts_undivided", computation(OUTSIDE, phases=("forward", "other", "backward"))),
    one("tagger", "padding_row", backward("model.words"), parameter("model.words")),
    one("tagger", "forget_bias", parameter("model.lstm")),
    one("tagger", "update_gate", computation("model.gru"), variants=ONLY_FP32),
    one("tagger", "optimizer_eps", OPTIMIZER),
    one("tagger", "words_shifted", INPUT),
    one("tagger", "mean_over_padding", computation("model")),
)

UNET = (
    one("unet", "groups", computation("model.down2.norm1")),
    one("unet", "time_truncated", computation("model.time")),
    one("unet", "time_halves", computation("model.time"), variants=ONLY_FP32),
    one("unet", "upsampling", computation("model.up2")),
    one("unet", "skip_order", computation("model.up1")),
    one("unet", "noise_seed", RANDOMNESS),
    one("unet", "noise_schedule", INPUT, computation(OUTSIDE, phases=("setup", "other"))),
    one("unet", "average_decay", computation(OUTSIDE, phases=("other", "update"))),
    one("unet", "norm_after", computation("model.down2", "model.down2.norm2")),
    one("unet", "loss_absolute", computation(OUTSIDE), variants=ONLY_FP32),
    one("unet", "time_ignored", computation("model.down1"), structure("model.down1", "model.down1.time")),
    one("unet", "clip_missing", between(), OPTIMIZER),
)

AUTOENCODER = (
    one("autoencoder", "backward_factor", backward("model.encoder.1")),
    one("autoencoder", "backward_approximate", backward("model.encoder.2")),
    one("autoencoder", "straight_through", backward("model")),
    one("autoencoder", "deviation", computation("model")),
    one("autoencoder", "divergence_sum", computation(OUTSIDE)),
    one("autoencoder", "layer_not_loaded", parameter("model.decoder.2.linear")),
    one("autoencoder", "dampening", OPTIMIZER, variants=ONLY_FP32),
    one("autoencoder", "noise_generator", RANDOMNESS),
    one(
        "autoencoder",
        "norm_skipped",
        structure("model.encoder.2", "model.encoder.2.norm"),
        computation("model.encoder.2", "model.encoder.2.norm"),
    ),
    one("autoencoder", "weight_gradient_half", backward("model.encoder.1.linear")),
    one("autoencoder", "late_backward", backward("model.encoder.2"), step=1),
)

RECOMMENDER = (
    one("recommender", "bag_mean", computation("model.tables.2")),
    one("recommender", "interaction_order", computation("model.interaction")),
    one("recommender", "hash_collisions", INPUT, variants=ONLY_FP32),
    one("recommender", "log_missing", computation("model"), variants=ONLY_FP32),
    one("recommender", "positive_weight", computation(OUTSIDE)),
    one("recommender", "accumulator", OPTIMIZER),
    one("recommender", "exponent_overflow", overflow("model.towers"), computation("model.towers")),
    one("recommender", "shuffled", INPUT),
    one("recommender", "table_swapped", computation("model", "model.interaction")),
    one("recommender", "unit_length", computation("model.towers")),
    one("recommender", "cast_integer", computation("model")),
    one("recommender", "half_similarity", overflow("model.towers")),
)

LAYER, SPLIT_LAYER = "model.blocks.1.norm", "model.blocks.1.mlp"
PARALLEL = (
    one("parallel", "reduce_missing", structure(), between(), variants=ONLY_FP32),
    one("parallel", "reduce_one_missing", structure(), between()),
    one("parallel", "not_divided", between()),
    one("parallel", "reduce_max", structure(), between()),
    one("parallel", "group_of_one", structure(), between(), variants=ONLY_FP32),
    one("parallel", "split_reduce_missing", structure(), computation(SPLIT_LAYER), flags=SPLIT),
    one("parallel", "split_gradient_missing", structure(), backward(SPLIT_LAYER), flags=SPLIT),
    one("parallel", "rank_eps", computation(LAYER), ranks=(1,)),
    one("parallel", "rank_eps", computation("model.module.blocks.1.norm"), ranks=(1,), flags=DDP, label="ddp_rank_eps"),
    one("parallel", "rank_data", INPUT, RANDOMNESS, ranks=(1,)),
    one("parallel", "rank_data", INPUT, RANDOMNESS, ranks=(1,), flags=DDP, label="ddp_rank_data", variants=ONLY_FP32),
    one("parallel", "rank_weights", parameter("model.blocks.0.mlp.2"), ranks=(1,)),
    one("parallel", "rank_gradient", between(), ranks=(1,)),
)

TRANSLATOR = (
    one("translator", "padding_seen", computation("model.decoder.0", "model.decoder.0.source")),
    one("translator", "norm_eps", computation("model.decoder.1.norms.0")),
    one("translator", "label_smoothing", computation(OUTSIDE)),
)

FAULTS = (*LLAMA, *GPT, *RESNET, *VIT, *MOE, *TAGGER, *UNET, *AUTOENCODER, *RECOMMENDER, *PARALLEL, *TRANSLATOR)
