"""Every fault of the zoo, with the answers that name it: written before compare was asked."""

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
    parameter,
    structure,
)

EAGER, GRAPH = ("--mode", "eager"), ()
DROPOUT = ("--dropout", "yes")
ONLY_FP32, ONLY_BF16 = ("fp32",), ("bf16",)


def one(family: str, fault: str, *answers: Answer, **rest: object) -> Fault:
    return Fault(family, fault, answers, **rest)  # type: ignore[arg-type]


def both(family: str, fault: str, *answers: Answer, flags: tuple[str, ...] = ()) -> tuple[Fault, Fault]:
    """In a graph in one precision and eagerly in the other."""
    return (
        one(family, fault, *answers, flags=flags, variants=ONLY_BF16, label=f"{fault}.graph"),
        one(family, fault, *answers, flags=(*flags, *EAGER), variants=ONLY_FP32, label=f"{fault}.eager"),
    )


ATTENTION, BLOCK = "model.blocks.1.attention", "model.blocks.1"
TRANSFORMER = (
    *both("transformer", "scale_missing", computation(ATTENTION), structure(ATTENTION)),
    one("transformer", "softmax_axis", computation("model.blocks.0.attention")),
    *both("transformer", "norm_eps", computation("model.blocks.1.norm1")),
    one(
        "transformer",
        "bias_dropped",
        computation("model.blocks.2.mlp.up"),
        structure("model.blocks.2.mlp.up"),
        parameter("model.blocks.2.mlp.up"),
    ),
    one("transformer", "activation", computation("model.blocks.1.mlp.up"), structure("model.blocks.1.mlp.up")),
    *both("transformer", "causal_mask", computation("model")),
    one(
        "transformer",
        "detached",
        structure(BLOCK),
        computation(BLOCK, phases=("forward", "backward")),
        backward(f"{BLOCK}.norm2"),
    ),
    *both(
        "transformer",
        "gradient_factor",
        structure(BLOCK),
        backward(BLOCK, f"{BLOCK}.mlp", f"{BLOCK}.mlp.down"),
    ),
    one("transformer", "positions_shifted", computation("model")),
    *both("transformer", "label_smoothing", computation(OUTSIDE), structure(OUTSIDE)),
    one("transformer", "dropout_seed", RANDOMNESS, flags=DROPOUT, variants=ONLY_FP32),
    one("transformer", "dropout_seed", RANDOMNESS, flags=(*DROPOUT, *EAGER), variants=ONLY_BF16, label="seed.eager"),
    one("transformer", "dropout_rate", computation("model.blocks.1.drop"), flags=DROPOUT),
    *both("transformer", "token_changed", INPUT),
    *both("transformer", "weight_changed", parameter("model.blocks.0.attention.out")),
    one("transformer", "weight_transposed", parameter("model.blocks.0.attention.key")),
    one(
        "transformer",
        "norm_after",
        computation(BLOCK, ATTENTION, f"{BLOCK}.norm1"),
        structure(BLOCK, ATTENTION, f"{BLOCK}.norm1"),
    ),
    one("transformer", "embedding_scale", computation("model"), structure("model")),
    one("transformer", "head_mixed", computation("model.blocks.2.attention")),
    *both("transformer", "adam_epsilon", OPTIMIZER),
    one("transformer", "adam_beta", OPTIMIZER, variants=ONLY_FP32),
    *both("transformer", "learning_rate", OPTIMIZER),
    *both("transformer", "clip_missing", OPTIMIZER, flags=("--update", "clipped")),
    one("transformer", "weight_decay", OPTIMIZER, variants=ONLY_BF16),
)

UNITS = "model.units.0", "model.units.1", "model.units.2"
GRADIENT = (between(), OPTIMIZER)
CNN = (
    *both("cnn", "bn_eps", computation(f"{UNITS[1]}.norm")),
    one("cnn", "bn_momentum", computation(f"{UNITS[0]}.norm"), parameter(f"{UNITS[0]}.norm")),
    *both("cnn", "bn_stale", computation(f"{UNITS[2]}.norm"), structure(f"{UNITS[2]}.norm")),
    one("cnn", "pooling", computation("model.pool"), structure("model.pool", "model")),
    one("cnn", "relu_early", computation(UNITS[1]), structure(UNITS[1])),
    *both("cnn", "channel_order", INPUT),
    one("cnn", "normalised_twice", INPUT, variants=ONLY_BF16),
    one(
        "cnn",
        "padding",
        computation(UNITS[1], f"{UNITS[1]}.conv"),
        structure(UNITS[1], f"{UNITS[1]}.conv"),
    ),
    one(
        "cnn",
        "strides_late",
        computation(UNITS[0], f"{UNITS[0]}.conv", f"{UNITS[0]}.short"),
        structure(UNITS[0], f"{UNITS[0]}.conv", f"{UNITS[0]}.short"),
    ),
    one("cnn", "kernel_flipped", parameter(f"{UNITS[0]}.conv")),
    one("cnn", "leaky", computation(UNITS[2]), structure(UNITS[2])),
    one("cnn", "mean_over_width", computation("model"), structure("model")),
    *both("cnn", "momentum", OPTIMIZER),
    one("cnn", "nesterov", OPTIMIZER, variants=ONLY_FP32),
    one("cnn", "learning_rate", OPTIMIZER),
    *both("cnn", "gradient_doubled", *GRADIENT),
    *both("cnn", "gradient_missing", *GRADIENT, structure()),
    *both("cnn", "loss_scale", *GRADIENT, flags=("--scaled", "yes")),
)

LOSS = computation(OUTSIDE), structure(OUTSIDE)
TAGGER = (
    *both("tagger", "mask_ignored", computation("model.lstm"), structure("model.lstm")),
    *both("tagger", "activation", computation("model.lstm"), structure("model.lstm")),
    one("tagger", "recurrent_activation", computation("model.lstm"), structure("model.lstm")),
    one("tagger", "backwards", computation("model.lstm"), structure("model.lstm")),
    one("tagger", "forget_bias", parameter("model.lstm", "model.lstm.cell")),
    *both("tagger", "embedding_frozen", structure(), OPTIMIZER),
    one("tagger", "tape_missing", structure(), OPTIMIZER),
    *both("tagger", "clip_missing", *GRADIENT, structure(OUTSIDE)),
    one("tagger", "clip_per_tensor", *GRADIENT, structure(OUTSIDE)),
    *both("tagger", "loss_sum", *LOSS),
    one("tagger", "loss_unmasked", *LOSS),
    one("tagger", "temperature", *LOSS),
    *both("tagger", "gradient_sign", *GRADIENT, structure(OUTSIDE)),
    *both("tagger", "stale_rate", OPTIMIZER),
    one("tagger", "rho", OPTIMIZER, variants=ONLY_FP32),
    one("tagger", "label_shift", INPUT, variants=ONLY_BF16),
    one("tagger", "concat_order", computation("model")),
    one("tagger", "residual_factor", computation("model"), structure("model")),
    one("tagger", "weight_noise", parameter("model.gru", "model.gru.cell")),
    one("tagger", "last_state", computation("model"), structure("model")),
)

LENET = (
    one("lenet", "pooling", computation("conv1"), structure("conv1")),
    one("lenet", "activation", computation("conv1"), structure("conv1")),
    one("lenet", "bias_dropped", computation("conv2"), structure("conv2"), parameter("conv2")),
    one("lenet", "flatten_order", computation(OUTSIDE), structure(OUTSIDE)),
    one("lenet", "moments_axis", computation("norm", "norm.moments")),
    one("lenet", "norm_eps", computation("norm", "norm.batchnorm")),
    one("lenet", "stopped", structure(), backward()),
    one("lenet", "softmax_twice", computation("loss"), structure("loss")),
    one("lenet", "smoothing", computation("loss"), structure("loss")),
    one("lenet", "learning_rate", OPTIMIZER),
    one("lenet", "adam_epsilon", OPTIMIZER, variants=ONLY_FP32),
    one("lenet", "gradient_doubled", *GRADIENT, structure()),
    one("lenet", "gradient_missing", structure(), OPTIMIZER),
    one("lenet", "loss_scale", *GRADIENT),
    one("lenet", "weight_changed", parameter("conv2")),
    one("lenet", "input_scaled", INPUT, variants=ONLY_FP32),
    one("lenet", "l2_missing", computation("loss"), structure("loss")),
    one("lenet", "dropout_seed", RANDOMNESS, flags=DROPOUT, variants=ONLY_BF16),
)

FAULTS = (*TRANSFORMER, *CNN, *TAGGER, *LENET)
