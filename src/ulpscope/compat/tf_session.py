"""precision_tool.tf_session.PrecisionTfSession: a session that keeps what it was fed and a checkpoint after each run.

precision_data/tf/checkpoints/
  ckpt.meta, ckpt.index, ckpt.data-*, checkpoint     the graph and its variables after the last run
  input/x_0.npy                                      what x:0 was fed

`train` in ulpscope shell runs the graph's training operation again from these, on the CPU and on the NPU.
"""

import functools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ulpscope.compat.telling import problem_of, tell
from ulpscope.compat.tf_switches import make_folder
from ulpscope.workflows.tf_runs.settings import Settings, read_settings

if TYPE_CHECKING:
    PrecisionTfSession: type[Any]


def fed_file(settings: Settings, name: str) -> Path:
    """Where what was fed to a tensor is kept."""
    return settings.folder("TF_CKPT_INPUT_DIR") / f"{name.replace(':', '_').replace('/', '_')}.npy"


class _Keeper:
    """Writes what a session was fed, and its checkpoint; a failure is told, and never ends the run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._savers: dict[tuple[str, ...], Any] = {}
        self._lock = threading.Lock()
        for key in ("TF_CKPT_ROOT", "TF_CKPT_INPUT_DIR"):
            make_folder(settings.folder(key))

    def keep_fed(self, graph: Any, feed_dict: Any) -> None:
        for key, fed in (feed_dict or {}).items():
            try:
                tensor = graph.as_graph_element(key, allow_operation=False)
                np.save(fed_file(self._settings, tensor.name), np.asarray(fed), allow_pickle=False)
            except Exception as error:
                tell(f"PrecisionTfSession: what was fed to {key!r} is not kept: {problem_of(error)}")

    def keep_checkpoint(self, sess: Any) -> None:
        try:
            with self._lock, sess.graph.as_default():
                self._save(sess)
        except Exception as error:
            tell(f"PrecisionTfSession: no checkpoint: {problem_of(error)} (the run goes on)")

    def _save(self, sess: Any) -> None:
        import tensorflow as tf

        v1 = tf.compat.v1
        names = tuple(variable.name for variable in v1.global_variables())
        if not names:
            tell("PrecisionTfSession: no checkpoint: the graph has no variables")
            return
        if names not in self._savers:
            # A saver adds operations to the graph, so one serves until there are other variables.
            self._savers[names] = v1.train.Saver()
        self._savers[names].save(sess, self._settings.path("TF_CKPT_FILE"))


@functools.cache
def session_class() -> type[Any]:
    """PrecisionTfSession; a subclass of TensorFlow's session, so made when it is asked for."""
    import tensorflow as tf

    class PrecisionTfSession(tf.compat.v1.Session):  # type: ignore[misc]
        """tf.Session that keeps what it is fed, and a checkpoint after each run that the script asks for."""

        def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
            super().__init__(target, graph, config)
            self._keeper = _Keeper(read_settings(os.environ))
            self._inside = threading.local()

        def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
            # Saving runs the session, too.
            if getattr(self._inside, "run", False):
                return super().run(fetches, feed_dict, options, run_metadata)
            self._inside.run = True
            try:
                self._keeper.keep_fed(self.graph, feed_dict)
                found = super().run(fetches, feed_dict, options, run_metadata)
                self._keeper.keep_checkpoint(self)
                return found
            finally:
                self._inside.run = False

    return PrecisionTfSession


def __getattr__(name: str) -> Any:
    if name == "PrecisionTfSession":
        return session_class()
    raise AttributeError(f"module 'ulpscope.compat.tf_session' has no attribute {name!r}")
