"""Trains an embedding, an LSTM and a GRU on sequences by a step of its own: tf.function with a GradientTape."""

from __future__ import annotations

from training import begin, load_weights, named, parse

TOKENS, LENGTH, WIDTH, TAGS, BATCH = 50, 10, 16, 6, 4
FAULTS = (
    "mask_ignored",
    "activation",
    "recurrent_activation",
    "backwards",
    "forget_bias",
    "embedding_frozen",
    "tape_missing",
    "clip_missing",
    "clip_per_tensor",
    "loss_sum",
    "loss_unmasked",
    "temperature",
    "gradient_sign",
    "stale_rate",
    "rho",
    "label_shift",
    "concat_order",
    "residual_factor",
    "weight_noise",
    "last_state",
)
OPTIONS = parse(__doc__, FAULTS, where=("inside", "outside"))

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

FAULT = OPTIONS.fault


class Tagger(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = layers.Embedding(TOKENS, WIDTH)
        self.lstm = layers.LSTM(
            WIDTH,
            activation="relu" if FAULT == "activation" else "tanh",
            recurrent_activation="hard_sigmoid" if FAULT == "recurrent_activation" else "sigmoid",
            go_backwards=FAULT == "backwards",
            return_sequences=True,
        )
        self.gru = layers.GRU(WIDTH, return_sequences=True, return_state=True)
        self.mix, self.head = layers.Dense(WIDTH, "tanh"), layers.Dense(TAGS, dtype="float32")

    def call(self, tokens, mask):
        x = self.embedding(tokens)
        first = self.lstm(x, mask=None if FAULT == "mask_ignored" else mask)
        second, state = self.gru(first, mask=mask)
        factor = 0.9 if FAULT == "residual_factor" else 1.0
        parts = [second, x * factor]
        mixed = self.mix(ops.concatenate(parts[::-1] if FAULT == "concat_order" else parts, axis=-1))
        if FAULT != "last_state":
            mixed = mixed + ops.expand_dims(state, 1)
        return self.head(mixed)


def loss_of(logits, labels, mask):
    if FAULT == "temperature":
        logits = logits / 1.5
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    counted = tf.ones_like(each) if FAULT == "loss_unmasked" else tf.cast(mask, each.dtype)
    total = tf.reduce_sum(each * counted)
    return total if FAULT == "loss_sum" else total / tf.reduce_sum(counted)


def clipped(gradients):
    if FAULT == "clip_missing":
        return gradients
    if FAULT == "clip_per_tensor":
        return [tf.clip_by_norm(tf.convert_to_tensor(gradient), 0.3) for gradient in gradients]
    return tf.clip_by_global_norm(gradients, 0.3)[0]


def make_step(model, optimizer):
    def step(tokens, labels, mask):
        with tf.GradientTape() as tape:
            loss = loss_of(model(tokens, mask), labels, mask)
        variables = list(model.trainable_variables)
        if FAULT == "tape_missing":
            left_out = model.gru.trainable_variables[1]
            variables = [one for one in variables if one is not left_out]
        gradients = clipped(tape.gradient(loss, variables))
        if FAULT == "gradient_sign":
            gradients = [-one if place == 3 else one for place, one in enumerate(gradients)]
        pairs = zip(gradients, variables, strict=True)
        if FAULT == "embedding_frozen":
            pairs = [pair for pair in pairs if pair[1] is not model.embedding.embeddings]
        optimizer.apply_gradients(pairs)
        return loss

    return step if OPTIONS.mode == "eager" else tf.function(step, jit_compile=OPTIONS.jit == "on")


def make_outer_step(model, optimizer):
    """The tape is eager, the model is a compiled function."""
    forward = tf.function(lambda tokens, mask: model(tokens, mask))

    def step(tokens, labels, mask):
        with tf.GradientTape() as tape:
            loss = loss_of(forward(tokens, mask), labels, mask)
        gradients = clipped(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def batches() -> list[tuple[np.ndarray, ...]]:
    random = np.random.default_rng(4)
    found = []
    for _ in range(OPTIONS.steps):
        tokens = random.integers(1, TOKENS, (BATCH, LENGTH)).astype(np.int32)
        labels = random.integers(0, TAGS, (BATCH, LENGTH)).astype(np.int32)
        lengths = random.integers(4, LENGTH + 1, BATCH)
        if FAULT == "label_shift":
            labels = np.roll(labels, 1, axis=1)
        found.append((tokens, labels, np.arange(LENGTH) < lengths[:, None]))
    return found


def changed(weights: dict[str, np.ndarray]) -> None:
    if FAULT == "forget_bias":
        weights[named(weights, "bias", 0)][WIDTH : 2 * WIDTH] += 1
    if FAULT == "weight_noise":
        weights[named(weights, "recurrent_kernel", 1)] += np.float32(0.01)


def main() -> None:
    begin(OPTIONS)
    model = Tagger()
    found = batches()
    model(tf.constant(found[0][0][:1]), tf.constant(found[0][2][:1]))
    load_weights(model, changed=changed)
    optimizer = keras.optimizers.RMSprop(
        learning_rate=keras.optimizers.schedules.ExponentialDecay(2e-3, 1, 1.0 if FAULT == "stale_rate" else 0.5),
        rho=0.95 if FAULT == "rho" else 0.9,
    )
    step = (make_outer_step if OPTIONS.where == "outside" else make_step)(model, optimizer)
    for tokens, labels, mask in found:
        print(float(step(tf.constant(tokens), tf.constant(labels), tf.constant(mask))), flush=True)


if __name__ == "__main__":
    main()
