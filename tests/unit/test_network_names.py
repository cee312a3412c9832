"""Operators whose names are the same in files, a/b and a_b: each is compared with its own, or with nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from network_data import model, operator
from network_making import Array, Network, half, modules, random

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes
from ulpscope.align.network.names import OriginalNames, SharedName, assign_dumps
from ulpscope.align.network.planning import plan_network
from ulpscope.dialects.ascend.operations import Operation, read_operations
from ulpscope.dialects.ascend.tree import list_dumps
from ulpscope.dialects.reference import npy_tensors
from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.checks import Verdict
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import Input, Original, Source, TensorDesc
from ulpscope.report.words.language import Language
from ulpscope.workflows.check.dumps import check_dumps, plan_dump_check
from ulpscope.workflows.network.command import NetworkOptions, compare_network, pair_without_graph
from ulpscope.workflows.network.detail import DetailWish, compare_tensor
from ulpscope.workflows.tensor_lookup import dumps_of


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def pairs_of(network: Network) -> list[tuple[str | None, str | None]]:
    """Dumped outputs, each with the reference that it is compared with."""
    return [
        (row.tensor_id, None if row.reference is None else row.reference.path.name)
        for row in network.compare().paired.rows
        if row.tensor is not None and row.tensor.side.value == "output"
    ]


def told(network: Network) -> list[str]:
    missing: list[str] = network.compare().json()["missing"]
    return missing


def reference_of(network: Network, name: str, made: Array, *, time: int = 0) -> None:
    np.save(network.root / "reference" / f"{name}.0.{FIRST_TIME + time}.npy", made)


@pytest.mark.parametrize("dumped", ["a/b", "a_b"])
def test_the_head_of_a_dump_tells_whose_it_is(network: Network, dumped: str) -> None:
    """Both have a reference of their own shape, one was not dumped: its reference is not compared with the other."""
    for name, shape in (("a/b", (4, 8)), ("a_b", (16, 8)), ("x/y", (3, 5))):
        made = random(*shape)
        network.add(name, "Relu", half(made), reference=made, dumped=name in (dumped, "x/y"))

    assert [pair[0] for pair in pairs_of(network)] == [f"{dumped}:output:0", "x/y:output:0"]
    other = "a_b" if dumped == "a/b" else "a/b"
    assert told(network) == [f"not dumped: 1 operator, such as {other}"]
    assert not network.compare().findings


def test_a_head_that_names_another_operator_is_believed(network: Network) -> None:
    network.add("a.b", "Relu", half(random(4, 8)), reference=random(4, 8), head="a/b")

    assert pairs_of(network) == []
    assert told(network) == [
        "not dumped: 1 operator, such as a.b",
        "not compared, because the graph does not have them: 1 operator of the dumps, such as a/b",
    ]


@pytest.mark.parametrize("by", ["type", "shape"])
def test_types_and_shapes_tell_whose_a_dump_is(network: Network, by: str) -> None:
    first, second = random(4, 8), random(*((4, 8) if by == "type" else (16, 8)), seed=2)
    kinds = ("Relu", "Exp") if by == "type" else ("Relu", "Relu")
    network.add("a/b", kinds[0], half(first), dumped=False)
    network.add("a_b", kinds[1], half(second), head="")
    reference_of(network, "other", second)

    assert [pair[0] for pair in pairs_of(network)] == ["a_b:output:0"]


def test_a_dump_that_may_be_of_either_is_compared_with_neither(network: Network) -> None:
    right, wrong = random(4, 8), random(4, 8, seed=2)
    network.add("a/b", "Relu", half(right), dumped=False)
    network.add("a_b", "Relu", half(wrong), head="")
    reference_of(network, "other", right)
    result = network.compare()

    assert [row.tensor for row in result.paired.rows] == [None, None]
    assert told(network) == [
        "not compared: 2 operators, such as a/b / a_b: their dump files have the same name, and neither the head of a "
        "file nor types and shapes tell whose it is"
    ]
    chinese = result.json(Language.ZH)["missing"]
    assert chinese == [
        "2 个算子未比较，例如 a/b / a_b：它们的 dump 文件同名，文件头、类型和形状都无法判断文件属于哪一个"
    ]
    reasons = [row.reason for row in result.paired.rows]
    assert reasons == [
        f"[{name}] The dump files of a/b and a_b have the same name and cannot be told apart."
        for name in ("a/b", "a_b")
    ]


def test_two_dumps_without_heads_are_told_apart_by_type(network: Network) -> None:
    """The later one is not taken for both, nor does it hide the other."""
    for name, kind, seed in (("a/b", "Relu", 1), ("a_b", "Exp", 2)):
        made = random(4, 8, seed=seed)
        network.add(name, kind, half(made), head="")
        reference_of(network, "other", made)

    assert [row.tensor_id for row in network.compare().paired.rows] == ["a/b:output:0", "a_b:output:0"]


def test_a_reference_of_one_shape_belongs_to_the_operator_of_that_shape(network: Network) -> None:
    wide, high = random(4, 8), random(16, 8, seed=2)
    network.add("a/b", "Relu", half(wide))
    network.add("a_b", "Relu", half(high))
    reference_of(network, "a_b", high)
    result = network.compare()

    assert pairs_of(network) == [("a/b:output:0", None), ("a_b:output:0", f"a_b.0.{FIRST_TIME}.npy")]
    assert not result.findings
    assert result.comparison.counts.tensors_compared == 1
    assert told(network) == ["1 tensor has no partner in the reference, such as a/b:output:0"]


def test_references_that_nothing_tells_apart_are_not_compared(network: Network) -> None:
    """One of them would be a wrong partner, and an operator that is right would be blamed."""
    first, second = random(4, 8), random(4, 8, seed=2)
    network.add("a/b", "Relu", half(first))
    network.add("a_b", "Relu", half(second))
    network.add("c", "Relu", half(second), reference=second)
    reference_of(network, "a_b", second, time=7)
    result = network.compare()

    assert modules(result) == []
    assert result.comparison.counts.tensors_compared == 1
    assert told(network) == [
        "not compared: 2 tensors, such as a/b:output:0: reference files of a/b / a_b have the same name, and shapes do "
        "not tell whose they are"
    ]


def test_an_input_of_onnx_is_not_an_operator_of_that_name(network: Network) -> None:
    """`input_x` is what a dump of ONNX calls the input x, unless the network has an operator input_x."""
    given, made = random(4, 8), random(4, 8, seed=2)
    network.add("x", "Data", given, dumped=False)
    network.add("input_x", "Relu", made, reads=("x",), reference=made)
    network.add("y", "Relu", half(made), reads=("x",), reference=made)
    result = network.compare()

    inputs = [row for row in result.paired.rows if row.tensor is not None and row.tensor.side.value == "input"]
    assert [row.reference for row in inputs] == [None, None]


def test_the_operator_that_is_named_is_looked_into(network: Network) -> None:
    for name, shape in (("a_b", (2, 2)), ("a/b", (4, 8))):
        made = random(*shape)
        network.add(name, "Relu", half(made), reference=made)
    paired = network.compare().paired

    for name, elements in (("a_b", 4), ("a/b", 32)):
        found = compare_tensor(paired, DetailWish(name))
        assert (found.detail.operator, found.json()["elements"]) == (name, elements)
    with pytest.raises(UlpscopeError, match="may be a_b or a/b"):
        compare_tensor(paired, DetailWish("a.b"))


def test_dumps_of_another_run_belong_to_whose_name_they_tell(network: Network, tmp_path: Path) -> None:
    other = Network(tmp_path / "other")
    for name, seed in (("a/b", 1), ("a_b", 2), ("c/d", 3)):
        made = random(4, 8, seed=seed)
        network.add(name, "Relu", half(made))
        other.add(name, "Relu", half(made), dumped=name != "a/b")
    result = compare_network(other.root / "dump", network.root / "dump", network.graph(), NetworkOptions())

    partners = {row.operator.name: row.reference is not None for row in result.paired.rows}
    assert partners == {"a/b": False, "a_b": True, "c/d": True}
    assert result.comparison.counts.identical == 2


def operations(folder: Path, *named: tuple[str, str], shape: tuple[int, ...] = (2, 3)) -> list[Operation]:
    """Dumps of a_b: the type in the file's name, and the name in its head."""
    for number, (kind, head) in enumerate(named):
        content = file_bytes(head, inputs=[], outputs=[Tensor(np.zeros(shape, np.float32))])
        (folder / f"{kind}.a_b.{number}.0.{FIRST_TIME + number}").write_bytes(content)
    return read_operations(list_dumps(folder), lambda path, error: pytest.fail(f"{path}: {error}"))


def owners(found: list[Operation], *rivals: object) -> dict[str, object]:
    assigned = assign_dumps(found, rivals).by_operator  # type: ignore[arg-type]
    return {
        name: each if isinstance(each, SharedName) else f"{each.name.op_type}.{each.name.timestamp - FIRST_TIME}"
        for name, each in assigned.items()
    }


def test_the_last_of_several_executions_counts(tmp_path: Path) -> None:
    found = operations(tmp_path, ("Relu", "a/b"), ("Relu", "a/b"))

    assert owners(found, operator("a/b")) == {"a/b": "Relu.1"}


def test_a_name_without_parts_is_whole_if_heads_tell_names_whole(tmp_path: Path) -> None:
    found = operations(tmp_path, ("Relu", "a_b"), ("Relu", "a/b"))

    assert owners(found, operator("a/b"), operator("a_b")) == {"a/b": "Relu.1", "a_b": "Relu.0"}
    assert owners(found[:1], operator("a/b"), operator("a_b")) == {
        name: SharedName(("a/b", "a_b")) for name in ("a/b", "a_b")
    }


def test_shapes_of_inputs_tell_too_and_other_orders_of_axes_are_the_same(tmp_path: Path) -> None:
    content = file_bytes(
        "", inputs=[Tensor(np.zeros((4, 5), np.float32))], outputs=[Tensor(np.zeros((2, 3), np.float32))]
    )
    (tmp_path / f"Relu.a_b.1.0.{FIRST_TIME}").write_bytes(content)
    found = read_operations(list_dumps(tmp_path), lambda path, error: pytest.fail(f"{path}: {error}"))
    outputs = (TensorDesc(shape=(3, 2)),)
    first, second = (
        replace(operator(name, outputs=outputs), inputs=(Input(Source("x", 0), TensorDesc(shape=shape)),))
        for name, shape in (("a/b", (4, 6)), ("a_b", (5, 4)))
    )

    assert owners(found, first, second) == {"a_b": "Relu.0"}


def test_a_reference_that_keeps_whole_names_needs_no_shapes(tmp_path: Path) -> None:
    np.save(tmp_path / f"a_b.0.{FIRST_TIME}.npy", np.zeros(3))
    (tensor,) = npy_tensors(tmp_path)
    plan = plan_network(model(operator("a/b"), operator("a_b")))
    whole, from_files = OriginalNames(plan, whole=True), OriginalNames(plan, whole=False)

    assert whole.choose(Original("a/b", 0), [tensor]) is None
    assert whole.choose(Original("a_b", 0), [tensor]) is tensor
    assert whole.choose(Original("a_b", 0), [replace(tensor, op="_arg_a_b_0_3")]) is not None
    assert from_files.choose(Original("a_b", 0), [tensor]) == SharedName(("a/b", "a_b"))


def two_operators(folder: Path, *, head: str, second: str = "Relu") -> tuple[Path, Path]:
    """A graph with a/b and a_b, and a dump of a_b, and one of c/d."""
    for number, (name, told_name) in enumerate((("a_b", head), ("c_d", "c/d"))):
        content = file_bytes(
            told_name, inputs=[Tensor(np.ones(3, np.float32))], outputs=[Tensor(np.ones(3, np.float32))]
        )
        (folder / f"Relu.{name}.{number}.0.{FIRST_TIME + number}").write_bytes(content)
    graph = folder / "graph.txt"
    kinds = {"a/b": "Relu", "a_b": second, "c/d": "Relu"}
    operators = " ".join(f'op {{ name: "{name}" type: "{kind}" }}' for name, kind in kinds.items())
    graph.write_text(f'name: "g"\ngraph {{ name: "g" {operators} }}\n')
    return folder, graph


@pytest.mark.parametrize(
    ("head", "second", "reason"),
    [
        ("", "Relu", "the graph has 2 operators of its name and type"),
        ("", "Exp", ""),
        ("a/b", "Relu", ""),
        ("a.b", "Relu", "it is not in the graph"),
    ],
)
def test_an_operator_is_checked_if_it_is_known_which_it_is(tmp_path: Path, head: str, second: str, reason: str) -> None:
    plan = plan_dump_check(*two_operators(tmp_path, head=head, second=second), CheckOptions())
    first, other = check_dumps(plan, CheckOptions(), figures=False, heard=lambda _: None).run.calls

    assert (first.verdict, first.cases[0].result.message) == (Verdict.SKIP if reason else Verdict.PASS, reason)
    assert other.verdict is Verdict.PASS


def test_show_tells_the_dumps_of_the_operator_that_is_named(tmp_path: Path) -> None:
    folder, _ = two_operators(tmp_path, head="a/b")

    assert len(dumps_of(operator("a/b"), folder).tensors) == 2
    assert dumps_of(operator("a_b"), folder).tensors == ()


def dumped(folder: Path, *operators: tuple[str, str, str]) -> Path:
    """A folder of dumps: types, names in files and names in heads."""
    folder.mkdir()
    for number, (kind, file, head) in enumerate(operators):
        content = file_bytes(head, inputs=[], outputs=[Tensor(np.full(3, number, np.float32))])
        (folder / f"{kind}.{file}.{number}.0.{FIRST_TIME + number}").write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        ([("Relu", "a_b", "a/b"), ("Exp", "c_d", "c/d")], {"a/b": "Relu.a_b.0", "c_d": "Exp.c_d.2"}),
        ([("Relu", "a_b", "a_b"), ("Exp", "c_d", "c/d")], {"a_b": "Relu.a_b.1", "c_d": "Exp.c_d.2"}),
        ([("Relu", "a_b", ""), ("Exp", "c_d", "")], {"c_d": "Exp.c_d.2"}),
    ],
)
def test_without_a_graph_dumps_are_paired_by_whole_names_where_files_share_one(
    tmp_path: Path, mine: list[tuple[str, str, str]], expected: dict[str, str]
) -> None:
    theirs = dumped(tmp_path / "theirs", ("Relu", "a_b", "a/b"), ("Relu", "a_b", "a_b"), ("Exp", "c_d", "c/d"))
    paired = pair_without_graph(theirs, dumped(tmp_path / "mine", *mine), NetworkOptions())
    partners = {row.operator.name: row.reference for row in paired.rows if row.reference is not None}

    assert {name: ".".join(found.path.name.split(".")[:3]) for name, found in partners.items()} == expected


def test_without_a_graph_other_types_of_one_name_are_paired_unless_they_are_two_operators(tmp_path: Path) -> None:
    one, other = dumped(tmp_path / "one", ("Relu", "a", "a")), dumped(tmp_path / "other", ("ReluV2", "a", "a"))
    two = dumped(tmp_path / "two", ("Relu", "a", "a"), ("Exp", "a", "a"))

    assert [row.reference is not None for row in pair_without_graph(one, other, NetworkOptions()).rows] == [True]
    rows = pair_without_graph(two, one, NetworkOptions()).rows
    assert [(row.operator.name, row.reference is not None) for row in rows] == [("Relu.a", True), ("Exp.a", False)]


def test_what_was_dumped_and_cannot_be_compared_is_told(network: Network) -> None:
    made = random(4, 8)
    network.add("a", "Relu", half(made), reference=made)
    network.add("b", "Relu", half(made), reference=made, dumped=False)
    columns = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value"
    stats = f"{columns}\nOutput,0,64,DT_FLOAT16,ND,4x8,1,0,0.5\n"
    (network.root / "dump" / f"Relu.b.7.0.{FIRST_TIME + 7}.csv").write_text(stats)
    (network.root / "dump" / "1234567890123456").write_bytes(b"")

    assert told(network) == [
        f"1 file is not named in {network.root / 'dump' / 'mapping.csv'}, such as 1234567890123456",
        "not compared: 1 operator of which only stats were dumped, such as b",
        "not dumped: 1 operator, such as b",
    ]
