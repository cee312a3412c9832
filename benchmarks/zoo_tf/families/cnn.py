"""Trains a small Keras network on images by `train_on_batch`: convolutions, batch normalisation, pooling."""

from __future__ import annotations

from training import begin, load_weights, named, parse

CLASSES, SIZE, BATCH = 10, 16, 8
FAULTS = (
    "bn_eps",
    "bn_momentum",
    "bn_stale",
    "pooling",
    "relu_early",
    "channel_order",
    "normalised_twice",
    "padding",
    "strides_late",
    "kernel_flipped",
    "leaky",
    "mean_over_width",
    "momentum",
    "nesterov",
    "learning_rate",
    "gradient_doubled",
    "gradient_missing",
    "loss_scale",
)
OPTIONS = parse(__doc__, FAULTS, scaled=("no", "yes"), spelling=("class", "functional", "sequential"))

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

FAULT = OPTIONS.fault


class Unit(layers.Layer):
    """Convolution, normalisation, activation, and what came in beside it."""

    def __init__(self, width: int, strides: int, fault: str) -> None:
        super().__init__()
        self.conv = layers.Conv2D(width, 3, strides, padding="valid" if fault == "padding" else "same", use_bias=False)
        self.norm = layers.BatchNormalization(
            epsilon=0.05 if fault == "bn_eps" else 1e-3, momentum=0.9 if fault == "bn_momentum" else 0.99
        )
        self.short = layers.Conv2D(width, 1, strides, use_bias=False)
        self.fault = fault

    def call(self, x, training=False):
        read = ops.pad(x, ((0, 0), (0, 2), (0, 2), (0, 0))) if self.fault == "padding" else x
        made = self.norm(self.conv(read), training=False if self.fault == "bn_stale" else training)
        if self.fault == "relu_early":
            return ops.relu(made) + self.short(x)
        if self.fault == "leaky":
            return ops.leaky_relu(made + self.short(x), 0.05)
        return ops.relu(made + self.short(x))


PLACES = {"bn_eps": 1, "bn_momentum": 0, "bn_stale": 2, "relu_early": 1, "padding": 1, "leaky": 2}


class Network(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.stem = layers.Conv2D(8, 3, padding="same")
        self.pool = layers.AveragePooling2D(2) if FAULT == "pooling" else layers.MaxPooling2D(2)
        shape = ((12, 2), (12, 1), (16, 2))
        if FAULT == "strides_late":
            shape = ((12, 1), (12, 2), (16, 2))
        faults = [FAULT if PLACES.get(FAULT) == place else "none" for place in range(3)]
        self.units = [Unit(width, strides, fault) for (width, strides), fault in zip(shape, faults, strict=True)]
        self.head = layers.Dense(CLASSES, dtype="float32")

    def call(self, images, training=False):
        x = self.pool(ops.relu(self.stem(images)))
        for unit in self.units:
            x = unit(x, training=training)
        if FAULT == "mean_over_width":
            return self.head(ops.mean(ops.max(x, axis=1), axis=1))
        return self.head(ops.mean(x, axis=(1, 2)))

    def train_step(self, batch):
        """As Keras' own, with the faults of gradients."""
        images, labels = batch[:2]
        with tf.GradientTape() as tape:
            loss = self.compute_loss(images, labels, self(images, training=True))
            scaled = loss * 256.0 if OPTIONS.scaled == "yes" else self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        if OPTIONS.scaled == "yes":
            gradients = [gradient / (128.0 if FAULT == "loss_scale" else 256.0) for gradient in gradients]
        pairs = list(zip(gradients, self.trainable_variables, strict=True))
        if FAULT == "gradient_doubled":
            pairs[3] = (pairs[3][0] * 2, pairs[3][1])
        if FAULT == "gradient_missing":
            pairs[3] = (ops.zeros_like(pairs[3][0]), pairs[3][1])
        self.optimizer.apply_gradients(pairs)
        return {"loss": loss}


def plain(spelling: str):
    """The same layers, as a Sequential or functional model."""
    stack = [
        layers.Conv2D(8, 3, padding="same", activation="relu", name="stem"),
        layers.MaxPooling2D(2, name="pool"),
        layers.Conv2D(12, 3, padding="same", use_bias=False, name="conv"),
        layers.BatchNormalization(name="norm"),
        layers.Activation("relu", name="relu"),
        layers.GlobalAveragePooling2D(name="mean"),
        layers.Dense(CLASSES, dtype="float32", name="head"),
    ]
    if spelling == "sequential":
        return keras.Sequential([layers.Input((SIZE, SIZE, 3)), *stack], name="network")
    images = x = layers.Input((SIZE, SIZE, 3))
    for layer in stack:
        x = layer(x)
    return keras.Model(images, x, name="network")


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(2)
    found = []
    for _ in range(OPTIONS.steps):
        pixels = random.integers(0, 256, (BATCH, SIZE, SIZE, 3)).astype(np.float32)
        images = (pixels / 255 - 0.45) / 0.225
        if FAULT == "normalised_twice":
            images = (images - 0.45) / 0.225
        if FAULT == "channel_order":
            images = images[..., ::-1].copy()
        found.append((images, random.integers(0, CLASSES, BATCH)))
    return found


def changed(weights: dict[str, np.ndarray]) -> None:
    if FAULT == "kernel_flipped":
        name = named(weights, "kernel", 1)
        weights[name] = np.ascontiguousarray(weights[name][::-1, ::-1])


def main() -> None:
    begin(OPTIONS)
    model = Network() if OPTIONS.spelling == "class" else plain(OPTIONS.spelling)
    found = batches()
    model(found[0][0][:1])
    load_weights(model, changed=changed)
    optimizer = keras.optimizers.SGD(
        learning_rate=0.04 if FAULT == "learning_rate" else 0.02,
        momentum=0.95 if FAULT == "momentum" else 0.9,
        nesterov=FAULT == "nesterov",
    )
    if OPTIONS.autocast == "fp16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, run_eagerly=OPTIONS.mode == "eager", jit_compile=OPTIONS.jit == "on")
    for images, labels in found:
        print(model.train_on_batch(images, labels), flush=True)


if __name__ == "__main__":
    main()
