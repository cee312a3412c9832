"""What about TensorFlow affects a process's numbers: versions, devices, switches."""

import os
import platform
import sys
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import config

from ulpscope.capture.recording.environment import About

PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "tf_keras", "numpy", "ml_dtypes")


def about_tensorflow() -> About:
    return About({"name": "tensorflow", "version": tf.__version__}, PACKAGES, _devices(), _switches(), _build())


def _build() -> dict[str, str]:
    """What it was compiled with and for."""
    return {name: str(told) for name, told in sorted(tf.sysconfig.get_build_info().items())}


def _devices() -> tuple[str, ...]:
    """The processor, and what accelerators TensorFlow computes with; it is not made to look for them by us."""
    names = [f"cpu: {platform.processor() or platform.machine()}"]
    known = context.context()
    if known._initialized:
        names += [device.name for device in known.list_logical_devices() if device.device_type != "CPU"]
    return tuple(names)


def _switches() -> dict[str, Any]:
    return {
        "deterministic_ops": bool(config.is_op_determinism_enabled()) if _is_ready() else None,
        "tensor_float_32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""),
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads() if _is_ready() else None,
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads() if _is_ready() else None,
        "functions_run_eagerly": tf.config.functions_run_eagerly(),
        "jit": tf.config.optimizer.get_jit() or "",
        **_of_keras(),
    }


def _of_keras() -> dict[str, str]:
    """The types in which Keras computes, where the script has imported it; it may be half way through that."""
    keras = sys.modules.get("keras") or sys.modules.get("tf_keras")
    rooms = {"floatx": getattr(keras, "backend", None), "global_policy": getattr(keras, "mixed_precision", None)}
    asked = {f"keras_{name}": getattr(room, name, None) for name, room in rooms.items()}
    return {name: _name_of(ask()) for name, ask in asked.items() if ask is not None}


def _name_of(told: Any) -> str:
    return str(getattr(told, "name", told))


def _is_ready() -> bool:
    return bool(context.context()._initialized)
