"""`train` of the shell, in a process of its own: one training step of a saved graph, on the CPU or on the NPU.

    python -m ulpscope.compat.tf_train --device cpu --action dump

The graph is the checkpoint that PrecisionTfSession or tf.train.Saver left below precision_data/tf/checkpoints. So that
both devices compute the same, dropout is off, random operations without a seed get DUMP_SEED, and placeholders are fed
what a PrecisionTfSession kept, or numbers drawn from that seed.
"""

import argparse
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ulpscope.compat import tf_config
from ulpscope.compat.telling import tell
from ulpscope.compat.tf_session import fed_file
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.tf_runs.settings import Settings, read_settings


def main(argv: Sequence[str]) -> int:
    """Run the step; the exit code tells how it went."""
    parser = argparse.ArgumentParser(prog="tf_train", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "npu"), required=True)
    parser.add_argument("--action", default="dump")
    args = parser.parse_args(argv)
    try:
        train(args.device, args.action, read_settings(os.environ))
    except UlpscopeError as error:
        print(f"ulpscope: error: {error}", file=sys.stderr)
        return int(error.code)
    return 0


def train(device: str, action: str, settings: Settings) -> None:
    """Restore the graph, feed it, and run its training operation once."""
    if device == "npu":
        _require_npu()
    import tensorflow as tf

    v1 = tf.compat.v1
    checkpoint = _checkpoint(v1, settings)
    meta = _calmed(_read_meta(v1, Path(f"{checkpoint}.meta")), tf, settings)
    with tf.Graph().as_default() as graph:
        graph.seed = settings.numbers["DUMP_SEED"]
        saver = v1.train.import_meta_graph(meta)
        training = graph.get_collection(v1.GraphKeys.TRAIN_OP)
        if not training:
            raise UlpscopeError(
                f"{checkpoint}.meta has no operation in the collection {v1.GraphKeys.TRAIN_OP}",
                expected="a graph that was saved after optimizer.minimize or apply_gradients",
                next_step="save the checkpoint of the training graph: PrecisionTfSession in the place of tf.Session",
            )
        config = tf_config.session_dump_config(action=action) if device == "npu" else None
        with v1.Session(config=config) as plain:
            if saver is None:
                plain.run(v1.global_variables_initializer())
            else:
                saver.restore(plain, checkpoint)
            sess = tf_config.sess_dump(plain) if device == "cpu" else plain
            sess.run(training, dict(_fed(graph, settings)))


def _require_npu() -> None:
    try:
        import npu_bridge.npu_init  # noqa: F401
    except Exception as error:
        raise UlpscopeError(
            f"npu_bridge.npu_init cannot be imported: {error}",
            expected="the NPU's package for TensorFlow, which runs the graph there",
            next_step="run this on the NPU's machine, or on this one: train -d cpu",
        ) from error


def _checkpoint(v1: Any, settings: Settings) -> str:
    root = settings.path("TF_CKPT_ROOT")
    found = v1.train.latest_checkpoint(root)
    if found is None or not Path(f"{found}.meta").is_file():
        raise UlpscopeError(
            f"{root} holds no checkpoint with its graph (ckpt.meta, ckpt.index, checkpoint)",
            expected="what a PrecisionTfSession, or tf.train.Saver().save, leaves there",
            next_step="run the script with ulpscope.compat.tf_session.PrecisionTfSession for tf.Session, then train",
        )
    return str(found)


def _read_meta(v1: Any, path: Path) -> Any:
    try:
        return v1.MetaGraphDef.FromString(path.read_bytes())
    except Exception as error:
        raise UlpscopeError(
            f"{path} is no meta graph: {error}",
            expected="what tf.train.Saver().save writes",
            next_step="save the checkpoint again",
        ) from error


def _calmed(meta: Any, tf: Any, settings: Settings) -> Any:
    """The graph without dropout, its random operations seeded."""
    nodes = [*meta.graph_def.node, *(node for each in meta.graph_def.library.function for node in each.node_def)]
    thresholds = set(_thresholds(nodes))
    for node in nodes:
        if ("dropout" in node.name and "rate" in node.name) or node.name in thresholds:
            if node.op == "Const":
                dtype = tf.as_dtype(node.attr["dtype"].type)
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, dtype=dtype, shape=[]))
            else:
                tell(f"train: {node.name} is a {node.op}, no constant: that dropout stays on, and results may differ")
        if "seed" in node.attr and "seed2" in node.attr and not (node.attr["seed"].i or node.attr["seed2"].i):
            node.attr["seed"].i = settings.numbers["DUMP_SEED"]
            # Operations of one seed would draw the same numbers.
            node.attr["seed2"].i = zlib.crc32(node.name.encode())
    return meta


def _thresholds(nodes: Sequence[Any]) -> Iterator[str]:
    """Rates that have no such name: what a dropout compares the numbers with that it draws."""
    types = {node.name: node.op for node in nodes}
    for node in nodes:
        if node.op == "GreaterEqual" and "dropout" in node.name and len(node.input) >= 2:
            drawn, threshold = (name.partition(":")[0] for name in node.input[:2])
            if types.get(drawn, "").startswith("RandomUniform"):
                yield threshold


def _fed(graph: Any, settings: Settings) -> Iterator[tuple[Any, Any]]:
    generator = np.random.default_rng(settings.numbers["DUMP_SEED"])
    for operation in graph.get_operations():
        if operation.type == "Placeholder":
            tensor = operation.outputs[0]
            file = fed_file(settings, tensor.name)
            yield tensor, np.load(file) if file.is_file() else _drawn(tensor, generator, file)


def _drawn(tensor: Any, generator: np.random.Generator, file: Path) -> Any:
    shape = [] if tensor.shape.rank is None else [size or 1 for size in tensor.shape.as_list()]
    tell(f"train: {file} does not exist: {tensor.name} is fed numbers drawn at random, of shape {shape}")
    return generator.random(shape).astype(tensor.dtype.as_numpy_dtype)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
