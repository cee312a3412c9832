"""Is every op that TensorFlow executes in the trace, or named in its coverage with the reason?

    python benchmarks/coverage_tf.py                  every program, at level kernel
    python benchmarks/coverage_tf.py --level api --only fit_graph

The witness is TensorFlow's own profiler, in a plain run of the same program in a process of its own: it tells each
kernel that an executor runs, by node and type, and each op that is executed eagerly. What of it is no call of the
captured run must be left out for a reason that the trace's coverage has. Exit code 1 if anything is neither. What
grappler runs once to fold constants, while it prepares a graph, is no op of a step: most of it is known by the thread's
executors, the rest by having no node in any graph that is executed, and told apart.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

EAGER, EXECUTOR, FOLDED = "EagerLocalExecute: ", "ExecutorState::Process", "_send_"
PIPELINE = "inside a tf.data pipeline"
IN_WORDS = {"optimizer": "inside an optimizer"}
# What a graph holds, and what grappler has put in: observed, and told where it is used.
NOT_COMPUTED, REWRITTEN = "constant or variable of a graph", "op of a graph that grappler has rewritten"
GIVEN = (":Const", ":HostConst", ":_Arg", ":_DeviceArg", ":ReadVariableOp")
# A node that no graph has when it is executed: grappler has put a constant in its place, having run it for that.
FOLDED_BEFORE = "folded before the graph ran"
# Reasons why what a node runs is seen by nobody.
BODIES = (": function_body", ": xla")
# What TensorFlow executes for us or for its own bookkeeping, and no callback is told of.
HOUSEKEEPING = frozenset(("_EagerConst", "DestroyResourceOp", "DeleteIterator", "DeleteMemoryCache"))
# Python's numbers become a constant, or an operand, which is no op: what casts them to its type is called by nobody.
CONSTANT, CALL, CAST = "tf.constant", "TFE_Py_FastPathExecute_C", f"{EAGER}Cast"


def executed(name: str) -> dict[str, dict[str, int]]:
    """What the profiler saw: eager ops by type, kernels in graphs by `node:type`."""
    import tensorflow as tf

    import tensorflow_steps as steps

    steps.loops.prepare()
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)
        tf.profiler.experimental.start(folder, options)
        keras_seed(steps)
        steps.STEPS[name]()
        tf.profiler.experimental.stop()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        return _read(Path(path).read_bytes())


def keras_seed(steps: Any) -> None:
    """The same names and numbers in each process."""
    steps.keras.utils.set_random_seed(0)


def _read(content: bytes) -> dict[str, dict[str, int]]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    eager: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    for plane in xplane_pb2.XSpace.FromString(content).planes:
        names = {number: metadata.name for number, metadata in plane.event_metadata.items()}
        for line in plane.lines:
            for told, executor in _outside_of_folding(line.events, names):
                node, colon, kind = told.rpartition(":")
                if told.startswith(EAGER):
                    eager[told.removeprefix(EAGER)] += 1
                elif executor >= 0 and colon and node and kind.isidentifier() and not node.endswith(":"):
                    kernels[f"{node}:{kind}"] += 1
    return {"eager": dict(eager), "kernels": dict(kernels)}


def _outside_of_folding(events: Any, names: dict[int, str]) -> list[tuple[str, int]]:
    """Names of what a thread did, with the number of the executor that did it, -1 outside of any.

    A graph that is run to fold a constant sends it, `_send_NODE_SLOT`; single ops are folded outside of executors.
    """
    told: list[tuple[str, int]] = []
    folding: set[int] = set()
    constant_ends = call_ends = -1
    running: list[tuple[int, int]] = []  # the executors that are at work, innermost last: end, number
    for number, event in enumerate(sorted(events, key=lambda event: (event.offset_ps, -event.duration_ps))):
        while running and running[-1][0] <= event.offset_ps:
            running.pop()
        name = names[event.metadata_id]
        inside = running[-1][1] if running else -1
        if name == CONSTANT:
            constant_ends = max(constant_ends, event.offset_ps + event.duration_ps)
        elif name == CALL:
            call_ends, called = event.offset_ps + event.duration_ps, len(told)
        elif name == CAST and event.offset_ps < constant_ends:
            continue
        elif name.startswith(EAGER) and event.offset_ps < call_ends:
            told[called:] = [one for one in told[called:] if one[0] != CAST]  # the last of a call is its own op
        if name == EXECUTOR:
            running.append((event.offset_ps + event.duration_ps, number))
        elif name.startswith(FOLDED):
            folding.add(inside)
        else:
            told.append((name, inside))
    return [one for one in told if one[1] not in folding or one[1] < 0]


def captured(name: str, level: str) -> dict[str, Any]:
    """What the trace has of the same program: the same counts, reasons of its coverage, and those of each node."""
    import tensorflow_steps as steps
    import ulpscope
    from ulpscope.capture.tensorflow.graphs.observer import GraphObserver
    from ulpscope.trace.reader import open_trace

    steps.loops.prepare()
    with tempfile.TemporaryDirectory() as folder:
        with ulpscope.capture(Path(folder) / "trace", level=level):
            keras_seed(steps)
            steps.STEPS[name]()
        (trace,) = open_trace(Path(folder) / "trace").ranks
        calls = trace.calls().collect()
    eager: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    for op, name, kind in calls.select("op", "name", "kind").iter_rows():
        if kind == "api" and op.startswith("tf.raw_ops."):
            stem = name.rpartition(".")[0]  # a node of a graph is called by its own name
            (eager if stem == op else kernels)[op.removeprefix("tf.raw_ops.") if stem == op else stem] += 1
    graphs = GraphObserver.load().graphs()
    return {
        "eager": dict(eager),
        "kernels": dict(kernels),
        "reasons": dict(trace.info.coverage.calls_unobserved),
        "nodes": sorted({f"{node.name}:{node.op}" for graph in graphs for node in graph.nodes}),
        "left_out": {
            f"{graph.nodes[left.node].name}:{graph.nodes[left.node].op}": left.reason.value
            for graph in graphs
            for left in graph.left_out
            if left.node >= 0
        },
        "errors": trace.info.errors,
    }


def _in_process(*words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def compared(name: str, level: str) -> tuple[int, Counter[str], list[str]]:
    """How many executions there were, how many of them the coverage explains and why, and what nothing explains."""
    plain, seen = _in_process("executed", name), _in_process("captured", name, level)
    explained: Counter[str] = Counter()
    missing = list(seen["errors"])
    total = 0
    for op, count in plain["eager"].items():
        if op.startswith("__") or op in HOUSEKEEPING:  # a function, whose call and nodes are counted by themselves
            continue
        total += count
        lacking = count - seen["eager"].get(op, 0)
        if lacking > 0:
            missing += _explain(f"eager {op}", lacking, _eager_reason(op, seen["reasons"]), explained)
    for kernel, count in plain["kernels"].items():
        total += count
        lacking = count - seen["kernels"].get(kernel.rpartition(":")[0], 0)
        if lacking > 0:
            missing += _explain(kernel, lacking, _kernel_reason(kernel, seen), explained)
    return total, explained, missing


def _explain(what: str, count: int, reason: str | None, explained: Counter[str]) -> list[str]:
    if reason is None:
        return [f"{what} ({count} times)"]
    explained[reason] += count
    return []


def _eager_reason(op: str, reasons: dict[str, int]) -> str | None:
    reason = PIPELINE if op == "IteratorGetNext" else "inside an optimizer"
    return reason if reason in reasons else None


def _kernel_reason(kernel: str, seen: dict[str, Any]) -> str | None:
    """The reason that the coverage has for a node that is no call."""
    left_out = seen["left_out"].get(kernel)
    for reason in seen["reasons"]:
        if left_out is not None and (reason.endswith(f": {left_out}") or reason == IN_WORDS.get(left_out)):
            return str(reason)
    if kernel in seen["nodes"]:
        reason = NOT_COMPUTED if kernel.endswith(GIVEN) else REWRITTEN
        return reason if reason in seen["reasons"] else None
    unseen = (reason for reason in seen["reasons"] if reason == PIPELINE or reason.endswith(BODIES))
    return next(unseen, FOLDED_BEFORE)


def main() -> int:
    """Compare all programs, and tell."""
    if sys.argv[1:2] == ["executed"]:
        print(json.dumps(executed(sys.argv[2])))
        return 0
    if sys.argv[1:2] == ["captured"]:
        print(json.dumps(captured(sys.argv[2], sys.argv[3])))
        return 0
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", action="append")
    options.add_argument("--level", default="kernel")
    given = options.parse_args()
    sys.path.insert(0, str(HERE))
    import tensorflow_steps as steps

    failed = 0
    for name in given.only or steps.STEPS:
        total, explained, missing = compared(name, given.level)
        failed += bool(missing)
        told = ", ".join(f"{reason} {count}" for reason, count in explained.most_common())
        print(f"{name:20} {total:6} executed, {sum(explained.values()):5} not calls ({told})", flush=True)
        for one in missing[:20]:
            print(f"  nowhere: {one}")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
