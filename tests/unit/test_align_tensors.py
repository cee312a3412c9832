"""Which tensor of a call is which, from traces written by hand."""

from pathlib import Path

import numpy as np
from tests.unit.handmade import HandmadeRun

from ulpscope.align.mapping import Mapped, TensorName
from ulpscope.align.plan import RankPlan, make_plan
from ulpscope.align.tensors import pair_tensors
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import open_trace

NORM = "torch.nn.functional.layer_norm"


def content(number: float) -> np.ndarray:  # type: ignore[type-arg]
    return np.full(3, number, dtype=np.float32)


def plan_of(folder: Path, reference: HandmadeRun, target: HandmadeRun) -> RankPlan:
    paths = reference.write(folder / "ref"), target.write(folder / "target")
    return make_plan(Pair(*map(open_trace, paths))).ranks[0]


def slots(plan: RankPlan, mapped: Mapped | None = None) -> list[tuple[str, str, int, int]]:
    """Role, place, and the values of reference and target."""
    found = pair_tensors(plan, mapped)
    return found.select("role", "place", "reference", "target").rows()


def one_call(places: dict[str, float], *, output: float = 9.0, first_value: int = 0) -> HandmadeRun:
    run = HandmadeRun(first_value=first_value)
    reads = {place: run.value(content(number)) for place, number in places.items()}
    run.call(NORM, reads=reads, makes={"output.0": content(output)})
    return run


def test_tensors_pair_by_role_and_place(tmp_path: Path) -> None:
    reference = one_call({"args.0": 1, "kwargs.weight": 2, "kwargs.bias": 3})
    target = one_call({"args.0": 1, "kwargs.bias": 3, "kwargs.weight": 2}, first_value=50)
    assert slots(plan_of(tmp_path, reference, target)) == [
        ("input", "args.0", 0, 50),
        ("input", "kwargs.bias", 2, 51),
        ("input", "kwargs.weight", 1, 52),
        ("output", "output.0", 3, 53),
    ]


def test_a_positional_argument_is_its_keyword(tmp_path: Path) -> None:
    reference = one_call({"args.0": 1, "args.1": 2, "args.2": 3})
    target = one_call({"args.0": 1, "kwargs.weight": 2, "kwargs.bias": 3}, first_value=50)
    assert slots(plan_of(tmp_path, reference, target)) == [
        ("input", "args.0", 0, 50),
        ("input", "kwargs.weight", 1, 51),
        ("input", "kwargs.bias", 2, 52),
        ("output", "output.0", 3, 53),
    ]


def test_what_cannot_be_counted_off_is_left_out(tmp_path: Path) -> None:
    reference = one_call({"args.0": 1, "args.1": 2, "args.2": 3})
    target = one_call({"args.0": 1, "kwargs.weight": 2}, first_value=50)
    assert slots(plan_of(tmp_path, reference, target)) == [("input", "args.0", 0, 50), ("output", "output.0", 3, 52)]


def test_roles_are_not_mixed_up(tmp_path: Path) -> None:
    reference, target = one_call({"args.0": 1}), one_call({"args.0": 1}, first_value=50)
    extra = reference.value(content(4)), target.value(content(4))
    reference.use(0, "parameter", "weight", extra[0])
    target.use(0, "buffer", "weight", extra[1])
    found = slots(plan_of(tmp_path, reference, target))
    assert {role for role, *_ in found} == {"input", "output"}


def test_a_place_used_twice_is_paired_in_order(tmp_path: Path) -> None:
    runs = one_call({"args.0": 1}), one_call({"args.0": 1}, first_value=50)
    for run in runs:
        for number in (5, 6):
            run.use(0, "gradient", "weight", run.value(content(number)))
    found = slots(plan_of(tmp_path, *runs))
    assert [pair for role, _, *pair in found if role == "gradient"] == [[2, 52], [3, 53]]


def module_run(root: str, first_value: int) -> HandmadeRun:
    """An optimizer that names parameters by the module's path."""
    run = HandmadeRun(first_value=first_value)
    run.call("Net", kind="module", module=root, module_class="Net", makes={"output.0": content(1)})
    run.call("SGD", kind="optimizer", phase="update", role="gradient", reads={f"{root}.w": run.value(content(2))})
    return run


def test_parameters_of_a_renamed_module_are_found(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, module_run("model", 0), module_run("ddp", 50))
    assert ("gradient", "ddp.w", 1, 51) in slots(plan)


def groups(*members: tuple[str, ...], first_value: int = 0) -> HandmadeRun:
    """One optimizer of several parameter groups."""
    run = HandmadeRun(first_value=first_value)
    for number, names in enumerate(members):
        call = run.call("AdamW", kind="optimizer", phase="update", arguments={"group_number": number})
        for name in names:
            run.use(call, "gradient", name, run.value(content(len(name))))
            run.use(call, "parameter_after", name, run.value(content(2 * len(name)), producer=call))
    return run


def values_by_name(run: HandmadeRun) -> dict[tuple[str, str], int]:
    return {(use["role"], use["place"]): use["value"] for use in run.uses}


def test_a_parameter_that_moved_to_another_group_is_found(tmp_path: Path) -> None:
    reference = groups(("a.w", "b.weight"), ("c.w_bias",))
    target = groups(("a.w",), ("b.weight", "c.w_bias"), first_value=50)
    mine, other = values_by_name(reference), values_by_name(target)
    plan = plan_of(tmp_path, reference, target)
    found = slots(plan)
    assert {(role, place): (one, two) for role, place, one, two in found} == {
        key: (mine[key], other[key]) for key in mine
    }
    assert len(found) == len(mine)
    moved = pair_tensors(plan).filter(place="b.weight")
    assert set(moved["reference_call"]) == {0}
    assert set(moved["pair"]) == {1}


def test_slots_stand_in_the_order_of_the_target(tmp_path: Path) -> None:
    reference = groups(("a.w", "b.weight"), ("c.w_bias",))
    target = groups(("c.w_bias",), ("b.weight", "a.w"), first_value=50)
    assert [place for role, place, *_ in slots(plan_of(tmp_path, reference, target)) if role == "gradient"] == [
        "c.w_bias",
        "b.weight",
        "a.w",
    ]


def test_a_mapping_pairs_single_tensors(tmp_path: Path) -> None:
    reference = one_call({"args.0": 1, "args.1": 2, "args.2": 3})
    target = one_call({"args.0": 1, "kwargs.weight": 2}, first_value=50)
    names = TensorName(f"{NORM}.0", "kwargs.weight"), TensorName(f"{NORM}.0", "args.2")
    found = slots(plan_of(tmp_path, reference, target), Mapped(tensors={names[0]: names[1]}))
    assert ("input", "kwargs.weight", 2, 51) in found
    assert len(found) == 3


def test_a_mapped_tensor_is_paired_once(tmp_path: Path) -> None:
    reference, target = one_call({"args.0": 1, "args.1": 2}), one_call({"args.0": 2, "args.1": 1}, first_value=50)
    swap = {
        TensorName(f"{NORM}.0", "args.0"): TensorName(f"{NORM}.0", "args.1"),
        TensorName(f"{NORM}.0", "args.1"): TensorName(f"{NORM}.0", "args.0"),
    }
    assert slots(plan_of(tmp_path, reference, target), Mapped(tensors=swap)) == [
        ("input", "args.0", 1, 50),
        ("input", "args.1", 0, 51),
        ("output", "output.0", 2, 52),
    ]
