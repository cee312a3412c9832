"""`train` of the shell: one step of a saved graph on the CPU and on the NPU, each in a process of its own."""

import importlib.util
import sys

from ulpscope.records.errors import UlpscopeError
from ulpscope.records.tf_runs import RunKind, ScriptRun
from ulpscope.workflows.tf_runs.npu import DUMPED, OVERFLOWED
from ulpscope.workflows.tf_runs.reference import DEBUGGED, refuse_mixed
from ulpscope.workflows.tf_runs.running import Streams, make_folders, run_script
from ulpscope.workflows.tf_runs.settings import Settings

CPU, NPU = "cpu", "npu"
ACTIONS = ("dump", "overflow", "fusion_off", "fusion_switch")


def run_training(device: str, action: str, settings: Settings, streams: Streams) -> ScriptRun:
    """Train a step on one device; on the CPU every tensor is dumped for the reference."""
    if importlib.util.find_spec("tensorflow") is None:
        raise UlpscopeError(
            f"TensorFlow is not installed for {sys.executable}",
            expected="TensorFlow, which runs the saved graph",
            next_step="install ulpscope where TensorFlow is, and start its shell there",
        )
    if device == CPU:
        refuse_mixed(settings)
    folders = DEBUGGED if device == CPU else OVERFLOWED if "overflow" in action else DUMPED
    make_folders(settings, folders[:2] if device == NPU else ())
    command = [sys.executable, "-m", "ulpscope.compat.tf_train", "--device", device, "--action", action]
    return run_script(RunKind.TRAIN, command, settings, folders=folders, variables={}, streams=streams)
