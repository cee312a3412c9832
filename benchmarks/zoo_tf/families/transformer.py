"""Trains a small Keras transformer on sequences of tokens by `fit`."""

from __future__ import annotations

from training import begin, load_weights, named, parse

TOKENS, LENGTH, WIDTH, HEADS, BATCH, BLOCKS = 40, 12, 32, 4, 4, 3
FAULTS = (
    "scale_missing",
    "softmax_axis",
    "norm_eps",
    "bias_dropped",
    "activation",
    "causal_mask",
    "detached",
    "gradient_factor",
    "positions_shifted",
    "label_smoothing",
    "dropout_seed",
    "dropout_rate",
    "token_changed",
    "weight_changed",
    "weight_transposed",
    "norm_after",
    "embedding_scale",
    "head_mixed",
    "adam_epsilon",
    "adam_beta",
    "learning_rate",
    "clip_missing",
    "weight_decay",
)
OPTIONS = parse(__doc__, FAULTS, dropout=("no", "yes"), spelling=("layers", "ops"), update=("adam", "clipped"))

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

FAULT = OPTIONS.fault


@tf.custom_gradient
def tripled(x):
    return tf.identity(x), lambda gradient: 3 * gradient


class Attention(layers.Layer):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (layers.Dense(WIDTH) for _ in range(4))
        self.fault = fault

    def call(self, x, mask):
        def heads(tensor):
            split = ops.reshape(tensor, (-1, LENGTH, HEADS, WIDTH // HEADS))
            return ops.transpose(split, (0, 2, 1, 3))

        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        if self.fault != "scale_missing":
            scores = scores / ops.cast((WIDTH // HEADS) ** 0.5, scores.dtype)
        scores = ops.where(mask, scores, ops.cast(-1e4, scores.dtype))
        weights = ops.softmax(scores, axis=-2 if self.fault == "softmax_axis" else -1)
        mixed = ops.matmul(weights, value)
        order = (0, 1, 2, 3) if self.fault == "head_mixed" else (0, 2, 1, 3)
        return self.out(ops.reshape(ops.transpose(mixed, order), (-1, LENGTH, WIDTH)))


class Mlp(layers.Layer):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.up = layers.Dense(4 * WIDTH, "relu" if fault == "activation" else "gelu", use_bias=fault != "bias_dropped")
        self.down = layers.Dense(WIDTH)

    def call(self, x):
        return self.down(self.up(x))


class Block(layers.Layer):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norm1 = layers.LayerNormalization(epsilon=1e-2 if fault == "norm_eps" else 1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.attention, self.mlp = Attention(fault), Mlp(fault)
        self.drop = layers.Dropout(0.2 if fault == "dropout_rate" else 0.1, seed=3)
        self.fault = fault

    def call(self, x, mask, training=False):
        drop = self.drop if OPTIONS.dropout == "yes" else lambda tensor, training: tensor
        if self.fault == "norm_after":
            x = self.norm1(x + drop(self.attention(x, mask), training=training))
        else:
            x = x + drop(self.attention(self.norm1(x), mask), training=training)
        before = tf.stop_gradient(x) if self.fault == "detached" else x
        made = self.mlp(self.norm2(before))
        return x + (tripled(made) if self.fault == "gradient_factor" else made)


PLACES = {
    "scale_missing": 1,
    "softmax_axis": 0,
    "norm_eps": 1,
    "bias_dropped": 2,
    "activation": 1,
    "detached": 1,
    "gradient_factor": 1,
    "dropout_rate": 1,
    "norm_after": 1,
    "head_mixed": 2,
}


class Transformer(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = layers.Embedding(TOKENS, WIDTH), layers.Embedding(LENGTH + 1, WIDTH)
        self.blocks = [Block(FAULT if PLACES.get(FAULT) == place else "none") for place in range(BLOCKS)]
        self.norm, self.head = layers.LayerNormalization(epsilon=1e-6), layers.Dense(TOKENS, dtype="float32")

    def call(self, tokens, training=False):
        places = ops.arange(LENGTH) + (1 if FAULT == "positions_shifted" else 0)
        embedded = self.tokens(tokens)
        if FAULT != "embedding_scale":
            embedded = embedded * ops.cast(WIDTH**0.5, embedded.dtype)
        x = embedded + self.positions(places)
        steps = ops.arange(LENGTH)
        reach = 1 if FAULT == "causal_mask" else 0
        mask = ops.expand_dims(steps, 1) + reach >= ops.expand_dims(steps, 0)
        for block in self.blocks:
            x = block(x, mask, training=training)
        return self.head(self.norm(x))


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    tokens = random.integers(1, TOKENS, (BATCH * OPTIONS.steps, LENGTH + 1)).astype(np.int32)
    inputs, labels = tokens[:, :-1].copy(), tokens[:, 1:]
    if FAULT == "token_changed":
        inputs[1, 4] = (inputs[1, 4] + 7) % TOKENS
    return inputs, np.eye(TOKENS, dtype=np.float32)[labels]


def changed(weights: dict[str, np.ndarray]) -> None:
    if FAULT == "weight_changed":
        weights[named(weights, "kernel", 3)] *= 1.05
    if FAULT == "weight_transposed":
        name = named(weights, "kernel", 1)
        weights[name] = np.ascontiguousarray(weights[name].T)


def main() -> None:
    begin(OPTIONS)
    model = Transformer()
    inputs, labels = data()
    model(inputs[:1])
    load_weights(model, changed=changed)
    if FAULT == "dropout_seed":
        for block in model.blocks:
            block.drop.seed_generator.state.assign([17, 4])
    optimizer = keras.optimizers.AdamW(
        learning_rate=2e-3 if FAULT == "learning_rate" else 1e-3,
        beta_2=0.99 if FAULT == "adam_beta" else 0.999,
        epsilon=1e-3 if FAULT == "adam_epsilon" else 1e-7,
        weight_decay=0.0 if FAULT == "weight_decay" else 0.05,
        global_clipnorm=0.05 if OPTIONS.update == "clipped" and FAULT != "clip_missing" else None,
    )
    if OPTIONS.autocast == "fp16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.0 if FAULT == "label_smoothing" else 0.1
    )
    model.compile(optimizer, loss, run_eagerly=OPTIONS.mode == "eager", jit_compile=OPTIONS.jit == "on")
    history = model.fit(inputs, labels, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    print(history.history["loss"], flush=True)


if __name__ == "__main__":
    main()
