"""Every fault of the zoo, with the answers that name it: written before compare was asked."""

from __future__ import annotations

from zoo.expectations import (
    INPUT,
    OPTIMIZER,
    OUTSIDE,
    RANDOMNESS,
    Answer,
    Fault,
    Flags,
    backward,
    between,
    computation,
    parameter,
    structure,
)

EAGER, DROPOUT = ("--mode", "eager"), ("--dropout", "yes")


def fault(family: str, name: str, *answers: Answer, how: str = "graph fp32", flags: Flags = ()) -> Fault:
    """`how` it runs: as a graph or eagerly, the target in float32 or mixed with bfloat16."""
    mode, precision = how.split()
    asked = (*flags, *EAGER) if mode == "eager" else flags
    return Fault(family, name, answers, asked, variants=(precision,), label=f"{name}.{mode}")


def both(family: str, name: str, *answers: Answer, flags: Flags = ()) -> tuple[Fault, Fault]:
    """A graph on top of bfloat16, and eagerly in float32."""
    hows = ("graph bf16", "eager fp32")
    first, second = (fault(family, name, *answers, how=how, flags=flags) for how in hows)
    return first, second


G16, G32, E16, E32 = "graph bf16", "graph fp32", "eager bf16", "eager fp32"
ATTENTION, BLOCK, UP = "model.blocks.1.attention", "model.blocks.1", "model.blocks.2.mlp.up"
TRANSFORMER = (
    *both("transformer", "scale_missing", computation(ATTENTION), structure(ATTENTION)),
    fault("transformer", "softmax_axis", computation("model.blocks.0.attention"), how=G16),
    *both("transformer", "norm_eps", computation("model.blocks.1.norm1")),
    fault("transformer", "bias_dropped", computation(UP), structure(UP), parameter(UP), how=G16),
    fault("transformer", "activation", computation("model.blocks.1.mlp.up"), structure("model.blocks.1.mlp.up")),
    fault("transformer", "causal_mask", computation("model"), how=G16),
    fault(
        "transformer",
        "detached",
        structure(BLOCK),
        computation(BLOCK, phases=("forward", "backward")),
        backward(f"{BLOCK}.norm2"),
    ),
    *both("transformer", "gradient_factor", structure(BLOCK), backward(BLOCK, f"{BLOCK}.mlp", f"{BLOCK}.mlp.down")),
    fault("transformer", "positions_shifted", computation("model"), how=E32),
    fault("transformer", "label_smoothing", computation(OUTSIDE), structure(OUTSIDE), how=G16),
    fault("transformer", "dropout_seed", RANDOMNESS, flags=DROPOUT),
    fault("transformer", "dropout_rate", computation("model.blocks.1.drop"), flags=DROPOUT, how=G16),
    fault("transformer", "token_changed", INPUT, how=G16),
    fault("transformer", "weight_changed", parameter("model.blocks.0.attention.out")),
    fault("transformer", "weight_transposed", parameter("model.blocks.0.attention.key"), how=E16),
    fault(
        "transformer",
        "norm_after",
        computation(BLOCK, ATTENTION, f"{BLOCK}.norm1"),
        structure(BLOCK, ATTENTION, f"{BLOCK}.norm1"),
        how=G16,
    ),
    fault("transformer", "embedding_scale", computation("model"), structure("model")),
    fault("transformer", "head_mixed", computation("model.blocks.2.attention"), how=G16),
    *both("transformer", "adam_epsilon", OPTIMIZER),
    fault("transformer", "adam_beta", OPTIMIZER, how=E16),
    fault("transformer", "learning_rate", OPTIMIZER, how=G16),
    fault("transformer", "clip_missing", OPTIMIZER, flags=("--update", "clipped")),
    fault("transformer", "weight_decay", OPTIMIZER, how=E16),
)

UNITS = "model.units.0", "model.units.1", "model.units.2"
GRADIENT = (between(), OPTIMIZER)
FIRST = UNITS[0], f"{UNITS[0]}.conv", f"{UNITS[0]}.short"
CNN = (
    fault("cnn", "bn_eps", computation(f"{UNITS[1]}.norm"), how=G16),
    fault("cnn", "bn_momentum", computation(f"{UNITS[0]}.norm"), parameter(f"{UNITS[0]}.norm")),
    *both("cnn", "bn_stale", computation(f"{UNITS[2]}.norm"), structure(f"{UNITS[2]}.norm")),
    fault("cnn", "pooling", computation("model.pool"), structure("model.pool", "model"), how=G16),
    fault("cnn", "relu_early", computation(UNITS[1]), structure(UNITS[1])),
    fault("cnn", "channel_order", INPUT, how=G16),
    fault("cnn", "normalised_twice", INPUT, how=E32),
    fault("cnn", "padding", computation(*UNITS[1:2], f"{UNITS[1]}.conv"), structure(UNITS[1]), how=G16),
    fault("cnn", "strides_late", computation(*FIRST), structure(*FIRST)),
    fault("cnn", "kernel_flipped", parameter(f"{UNITS[0]}.conv")),
    fault("cnn", "leaky", computation(UNITS[2]), structure(UNITS[2]), how=G16),
    fault("cnn", "mean_over_width", computation("model"), structure("model"), how=E16),
    fault("cnn", "momentum", OPTIMIZER, how=G16),
    fault("cnn", "nesterov", OPTIMIZER, how=E32),
    fault("cnn", "learning_rate", OPTIMIZER),
    *both("cnn", "gradient_doubled", *GRADIENT),
    fault("cnn", "gradient_missing", *GRADIENT, structure(), how=G16),
    fault("cnn", "loss_scale", *GRADIENT, flags=("--scaled", "yes"), how=G16),
)

LOSS = computation(OUTSIDE), structure(OUTSIDE)
LSTM = computation("model.lstm", "model.lstm.cell"), structure("model.lstm", "model.lstm.cell")
TAGGER = (
    fault("tagger", "mask_ignored", *LSTM, how=G16),
    fault("tagger", "activation", *LSTM),
    fault("tagger", "recurrent_activation", *LSTM, how=E32),
    fault("tagger", "backwards", *LSTM, how=G16),
    fault("tagger", "forget_bias", parameter("model.lstm", "model.lstm.cell"), how=G16),
    *both("tagger", "embedding_frozen", structure(), OPTIMIZER),
    fault("tagger", "tape_missing", structure(), OPTIMIZER),
    fault("tagger", "clip_missing", *GRADIENT, structure(OUTSIDE), how=E16),
    fault("tagger", "clip_per_tensor", *GRADIENT, structure(OUTSIDE)),
    fault("tagger", "loss_sum", *LOSS),
    fault("tagger", "loss_unmasked", *LOSS, how=E16),
    fault("tagger", "temperature", *LOSS, how=G16),
    fault("tagger", "gradient_sign", *GRADIENT, structure(OUTSIDE), how=G16),
    fault("tagger", "stale_rate", OPTIMIZER),
    fault("tagger", "rho", OPTIMIZER, how=E16),
    fault("tagger", "label_shift", INPUT),
    fault("tagger", "concat_order", computation("model"), how=G16),
    fault("tagger", "residual_factor", computation("model"), structure("model"), how=E32),
    fault("tagger", "weight_noise", parameter("model.gru", "model.gru.cell")),
    fault("tagger", "last_state", computation("model"), structure("model"), how=G16),
)

LENET = (
    fault("lenet", "pooling", computation("conv1"), structure("conv1"), how=G16),
    fault("lenet", "activation", computation("conv1"), structure("conv1")),
    fault("lenet", "bias_dropped", computation("conv2"), structure("conv2"), parameter("conv2"), how=G16),
    fault("lenet", "flatten_order", computation(OUTSIDE), structure(OUTSIDE)),
    fault("lenet", "moments_axis", computation("norm", "norm.moments"), how=G16),
    fault("lenet", "norm_eps", computation("norm", "norm.batchnorm")),
    fault("lenet", "stopped", structure(), backward(), how=G16),
    fault("lenet", "softmax_twice", computation("loss"), structure("loss"), how=G16),
    fault("lenet", "smoothing", computation("loss"), structure("loss")),
    fault("lenet", "learning_rate", OPTIMIZER, how=G16),
    fault("lenet", "adam_epsilon", OPTIMIZER),
    fault("lenet", "gradient_doubled", *GRADIENT, structure(), how=G16),
    fault("lenet", "gradient_missing", structure(), OPTIMIZER),
    fault("lenet", "loss_scale", *GRADIENT, how=G16),
    fault("lenet", "weight_changed", parameter("conv2")),
    fault("lenet", "input_scaled", INPUT),
    fault("lenet", "l2_missing", computation("loss"), structure("loss"), how=G16),
    fault("lenet", "dropout_seed", RANDOMNESS, flags=DROPOUT),
)

FAULTS = (*TRANSFORMER, *CNN, *TAGGER, *LENET)
