"""The plan of a comparison, from traces written by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.handmade import HandmadeRun
from tests.unit.traces import CALLS_A_STEP, make_trace

from ulpscope.align.mapping import Mapped, read_mapping
from ulpscope.align.plan import Plan, make_plan, plan_json, plan_lines
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.records.runs import IntRanges
from ulpscope.trace.reader import open_trace

LINEAR, GELU = "torch.nn.functional.linear", "torch.nn.functional.gelu"
X = np.ones((2, 3), dtype=np.float32)


def planned(reference: Path, target: Path, **options: Any) -> Plan:
    return make_plan(Pair(open_trace(reference), open_trace(target)), **options)


def only(number: int) -> IntRanges:
    return IntRanges(((number, number),))


def model_run(*, root: str = "model", act: str = GELU, extra: bool = False, first: int = 0) -> HandmadeRun:
    """A module of two calls; `extra` adds one."""
    run = HandmadeRun(first_call=first)
    outer = run.call("Net", kind="module", module=root, module_class="Net")
    inside = {"parent": outer, "module": root, "module_class": "Net"}
    run.call(LINEAR, reads={"args.0": run.value(X)}, makes={"output.0": X}, **inside)
    if extra:
        run.call("torch.Tensor.to", reads={"args.0": run.value(X)}, makes={"output.0": X}, **inside)
    run.call(act, reads={"args.0": run.value(X)}, makes={"output.0": X}, **inside)
    return run


def test_equal_traces_are_paired_wholly(tmp_path: Path) -> None:
    make_trace(tmp_path / "a", steps=3)
    make_trace(tmp_path / "b", steps=3)
    plan = planned(tmp_path / "a", tmp_path / "b")
    assert plan.steps == (0, 1, 2)
    assert plan.ranks_only == plan.steps_only == Pair((), ())
    (rank,) = plan.ranks
    assert rank.pairs["reference"].to_list() == rank.pairs["target"].to_list() == list(range(3 * CALLS_A_STEP))
    assert rank.pairs["step"].to_list() == [step for step in range(3) for _ in range(CALLS_A_STEP)]
    assert rank.unmatched.reference.is_empty()
    assert rank.unmatched.target.is_empty()


def test_steps_and_ranks_of_one_side_are_told(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        make_trace(tmp_path / "a", steps=2, rank=rank)
    for rank in (1, 2, 5):
        make_trace(tmp_path / "b", steps=4, rank=rank)
    plan = planned(tmp_path / "a", tmp_path / "b")
    assert [rank.rank for rank in plan.ranks] == [1, 2]
    assert plan.steps == (0, 1)
    assert plan.ranks_only == Pair((0,), (5,))
    assert plan.steps_only == Pair((), (2, 3))


def test_chosen_steps_and_ranks_leave_the_others_unsaid(tmp_path: Path) -> None:
    for rank in (0, 1):
        make_trace(tmp_path / "a", steps=2, rank=rank)
        make_trace(tmp_path / "b", steps=4, rank=rank)
    plan = planned(tmp_path / "a", tmp_path / "b", steps=only(1), ranks=only(0))
    assert ([rank.rank for rank in plan.ranks], plan.steps) == ([0], (1,))
    assert plan.ranks_only == plan.steps_only == Pair((), ())
    (rank,) = plan.ranks
    assert rank.pairs["reference"].to_list() == list(range(CALLS_A_STEP, 2 * CALLS_A_STEP))


def test_single_processes_are_compared_whatever_their_ranks(tmp_path: Path) -> None:
    make_trace(tmp_path / "a", rank=0)
    make_trace(tmp_path / "b", rank=3)
    plan = planned(tmp_path / "a", tmp_path / "b")
    assert [rank.rank for rank in plan.ranks] == [3]
    assert plan.ranks[0].pairs.height == 2 * CALLS_A_STEP


def late(folder: Path, step: int, rank: int = 0) -> Path:
    """A trace that has only one step."""
    run = HandmadeRun()
    run.step = step
    run.call(LINEAR, makes={"output.0": X})
    return run.write(folder, rank=rank)


@pytest.mark.parametrize("rank", [0, 4])
def test_no_common_step_is_an_error_of_its_own(tmp_path: Path, rank: int) -> None:
    late(tmp_path / "a", 0)
    late(tmp_path / "b", 5, rank=rank)
    with pytest.raises(UlpscopeError) as raised:
        planned(tmp_path / "a", tmp_path / "b")
    assert raised.value.code is ExitCode.NOTHING
    assert raised.value.seen == f"no common step: {tmp_path / 'a'} has 0, {tmp_path / 'b'} has 5"
    assert "--steps" in raised.value.next_step


def test_a_step_that_neither_has_is_an_error(tmp_path: Path) -> None:
    make_trace(tmp_path / "a", steps=12)
    make_trace(tmp_path / "b", steps=2)
    with pytest.raises(UlpscopeError, match=r"a has 0, 1, 2, 3, 4, 5, 6, 7, \.\.\., .*b has 0, 1\n") as raised:
        planned(tmp_path / "a", tmp_path / "b", steps=only(99))
    assert raised.value.code is ExitCode.NOTHING


def test_no_common_rank_is_an_error_of_its_own(tmp_path: Path) -> None:
    for rank in (0, 1):
        make_trace(tmp_path / "a", rank=rank)
    make_trace(tmp_path / "b", rank=2)
    with pytest.raises(UlpscopeError, match=r"no common rank: .*a has 0, 1, .*b has 2\n") as raised:
        planned(tmp_path / "a", tmp_path / "b")
    assert raised.value.code is ExitCode.NOTHING
    with pytest.raises(UlpscopeError, match=r"no common rank among --ranks 0: .*a has 0, 1, .*b has 2\n"):
        planned(tmp_path / "a", tmp_path / "b", ranks=only(0))


def test_a_renamed_root_is_translated(tmp_path: Path) -> None:
    model_run().write(tmp_path / "a")
    model_run(root="net", extra=True, first=40).write(tmp_path / "b")
    (rank,) = planned(tmp_path / "a", tmp_path / "b").ranks
    assert rank.modules == {"net": "model"}
    assert rank.shared_modules == Pair(frozenset({"model"}), frozenset({"net"}))
    assert rank.pairs.select("reference", "target").rows() == [(0, 40), (1, 41), (2, 43)]
    assert rank.unmatched.target["name"].to_list() == ["torch.Tensor.to.0"]


def test_a_mapping_makes_partners_of_operations(tmp_path: Path) -> None:
    model_run(extra=True).write(tmp_path / "a")
    model_run(act="mylib.act").write(tmp_path / "b")
    mapping = tmp_path / "names.yaml"
    mapping.write_text(f"ops:\n  {GELU}: mylib.act\n")
    (rank,) = planned(tmp_path / "a", tmp_path / "b").ranks
    assert (3, 2) not in rank.pairs.select("reference", "target").rows()
    (rank,) = planned(tmp_path / "a", tmp_path / "b", mapped=read_mapping(mapping)).ranks
    assert (3, 2) in rank.pairs.select("reference", "target").rows()
    assert not rank.pairs["replaced"].any()


def two_blocks(names: tuple[str, str]) -> HandmadeRun:
    run = HandmadeRun()
    for name in names:
        outer = run.call("Block", kind="module", module=name, module_class="Block")
        run.call(LINEAR, makes={"output.0": X}, parent=outer, module=name, module_class="Block")
    return run


def test_a_mapping_makes_partners_of_modules(tmp_path: Path) -> None:
    two_blocks(("first", "second")).write(tmp_path / "a")
    two_blocks(("eins", "zwei")).write(tmp_path / "b")
    mapping = tmp_path / "names.yaml"
    mapping.write_text("modules:\n  second: eins\n")
    mapped = read_mapping(mapping)
    (rank,) = planned(tmp_path / "a", tmp_path / "b", mapped=mapped).ranks
    assert rank.modules["eins"] == "second"
    assert (2, 0) in rank.pairs.select("reference", "target").rows()
    (rank,) = planned(tmp_path / "a", tmp_path / "b", mapped=Mapped()).ranks
    assert rank.modules == {"eins": "first", "zwei": "second"}


def test_calls_inside_a_custom_backward_belong_to_its_module(tmp_path: Path) -> None:
    run = HandmadeRun()
    inside = {"module": "model.act", "module_class": "Act"}
    forward = run.call("mylib.Custom", makes={"output.0": X}, **inside)
    back = run.call("mylib.Custom", kind="backward", phase="backward", forward=forward, **inside)
    outer = run.call("mylib.scale", phase="backward", parent=back)
    run.call("torch.Tensor.mul", phase="backward", parent=outer)
    run.write(tmp_path / "a")
    (rank,) = planned(tmp_path / "a", tmp_path / "a").ranks
    assert rank.calls.target["module"].to_list() == ["model.act"] * 4
    assert rank.calls.target["module_class"].to_list() == ["Act"] * 4


def test_the_plan_is_told_as_json(tmp_path: Path) -> None:
    model_run().write(tmp_path / "a")
    model_run(root="net", act="mylib.act", first=40).write(tmp_path / "b")
    late(tmp_path / "b", 7, rank=1)
    told = plan_json(planned(tmp_path / "a", tmp_path / "b"))
    assert set(told) == {"schema", "steps", "ranks_only", "steps_only", "ranks"}
    assert (told["schema"], told["steps"]) == (1, [0])
    assert told["ranks_only"] == {"reference": [], "target": [1]}
    (rank,) = told["ranks"]
    assert rank["modules"] == {"net": "model"}
    assert rank["pairs"] == {"step": [0, 0, 0], "reference": [0, 1, 2], "target": [40, 41, 42]}
    assert rank["replaced"] == [(2, 42)]
    assert rank["unmatched_reference"] == rank["unmatched_target"] == []


def test_the_json_names_what_has_no_partner(tmp_path: Path) -> None:
    model_run(extra=True).write(tmp_path / "a")
    model_run().write(tmp_path / "b")
    (rank,) = plan_json(planned(tmp_path / "a", tmp_path / "b"))["ranks"]
    missing = {"id": 2, "step": 0, "name": "torch.Tensor.to.0", "module": "model", "phase": "forward"}
    assert (rank["unmatched_reference"], rank["unmatched_target"]) == ([missing], [])


def test_the_plan_is_told_a_line_a_call(tmp_path: Path) -> None:
    model_run(extra=True).write(tmp_path / "a")
    model_run(act="mylib.act").write(tmp_path / "b")
    assert plan_lines(planned(tmp_path / "b", tmp_path / "b")) == [
        "rank 0: target <- reference",
        "  step 0 forward  Net.0 <- Net.0  model",
        f"  step 0 forward  {LINEAR}.0 <- {LINEAR}.0  model",
        "  step 0 forward  mylib.act.0 <- mylib.act.0  model",
    ]
    lines = plan_lines(planned(tmp_path / "a", tmp_path / "b"))
    assert "  step 0 forward  mylib.act.0 <- (no partner)  model" in lines
    assert f"  step 0 forward  (no partner) <- {GELU}.0  model" in lines
    model_run(act="mylib.act").write(tmp_path / "c")
    model_run().write(tmp_path / "d")
    assert f"  step 0 forward  {GELU}.0 <- mylib.act.0 (replaced)  model" in plan_lines(
        planned(tmp_path / "c", tmp_path / "d")
    )
