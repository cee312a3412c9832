"""Short TensorFlow trainings: what each computes must be the same bits, whoever watches it.

Each gives arrays: losses, gradients where the loop has them, and the weights after its steps.
"""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

Arrays = list[Any]
STEPS = 3
_V1 = tf.compat.v1


def prepare() -> None:
    """No op that adds in another order each time; and one thread, if nothing has been computed yet."""
    if not context.context()._initialized:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()


def _data(count: int = 8 * STEPS, width: int = 6) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.normal(size=(count, width)).astype("float32"), random.integers(0, 3, count)


def _batches() -> Iterator[tuple[Any, Any]]:
    inputs, labels = _data()
    for start in range(0, len(inputs), 8):
        yield inputs[start : start + 8], labels[start : start + 8]


_cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _model() -> Any:
    return keras.Sequential(
        [
            keras.layers.Dense(16, activation="gelu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(3, dtype="float32"),
        ]
    )


def _train(model: Any, optimizer: Any, batches: Any, loss_of: Any = _cross_entropy) -> Arrays:
    made: Arrays = []
    for inputs, labels in batches:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        made += [loss, *(tf.convert_to_tensor(gradient) for gradient in gradients)]
    return made + model.get_weights()


def eager() -> Arrays:
    return _train(_model(), keras.optimizers.AdamW(1e-2), _batches())


def _fit(*, run_eagerly: bool) -> Arrays:
    model = _model()
    model.compile(keras.optimizers.Adam(1e-2), _cross_entropy, run_eagerly=run_eagerly)
    history = model.fit(*_data(), batch_size=8, shuffle=False, verbose=0)
    return history.history["loss"] + model.get_weights()


def fit_graph() -> Arrays:
    return _fit(run_eagerly=False)


def fit_of_pipeline() -> Arrays:
    """Keras' fit of a tf.data pipeline, several steps in one run of the graph."""
    dataset = tf.data.Dataset.from_tensor_slices(_data()).shuffle(24, seed=1).batch(8).prefetch(1)
    model = _model()
    model.compile(keras.optimizers.AdamW(1e-2, clipnorm=0.5), _cross_entropy, metrics=["accuracy"])
    history = model.fit(dataset, epochs=2, verbose=0)
    return history.history["loss"] + history.history["accuracy"] + model.get_weights()


def fit_mixed_bfloat16() -> Arrays:
    return _with_policy("mixed_bfloat16", fit_graph)


def fit_recurrent() -> Arrays:
    """Loops inside of a graph, and their gradients."""
    model = _recurrent_model()
    model.compile(keras.optimizers.RMSprop(1e-2), _cross_entropy)
    history = model.fit(*_data(), batch_size=8, shuffle=False, verbose=0)
    return history.history["loss"] + model.get_weights()


def fit_eager() -> Arrays:
    return _fit(run_eagerly=True)


def function_step() -> Arrays:
    model, optimizer = _model(), keras.optimizers.SGD(0.1, momentum=0.9)
    model.build((None, 6))
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _cross_entropy(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, gradients

    losses = [step(tf.constant(inputs), tf.constant(labels)) for inputs, labels in _batches()]
    return [one for loss, gradients in losses for one in (loss, *gradients)] + model.get_weights()


@tf.custom_gradient
def _clipped(x: Any) -> Any:
    return tf.identity(x), lambda gradient: tf.clip_by_value(gradient, -0.01, 0.01)


def function_of_rows() -> Arrays:
    """A compiled step with an embedding, a gradient of the script's own, a loop and a branch."""
    table = tf.Variable(np.random.default_rng(1).normal(size=(20, 4)).astype("float32"))
    weight = tf.Variable(np.random.default_rng(2).normal(size=(4, 4)).astype("float32"))
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build([table, weight])

    @tf.function
    def step(rows: Any) -> Any:
        with tf.GradientTape() as tape:
            x = tf.reduce_sum(tf.nn.embedding_lookup(table, rows), axis=1)
            for _ in tf.range(3):
                x = tf.cond(tf.reduce_sum(x) > 0.0, lambda x=x: tf.tanh(tf.matmul(x, weight)), lambda x=x: x + 0.1)
            loss = tf.reduce_mean(_clipped(x) ** 2)
        gradients = tape.gradient(loss, [table, weight])
        optimizer.apply_gradients(zip(gradients, [table, weight], strict=True))
        return loss, gradients[0].values, gradients[1]

    made: Arrays = []
    for inputs, _ in _batches():
        made += step(tf.constant(np.abs(inputs[:, :3] * 5).astype("int32") % 20))
    return [*made, table, weight]


def function_gan() -> Arrays:
    """Two compiled steps with an optimizer each."""
    maker = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(6)])
    judge = keras.Sequential([keras.layers.Dense(8, activation="leaky_relu"), keras.layers.Dense(1)])
    maker.build((None, 4)), judge.build((None, 6))
    for_maker, for_judge = keras.optimizers.Adam(1e-3), keras.optimizers.SGD(1e-2)
    for_maker.build(maker.trainable_variables), for_judge.build(judge.trainable_variables)

    def train(loss_of: Callable[..., Any], model: Any, optimizer: Any) -> Callable[..., Any]:
        @tf.function
        def step(real: Any, noise: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(real, judge(maker(noise)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return step

    of_maker = train(lambda _, fooled: tf.reduce_mean(tf.nn.softplus(-fooled)), maker, for_maker)
    of_judge = train(
        lambda real, fooled: tf.reduce_mean(tf.nn.softplus(-judge(real)) + tf.nn.softplus(fooled)), judge, for_judge
    )
    made: Arrays = []
    for inputs, _ in _batches():
        noise = tf.random.normal((8, 4))
        made += [of_maker(tf.constant(inputs), noise), of_judge(tf.constant(inputs), noise)]
    return made + maker.get_weights() + judge.get_weights()


def function_inside_a_tape() -> Arrays:
    model, optimizer = _model(), keras.optimizers.Adam(1e-2)
    model.build((None, 6))
    forward = tf.function(lambda inputs: model(inputs, training=True))
    made: Arrays = []
    for inputs, labels in _batches():
        with tf.GradientTape() as tape:
            loss = _cross_entropy(labels, forward(tf.constant(inputs)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        made += [loss, *gradients]
    return made + model.get_weights()


def _with_policy(policy: str, loop: Callable[[], Arrays]) -> Arrays:
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(policy)
    try:
        return loop()
    finally:
        keras.mixed_precision.set_global_policy(before)


def mixed_bfloat16() -> Arrays:
    return _with_policy("mixed_bfloat16", eager)


def mixed_float16_scaled() -> Arrays:
    model = keras.Sequential([keras.layers.Dense(16, dtype="mixed_float16"), keras.layers.Dense(3, dtype="float32")])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2))
    made: Arrays = []
    for inputs, labels in _batches():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(_cross_entropy(labels, model(inputs)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        made += [loss, *gradients]
    return made + model.get_weights()


def custom_gradient() -> Arrays:
    model = _model()
    return _train(model, keras.optimizers.Adam(1e-2), _batches(), lambda y, out: _cross_entropy(y, _clipped(out)))


def gan() -> Arrays:
    maker = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(6)])
    judge = keras.Sequential([keras.layers.Dense(8, activation="leaky_relu"), keras.layers.Dense(1)])
    for_maker, for_judge = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    made: Arrays = []
    for inputs, _ in _batches():
        noise = tf.random.normal((8, 4))
        with tf.GradientTape() as tape_of_maker, tf.GradientTape() as tape_of_judge:
            faked = maker(noise, training=True)
            on_real, on_fake = judge(inputs, training=True), judge(faked, training=True)
            fooled = cross_entropy(tf.ones_like(on_fake), on_fake)
            told = cross_entropy(tf.ones_like(on_real), on_real) + cross_entropy(tf.zeros_like(on_fake), on_fake)
        gradients = tape_of_maker.gradient(fooled, maker.trainable_variables)
        for_maker.apply_gradients(zip(gradients, maker.trainable_variables, strict=True))
        gradients = tape_of_judge.gradient(told, judge.trainable_variables)
        for_judge.apply_gradients(zip(gradients, judge.trainable_variables, strict=True))
        made += [fooled, told]
    return made + maker.get_weights() + judge.get_weights()


def _recurrent_model() -> Any:
    return keras.Sequential(
        [
            keras.layers.Reshape((3, 2)),
            keras.layers.LSTM(8, return_sequences=True),
            keras.layers.GRU(8),
            keras.layers.Dense(3),
        ]
    )


def recurrent() -> Arrays:
    return _train(_recurrent_model(), keras.optimizers.RMSprop(1e-2), _batches())


def embedding() -> Arrays:
    """Its gradients are IndexedSlices."""
    table = tf.Variable(np.random.default_rng(1).normal(size=(20, 4)).astype("float32"))
    made: Arrays = []
    optimizer = keras.optimizers.Adam(1e-2)
    for inputs, _ in _batches():
        rows = np.abs(inputs[:, :3] * 5).astype("int32") % 20
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(tf.nn.embedding_lookup(table, rows)) ** 2)
        gradient = tape.gradient(loss, table)
        optimizer.apply_gradients([(gradient, table)])
        made += [loss, gradient.values]
    return [*made, table]


def data_pipeline() -> Arrays:
    dataset = tf.data.Dataset.from_tensor_slices(_data()).shuffle(24, seed=1)
    dataset = dataset.map(lambda x, y: (x * 2.0, y)).batch(8).prefetch(1)
    return _train(_model(), keras.optimizers.Adam(1e-2), dataset)


def _session_graph(*, use_resource: bool = True) -> tuple[Any, ...]:
    inputs = _V1.placeholder(tf.float32, [None, 6], name="inputs")
    labels = _V1.placeholder(tf.int32, [None], name="labels")
    made = {"use_resource": use_resource}
    weight = _V1.get_variable("weight", [6, 3], initializer=_V1.glorot_uniform_initializer(seed=1), **made)
    bias = _V1.get_variable("bias", [3], initializer=_V1.zeros_initializer(), **made)
    logits = tf.matmul(inputs, weight) + bias
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses)
    step = _V1.train.get_or_create_global_step()
    train = _V1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
    return inputs, labels, loss, train, [weight, bias]


def _run_session(session: Any, graph: tuple[Any, ...]) -> Arrays:
    inputs, labels, loss, train, variables = graph
    made: Arrays = []
    for x, y in _batches():
        value, _ = session.run([loss, train], {inputs: x, labels: y})
        made.append(value)
    return made + list(session.run(variables))


def session_run() -> Arrays:
    with tf.Graph().as_default(), _V1.Session() as session:
        graph = _session_graph()
        session.run(_V1.global_variables_initializer())
        return _run_session(session, graph)


def session_with_references() -> Arrays:
    """Variables that are written in place, as TensorFlow 1 had them."""
    with tf.Graph().as_default(), _V1.Session() as session:
        graph = _session_graph(use_resource=False)
        session.run(_V1.global_variables_initializer())
        return _run_session(session, graph)


def monitored_session() -> Arrays:
    with tf.Graph().as_default():
        graph = _session_graph()
        with _V1.train.MonitoredSession() as session:
            return _run_session(session, graph)


LOOPS: dict[str, Callable[[], Arrays]] = {
    loop.__name__: loop
    for loop in (
        eager,
        fit_eager,
        fit_graph,
        fit_of_pipeline,
        fit_mixed_bfloat16,
        fit_recurrent,
        function_step,
        function_of_rows,
        function_gan,
        function_inside_a_tape,
        mixed_bfloat16,
        mixed_float16_scaled,
        custom_gradient,
        gan,
        recurrent,
        embedding,
        data_pipeline,
        session_run,
        session_with_references,
        monitored_session,
    )
}


def run(name: str) -> list[bytes]:
    """The bits of what a loop computes, from the same seeds each time."""
    keras.utils.set_random_seed(0)
    return [np.asarray(one).tobytes() for one in LOOPS[name]()]
