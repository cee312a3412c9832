"""Short TensorFlow programs whose executed ops are counted: each is called once, in a process of its own."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import tensorflow_loops as loops

_V1 = tf.compat.v1


def control_flow() -> None:
    """A compiled training step with a loop, a branch, and a function that is not inlined."""
    weight = tf.Variable(tf.ones((4, 4)))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([weight])

    @tf.function(experimental_attributes={"_noinline": True})
    def apart(x: Any) -> Any:
        return tf.cos(x) * 0.5

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for _ in tf.range(3):
                x = tf.cond(tf.reduce_sum(x) > 4.0, lambda x=x: tf.matmul(x, weight), lambda x=x: x + 1.0)
            loss = tf.reduce_mean(tf.square(x + apart(x)))
        gradient = tape.gradient(loss, weight)
        optimizer.apply_gradients([(gradient, weight)])
        return loss

    for _ in range(2):
        step(tf.ones((2, 4)))


def bodies_as_functions() -> None:
    """A session whose loop and branch are not lowered: their bodies run as functions."""
    with tf.Graph().as_default():
        from tensorflow.python.ops import control_flow_util

        control_flow_util.ENABLE_CONTROL_FLOW_V2, before = True, control_flow_util.ENABLE_CONTROL_FLOW_V2
        try:
            x = _V1.placeholder(tf.float32, [3], name="x")
            looped = tf.while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, tf.sin(y) * 2.0), [0, x])[1]
            chosen = tf.cond(tf.reduce_sum(looped) > 0.0, lambda: tf.exp(looped), lambda: tf.abs(looped))
        finally:
            control_flow_util.ENABLE_CONTROL_FLOW_V2 = before
        for op in tf.compat.v1.get_default_graph().get_operations():
            if op.type in ("While", "StatelessWhile", "If", "StatelessIf"):
                op._set_attr("_lower_using_switch_merge", tf.compat.v1.AttrValue(b=False))
        with _V1.Session() as session:
            for _ in range(2):
                session.run(chosen, {x: [1.0, 2.0, 3.0]})


STEPS: dict[str, Callable[[], Any]] = {
    **{
        name: loops.LOOPS[name]
        for name in (
            "eager",
            "fit_graph",
            "fit_eager",
            "fit_mixed_bfloat16",
            "fit_recurrent",
            "function_step",
            "function_of_rows",
            "recurrent",
            "embedding",
            "mixed_bfloat16",
            "data_pipeline",
            "session_run",
            "session_with_references",
            "monitored_session",
        )
    },
    **{work.__name__: work for work in (control_flow, bodies_as_functions)},
}
