"""precision_tool.tf_config's names, so that a training script changes by one import.

    import ulpscope.compat.tf_config as npu_tf_config     # was: import precision_tool.tf_config as npu_tf_config

    config = npu_tf_config.session_dump_config(config, action="overflow")    on the NPU
    sess = npu_tf_config.sess_dump(sess)                                     on the CPU or GPU, for the reference

Importing it seeds Python, numpy and TensorFlow, as there. Where the NPU's packages are missing, the name that needs
them says so, and the script runs on.
"""

import functools
import os
import random
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ulpscope.compat import tfdbg_dumping
from ulpscope.compat.telling import problem_of, tell
from ulpscope.compat.tf_switches import (
    FUSION_OFF_FILE,
    PAGE,
    asked,
    custom_op_values,
    dump_config_arguments,
    fusion_switch_file,
    missing_npu,
    prepare,
    set_global_options,
    set_parameters,
    switched_on,
)
from ulpscope.workflows.tf_runs.settings import read_settings

if TYPE_CHECKING:
    from ulpscope.compat.tf_session import PrecisionTfSession as PrecisionTfSession

    FUSION_SWITCH_FILE: str
    NpuPrintLossScaleCallBack: type[Any]

__all__ = [
    "FUSION_OFF_FILE",
    "FUSION_SWITCH_FILE",
    "NpuPrintLossScaleCallBack",
    "PrecisionTfSession",
    "estimator_dump",
    "estimator_dump_config",
    "npu_device_dump_config",
    "seed_everything",
    "sess_dump",
    "session_dump_config",
    "update_custom_op",
]
OPTIMIZER = "NpuOptimizer"


def seed_everything(seed: int | None = None) -> None:
    """Seed Python, numpy and TensorFlow; without a seed with DUMP_SEED."""
    chosen = read_settings(os.environ).numbers["DUMP_SEED"] if seed is None else seed
    os.environ["PYTHONHASHSEED"] = str(chosen)
    random.seed(chosen)
    import numpy as np

    np.random.seed(chosen)
    tf = _tensorflow("seed_everything")
    if tf is None:
        return
    v1 = tf.compat.v1
    v1.set_random_seed(chosen)
    # A script that leaves eager execution after this import builds its graph here.
    v1.get_default_graph().seed = chosen


def sess_dump(sess: Any) -> Any:
    """The session, with all tensors of every run dumped below precision_data/tf/tf_debug."""
    prepare()
    return tfdbg_dumping.wrapped(sess)


def estimator_dump() -> Any:
    """The same as a hook: EstimatorSpec(training_hooks=[estimator_dump()]), MonitoredTrainingSession(hooks=[...])."""
    prepare()
    tf = _tensorflow("estimator_dump")
    if tf is None:
        return None
    if not _has_estimator(tf):
        tell(
            f"estimator_dump: TensorFlow {tf.__version__} has no tf.estimator, the last that has is 2.15; the hook "
            f"serves tf.compat.v1.train.MonitoredTrainingSession(hooks=[...]), and sess_dump(sess) a session ({PAGE})"
        )
    return tfdbg_dumping.hook()


def estimator_dump_config(action: Any = None) -> Any:
    """npu_bridge's DumpConfig for NPURunConfig(dump_config=...); None where npu_bridge is missing."""
    wanted, settings = asked(action, caller="estimator_dump_config"), prepare()
    try:
        from npu_bridge.npu_init import DumpConfig
    except Exception as error:
        # Not only ImportError: its libraries look for a driver as they are loaded.
        instead = "session_dump_config(config) or, of TensorFlow 2, npu_device_dump_config(npu_device)"
        tell(
            f"estimator_dump_config: npu_bridge.npu_init.DumpConfig is missing ({error}): npu_bridge is the NPU's "
            f"package for Estimator scripts; the script runs on without a dump. Without Estimator: {instead} ({PAGE})"
        )
        return None
    switched_on(wanted.names)
    return DumpConfig(**dump_config_arguments(wanted, settings))


def session_dump_config(session_config: Any = None, action: Any = None) -> Any:
    """A ConfigProto, the given one or a new one, whose NpuOptimizer does what the action says."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

    config = session_config if isinstance(session_config, config_pb2.ConfigProto) else config_pb2.ConfigProto()
    rewriting = config.graph_options.rewrite_options
    known = [found for found in rewriting.custom_optimizers if found.name == OPTIMIZER]
    custom_op = known[-1] if known else rewriting.custom_optimizers.add()
    custom_op.name = OPTIMIZER
    custom_op.parameter_map["use_off_line"].b = True
    _update(custom_op, action, caller="session_dump_config")
    rewriting.remapping = RewriterConfig.OFF
    return config


def update_custom_op(custom_op: Any, action: Any = None) -> Any:
    """The same for a script that adds its NpuOptimizer itself."""
    _update(custom_op, action, caller="update_custom_op")
    return custom_op


def npu_device_dump_config(npu_device: Any, action: Any = None) -> Any:
    """Of TensorFlow 2: set npu_device.global_options(), and give npu_device back."""
    wanted, settings = asked(action, caller="npu_device_dump_config"), prepare()
    if not hasattr(npu_device, "global_options"):
        tell(
            f"npu_device_dump_config: {npu_device!r} has no global_options: the NPU's package npu_device is expected "
            f"(import npu_device); the script runs on without a dump ({PAGE})"
        )
        return npu_device
    set_global_options(npu_device.global_options(), wanted, settings)
    switched_on(wanted.names)
    return npu_device


def _update(custom_op: Any, action: Any, *, caller: str) -> None:
    wanted, settings = asked(action, caller=caller), prepare()
    set_parameters(custom_op, custom_op_values(wanted, settings))
    if not missing_npu(caller):
        switched_on(wanted.names)


def _has_estimator(tf: ModuleType) -> bool:
    try:
        return hasattr(tf, "estimator")
    except ImportError:
        return False


def _tensorflow(caller: str) -> Any:
    """TensorFlow, or nothing if it cannot be imported."""
    try:
        import tensorflow as tf
    except ImportError as error:
        tell(f"{caller}: TensorFlow cannot be imported ({error}), so nothing of it is seeded or dumped ({PAGE})")
        return None
    return tf


@functools.cache
def _loss_scale_callback() -> type[Any]:
    import tensorflow as tf

    class NpuPrintLossScaleCallBack(tf.keras.callbacks.Callback):  # type: ignore[misc]
        """Prints the loss scale before every batch: model.fit(..., callbacks=[NpuPrintLossScaleCallBack(opt)])."""

        def __init__(self, optimizer: Any, loss: Any = None) -> None:
            super().__init__()
            self.optimizer = optimizer
            self.loss = loss

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            scale = _first_number(self.optimizer, ("loss_scale", "dynamic_scale"))
            finite = _first_number(self.optimizer, ("last_step_finite",))
            if scale is None:
                tell(f"NpuPrintLossScaleCallBack: {type(self.optimizer).__name__} has no loss scale to print ({PAGE})")
                return
            status = "unknown" if finite is None else finite
            line = f"PrecisionTool: Train steps {batch}, loss_scale={scale:.3f} / not_overflow_status={status}"
            print(line, flush=True)

    return NpuPrintLossScaleCallBack


def _first_number(owner: Any, names: tuple[str, ...]) -> Any:
    """The first of these attributes that holds a number now; Keras 3 has another name for its scale."""
    for name in names:
        try:
            found = getattr(owner, name)
            return found.numpy() if hasattr(found, "numpy") else found + 0
        except Exception:
            continue
    return None


def _session() -> Any:
    from ulpscope.compat.tf_session import session_class

    return session_class()


_LATE: dict[str, Callable[[], Any]] = {
    "NpuPrintLossScaleCallBack": _loss_scale_callback,
    "PrecisionTfSession": _session,
    "FUSION_SWITCH_FILE": lambda: fusion_switch_file(read_settings(os.environ)),
}
"""What needs TensorFlow, or makes a file: when a script asks for it."""


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return _LATE[name]()
    raise AttributeError(f"module 'ulpscope.compat.tf_config' has no attribute {name!r}")


def _make_deterministic() -> None:
    """tensorflow-determinism is NVIDIA's package for TensorFlow 1.14 to 2.0."""
    try:
        from tfdeterminism import patch
    except ImportError:
        return
    try:
        patch()
    except Exception as error:
        later = "TensorFlow 2.8 and later have tf.config.experimental.enable_op_determinism()"
        tell(f"tfdeterminism.patch() failed: {problem_of(error)}; {later}")


seed_everything()
_make_deterministic()
