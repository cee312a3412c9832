"""A network compared with its reference: msaccucmp's tables cell by cell, and our own verdict."""

from pathlib import Path

import numpy as np
import pytest
from network_data import DATA, DUMPS, EXPECTED, GRAPH, LEAF, MSACCUCMP_26, OTHER_DUMPS, REFERENCE, expected_table

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.numerics.pairs.msaccucmp.metrics import ALGORITHMS, Generation
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.network.command import (
    NetworkOptions,
    NetworkResult,
    OperatorChoice,
    compare_dumps,
    compare_network,
    pair_without_graph,
)
from ulpscope.workflows.network.pairing import pair_with_graph

Row = dict[str, str]


def compared(
    options: NetworkOptions | None = None, *, dumps: Path = DUMPS, reference: Path = REFERENCE
) -> NetworkResult:
    return compare_network(reference, dumps, GRAPH, options or NetworkOptions(csv=Generation.OF_2025))


def by_tensor(table: list[list[str]]) -> dict[tuple[str, str], Row]:
    """Rows by index and tensor; the second column of a name that is there twice is the reference's."""
    header = [f"{name} of reference" if name in table[0][:place] else name for place, name in enumerate(table[0])]
    rows = [dict(zip(header, line, strict=True)) for line in table[1:]]
    return {(row["Index"], row["TensorIndex"]): row for row in rows}


def differing(mine: Row, theirs: Row) -> set[str]:
    return {name for name in theirs if mine[name] != theirs[name]}


def unseen(number: int, /, *, text: str | None = None) -> None:
    """No progress is watched here."""


@pytest.fixture(scope="module")
def result() -> NetworkResult:
    return compared()


def test_every_cell_is_that_of_msaccucmp_26(result: NetworkResult) -> None:
    assert result.table() == expected_table(MSACCUCMP_26 / "cmp_npu_tf_plain.csv")


def test_every_cell_is_that_of_msaccucmp_2025(result: NetworkResult) -> None:
    assert result.table() == expected_table(EXPECTED / "msaccucmp_2025-09_native/cmp_npu_tf_plain.csv")


def test_the_overflow_column() -> None:
    options = NetworkOptions(csv=Generation.OF_2025, overflow=True)

    assert compared(options).table() == expected_table(MSACCUCMP_26 / "cmp_npu_tf.csv")


def test_a_range_of_operators() -> None:
    options = NetworkOptions(csv=Generation.OF_2025, operators=OperatorChoice(span=(14, 18, 1)))

    assert compared(options).table() == expected_table(MSACCUCMP_26 / "range.csv")


def test_operators_one_by_one() -> None:
    options = NetworkOptions(csv=Generation.OF_2025, operators=OperatorChoice(numbers=frozenset((15, 17))))
    table = compared(options).table()
    whole = expected_table(MSACCUCMP_26 / "range.csv")

    assert table == [whole[0], *(line for line in whole[1:] if line[1] in ("15", "17"))]


@pytest.mark.parametrize(
    ("span", "chosen"),
    [((14, 18, 2), {14, 16, 18}), ((14, 19, 2), {14, 16, 18, 19}), ((25, None, 1), {25, 26, 27, 28})],
)
def test_a_range_always_has_its_first_and_last(span: tuple[int, int | None, int], chosen: set[int]) -> None:
    choice = OperatorChoice(span=span)

    assert {number for number in range(29) if number in choice} == chosen


def test_ids_that_no_operator_has_are_refused() -> None:
    with pytest.raises(UlpscopeError, match="no operator of the graph"):
        compared(NetworkOptions(operators=OperatorChoice(numbers=frozenset((99,)))))


def test_the_mapping(result: NetworkResult) -> None:
    expected = [
        [cell.replace("{FIXTURES}", str(DATA)) for cell in line]
        for line in expected_table(MSACCUCMP_26 / "mapping.csv")
    ]

    assert result.paired.mapping() == expected


def test_the_table_of_2022_but_for_what_that_version_could_not_find() -> None:
    mine = by_tensor(compared(NetworkOptions(csv=Generation.OF_2022)).table())
    theirs = by_tensor(expected_table(EXPECTED / "msaccucmp_2022-05/cmp_npu_tf_plain.csv"))
    fused, long_name = "conv1/Conv2Dconv1/BiasAddconv1/Relu", "tower_0/"

    for (index, tensor), row in theirs.items():
        if (index, tensor) == ("6", "NaN"):
            # It finds no dump of the fused operator, which is there.
            assert row["CompareFailReason"].startswith(f"[{fused}] There is no dump file")
            assert {mine["6", f"{fused}:{place}"]["CosineSimilarity"] for place in ("input:0", "output:0")} == {
                "1.000000"
            }
        elif tensor.startswith(long_name) and tensor.endswith(":output:0"):
            # It does not look into mapping.csv for the reference's name.
            assert "There is no the ground truth dump file" in row["CompareFailReason"]
            assert mine[index, tensor]["CosineSimilarity"] == "0.612564"
        else:
            own = mine[index, tensor]
            named = row["CompareFailReason"].replace("{FIX}/../fixtures", str(DATA))
            assert differing(own, row) <= {"CompareFailReason"}
            assert own["CompareFailReason"] == named
    assert set(mine) - set(theirs) == {
        ("6", f"{fused}:{place}") for place in ("input:0", "input:1", "input:2", "output:0")
    }


def test_the_first_operator_that_made_error_is_the_answer(result: NetworkResult) -> None:
    first = result.findings[0]

    assert (first.module, first.op, first.tensor, first.kind) == ("fc1/Relu", "Relu", "output.0", "computation")
    assert [finding.module for finding in result.findings] == ["fc1/Relu", "scale/Mul"]
    assert result.code is ExitCode.DIFFERENCE
    command = f"ulpscope compare {REFERENCE} {DUMPS} --graph {GRAPH} --op=fc1/Relu --output 0"
    assert first.next == command


def test_what_follows_from_it_is_inherited_by_inserted_operators_too(result: NetworkResult) -> None:
    rows = result.pairs.filter(result.pairs["role"] == "output")
    judged = dict(zip(rows["module"], rows["judgement"], strict=True))

    assert judged["trans_TransData_7"] == judged["trans_Cast_8"] == judged["fc2/MatMul"] == "inherited"
    assert judged["trans_Cast_0"] == judged["trans_TransData_4"] == judged["fc1/MatMul"] == "rounding"
    made = {module for module, judgement in judged.items() if judgement == "made_here"}
    assert made == {"fc1/Relu", "scale/Mul"}


def test_without_the_fault_only_the_overflow_is_left() -> None:
    sound = compared(dumps=OTHER_DUMPS)

    assert [finding.module for finding in sound.findings] == ["scale/Mul"]
    assert sound.json()["advice"][0]["kind"] == "fp16_overflow"


def test_saturation_is_told_of_any_operator_with_its_index(result: NetworkResult) -> None:
    """The first finding is another one; 23 is what MindStudio's expert system tells of these dumps."""
    first = result.json()["advice"][0]

    assert result.findings[0].module == "fc1/Relu"
    assert (first["kind"], first["subject"]) == ("fp16_overflow", "scale/Mul (index 23)")


def test_advice_is_about_the_operator(result: NetworkResult) -> None:
    advice = {each["kind"]: each for each in result.json()["advice"]}

    assert advice["keep_dtype"]["subject"] == "fc1/Relu"
    assert "keep_dtype_scope" in advice["keep_dtype"]["sentence"]
    assert "raise_precision" not in advice


def test_what_is_not_compared_is_told(result: NetworkResult) -> None:
    missing = " ".join(result.json()["missing"])

    assert "4 tensors have no partner in the reference, such as bn/FusedBatchNormV3_Reduce:output:0" in missing
    assert "global_step/Add" in missing


def test_two_dumps_by_names_but_for_what_msaccucmp_has_wrong() -> None:
    options = NetworkOptions(csv=Generation.OF_2025)
    mine = by_tensor(compare_dumps(OTHER_DUMPS, DUMPS, options, advance=unseen).table())
    theirs = by_tensor(expected_table(MSACCUCMP_26 / "cmp_npu_npu.csv"))
    wrong = {
        tensor: differing(mine[index, tensor], row)
        for (index, tensor), row in theirs.items()
        if differing(mine[index, tensor], row)
    }

    conv = "conv1_Conv2Dconv1_BiasAddconv1_Relu"
    tiled = {
        "trans_TransData_1:output:0", "trans_TransData_2:input:0", "trans_TransData_2:output:0", f"{conv}:input:0",
        f"{conv}:input:1", f"{conv}:output:0", "pool1_MaxPool:input:0", "bn_FusedBatchNormV3_Reduce:output:0",
        "bn_FusedBatchNormV3_Reduce:output:1", "bn_FusedBatchNormV3_Update:input:1",
        "bn_FusedBatchNormV3_Update:input:2",
    }  # fmt: skip
    assert {tensor for tensor in wrong if wrong[tensor] == {"StandardDeviation"}} == tiled
    # It does not know the type of an operator whose file is called by digits.
    assert all(wrong[tensor] == {"OpType"} and tensor.startswith("tower_0") for tensor in set(wrong) - tiled)
    assert set(mine) == set(theirs)


def deviations(array: np.ndarray) -> str:
    wide = array.astype(np.float64)
    told = f"({_shown(wide.mean())};{_shown(wide.std())})"
    return f"{told},{told}"


def _shown(number: float) -> str:
    return f"{0.0 if abs(number) < 0.001 else number:.3f}"


@pytest.mark.parametrize(
    ("file", "side", "tensor", "shape", "to_nchw", "right"),
    [
        ("TransData.trans_TransData_1.12.0.1767225600012123", "outputs", "trans_TransData_1:output:0", (2, 12, 12, 1),
         lambda raw: raw.transpose(0, 1, 4, 2, 3).reshape(2, 16, 12, 12), lambda nchw: nchw[:, :1]),
        ("TransData.trans_TransData_2.13.0.1767225600013123", "inputs", "trans_TransData_2:input:0", (5, 5, 1, 6),
         lambda raw: raw.transpose(3, 2, 0, 1), lambda nchw: nchw),
    ],
)  # fmt: skip
def test_the_right_value_and_how_msaccucmp_comes_by_the_wrong_one(file, side, tensor, shape, to_nchw, right) -> None:  # type: ignore[no-untyped-def]
    nchw = to_nchw(getattr(read_dump(LEAF / file), side)[0].array())
    theirs = {row["TensorIndex"]: row for row in by_tensor(expected_table(MSACCUCMP_26 / "cmp_npu_npu.csv")).values()}
    options = NetworkOptions(csv=Generation.OF_2025)
    mine = by_tensor(compare_dumps(OTHER_DUMPS, DUMPS, options, advance=unseen).table())
    own = next(row for (_, name), row in mine.items() if name == tensor)

    # An array in the order NCHW, cut to a shape that is in another order.
    cut = nchw[tuple(slice(size) for size in shape)]
    assert theirs[tensor]["StandardDeviation"] == deviations(cut)
    assert own["StandardDeviation"] == deviations(right(nchw))


def test_two_dumps_agree_with_msaccucmp_2025_where_nothing_is_padded() -> None:
    options = NetworkOptions(csv=Generation.OF_2025)
    mine = by_tensor(compare_dumps(OTHER_DUMPS, DUMPS, options, advance=unseen).table())
    theirs = by_tensor(expected_table(EXPECTED / "msaccucmp_2025-09_native/cmp_npu_npu.csv"))
    unpadded = {"trans_Cast_0:input:0", "trans_TransData_3:output:0", "pred_ArgMax:output:0", "scale_Mul:output:0"}

    found = {tensor for (index, tensor), row in theirs.items() if not differing(mine[index, tensor], row)}
    assert unpadded <= found


@pytest.mark.parametrize("options", [NetworkOptions(), NetworkOptions(close_graph=GRAPH)])
def test_two_dumps_with_a_graph(options: NetworkOptions) -> None:
    found = compared(options, reference=OTHER_DUMPS)

    assert [finding.module for finding in found.findings] == ["fc1/Relu"]


def test_a_close_graph_needs_a_dump() -> None:
    with pytest.raises(UlpscopeError, match="no device dumped"):
        compared(NetworkOptions(close_graph=GRAPH))


def test_operators_that_only_one_dump_has(tmp_path: Path) -> None:
    import shutil

    for path in LEAF.iterdir():
        if "fc1_Relu" not in path.name:
            shutil.copy(path, tmp_path / path.name)
    without = pair_without_graph(LEAF, tmp_path, NetworkOptions())
    row = next(row for row in without.rows if row.operator.name == "fc1_Relu")

    assert (row.names, row.originals) == ("*", "fc1_Relu")
    assert row.reason == '[fc1_Relu] There is no the my output dump file for the op "fc1_Relu".'


def test_an_operator_that_was_dumped_again_counts_as_it_was_last(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(LEAF, tmp_path / "dump")
    good = next(path for path in OTHER_DUMPS.rglob("Relu.fc1_Relu.*"))
    shutil.copy(good, tmp_path / "dump/Relu.fc1_Relu.21.0.1767225600021999")
    found = compared(dumps=tmp_path / "dump")

    assert "fc1/Relu" not in [finding.module for finding in found.findings]


def test_dumps_of_outputs_alone_are_judged_by_what_lies_before_them(tmp_path: Path) -> None:
    """The commonest kind of dump has no inputs: edges come from the graph."""
    from make_ascend_dumps import Tensor, file_bytes

    for path in LEAF.iterdir():
        if path.name == "mapping.csv" or path.name.isdigit():
            continue
        dump = read_dump(path)
        outputs = [
            Tensor(tensor.array(), tensor.format_name, tensor.original_shape, code=tensor.data_type)
            for tensor in dump.outputs
        ]
        (tmp_path / path.name).write_bytes(file_bytes(dump.op_name, outputs=outputs))
    found = compared(dumps=tmp_path)

    assert [finding.module for finding in found.findings] == ["fc1/Relu", "scale/Mul"]


def test_a_file_that_cannot_be_read_is_told_and_left_out(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(LEAF, tmp_path / "dump")
    broken = next((tmp_path / "dump").glob("Relu.fc1_Relu.*"))
    broken.write_bytes(broken.read_bytes()[:40])
    found = compared(dumps=tmp_path / "dump")

    assert "1 file is not readable, or not all of it" in " ".join(found.json()["missing"])
    assert found.comparison.counts.tensors_compared > 30


def test_metrics_are_only_made_for_a_table() -> None:
    found = compared(NetworkOptions())
    line = next(line for line in found.table() if "fc1/Relu:output:0" in line)

    assert line[-1 - len(ALGORITHMS) : -1] == ["NaN"] * len(ALGORITHMS)


def test_a_fixed_standard() -> None:
    found = compared(NetworkOptions(standard="cosine:0.98"))

    assert found.comparison.scope.standard == "cosine:0.98"
    assert found.code is ExitCode.DIFFERENCE


def test_pairs_of_a_missing_directory() -> None:
    with pytest.raises(UlpscopeError, match="does not exist"):
        pair_with_graph(REFERENCE, DATA / "nowhere", GRAPH, NetworkOptions())


def test_no_step_of_that_number() -> None:
    from ulpscope.capture.settings import parse_ranges

    with pytest.raises(UlpscopeError, match="no step 7"):
        compared(NetworkOptions(steps=parse_ranges("7", option="--steps")))
