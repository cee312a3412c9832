"""Sessions of TensorFlow that dump every tensor, by TensorFlow's own debugger (tfdbg): without its prompt.

Each wrapped session has a folder of its own: precision_data/tf/tf_debug, then tf_debug-2, and so on. What an earlier
run left there is neither overwritten nor mixed with this one's.
"""

import importlib
import os
from itertools import count
from pathlib import Path
from typing import Any

from ulpscope.compat.telling import tell
from ulpscope.compat.tf_switches import PAGE, make_folder
from ulpscope.workflows.tf_runs.settings import read_settings

_taken: set[Path] = set()
"""Folders of sessions of this process, which have perhaps not run yet."""


def dump_folder() -> Path:
    """A folder for one session: the one of the settings, or the next free one beside it."""
    first = read_settings(os.environ).folder("TF_DEBUG_DUMP_DIR").absolute()
    for number in count(1):
        folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
        if folder not in _taken and not (folder.is_dir() and any(folder.iterdir())):
            break
    _taken.add(folder)
    if folder != first:
        tell(f"{first} is in use: this session dumps into {folder}; later: ulpscope convert {folder} --to npy -o DIR")
    make_folder(folder)
    return folder


def wrapped(sess: Any) -> Any:
    """The session with every tensor dumped; the session itself where this TensorFlow has no debugger."""
    wrapper = debugger("dumping_wrapper", "DumpingDebugWrapperSession")
    return sess if wrapper is None else wrapper(sess, str(dump_folder()))


def hook() -> Any:
    """The same as a hook of MonitoredSession and of Estimator."""
    made = debugger("hooks", "DumpingDebugHook")
    if made is not None:
        return made(str(dump_folder()))
    import tensorflow as tf

    return tf.compat.v1.train.SessionRunHook()


def debugger(module: str, name: str) -> Any:
    """A class of TensorFlow's debugger, or nothing if this version has none."""
    path = f"tensorflow.python.debug.wrappers.{module}"
    try:
        return getattr(importlib.import_module(path), name)
    except (ImportError, AttributeError) as error:
        tell(
            f"{path}.{name} is missing in this TensorFlow ({error}), so nothing is dumped and the script runs on; "
            f"ulpscope run --save tensors -o TRACE -- CMD captures without it ({PAGE})"
        )
        return None


def replace_session(module: Any) -> None:
    """Put a session that dumps into the place of tfdbg's interactive one, as its module is imported."""
    dumping = debugger("dumping_wrapper", "DumpingDebugWrapperSession")
    if dumping is not None:
        module.LocalCLIDebugWrapperSession = _without_prompt(dumping, module.LocalCLIDebugWrapperSession.__name__)


def replace_hook(module: Any) -> None:
    """The same for its hook."""
    module.LocalCLIDebugHook = _without_prompt(module.DumpingDebugHook, module.LocalCLIDebugHook.__name__)


def _without_prompt(dumping: Any, name: str) -> Any:
    is_session = name.endswith("Session")

    def __init__(self: Any, *args: Any, thread_name_filter: Any = None, **options: Any) -> None:  # noqa: N807
        # What else the interactive one takes (ui_type, dump_root, config_file_path) is about its prompt.
        tell(f"{name} dumps without a prompt: this script was started by ulpscope tf-dump")
        sess = (args[0] if args else options["sess"],) if is_session else ()
        dumping.__init__(self, *sess, str(dump_folder()), thread_name_filter=thread_name_filter)

    def add_tensor_filter(self: Any, *args: Any, **options: Any) -> None:
        """Filters stop at the prompt; here all is dumped."""

    return type(name, (dumping,), {"__init__": __init__, "add_tensor_filter": add_tensor_filter})
