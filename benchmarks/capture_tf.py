"""What a capture of TensorFlow costs: an eager Keras training step, plain and captured in turn.

    python benchmarks/capture_tf.py                 level api, save stats
    python benchmarks/capture_tf.py --profile       and where the time goes

The bar is 2.5 times the plain step. Each figure is the median of what steps took, in pairs one after the other.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import ulpscope  # noqa: E402

BAR = 2.5
WIDTH, LENGTH, BATCH, LAYERS = 128, 64, 8, 3


class Block(keras.layers.Layer):
    """Attention and two linear layers, as a transformer has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = keras.layers.LayerNormalization()
        self.attention = keras.layers.MultiHeadAttention(4, WIDTH // 4)
        self.norm_after = keras.layers.LayerNormalization()
        self.up = keras.layers.Dense(4 * WIDTH, activation="gelu")
        self.down = keras.layers.Dense(WIDTH)

    def call(self, inputs: Any) -> Any:
        """Forward."""
        normed = self.norm(inputs)
        inputs = inputs + self.attention(normed, normed)
        return inputs + self.down(self.up(self.norm_after(inputs)))


class Net(keras.Model):
    """A small transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = keras.layers.Embedding(256, WIDTH)
        self.blocks = [Block() for _ in range(LAYERS)]
        self.head = keras.layers.Dense(256)

    def call(self, inputs: Any) -> Any:
        """Forward."""
        inputs = self.embed(inputs)
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def main() -> int:
    """Measure and tell."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=12)
    options.add_argument("--level", default="api")
    options.add_argument("--save", default="stats")
    options.add_argument("--profile", action="store_true")
    given = options.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    model, optimizer = Net(), keras.optimizers.Adam(1e-3)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    words = tf.constant(np.random.default_rng(0).integers(0, 256, (BATCH, LENGTH)))

    def step() -> float:
        began = time.perf_counter()
        with tf.GradientTape() as tape:
            loss = cross_entropy(words, model(words))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        loss.numpy()
        return time.perf_counter() - began

    for _ in range(2):
        step()
    plain, captured = [], []
    with (
        tempfile.TemporaryDirectory() as out,
        ulpscope.capture(Path(out) / "trace", level=given.level, save=given.save, model=model) as capture,
    ):
        step()
        for _ in range(given.pairs):
            capture.pause()
            plain.append(step())
            capture.resume(model)
            step()  # what a pause makes unknown is summarised again
            captured.append(step())
        if given.profile:
            profile = cProfile.Profile()
            profile.runcall(step)
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    ratios = [one / other for one, other in zip(captured, plain, strict=True)]
    print(f"plain step     {statistics.median(plain) * 1e3:8.1f} ms")
    print(f"captured step  {statistics.median(captured) * 1e3:8.1f} ms")
    print(f"ratio          {statistics.median(ratios):8.2f}   smallest {min(captured) / min(plain):.2f}, bar {BAR}")
    return int(statistics.median(ratios) > BAR)


if __name__ == "__main__":
    raise SystemExit(main())
