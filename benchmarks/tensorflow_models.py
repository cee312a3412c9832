"""Training steps of TensorFlow whose cost is measured: each function makes a step that does one and waits for it."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

layers = keras.layers
WIDTH, LENGTH, BATCH = 128, 64, 8
WORDS = 1000

_cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Block(layers.Layer):
    """Attention and two linear layers, as a transformer has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(4, WIDTH // 4)
        self.norm_after = layers.LayerNormalization()
        self.up = layers.Dense(4 * WIDTH, activation="gelu")
        self.down = layers.Dense(WIDTH)

    def call(self, inputs: Any) -> Any:
        """Forward."""
        normed = self.norm(inputs)
        inputs = inputs + self.attention(normed, normed)
        return inputs + self.down(self.up(self.norm_after(inputs)))


class Transformer(keras.Model):
    """A small transformer."""

    def __init__(self, blocks: int, words: int) -> None:
        super().__init__()
        self.embed = layers.Embedding(words, WIDTH)
        self.blocks = [Block() for _ in range(blocks)]
        self.head = layers.Dense(words)

    def call(self, inputs: Any) -> Any:
        """Forward."""
        inputs = self.embed(inputs)
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def _words(count: int) -> Any:
    return np.random.default_rng(0).integers(0, count, (BATCH, LENGTH)).astype("int32")


def eager() -> Callable[[], object]:
    """Three blocks, a tape and an optimizer, op by op."""
    model, optimizer = Transformer(3, 256), keras.optimizers.Adam(1e-3)
    words = tf.constant(_words(256))

    def step() -> object:
        with tf.GradientTape() as tape:
            loss = _cross_entropy(words, model(words))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss.numpy()

    return step


def transformer() -> Callable[[], object]:
    """Four blocks in graph mode."""
    model = Transformer(4, WORDS)
    return _compiled(model, _words(WORDS), _words(WORDS))


def convolutions() -> Callable[[], object]:
    """Three convolutions with batch norms in graph mode."""
    blocks = [layers.Input((32, 32, 3))]
    for width in (32, 64, 64):
        blocks += [layers.Conv2D(width, 3, padding="same", activation="relu"), layers.BatchNormalization()]
        blocks.append(layers.MaxPooling2D())
    model = keras.Sequential([*blocks, layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)])
    random = np.random.default_rng(0)
    return _compiled(model, random.normal(size=(32, 32, 32, 3)).astype("float32"), random.integers(0, 10, 32))


def _compiled(model: Any, inputs: Any, labels: Any) -> Callable[[], object]:
    model.compile(keras.optimizers.Adam(1e-3), _cross_entropy, jit_compile=False)
    return lambda: model.train_on_batch(inputs, labels)


MODELS: dict[str, Callable[[], Callable[[], object]]] = {
    made.__name__: made for made in (eager, convolutions, transformer)
}
