"""Finding calls, and what surrounds them."""

from pathlib import Path

import pytest
from tests.unit.traces import CALLS_A_STEP, LINEAR, RELU, call_row, frame, make_trace, rank_info, weight_of

from ulpscope.records.enums import Kind, Phase
from ulpscope.records.errors import TraceError
from ulpscope.records.runs import IntRanges
from ulpscope.trace.overview import overview_of
from ulpscope.trace.query import CallFilter, find_call, match_calls, neighbours, with_outputs
from ulpscope.trace.reader import Trace, open_trace
from ulpscope.trace.schema import CALLS, STACKS, TENSORS, VALUES
from ulpscope.trace.writer import RankWriter, claim_rank_directory


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    make_trace(tmp_path, steps=3)
    make_trace(tmp_path, rank=1)
    return open_trace(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (CallFilter(), 35),
        (CallFilter(op="linear"), 15),
        (CallFilter(op="LINEAR", kind=Kind.API), 5),
        (CallFilter(op="*.linear"), 10),
        (CallFilter(op="torch.???u"), 10),
        (CallFilter(op="torch"), 25),
        (CallFilter(op="relu*"), 0),
        (CallFilter(op="torch[relu]"), 0),
        (CallFilter(module="layers.0", phase=Phase.FORWARD), 10),
        (CallFilter(module="*"), 10),
        (CallFilter(step=IntRanges(((0, 0), (2, 9)))), 21),
        (CallFilter(rank=IntRanges(((1, 1),))), 14),
        (CallFilter(rank=IntRanges(((4, 9),))), 0),
        (CallFilter(phase=Phase.UPDATE, rank=IntRanges(((0, 0),)), step=IntRanges(((1, 1),))), 1),
        (CallFilter(text='"bias":null'), 5),
        (CallFilter(text="sgd"), 5),
    ],
)
def test_filters_choose_calls(trace: Trace, wanted: CallFilter, count: int) -> None:
    calls = trace.collect(match_calls(trace, wanted))
    assert calls.height == count
    assert calls.equals(calls.sort("rank", "id"))


def test_a_filter_prints_as_options() -> None:
    assert not CallFilter()
    wanted = CallFilter(op="*a b*", phase=Phase.FORWARD, step=IntRanges(((0, 0), (2, 4))))
    assert wanted
    assert str(wanted) == "--op '*a b*' --phase forward --step 0,2-4"


def test_outputs_are_joined_to_calls(trace: Trace) -> None:
    calls = with_outputs(trace, trace.collect(match_calls(trace, CallFilter(step=IntRanges(((1, 1),))))))
    assert calls["id"].to_list() == [*range(7, 14), *range(7, 14)]
    assert calls["output_dtype"].to_list()[:7] == ["float32"] * 5 + [None, "float32"]
    assert calls["output_shape"].to_list()[0] == [2, 3]


def test_a_call_is_found_by_id_name_or_its_end(trace: Trace) -> None:
    assert find_call(trace, 19, rank=0).call.name == "SGD.0"
    assert find_call(trace, "19").rank_trace.name == "rank0"
    for name in (f"{LINEAR}.0", "linear.0", "functional.linear.0"):
        found = find_call(trace, name, step=1, rank=1, phase=Phase.BACKWARD)
        assert (found.call.id, found.call.rank) == (11, 1)


def test_an_exact_name_wins_over_an_end(tmp_path: Path) -> None:
    writer = RankWriter(claim_rank_directory(tmp_path, 0), rank_info())
    calls = frame(CALLS, [call_row(0, "add.0"), call_row(1, "torch.add.0")])
    writer.write_part(0, calls=calls, values=frame(VALUES, []), tensors=frame(TENSORS, []), stacks=frame(STACKS, []))
    assert find_call(open_trace(tmp_path), "add.0").call.id == 0


def test_the_only_call_of_a_module_is_found_by_it(tmp_path: Path) -> None:
    writer = RankWriter(claim_rank_directory(tmp_path, 0), rank_info())
    rows = [
        call_row(0, "Relu.0", module="fc1/Relu"),
        call_row(1, "Relu.1", module="fc2"),
        call_row(2, "Add.0", module="fc2"),
    ]
    writer.write_part(
        0, calls=frame(CALLS, rows), values=frame(VALUES, []), tensors=frame(TENSORS, []), stacks=frame(STACKS, [])
    )
    assert find_call(open_trace(tmp_path), "fc1/Relu").call.id == 0
    with pytest.raises(TraceError, match="no call 'fc2'"):
        find_call(open_trace(tmp_path), "fc2")


def test_a_name_with_several_calls_lists_them(trace: Trace) -> None:
    with pytest.raises(TraceError) as raised:
        find_call(trace, "relu.0", step=1)
    text = str(raised.value)
    assert text.startswith("2 calls are named 'relu.0':")
    assert "torch.relu.0 (id 9, rank0, step 1, forward)" in text
    assert "torch.relu.0 (id 9, rank1, step 1, forward)" in text
    assert f"next: ulpscope show {trace.path}/rank0 9" in text


def test_the_name_of_a_call_and_its_backward_means_the_call(trace: Trace) -> None:
    assert find_call(trace, "relu.0", step=1, rank=0).call.id == 9
    assert find_call(trace, "relu.0", step=1, rank=0, phase=Phase.BACKWARD).call.id == 10
    assert find_call(trace, 10, rank=0).call.id == 10


def test_an_unknown_name_gets_the_nearest(trace: Trace) -> None:
    with pytest.raises(TraceError, match=r"no call 'torch\.rleu\.0'\n.*did you mean torch\.relu\.0"):
        find_call(trace, "torch.rleu.0")
    with pytest.raises(TraceError, match=r"no call 'torch\.relu'\n.*torch\.relu\.0\n  next: .*--op torch\.relu"):
        find_call(trace, RELU)
    with pytest.raises(TraceError, match=r"no call 'SGD\.0' among those of --step 9"):
        find_call(trace, "SGD.0", step=9)
    with pytest.raises(TraceError, match="no call"):
        find_call(trace, "9" * 30)
    with pytest.raises(TraceError, match="no call"):
        find_call(trace, "²")


@pytest.mark.parametrize("name", ["relu", "ReLU_", "rellu"])
def test_an_operation_is_known_by_the_end_of_its_name(name: str, trace: Trace) -> None:
    with pytest.raises(TraceError) as caught:
        find_call(trace, name)
    assert "torch.relu" in caught.value.expected
    assert caught.value.next_step in (f"ulpscope show {trace.path} --op {op}" for op in ("relu", "torch.relu"))


def test_an_error_tells_the_command_that_was_wanted(trace: Trace) -> None:
    with pytest.raises(TraceError) as caught:
        find_call(trace, "relu.0", step=1, usage=lambda path, call: f"do {path} {call} -o out")
    assert caught.value.next_step == f"do {trace.path}/rank0 9 -o out"
    with pytest.raises(TraceError) as caught:
        find_call(trace, "torch.rleu.0", usage=lambda path, call: f"do {path} {call} -o out")
    assert caught.value.next_step == f"do {trace.path} torch.relu.0 -o out"


def test_neighbours_of_a_forward_call(trace: Trace) -> None:
    rank = trace.ranks[0]
    linear = neighbours(rank, rank.call(CALLS_A_STEP + 1))
    assert [(edge.use.place, edge.call.name, edge.call.step) for edge in linear.makers] == [("args.1", "SGD.0", 0)]
    assert [(edge.use.place, edge.call.name, edge.place) for edge in linear.readers] == [
        ("output.0", "torch.relu.0", "args.0")
    ]
    assert linear.parent is not None
    assert linear.parent.kind is Kind.MODULE
    assert linear.forward is None
    assert [call.kind for call in linear.backwards] == [Kind.BACKWARD]
    assert linear.children == ()
    assert set(linear.values) == {use.value for use in linear.uses}


def test_neighbours_of_module_backward_and_optimizer(trace: Trace) -> None:
    rank = trace.ranks[0]
    module = neighbours(rank, rank.call(0))
    assert [call.id for call in module.children] == [1]
    assert [edge.call.id for edge in module.readers] == [2]
    backward = neighbours(rank, rank.call(4))
    assert backward.forward is not None
    assert backward.forward.id == 1
    assert [edge.call.id for edge in backward.makers] == [3]
    assert [(edge.call.name, edge.place) for edge in backward.readers] == [("SGD.0", "weight")]
    optimizer = neighbours(rank, rank.call(5))
    assert [(edge.use.role.value, edge.call.id) for edge in optimizer.makers] == [("gradient", 4)]
    readers = [(edge.call.id, edge.use.value) for edge in optimizer.readers]
    assert readers == [(8, weight_of(1)), (12, weight_of(1))]


def test_the_overview_counts(trace: Trace) -> None:
    overview = overview_of(trace)
    rank = overview.ranks[0]
    assert (rank.calls, rank.values, rank.saved_values, rank.steps) == (21, 23, 0, (0, 1, 2))
    assert {(count.kind, count.phase): count.calls for count in rank.counts}["backward", "backward"] == 6
