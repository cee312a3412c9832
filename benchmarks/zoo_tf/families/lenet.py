"""Trains a LeNet as scripts for TensorFlow 1 do: a graph, variables by name, a session."""

from __future__ import annotations

from training import parse, weight

SIZE, CLASSES, BATCH = 20, 10, 8
FAULTS = (
    "pooling",
    "activation",
    "bias_dropped",
    "flatten_order",
    "moments_axis",
    "norm_eps",
    "stopped",
    "softmax_twice",
    "smoothing",
    "learning_rate",
    "adam_epsilon",
    "gradient_doubled",
    "gradient_missing",
    "loss_scale",
    "weight_changed",
    "input_scaled",
    "l2_missing",
    "dropout_seed",
)
OPTIONS = parse(__doc__, FAULTS, dropout=("no", "yes"), variables=("resource", "reference"))

import numpy as np
import tensorflow.compat.v1 as tf

FAULT = OPTIONS.fault
LOW = {"none": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}[OPTIONS.autocast]


def variable(name: str, shape: tuple[int, ...]) -> tf.Variable:
    numbers = weight(f"lenet {tf.get_variable_scope().name} {name}", shape)
    if FAULT == "weight_changed" and tf.get_variable_scope().name == "conv2" and name == "kernel":
        numbers[0, 0, 0, 0] += 0.5
    return tf.get_variable(name, shape, initializer=tf.constant_initializer(numbers))


def convolved(x: tf.Tensor, name: str, width: int) -> tf.Tensor:
    with tf.variable_scope(name):
        kernel = variable("kernel", (5, 5, int(x.shape[-1]), width))
        made = tf.nn.conv2d(tf.cast(x, LOW), tf.cast(kernel, LOW), strides=1, padding="SAME")
        if FAULT == "bias_dropped" and name == "conv2":
            variable("bias", (width,))
        else:
            made = tf.nn.bias_add(made, tf.cast(variable("bias", (width,)), LOW))
        made = tf.nn.elu(made) if FAULT == "activation" and name == "conv1" else tf.nn.relu(made)
        pool = tf.nn.avg_pool2d if FAULT == "pooling" and name == "conv1" else tf.nn.max_pool2d
        return pool(made, 2, 2, "VALID")


def dense(x: tf.Tensor, name: str, width: int) -> tf.Tensor:
    with tf.variable_scope(name):
        kernel = variable("kernel", (int(x.shape[-1]), width))
        made = tf.matmul(tf.cast(x, LOW), tf.cast(kernel, LOW))
        return tf.nn.bias_add(made, tf.cast(variable("bias", (width,)), LOW))


def normed(x: tf.Tensor, name: str) -> tf.Tensor:
    with tf.variable_scope(name):
        x = tf.cast(x, tf.float32)
        mean, variance = tf.nn.moments(x, axes=[0] if FAULT == "moments_axis" else [1], keepdims=True)
        gamma, beta = variable("gamma", (int(x.shape[-1]),)), variable("beta", (int(x.shape[-1]),))
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 0.1 if FAULT == "norm_eps" else 1e-5)


def network(images: tf.Tensor) -> tf.Tensor:
    x = convolved(convolved(images, "conv1", 6), "conv2", 12)
    if FAULT == "flatten_order":
        x = tf.transpose(x, (0, 3, 1, 2))
    x = tf.reshape(x, (-1, int(np.prod(x.shape[1:]))), name="flat")
    if FAULT == "stopped":
        x = tf.stop_gradient(x)
    x = normed(dense(x, "fc1", 32), "norm")
    x = tf.nn.relu(x)
    if OPTIONS.dropout == "yes":
        x = tf.nn.dropout(x, rate=0.25, seed=8 if FAULT == "dropout_seed" else 7)
    return tf.cast(dense(x, "fc2", CLASSES), tf.float32)


def loss_of(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    with tf.name_scope("loss"):
        if FAULT == "softmax_twice":
            logits = tf.nn.softmax(logits)
        wanted = tf.one_hot(labels, CLASSES)
        if FAULT == "smoothing":
            wanted = wanted * 0.9 + 0.01
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=wanted, logits=logits))
        if FAULT != "l2_missing":
            kernels = [one for one in tf.trainable_variables() if "kernel" in one.name]
            loss = loss + 1e-2 * tf.add_n([tf.nn.l2_loss(one) for one in kernels])
        return loss


def update(loss: tf.Tensor) -> tf.Operation:
    optimizer = tf.train.AdamOptimizer(
        2e-3 if FAULT == "learning_rate" else 1e-3, epsilon=1e-3 if FAULT == "adam_epsilon" else 1e-8
    )
    scale = 128.0
    pairs = optimizer.compute_gradients(loss * scale)
    undone = 64.0 if FAULT == "loss_scale" else scale
    pairs = [(gradient / undone, variable) for gradient, variable in pairs if gradient is not None]
    if FAULT == "gradient_doubled":
        pairs[4] = (pairs[4][0] * 2, pairs[4][1])
    if FAULT == "gradient_missing":
        del pairs[4]
    return optimizer.apply_gradients(pairs)


def main() -> None:
    tf.disable_eager_execution()
    if OPTIONS.variables == "reference":
        tf.disable_resource_variables()
    tf.set_random_seed(OPTIONS.seed)
    images, labels = tf.placeholder(tf.float32, (BATCH, SIZE, SIZE, 1), "images"), tf.placeholder(tf.int32, (BATCH,))
    loss = loss_of(network(images), labels)
    train = update(loss)
    random = np.random.default_rng(6)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(OPTIONS.steps):
            pixels = random.random((BATCH, SIZE, SIZE, 1), dtype=np.float32)
            if FAULT == "input_scaled":
                pixels = pixels * 2 - 1
            fed = {images: pixels, labels: random.integers(0, CLASSES, BATCH)}
            print(session.run([loss, train], fed)[0], flush=True)


if __name__ == "__main__":
    main()
