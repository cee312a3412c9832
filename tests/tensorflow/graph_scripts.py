"""Trainings in graph mode that print every bit of their losses and weights: graph_scripts.py [observed] [deterministic]

Observed, each tells on stderr how many results were read.
"""

import hashlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

STEPS = 3


def images() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal((12, 16, 16, 3)).astype(np.float32), random.integers(0, 10, 12)


def network() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


def told(losses: list[float], weights: list[np.ndarray]) -> None:
    print([float(loss).hex() for loss in losses])
    print(hashlib.sha256(b"".join(np.asarray(weight).tobytes() for weight in weights)).hexdigest())


def step() -> None:
    model, adam = network(), tf.keras.optimizers.Adam(1e-2)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        adam.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    x, y = images()
    losses = [float(train(tf.constant(x), tf.constant(y))) for _ in range(STEPS)]
    told(losses, model.get_weights())


def fit() -> None:
    model = network()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.AdamW(1e-2, clipnorm=1.0), loss, metrics=["accuracy"])
    history = model.fit(*images(), batch_size=4, epochs=STEPS, verbose=0)
    told(history.history["loss"] + history.history["accuracy"], model.get_weights())


def mixed() -> None:
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    fit()
    tf.keras.mixed_precision.set_global_policy("float32")


def attention() -> None:
    layers = tf.keras.layers
    tokens = layers.Input((12,), dtype="int32")
    embedded = layers.Embedding(50, 16)(tokens)
    attended = layers.LayerNormalization()(embedded + layers.MultiHeadAttention(2, 8)(embedded, embedded))
    rolled = layers.LSTM(8)(attended)
    model = tf.keras.Model(tokens, layers.Dense(50)(rolled))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), loss)
    data = np.random.default_rng(1).integers(0, 50, (12, 12))
    history = model.fit(data, data[:, 0], batch_size=4, epochs=STEPS, verbose=0)
    told(history.history["loss"], model.get_weights())


def loops() -> None:
    scale = tf.Variable(1.1)

    @tf.function
    def grow(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for _ in tf.range(4):
                x = x * scale + 1.0
                x = tf.cond(tf.reduce_sum(x) > 20.0, lambda x=x: x - 5.0, lambda x=x: tf.sin(x))
            loss = tf.reduce_sum(x * tf.map_fn(lambda part: part * 2.0, x))
        scale.assign_sub(0.01 * tape.gradient(loss, scale))
        return loss

    told([float(grow(tf.constant([1.0, 2.0, 3.0]))) for _ in range(STEPS)], [scale.numpy()])


def session(*, references: bool = False) -> None:
    one = tf.compat.v1
    with tf.Graph().as_default(), one.Session() as running:
        one.set_random_seed(3)
        x, y = one.placeholder(tf.float32, (None, 16 * 16 * 3)), one.placeholder(tf.int64, (None,))
        drawn = tf.random.normal((16 * 16 * 3, 10), stddev=0.1, seed=5)
        weight = one.Variable(drawn, use_resource=not references)
        bias = one.Variable(tf.zeros(10), use_resource=not references)
        logits = tf.nn.relu(tf.matmul(x, weight) + bias)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        train = one.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        running.run(one.global_variables_initializer())
        pictures, labels = images()
        feeds = {x: pictures.reshape(12, -1), y: labels}
        losses = [running.run([loss, train], feeds)[0] for _ in range(STEPS)]
        told(losses, running.run([weight, bias]))


def session_references() -> None:
    session(references=True)


SCRIPTS = (step, fit, mixed, attention, loops, session, session_references)


def main(*words: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if "deterministic" in words:
        tf.config.experimental.enable_op_determinism()
    observer = None
    if "observed" in words:
        from ulpscope.capture.tensorflow.graphs.observer import GraphObserver

        observer = GraphObserver.load()
        observer.begin(data=True)
    for script in SCRIPTS:
        tf.keras.utils.set_random_seed(7)
        print(script.__name__)
        script()
        if observer is not None:
            print(script.__name__, len(observer.drain()), file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
