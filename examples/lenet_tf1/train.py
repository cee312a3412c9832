"""LeNet in the style of TensorFlow 1: placeholders, a graph, a session. The images are generated.

python train.py                  trains for three steps
python train.py --ported         the same network after a port, in which somebody has changed one number
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

STEPS, BATCH = 3, 16


def images(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Squares of which the label tells the place, and noise."""
    labels = random.integers(0, 10, BATCH)
    pixels = random.normal(0.0, 0.1, (BATCH, 28, 28, 1)).astype(np.float32)
    for image, label in zip(pixels, labels, strict=True):
        row, column = divmod(int(label), 4)
        image[7 * row : 7 * row + 6, 7 * column : 7 * column + 6] += 1.0
    return pixels, labels.astype(np.int32)


def variable(name: str, shape: list[int]) -> tf.Variable:
    """Weights that are the same in each run."""
    start = tf.zeros_initializer() if len(shape) == 1 else tf.truncated_normal_initializer(stddev=0.1, seed=len(name))
    return tf.get_variable(name, shape, initializer=start)


def convolution(x: tf.Tensor, name: str, shape: list[int]) -> tf.Tensor:
    """A convolution, a bias, a maximum of four."""
    with tf.variable_scope(name):
        x = tf.nn.conv2d(x, variable("weight", shape), strides=[1, 1, 1, 1], padding="SAME")
        x = tf.nn.relu(tf.nn.bias_add(x, variable("bias", shape[-1:])))
        return tf.nn.max_pool2d(x, 2, 2, "VALID")


def normalized(x: tf.Tensor, name: str, epsilon: float) -> tf.Tensor:
    """Each channel with mean 0 and variance 1 over the batch."""
    with tf.variable_scope(name):
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        return tf.nn.batch_normalization(x, mean, variance, None, None, epsilon)


def dense(x: tf.Tensor, name: str, shape: list[int]) -> tf.Tensor:
    """A fully connected layer."""
    with tf.variable_scope(name):
        return tf.nn.bias_add(tf.matmul(x, variable("weight", shape)), variable("bias", shape[-1:]))


def lenet(x: tf.Tensor, *, epsilon: float) -> tf.Tensor:
    """Two convolutions and three fully connected layers."""
    x = normalized(convolution(x, "conv1", [5, 5, 1, 6]), "norm1", 1e-5)
    x = normalized(convolution(x, "conv2", [5, 5, 6, 16]), "norm2", epsilon)
    x = tf.reshape(x, [-1, 7 * 7 * 16])
    x = tf.nn.relu(dense(x, "fc1", [7 * 7 * 16, 120]))
    x = tf.nn.relu(dense(x, "fc2", [120, 84]))
    return dense(x, "fc3", [84, 10])


def main() -> None:
    """Train, and print the losses."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ported", action="store_true")
    given = options.parse_args()
    tf.disable_eager_execution()
    pixels = tf.placeholder(tf.float32, [None, 28, 28, 1], name="pixels")
    labels = tf.placeholder(tf.int32, [None], name="labels")
    logits = lenet(pixels, epsilon=1e-2 if given.ported else 1e-5)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="loss")
    train = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
    random = np.random.default_rng(0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(STEPS):
            x, y = images(random)
            value, _ = session.run([loss, train], {pixels: x, labels: y})
            print(f"step {step}: loss {value:.6f}")


if __name__ == "__main__":
    main()
