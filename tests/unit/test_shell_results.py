"""Results of comparisons, of every generation of the tool that wrote them."""

import csv
import math
from pathlib import Path

import pytest

from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.ascend.result_table import is_result_table, read_result_table
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.show.command import low_operators

EXPECTED = Path(__file__).parents[1] / "data" / "ascend" / "expected"
GENERATIONS = [
    EXPECTED / "msaccucmp_2022-05" / "cmp_npu_tf_plain.csv",
    EXPECTED / "msprobe_26.2.0" / "cmp_npu_tf_plain.csv",
]


@pytest.mark.parametrize("path", GENERATIONS, ids=lambda path: path.parent.name)
def test_left_is_the_npu_and_right_the_reference(path: Path) -> None:
    operators = {operator.name: operator for operator in read_result_table(path)}
    matmul = operators["fc2/MatMul"]
    assert (matmul.index, matmul.target, matmul.reference) == ("18", ("fc2/MatMul",), ("fc2/MatMul", "fc2/BiasAdd"))
    assert [tensor.cosine for tensor in matmul.of(Side.INPUT)] == [0.567533, 1.0]
    assert [tensor.cosine for tensor in matmul.of(Side.OUTPUT)] == [0.403615]


@pytest.mark.parametrize("path", GENERATIONS, ids=lambda path: path.parent.name)
def test_every_row_with_a_tensor_is_read(path: Path) -> None:
    with open(path, newline="", encoding="utf-8") as file:
        expected = [row["TensorIndex"] for row in csv.DictReader(file) if row["TensorIndex"] != "NaN"]
    found = [
        f"{operator.name}:{tensor.side.value}:{tensor.index}"
        for operator in read_result_table(path)
        for tensor in operator.tensors
    ]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("path", GENERATIONS, ids=lambda path: path.parent.name)
def test_the_wrong_operator_is_the_first_that_is_low(path: Path) -> None:
    (found,) = low_operators(path, cosine=0.98, limit=2)
    assert [operator.name for operator in found.operators] == ["fc1/Relu", "fc2/MatMul"]
    assert found.total > 2


def test_a_result_of_2021_is_read(tmp_path: Path) -> None:
    path = tmp_path / "result.csv"
    path.write_text(
        "LeftOp,RightOp,TensorIndex,CosineSimilarity\na/b,c,a/b:output:0,0.5\na/b,c,a/b:input:0,NaN\nd,*,NaN,NaN\n"
    )
    (operator,) = read_result_table(path)
    assert (operator.index, operator.name, operator.target, operator.reference) == ("", "a/b", ("a/b",), ("c",))
    assert math.isnan(operator.of(Side.INPUT)[0].cosine)
    (found,) = low_operators(path)
    assert [low.name for low in found.operators] == ["a/b"]


def test_what_was_not_computed_is_not_low_and_the_limit_itself_is(tmp_path: Path) -> None:
    rows = [
        "LeftOp,RightOp,TensorIndex,CosineSimilarity",
        "a,a,a:output:0,NaN",
        "b,b,b:output:0,0.98",
        "c,c,c:input:0,0",
    ]
    (tmp_path / "result.csv").write_text("\n".join(rows))
    (found,) = low_operators(tmp_path, cosine=0.98)
    assert [operator.name for operator in found.operators] == ["b"]
    assert found.compared == 3


def test_a_directory_is_searched_for_results_only(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UlpscopeError, match="holds no result"):
        low_operators(tmp_path)
    with pytest.raises(UlpscopeError, match="does not exist"):
        low_operators(tmp_path / "nothing")


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b'LeftOp,RightOp,TensorIndex\n"'])
def test_files_that_are_no_result_are_told_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.csv"
    path.write_bytes(content)
    assert not is_result_table(path)
    with pytest.raises(UlpscopeError, match=r"result\.csv"):
        read_result_table(path)


@pytest.mark.parametrize("row", ["a", "a,b,a:output:x,1", "a,b,a:side:0,1", "a,b,:::,1", 'a,b,"a:output:0', "a,b,*,0"])
def test_a_row_that_cannot_be_read_is_passed_over(tmp_path: Path, row: str) -> None:
    path = tmp_path / "result.csv"
    path.write_text(f"LeftOp,RightOp,TensorIndex,CosineSimilarity\nx,y,x:output:0,1.0\n{row}")
    assert [operator.name for operator in read_result_table(path)] == ["x"]


def test_an_operator_with_very_many_tensors_is_read_at_once(tmp_path: Path) -> None:
    rows = 200_000
    path = tmp_path / "result.csv"
    path.write_text("LeftOp,RightOp,TensorIndex,CosineSimilarity\n" + "x,y,x:output:0,1.0\n" * rows)
    (operator,) = read_result_table(path)
    assert len(operator.tensors) == rows
