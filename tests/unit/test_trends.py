"""Statistics of a run by module and step."""

import math
from pathlib import Path

import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.trace.overview import SCHEMA, module_trends
from ulpscope.trace.reader import open_trace


def test_the_largest_of_a_modules_tensors_by_step(tmp_path: Path) -> None:
    run = HandmadeRun()
    for step, scale in ((0, 1.0), (1, 10.0)):
        run.step = step
        x = run.value([5000.0])
        run.call("add", reads={"args.0": x}, makes={"output.0": [3.0 * scale, -4.0 * scale]}, module="m.a")
        run.call("mul", reads={"args.0": x}, makes={"output.0": [1.0, math.nan, -math.inf]}, module="m.a")
        run.call("sub", makes={"args.0": [7.0]}, made_role="grad_input", module="m.a", phase="backward")
    rows = module_trends(open_trace(run.write(tmp_path / "run"))).to_dicts()
    assert [(row["step"], row["what"], row["module"], row["tensors"]) for row in rows] == [
        (0, "output", "m.a", 2),
        (1, "output", "m.a", 2),
        (0, "gradient", "m.a", 1),
        (1, "gradient", "m.a", 1),
    ]
    # 3, 4 and 5; nan and inf are not in norm and mean: (1.0 + nothing) / 1.
    assert [row["norm"] for row in rows] == pytest.approx([5.0, 50.0, 7.0, 7.0])
    assert [row["size"] for row in rows] == pytest.approx([4.0, 40.0, 7.0, 7.0])
    assert [row["mean"] for row in rows] == pytest.approx([1.0, 5.0, 7.0, 7.0])
    assert [(row["nan"], row["inf"]) for row in rows] == [(1, 1), (1, 1), (0, 0), (0, 0)]


def test_integers_and_inputs_are_left_out(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1, 2], dtype="int64")
    run.call("id", reads={"args.0": x}, makes={"output.0": x})
    found = module_trends(open_trace(run.write(tmp_path / "run")))
    assert found.height == 0
    assert dict(found.schema) == SCHEMA
