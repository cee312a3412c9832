"""A training step of three small Keras models, run eagerly and captured: what check_sound_tf.py checks.

python benchmarks/sound_models_tf.py MODEL DTYPE TRACE
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def transformer(keras: Any) -> tuple[Any, Any]:
    import numpy as np

    tokens = keras.Input((24,), dtype="int32")
    x = keras.layers.Embedding(64, 32)(tokens)
    for _ in range(2):
        normal = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(4, 8)(normal, normal, use_causal_mask=True)
        normal = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.Dense(32)(keras.layers.Dense(128, activation="gelu")(normal))
    logits = keras.layers.Dense(8, dtype="float32")(keras.layers.GlobalAveragePooling1D()(x))
    return keras.Model(tokens, logits), np.random.RandomState(0).randint(0, 64, (8, 24)).astype("int32")


def cnn(keras: Any) -> tuple[Any, Any]:
    import numpy as np

    image = keras.Input((16, 16, 3))
    x = image
    for width in (8, 16):
        x = keras.layers.Conv2D(width, 3, padding="same")(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.DepthwiseConv2D(3, activation="swish")(x)
    x = keras.layers.AveragePooling2D(2, padding="same")(x)
    logits = keras.layers.Dense(8, dtype="float32")(keras.layers.Flatten()(x))
    return keras.Model(image, logits), np.random.RandomState(0).randn(8, 16, 16, 3).astype("float32")


def lstm(keras: Any) -> tuple[Any, Any]:
    import numpy as np

    series = keras.Input((6, 12))
    x = keras.layers.LSTM(16, return_sequences=True, unroll=True)(series)
    x = keras.layers.GRU(16, unroll=True)(x)
    logits = keras.layers.Dense(8, dtype="float32")(x)
    return keras.Model(series, logits), np.random.RandomState(0).randn(16, 6, 12).astype("float32")


MODELS = {"transformer": transformer, "cnn": cnn, "lstm": lstm}


def main(name: str, dtype: str, path: Path) -> None:
    """Capture one step with its tensors."""
    import keras
    import numpy as np
    import tensorflow as tf

    import ulpscope

    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_global_policy(POLICIES[dtype])
    model, batch = MODELS[name](keras)
    labels, optimizer = np.arange(len(batch)) % 8, keras.optimizers.Adam()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with ulpscope.capture(path, save="tensors"):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(batch, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
