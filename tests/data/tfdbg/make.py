"""Makes what stands beside it: tests/tensorflow/debugged.py under tfdbg2, and what TensorFlow's own reader finds there.

    python debugged.py functions functions FULL_TENSOR; python debugged.py functions health FULL_HEALTH
    python debugged.py session session             its last run's _tfdbg_graph_* was kept
    python make.py                                 needs TensorFlow; writes expected.npz and expected_health.json

Of the directories, source_files and stack_frames were taken away, and the host's name in those of files.
"""

import json
from pathlib import Path

import numpy as np
from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader

HERE = Path(__file__).parent


def tensors() -> dict[str, np.ndarray]:
    found = {}
    with DebugDataReader(str(HERE / "functions")) as reader:
        reader.update()
        for trace in reader.graph_execution_traces():
            time = int(trace.wall_time * 1e6)
            found[f"{trace.op_name}:{trace.output_slot}:{time}"] = reader.graph_execution_trace_to_tensor_value(trace)
        for execution in reader.executions():
            name = reader.graph_by_id(execution.graph_id).name if execution.graph_id else execution.op_type
            time = int(execution.wall_time * 1e6)
            for slot, value in enumerate(reader.execution_to_tensor_values(execution) or []):
                found[f"{name}:{slot}:{time}"] = value
    # numpy's files have no bfloat16.
    return {
        name.replace("/", "|"): value.view(np.uint16) if value.dtype.name == "bfloat16" else value
        for name, value in found.items()
    }


def health() -> list[list[int]]:
    with DebugDataReader(str(HERE / "health")) as reader:
        reader.update()
        found = [trace.debug_tensor_value for trace in reader.graph_execution_traces()]
        found += [value for execution in reader.executions() for value in execution.debug_tensor_values or () if value]
    return sorted([int(number) for number in numbers[4:]] for numbers in found)


if __name__ == "__main__":
    np.savez(HERE / "expected.npz", **tensors())
    (HERE / "expected_health.json").write_text(json.dumps(health()))
