"""A small transformer in Keras 3, trained by fit() on generated sequences: each token is followed by its successor.

python train.py                  trains for three steps
python train.py --upgraded       as after an upgrade, in which a default has changed
"""

import argparse

import keras
import numpy as np

STEPS, BATCH, LENGTH, WORDS, WIDTH = 3, 8, 16, 64, 32


class Block(keras.layers.Layer):
    """Attention and two fully connected layers, each behind a normalization."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.norm1 = keras.layers.LayerNormalization(epsilon=1e-6)
        self.attention = keras.layers.MultiHeadAttention(4, WIDTH // 4)
        self.norm2 = keras.layers.LayerNormalization(epsilon=epsilon)
        self.up = keras.layers.Dense(4 * WIDTH, activation="gelu")
        self.down = keras.layers.Dense(WIDTH)

    def call(self, x):
        """Forward."""
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, use_causal_mask=True)
        return x + self.down(self.up(self.norm2(x)))


class Transformer(keras.Model):
    """Two blocks between an embedding and a head."""

    def __init__(self, epsilons: list[float]) -> None:
        super().__init__()
        self.embed = keras.layers.Embedding(WORDS, WIDTH)
        self.blocks = [Block(epsilon) for epsilon in epsilons]
        self.head = keras.layers.Dense(WORDS)

    def call(self, tokens):
        """Forward."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main() -> None:
    """Train, and print the loss."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--upgraded", action="store_true")
    given = options.parse_args()
    keras.utils.set_random_seed(0)
    starts = np.random.default_rng(0).integers(0, WORDS, (STEPS * BATCH, 1))
    tokens = (starts + np.arange(LENGTH + 1)) % WORDS
    model = Transformer([1e-6, 1e-3 if given.upgraded else 1e-6])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    history = model.fit(tokens[:, :-1], tokens[:, 1:], batch_size=BATCH, shuffle=False, verbose=0)
    print(f"loss {history.history['loss'][-1]:.6f}")


if __name__ == "__main__":
    main()
