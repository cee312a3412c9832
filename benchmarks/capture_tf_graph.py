"""What it costs to read all results inside of a Keras training step in graph mode: python capture_tf_graph.py [WAY...]

Each way runs in a process of its own, one after the other, and prints its best and its median step. `tfdbg2` is
TensorFlow's own debugger with health numbers of each tensor (FULL_HEALTH), in graphs as they are.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

WAYS = ("plain", "present", "observed", "saved", "tfdbg2")
"""present: observers are in the graph, and nothing is asked of them. saved: with all elements."""
MODELS = ("convolutions", "transformer")
WARM_UP, STEPS, DEBUGGED = 5, 30, 6


def convolutions(tf: Any) -> tuple[Any, Any, Any]:
    layers = tf.keras.layers
    blocks = [layers.Input((32, 32, 3))]
    for width in (32, 64, 64):
        blocks += [layers.Conv2D(width, 3, padding="same", activation="relu"), layers.BatchNormalization()]
        blocks.append(layers.MaxPooling2D())
    model = tf.keras.Sequential([*blocks, layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)])
    return model, tf.random.normal((32, 32, 32, 3)), tf.random.uniform((32,), 0, 10, tf.int32)


def transformer(tf: Any) -> tuple[Any, Any, Any]:
    layers = tf.keras.layers
    tokens = layers.Input((64,), dtype="int32")
    x = layers.Embedding(1000, 128)(tokens)
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32)(y, y)
        y = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(128)(y)
    model = tf.keras.Model(tokens, layers.Dense(1000)(x))
    data = tf.random.uniform((8, 64), 0, 1000, tf.int32)
    return model, data, data


def measure(name: str, way: str) -> dict[str, float]:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory() as dumps:
        if way == "tfdbg2":
            tf.debugging.experimental.enable_dump_debug_info(dumps, "FULL_HEALTH", circular_buffer_size=-1)
        observer = _observer() if way in {"present", "observed", "saved"} else None
        model, x, y = globals()[name](tf)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(1e-3), loss, jit_compile=False)
        steps = DEBUGGED if way == "tfdbg2" else STEPS
        return _times(lambda: model.train_on_batch(x, y), observer, way, steps)


def _observer() -> Any:
    from ulpscope.capture.tensorflow.graphs.observer import GraphObserver

    return GraphObserver.load()


def _times(step: Callable[[], object], observer: Any, way: str, steps: int) -> dict[str, float]:
    times, results = [], 0
    for number in range(WARM_UP + steps):
        if observer is not None and way != "present" and number == WARM_UP:
            observer.begin(data=way == "saved")
        began = time.perf_counter()
        step()
        if observer is not None and way != "present":
            results = len(observer.drain())
        if number >= WARM_UP:
            times.append(1e3 * (time.perf_counter() - began))
    return {"best": min(times), "median": statistics.median(times), "results": results}


def main(words: list[str]) -> None:
    if words[:1] == ["one"]:
        print(json.dumps(measure(words[1], words[2])))
        return
    for name in MODELS:
        plain = 0.0
        for way in words or WAYS:
            command = [sys.executable, __file__, "one", name, way]
            told = json.loads(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
            )
            plain = told["best"] if way == "plain" else plain
            ratio = f"x{told['best'] / plain:.2f}" if plain else ""
            print(f"{name:13} {way:9} best {told['best']:8.1f} ms {ratio:7} median {told['median']:8.1f} ms", end="")
            print(f"  {told['results']:.0f} results a step", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
