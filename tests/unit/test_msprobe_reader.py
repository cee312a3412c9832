"""msprobe's dumps as traces: names, order, phases, uses, values and stats of small dumps written by hand."""

import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.unit.msprobe_dumps import backward, forward, scalar, tensor, write_dump

from ulpscope.dialects.opening import open_run
from ulpscope.records.calls import Call, Frame
from ulpscope.records.enums import Kind, Phase
from ulpscope.records.errors import TraceError
from ulpscope.trace.query import find_call
from ulpscope.trace.reader import RankTrace, Trace

LINEAR = "Functional.linear.0.forward"
BLOCK = "Module.blocks.0.Block.forward.0"
FC = "Module.blocks.0.fc.Linear.forward.0"


def open_dump(tmp_path: Path, data: Any, **options: Any) -> RankTrace:
    write_dump(tmp_path, data, **options)
    return open_run(tmp_path).ranks[0]


def calls_of(rank: RankTrace) -> list[Call]:
    ids = rank.collect(rank.calls().select("id"))["id"].to_list()
    found = rank.find_calls(ids)
    return [found[number] for number in ids]


def uses_of(rank: RankTrace, call: Call) -> list[tuple[str, str, int]]:
    return [(use.role.value, use.place, use.value) for use in rank.uses(call.id)]


def block_dump() -> tuple[dict[str, Any], dict[str, Any]]:
    """A module with a linear layer and an addition inside, and their backward."""
    x, hidden, out = tensor(1.0), tensor(2.0), tensor(3.0)
    weight, gradient, inner = tensor(4.0, shape=(3, 3)), tensor(0.1), tensor(0.2)
    data = {
        LINEAR: forward([x, weight, None], [hidden]),
        FC: forward([x], [hidden], parameters={"weight": weight}),
        "Tensor.__add__.0.forward": forward([hidden, x], [out]),
        BLOCK: forward([x], [out]),
        "Tensor.__add__.0.backward": backward([gradient], [gradient, gradient]),
        "Functional.linear.0.backward": backward([gradient], [inner, tensor(0.3, shape=(3, 3))]),
        "Module.blocks.0.fc.Linear.parameters_grad.0": {"weight": [tensor(0.3, shape=(3, 3))]},
        "Module.blocks.0.fc.Linear.backward.0": backward([gradient], [inner]),
        "Module.blocks.0.Block.backward.0": backward([gradient], [tensor(0.5)]),
        "Tensor.mul_.0.forward": forward([weight, scalar(0.9)], [tensor(5.0, shape=(3, 3))]),
    }
    construct = {
        LINEAR: FC,
        FC: BLOCK,
        "Tensor.__add__.0.forward": BLOCK,
        BLOCK: None,
        "Functional.linear.0.backward": "Module.blocks.0.fc.Linear.backward.0",
        "Module.blocks.0.fc.Linear.backward.0": "Module.blocks.0.Block.backward.0",
    }
    return data, construct


def test_calls_stand_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    data, construct = block_dump()
    rank = open_dump(tmp_path, data, construct=construct)
    told = [(call.name, call.kind.value, call.phase.value, call.parent, call.forward) for call in calls_of(rank)]
    assert told == [
        ("Block.0", "module", "forward", None, None),
        ("Linear.0", "module", "forward", 0, None),
        ("torch.nn.functional.linear.0", "api", "forward", 1, None),
        ("torch.Tensor.__add__.0", "api", "forward", 0, None),
        ("torch.Tensor.__add__.0", "backward", "backward", None, 3),
        ("Block.0", "module_backward", "backward", None, 0),
        ("Linear.0", "module_backward", "backward", 5, 1),
        ("torch.nn.functional.linear.0", "backward", "backward", 6, 2),
        ("torch.Tensor.mul_.0", "api", "update", None, None),
    ]
    modules = [(call.module, call.module_class) for call in calls_of(rank)]
    assert modules[:5] == [
        ("model.blocks.0", "Block"),
        ("model.blocks.0.fc", "Linear"),
        ("model.blocks.0.fc", "Linear"),
        ("model.blocks.0", "Block"),
        ("model.blocks.0", "Block"),
    ]
    assert modules[8] == (None, None)


def test_equal_contents_are_one_value_with_the_innermost_producer(tmp_path: Path) -> None:
    data, construct = block_dump()
    rank = open_dump(tmp_path, data, construct=construct)
    block, fc, linear, add, add_back, block_back, fc_back, linear_back, update = calls_of(rank)
    x, weight, hidden, out = 0, 1, 2, 3
    assert uses_of(rank, linear) == [
        ("input", "args.0", x),
        ("input", "args.1", weight),
        ("output", "output.0", hidden),
    ]
    assert uses_of(rank, fc) == [
        ("input", "args.0", x),
        ("parameter", "weight", weight),
        ("output", "output.0", hidden),
    ]
    assert uses_of(rank, block) == [("input", "args.0", x), ("output", "output.0", out)]
    assert [rank.value(number).producer for number in (x, weight, hidden, out)] == [None, None, linear.id, add.id]
    assert [(role, place) for role, place, _ in uses_of(rank, add_back)] == [
        ("grad_output", "output.0"),
        ("grad_input", "args.0"),
        ("grad_input", "args.1"),
    ]
    assert [(role, place) for role, place, _ in uses_of(rank, linear_back)][1:] == [
        ("grad_input", "args.0"),
        ("grad_input", "args.1"),
    ]
    assert [(role, place) for role, place, _ in uses_of(rank, fc_back)] == [
        ("gradient", "weight"),
        ("grad_output", "output.0"),
        ("grad_input", "args.0"),
    ]
    assert {rank.value(value).producer for role, _, value in uses_of(rank, fc_back) if role == "gradient"} == {
        linear_back.id
    }
    assert rank.value(uses_of(rank, block_back)[1][2]).producer == block_back.id
    assert uses_of(rank, update)[0] == ("input", "args.0", weight)


def test_what_an_api_returns_is_a_value_of_its_own(tmp_path: Path) -> None:
    same = tensor(1.0)
    data = {
        "Functional.dropout.0.forward": forward([same, scalar(0.0)], [same]),
        "Functional.relu.0.forward": forward([same], [same]),
    }
    rank = open_dump(tmp_path, data)
    dropout, relu = calls_of(rank)
    assert [use[2] for use in uses_of(rank, dropout)] == [0, 1]
    assert [use[2] for use in uses_of(rank, relu)] == [1, 2]


@pytest.mark.parametrize(
    ("content", "merged"),
    [
        (tensor(1.0), True),
        (tensor(None, Max=3, Min=1, dtype="torch.int64"), False),
        (tensor(None, Max=0, Min=0, dtype="torch.int64"), True),
        (tensor(None), False),
        (tensor(None, md5="12ab34cd"), True),
        (tensor(None, md5="0x0000000000000000"), False),
        (tensor(1.0, Max=math.nan, Min=math.nan, Mean=math.nan, Norm=math.nan), False),
        (tensor(1.0, Min=-math.inf, Mean=-math.inf, Norm=math.inf), False),
    ],
)
def test_contents_are_one_value_only_if_the_dump_tells_them(
    tmp_path: Path, content: dict[str, Any], merged: bool
) -> None:
    data = {"Torch.a.0.forward": forward([], [content]), "Torch.b.0.forward": forward([content], [])}
    rank = open_dump(tmp_path, data)
    first, second = calls_of(rank)
    assert (uses_of(rank, first)[0][2] == uses_of(rank, second)[0][2]) is merged


def test_views_and_casts_that_were_left_out_have_the_producer_of_their_content(tmp_path: Path) -> None:
    made = tensor(1.0)
    view = made | {"shape": [6]}
    cast = made | {"dtype": "torch.bfloat16", "Mean": 0.12, "Norm": 1.01}
    other = tensor(1.0, shape=(7,))
    unknown = tensor(1.0, Max=math.nan, Min=math.nan, Mean=math.nan, Norm=math.nan)
    data = {
        "Torch.a.0.forward": forward([], [made, unknown]),
        "Torch.b.0.forward": forward([view, cast, other, unknown], []),
        "Torch.c.0.forward": forward([], [tensor(2.0)]),
        "Module.m.M.forward.0": forward([], [tensor(2.0, shape=(6,))]),
    }
    rank = open_dump(tmp_path, data, construct={"Torch.c.0.forward": "Module.m.M.forward.0"})
    a, b, module, c = calls_of(rank)
    assert [rank.value(use.value).producer for use in rank.uses(b.id)] == [a.id, a.id, None, None]
    assert rank.value(rank.uses(module.id)[0].value).producer == c.id


def test_a_checksum_that_was_made_too_late_is_not_believed(tmp_path: Path) -> None:
    """msprobe makes CRC-32s in other threads: that of an overwritten argument may be the result's."""
    zero, one = tensor(None, Max=0, Min=0, shape=()), tensor(None, Max=1, Min=1, shape=())
    moving = tensor(3.0)
    data = {
        "Tensor.add_.0.forward": forward([zero | {"md5": "11111111"}], [one | {"md5": "11111111"}]),
        "Tensor.add_.1.forward": forward([zero | {"md5": "00000000"}], [one | {"md5": "11111111"}]),
        "Tensor.mul.0.forward": forward([], [moving | {"md5": "aaaaaaaa"}]),
        "Tensor.mul_.0.forward": forward([moving | {"md5": "bbbbbbbb"}], []),
        "Tensor.mul_.1.forward": forward([tensor(4.0, md5="cccccccc")], []),
        "Tensor.mul.1.forward": forward([moving | {"md5": "bbbbbbbb"}], []),
    }
    rank = open_dump(tmp_path, data)
    first, second, made, same, unseen, permuted = [rank.uses(call.id)[0].value for call in calls_of(rank)]
    assert first == second
    assert made == same
    assert rank.value(unseen).digest is None
    assert permuted != made


def test_shape_and_dtype_tell_values_apart(tmp_path: Path) -> None:
    contents = [tensor(1.0), tensor(1.0, shape=(3, 2)), tensor(1.0, dtype="torch.bfloat16")]
    rank = open_dump(tmp_path, {"Torch.a.0.forward": forward(contents, [])})
    assert [use[2] for use in uses_of(rank, calls_of(rank)[0])] == [0, 1, 2]
    assert rank.value(2).dtype == "bfloat16"


def test_a_later_step_uses_values_of_an_earlier_one(tmp_path: Path) -> None:
    write_dump(tmp_path, {"Tensor.add_.0.forward": forward([tensor(1.0)], [tensor(2.0)])}, step=3)
    write_dump(tmp_path, {"Functional.relu.0.forward": forward([tensor(2.0)], [tensor(4.0)])}, step=5)
    trace = open_run(tmp_path)
    rank = trace.ranks[0]
    assert trace.steps == (3, 5)
    first, second = calls_of(rank)
    assert (first.id, first.step, second.id, second.step) == (0, 3, 1, 5)
    assert uses_of(rank, second) == [("input", "args.0", 1), ("output", "output.0", 2)]
    assert sorted(rank.collect(rank.values(5))["id"].to_list()) == [1, 2]
    assert rank.value(1).producer == 0
    assert rank.value(2).producer == 1


def test_arguments_are_encoded_like_those_of_a_capture(tmp_path: Path) -> None:
    args = [
        tensor(1.0),
        [scalar(32), scalar(True)],
        None,
        scalar(1e-05),
        scalar(math.inf),
        {"type": "slice", "value": [None, 3, None]},
        {"type": "torch.dtype", "value": "torch.bfloat16"},
        {"type": "torch.device", "value": "npu:0"},
        {"type": "torch.Size", "value": [2, 3]},
        {"type": "torch.memory_format", "format": "torch.channels_last"},
        {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "7"},
        {"a": tensor(2.0)},
        scalar("mean"),
    ]
    entry = forward(args, [scalar(4)]) | {"input_kwargs": {"mask": tensor(3.0), "p": scalar(0.5)}}
    call = calls_of(open_dump(tmp_path, {"Functional.f.0.forward": entry}))[0]
    assert call.arguments == {
        "args": [
            {"$tensor": "args.0"},
            [32, True],
            None,
            1e-05,
            {"$float": "inf"},
            {"$slice": [None, 3, None]},
            {"$dtype": "bfloat16"},
            {"$device": "npu:0"},
            {"$size": [2, 3]},
            {"$memory_format": "channels_last"},
            {"$object": "torch.ProcessGroup", "fields": {"$dict": [["group_ranks", [0, 1]], ["group_id", "7"]]}},
            {"$dict": [["a", {"$tensor": "args.11.a"}]]},
            "mean",
        ],
        "kwargs": {"mask": {"$tensor": "kwargs.mask"}, "p": 0.5},
        "returned": 4,
    }


@pytest.mark.parametrize(
    ("entry", "framework", "op", "kind"),
    [
        ("Functional.gelu.0.forward", "pytorch", "torch.nn.functional.gelu", Kind.API),
        ("Torch.matmul.7.forward", "pytorch", "torch.matmul", Kind.API),
        ("Torch.linalg.norm.0.forward", "pytorch", "torch.linalg.norm", Kind.API),
        ("NPU.npu_rms_norm.0.forward", "pytorch", "torch_npu.npu_rms_norm", Kind.API),
        ("Distributed.all_reduce.3.forward", "pytorch", "torch.distributed.all_reduce", Kind.COLLECTIVE),
        ("MindSpeed.f.0.forward", "pytorch", "MindSpeed.f", Kind.API),
        ("Functional.gelu.0.forward", "mindspore", "mindspore.ops.gelu", Kind.API),
        ("Mint.add.0.forward", "mindspore", "mindspore.mint.add", Kind.API),
        ("Primitive.conv2d.Conv2D.0.forward", "mindspore", "Primitive.conv2d.Conv2D", Kind.API),
        ("Cell.net.fc.Dense.forward.0", "mindspore", "Dense", Kind.MODULE),
        ("something else", "pytorch", "something else", Kind.API),
    ],
)
def test_names_say_what_an_entry_is(tmp_path: Path, entry: str, framework: str, op: str, kind: Kind) -> None:
    call = calls_of(open_dump(tmp_path, {entry: forward([], [])}, framework=framework))[0]
    assert (call.op, call.kind) == (op, kind)


def run_of(names: str) -> dict[str, Any]:
    """Entries `f0 f1 b1 b0 ...` of one API."""
    directions = {"f": "forward", "b": "backward"}
    forms = {"f": forward([], []), "b": backward([], [])}
    return {f"Torch.op.{name[1:]}.{directions[name[0]]}": forms[name[0]] for name in names.split()}


@pytest.mark.parametrize(
    ("names", "phases", "micro_steps"),
    [
        ("f0 f1", "f f", "0 0"),
        ("f0 f1 b1 b0 f2 f3", "f f b b u u", "0 0 0 0 0 0"),
        # Gradient accumulation: the first backward is over when the second forward begins.
        ("f0 b0 f1 b1 f2", "f b f b u", "0 0 1 1 1"),
        # Recomputed inside the backward: call 0 still waits for its own.
        ("f0 f1 f2 b2 f3 b3 b0 f4", "f f f b r b b u", "0 0 0 0 0 0 0 0"),
    ],
)
def test_phases_are_told_from_the_order(tmp_path: Path, names: str, phases: str, micro_steps: str) -> None:
    calls = calls_of(open_dump(tmp_path, run_of(names)))
    letters = {Phase.FORWARD: "f", Phase.BACKWARD: "b", Phase.UPDATE: "u"}
    assert " ".join("r" if call.recompute else letters[call.phase] for call in calls) == phases
    assert " ".join(str(call.micro_step) for call in calls) == micro_steps
    assert [call.name.endswith("@recompute") for call in calls] == [call.recompute for call in calls]


def test_a_stack_tells_recomputation_from_a_pipeline(tmp_path: Path) -> None:
    """One forward, one backward in turn: the stack shows that nothing is run again."""
    names = "f0 f1 b0 f2 b1 b2"
    plain = "File /home/user/train.py, line 3, in main, \n x"
    again = "File /lib/python3/site-packages/torch/utils/checkpoint.py, line 1128, in unpack_hook, \n y"
    stack = {"0": [[f"Torch.op.{number}.forward" for number in range(3)], [plain]]}
    calls = calls_of(open_dump(tmp_path / "pipeline", run_of(names), stack=stack))
    assert [call.recompute for call in calls] == [False] * 6
    assert [call.micro_step for call in calls] == [0, 0, 0, 1, 0, 1]
    stack["1"] = [["Torch.op.2.forward"], [again, plain]]
    calls = calls_of(open_dump(tmp_path / "checkpoint", run_of(names), stack=stack))
    assert [call.recompute for call in calls] == [False, False, False, True, False, False]
    assert calls[3].phase is Phase.BACKWARD


def test_a_module_after_the_last_backward_runs_forward(tmp_path: Path) -> None:
    data = run_of("f0 b0 f1") | {"Torch.op.2.forward": forward([], []), "Module.fc.Linear.forward.0": forward([], [])}
    construct = {"Torch.op.2.forward": "Module.fc.Linear.forward.0"}
    phases = [call.phase for call in calls_of(open_dump(tmp_path, data, construct=construct))]
    assert phases == [Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE, Phase.FORWARD, Phase.FORWARD]


def test_megatron_states_micro_steps_itself(tmp_path: Path) -> None:
    construct = {"megatron_micro_step_number": 2, "Torch.op.0.forward": [None, 1], "Torch.op.1.forward": None}
    calls = calls_of(open_dump(tmp_path, run_of("f0 f1"), construct=construct))
    assert [(call.micro_step, call.parent) for call in calls] == [(1, None), (0, None)]


@pytest.mark.parametrize("form", ["shared", "by entry"])
def test_stacks_have_the_lines_of_the_user(tmp_path: Path, form: str) -> None:
    frames = [
        "File /venv/lib/python3.11/site-packages/torch/nn/modules/module.py, line 1778, in _call_impl, \n return x",
        "File /home/user/model.py, line 54, in forward, \n x = self.tok(ids)",
        "no frame at all",
    ]
    data = {LINEAR: forward([], []), "Functional.linear.0.backward": backward([], [])}
    stack = {"0": [[LINEAR], frames]} if form == "shared" else {LINEAR: frames}
    rank = open_dump(tmp_path, data, stack=stack)
    call, back = calls_of(rank)
    assert call.stack == back.stack == 0
    assert rank.stack(0) == (Frame("/home/user/model.py", 54, "forward"), Frame("no frame at all", 0, "unknown"))


def test_gradients_get_the_place_of_their_argument(tmp_path: Path) -> None:
    x, weight, bias = tensor(1.0), tensor(2.0, shape=(5, 3)), tensor(3.0, shape=(5,))
    ids = tensor(None, dtype="torch.int64", requires_grad=False)
    data = {
        "Functional.linear.0.forward": forward([x, weight, bias], []),
        "Functional.linear.0.backward": backward([], [tensor(shape=(5,)), tensor(), tensor(shape=(3, 5))]),
        "Functional.embedding.0.forward": forward([ids, weight], []),
        "Functional.embedding.0.backward": backward([], [tensor(shape=(5, 3))]),
        "Torch.mul.0.forward": forward([x, tensor(9.0)], []),
        "Torch.mul.0.backward": backward([], [None, tensor()]),
        "Torch.lost.0.backward": backward([], [None, tensor()]),
    }
    rank = open_dump(tmp_path, data)
    backwards = [call for call in calls_of(rank) if call.kind is Kind.BACKWARD]
    places = {call.op.split(".")[-1]: [place for _, place, _ in uses_of(rank, call)] for call in backwards}
    assert places == {
        "linear": ["args.2", "args.0", "node.2"],
        "embedding": ["args.1"],
        "mul": ["args.1"],
        "lost": ["args.1"],
    }


def test_stats_are_those_of_the_dump(tmp_path: Path) -> None:
    flags = {"dtype": "torch.bool", "Max": True, "Min": False, "Mean": None, "Norm": None}
    contents = [
        tensor(2.0),
        tensor(1.0, Max=math.nan, Min=math.nan, Mean=math.nan, Norm=math.nan),
        tensor(1.0, Max=math.inf, Min=-math.inf, Mean=math.nan, Norm=math.inf),
        tensor(1.0, Max=-math.inf, Min=-math.inf, Mean=-math.inf, Norm=math.inf),
        tensor(None, **flags),
        tensor(None),
    ]
    rank = open_dump(tmp_path, {"Torch.a.0.forward": forward(contents, [])})
    values = rank.find_values(range(6))
    known = [values[number].stats for number in range(5)]
    assert [stats and (stats.max, stats.min, stats.mean, stats.norm) for stats in known] == [
        (3.0, -3.0, 0.25, 2.0),
        (None, None, None, None),
        (None, None, None, None),
        (None, None, None, None),
        (1.0, 0.0, None, None),
    ]
    assert [stats and (stats.nan, stats.pos_inf, stats.neg_inf) for stats in known] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 1),
        (0, 0, 1),
        (0, 0, 0),
    ]
    assert known[0] is not None
    assert known[0].zero is None
    assert values[5].stats is None


def test_checksums_become_digests_of_their_own_kind(tmp_path: Path) -> None:
    contents = [tensor(md5="12ab34cd"), tensor(md5="12ab34cd", shape=(6,)), tensor(md5="00ab34cd")]
    crc = open_dump(tmp_path / "crc", {"Torch.a.0.forward": forward(contents, [])})
    assert crc.summary_id == "msprobe-md5"
    digests = [crc.value(number).digest for number in range(3)]
    assert len(set(digests)) == 3
    assert None not in digests
    bare = {"type": "torch.Tensor", "dtype": "torch.float32", "requires_grad": False}
    xor = {"Torch.a.0.forward": forward([bare | {"shape": [4], "md5": "0x12"}, bare | {"shape": [], "md5": 4.5}], [])}
    rank = open_dump(tmp_path / "xor", xor)
    assert rank.summary_id == "msprobe-xor"
    assert rank.value(0).stats is None
    number = rank.value(1).stats
    assert number is not None
    assert (number.min, number.max, number.mean) == (4.5, 4.5, 4.5)
    assert open_dump(tmp_path / "stats", {"Torch.a.0.forward": forward([tensor()], [])}).summary_id == "msprobe-stats"


def test_a_rank_says_what_the_dump_says_of_itself(tmp_path: Path) -> None:
    info = open_dump(tmp_path, {}, level="L0", task="tensor", process="rank3").info
    assert (info.rank, info.world_size, info.framework) == (3, 4, {"name": "torch"})
    assert (info.capture["level"], info.capture["save"]) == ("module", "tensors")


def test_every_part_of_a_dump_opens(tmp_path: Path) -> None:
    for step in (0, 2):
        for process in ("proc9", "proc31"):
            folder = write_dump(tmp_path, {LINEAR: forward([tensor()], [])}, step=step, process=process)
    (tmp_path / "step2" / "proc40").mkdir()

    def shape(trace: Trace) -> tuple[list[tuple[str, int]], tuple[int, ...]]:
        return [(rank.name, rank.info.rank) for rank in trace.ranks], trace.steps

    assert shape(open_run(tmp_path)) == ([("proc9", 0), ("proc31", 1)], (0, 2))
    assert shape(open_run(tmp_path / "step2")) == ([("proc9", 0), ("proc31", 1)], (2,))
    assert shape(open_run(folder)) == ([("proc31", 0)], (2,))
    assert shape(open_run(folder / "dump.json")) == ([("proc31", 0)], (2,))
    assert find_call(open_run(str(folder)), "linear.0").call.step == 2
    assert "proc40 has no dump.json" in " ".join(open_run(tmp_path).missing)


def test_saved_tensors_of_a_script_are_outputs(tmp_path: Path) -> None:
    data = {"before.0.debug": {"x": tensor(1.0), "pair": [tensor(2.0), scalar(3)]}, "loss.0.debug": tensor(3.0)}
    rank = open_dump(tmp_path, data, file="debug.json", level="debug", task="tensor")
    first, second = calls_of(rank)
    assert (first.name, first.phase) == ("debug.before.0", Phase.OTHER)
    assert [place for _, place, _ in uses_of(rank, first)] == ["output.x", "output.pair.0"]
    assert [place for _, place, _ in uses_of(rank, second)] == ["output.0"]


def test_frames_have_the_columns_of_a_trace(tmp_path: Path) -> None:
    from ulpscope.trace.schema import TABLES

    write_dump(tmp_path, {LINEAR: forward([tensor()], [tensor(2.0)])})
    trace = open_run(tmp_path)
    frames = {"calls": trace.calls(), "values": trace.values(), "tensors": trace.tensors(), "stacks": trace.stacks()}
    for table, columns in TABLES.items():
        found = trace.collect(frames[table])
        assert dict(found.schema) == {**dict(columns), "rank": pl.Int64, "process": pl.String}


def test_nothing_that_is_no_run_opens(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"or a dump of msprobe"):
        open_run(tmp_path)
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(TraceError, match="is a file of no kind that is known here"):
        open_run(tmp_path / "other.json")
    with pytest.raises(TraceError, match="does not exist"):
        open_run(tmp_path / "nowhere")


def test_a_recurrent_call_is_read_as_the_function_that_was_written(tmp_path: Path) -> None:
    rank = open_dump(tmp_path, {"VF.lstm.0.forward": forward([tensor(1.0)], [tensor(2.0)])})
    assert calls_of(rank)[0].op == "torch._VF.lstm"
