"""Programs under TensorFlow's two debuggers, run by a Python of their own: debugged.py session|functions ROOT [MODE].

`session` is a graph of TensorFlow 1 with an initialisation and two steps of training, `functions` eager operators and a
function with another one inside, a loop, a gradient, a bfloat16 and a nan.
"""

import sys

import numpy as np
import tensorflow as tf


def session(root: str) -> None:
    from tensorflow.python.debug.wrappers import dumping_wrapper

    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    x = tf1.placeholder(tf.float32, [None, 4], name="x")
    with tf1.variable_scope("fc1"):
        w = tf1.get_variable("w", initializer=np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
        h = tf1.nn.relu(tf1.matmul(x, w, name="MatMul"), name="Relu")
    loss = tf1.reduce_sum(tf1.cast(h, tf.bfloat16), name="loss")
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    debugged = dumping_wrapper.DumpingDebugWrapperSession(tf1.Session(config=config), root)
    debugged.run(tf1.global_variables_initializer())
    for step in range(2):
        debugged.run([train, loss], {x: np.full((2, 4), step + 1, np.float32)})


def functions(root: str, mode: str) -> None:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.debugging.experimental.enable_dump_debug_info(root, tensor_debug_mode=mode, circular_buffer_size=-1)
    w = tf.Variable(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), name="w")

    @tf.function
    def activated(y):  # type: ignore[no-untyped-def]
        return tf.nn.relu(y)

    @tf.function
    def step(x):  # type: ignore[no-untyped-def]
        with tf.GradientTape() as tape:
            h = activated(tf.matmul(x, w))
            loss = tf.reduce_sum(tf.cast(h, tf.bfloat16))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        _, index = tf.nn.top_k(h[0], k=2)
        return loss, index

    for number in range(2):
        loss, _ = step(tf.constant(np.full((2, 4), number + 1, np.float32)))
        tf.math.log(tf.cast(loss, tf.float32) - 5.0) * 2.0


if __name__ == "__main__":
    {"session": session, "functions": functions}[sys.argv[1]](*sys.argv[2:])
