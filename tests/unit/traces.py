"""Small traces made with the writer, as a capture would: a linear layer, a relu, their backward, an optimizer step.

A step has seven calls. The parameter that a step reads was made by the optimizer of the step before, and the mask was
written in step 0 only, so that values are used in steps that did not write them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ulpscope.numerics.summaries.constants import EXPONENT_BINS, SKETCH_LENGTH
from ulpscope.records.runs import Coverage, RankInfo, StepInfo
from ulpscope.trace.data import DataPacker
from ulpscope.trace.schema import CALLS, STACKS, TENSORS, VALUES
from ulpscope.trace.writer import RankWriter, claim_rank_directory

CALLS_A_STEP = 7
MASK = 0
FIRST_WEIGHT = 1
LINEAR, RELU = "torch.nn.functional.linear", "torch.relu"

Row = dict[str, Any]


def rank_info(**changes: Any) -> RankInfo:
    info = RankInfo(
        rank=0,
        world_size=1,
        process={"command": ["python", "train.py", "--name", "a b"], "pid": 4711, "host": "here"},
        framework={"name": "torch", "version": "2.13.0"},
        versions={"numpy": "2.4.6"},
        devices=("cpu",),
        environment={"OMP_NUM_THREADS": "1"},
        seeds={"torch": 17},
        capture={"level": "api", "save": "stats"},
        started="2025-01-01T00:00:00",
    )
    return replace(info, **changes)


def frame(columns: Any, rows: list[Row]) -> pl.DataFrame:
    """Rows whose missing columns are null."""
    return pl.DataFrame([{name: row.get(name) for name in columns} for row in rows], schema=dict(columns))


def call_row(call_id: int, name: str, **changes: Any) -> Row:
    row: Row = {
        "id": call_id,
        "name": name,
        "kind": "api",
        "op": name.rsplit(".", 1)[0],
        "phase": "forward",
        "step": 0,
        "micro_step": 0,
        "recompute": False,
        "random": False,
        "arguments": '{"args":[]}',
    }
    return row | changes


def value_row(value_id: int, **changes: Any) -> Row:
    row: Row = {
        "id": value_id,
        "storage": 100 + value_id,
        "version": 0,
        "dtype": "float32",
        "shape": [2, 3],
        "strides": [3, 1],
        "device": "cpu",
        "layout": "strided",
        "requires_grad": False,
        "initialized": True,
        "min": -1.5,
        "max": 2.5,
        "mean": 0.25,
        "norm": 3.5,
        "abs_sum": 6.0,
        "nan": 0,
        "pos_inf": 0,
        "neg_inf": 0,
        "set_aside": 0,
        "zero": 1,
        "subnormal": 0,
        "exponents": [value_id] * EXPONENT_BINS,
        "sketch": [float(value_id)] * SKETCH_LENGTH,
        "digest": 2**63 + value_id,
    }
    return row | changes


def use_row(call: int, role: str, place: str, value: int) -> Row:
    return {"call": call, "role": role, "place": place, "value": value}


def stacks_frame() -> pl.DataFrame:
    rows = [
        {"stack": 0, "depth": 0, "file": __file__, "line": 1, "function": "forward"},
        {"stack": 0, "depth": 1, "file": "/nowhere/train.py", "line": 12, "function": "<module>"},
    ]
    return frame(STACKS, rows)


def step_calls(step: int) -> list[Row]:
    base = CALLS_A_STEP * step
    layer = {"module": "layers.0", "module_class": "Linear", "step": step}
    linear_arguments = '{"args":[{"$tensor":"args.0"},{"$tensor":"args.1"}],"kwargs":{"bias":null}}'
    return [
        call_row(base, "Linear.0", kind="module", **layer),
        call_row(base + 1, f"{LINEAR}.0", parent=base, stack=0, arguments=linear_arguments, **layer),
        call_row(base + 2, f"{RELU}.0", step=step, stack=0),
        call_row(base + 3, f"{RELU}.0", kind="backward", phase="backward", step=step, forward=base + 2),
        call_row(base + 4, f"{LINEAR}.0", kind="backward", phase="backward", step=step, forward=base + 1),
        call_row(base + 5, "SGD.0", kind="optimizer", phase="update", step=step),
        call_row(base + 6, "torch.rand.0", phase="other", step=step, random=True, generator="abc123"),
    ]


def weight_of(step: int) -> int:
    """The parameter's value that a step reads."""
    return FIRST_WEIGHT if step == 0 else _first_value(step) - 1


def step_values(step: int) -> list[Row]:
    """Batch, hidden, activation, two gradients, random numbers, new weight; step 0 also mask and weight."""
    base, first = CALLS_A_STEP * step, _first_value(step)
    start = [value_row(MASK, dtype="bool", sketch=None), value_row(FIRST_WEIGHT)] if step == 0 else []
    producers = [None, base + 1, base + 2, base + 3, base + 4, base + 6, base + 5]
    values = [value_row(first + place, producer=producer) for place, producer in enumerate(producers)]
    values[5] |= {"initialized": False}
    return start + values


def step_uses(step: int) -> list[Row]:
    base, first, weight = CALLS_A_STEP * step, _first_value(step), weight_of(step)
    return [
        use_row(base, "input", "args.0", first),
        use_row(base, "output", "output.0", first + 1),
        use_row(base + 1, "input", "args.0", first),
        use_row(base + 1, "parameter", "args.1", weight),
        use_row(base + 1, "output", "output.0", first + 1),
        use_row(base + 2, "input", "args.0", first + 1),
        use_row(base + 2, "buffer", "args.1", MASK),
        use_row(base + 2, "output", "output.0", first + 2),
        use_row(base + 3, "grad_output", "grad_output.0", first + 2),
        use_row(base + 3, "grad_input", "args.0", first + 3),
        use_row(base + 4, "grad_output", "grad_output.0", first + 3),
        use_row(base + 4, "grad_input", "args.1", first + 4),
        use_row(base + 5, "gradient", "weight", first + 4),
        use_row(base + 5, "parameter", "weight", weight),
        use_row(base + 5, "parameter_after", "weight", first + 6),
        use_row(base + 6, "output", "output.0", first + 5),
    ]


def make_trace(out: Path, *, steps: int = 2, rank: int = 0, save: bool = False, closed: bool = True) -> Path:
    """A trace of one rank, two parts a step; gives the rank's directory."""
    directory = claim_rank_directory(out, rank)
    info = rank_info(rank=rank, world_size=rank + 1)
    writer = RankWriter(directory, info)
    for step in range(steps):
        write_step(writer, step, save=save)
    if closed:
        seen = CALLS_A_STEP * steps
        coverage = Coverage(calls_seen=seen + 2, calls_recorded=seen, calls_unobserved={"fast path": 2})
        writer.close(replace(info, closed="2025-01-01T00:01:00", exit="0", coverage=coverage))
    return directory


def write_step(writer: RankWriter, step: int, *, save: bool = False) -> None:
    calls, values, uses = step_calls(step), step_values(step), step_uses(step)
    if save:
        _save(writer.directory, step, values)
    half = CALLS_A_STEP // 2
    border = CALLS_A_STEP * step + half
    writer.write_part(
        step,
        calls=frame(CALLS, calls[:half]),
        values=frame(VALUES, values),
        tensors=frame(TENSORS, [use for use in uses if use["call"] < border]),
        stacks=stacks_frame() if step == 0 else frame(STACKS, []),
    )
    writer.write_part(
        step,
        calls=frame(CALLS, calls[half:]),
        values=frame(VALUES, []),
        tensors=frame(TENSORS, [use for use in uses if use["call"] >= border]),
        stacks=frame(STACKS, []),
    )
    info = StepInfo(
        step=step,
        calls=len(calls),
        values=len(values),
        tensors=len(uses),
        parts=2,
        first_value=values[0]["id"],
        seconds=0.5,
    )
    writer.finish_step(info)


def elements_of(value_id: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What a saved value holds."""
    return np.arange(6, dtype=np.float32).reshape(2, 3) + value_id


def _save(directory: Path, step: int, values: list[Row]) -> None:
    packer = DataPacker(directory)
    for value in values:
        if value["dtype"] == "float32":
            raw = elements_of(value["id"]).view(np.uint8).reshape(-1)
            file, key = packer.add(step, raw=raw, dtype="float32", shape=(2, 3), digest=value["digest"])
            value |= {"data_file": file, "data_key": key, "data_offset": 0, "data_strides": [3, 1]}
    packer.flush(step)


def _first_value(step: int) -> int:
    return 2 + 7 * step
