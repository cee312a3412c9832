"""One tensor of a network, element by element."""

import csv
import filecmp
import json
from pathlib import Path

import numpy as np
import pytest
from network_data import DUMPS, GRAPH, LEAF, MSACCUCMP_26, OTHER_DUMPS, REFERENCE

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.numerics.pairs.elements import element_errors, range_of
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.files import network_tables as network_detail
from ulpscope.workflows.network.command import NetworkOptions, pair_without_graph
from ulpscope.workflows.network.detail import DetailWish, compare_tensor
from ulpscope.workflows.network.pairing import PairedNetwork, pair_with_graph

CONV = "conv1/Conv2Dconv1/BiasAddconv1/Relu"


@pytest.fixture(scope="module")
def paired() -> PairedNetwork:
    return pair_with_graph(REFERENCE, DUMPS, GRAPH, NetworkOptions())


def test_the_files_are_those_of_msaccucmp_byte_for_byte(paired: PairedNetwork, tmp_path: Path) -> None:
    compare_tensor(paired, DetailWish("fc1/Relu", top=5)).write(tmp_path)
    expected = sorted(path.name for path in (MSACCUCMP_26 / "detail").iterdir())

    assert len(expected) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*expected, "summary.json"])
    for name in expected:
        assert filecmp.cmp(MSACCUCMP_26 / "detail" / name, tmp_path / name, shallow=False), name


def test_pictures_are_told_as_nchw(paired: PairedNetwork) -> None:
    found = compare_tensor(paired, DetailWish(CONV, top=3)).json()
    raw = read_dump(next(LEAF.glob("Conv2D.*"))).outputs[0].array()
    mine = raw.transpose(0, 1, 4, 2, 3).reshape(2, 16, 12, 12)[:, :6].astype(np.float32)
    theirs = np.load(next(REFERENCE.glob("conv1_Relu.0.*"))).transpose(0, 3, 1, 2)
    errors = np.abs(mine - theirs)

    worst = found["largest_absolute"][0]
    assert found["axes"] == "NCHW"
    assert found["shape"] == [2, 6, 12, 12]
    assert worst["index"] == int(errors.argmax())
    assert tuple(worst["place"]) == np.unravel_index(errors.argmax(), errors.shape)
    assert (worst["target"], worst["reference"]) == (mine.flat[errors.argmax()], theirs.flat[errors.argmax()])


def test_weights_keep_the_order_of_the_reference(paired: PairedNetwork) -> None:
    found = compare_tensor(paired, DetailWish(CONV, Side.INPUT, 1)).json()

    assert (found["axes"], found["shape"]) == ("HWCN", [5, 5, 1, 6])


def test_bools_have_values_and_no_errors(paired: PairedNetwork, tmp_path: Path) -> None:
    compare_tensor(paired, DetailWish("mask/Greater", top=2)).write(tmp_path)
    with open(tmp_path / "mask_Greater_output_0_0.csv", newline="") as file:
        rows = list(csv.DictReader(file))

    assert {row["NPUDump"].strip() for row in rows} == {"True", "False"}
    assert {row["AbsoluteError"].strip() for row in rows} == {"-"}
    assert "MaxAbsoluteError:-" in (tmp_path / "mask_Greater_output_0_summary.txt").read_text()


def test_a_long_tensor_is_written_in_several_files(
    paired: PairedNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_detail, "LINES", 30)
    compare_tensor(paired, DetailWish("fc1/Relu")).write(tmp_path)
    parts = [(tmp_path / f"fc1_Relu_output_0_{first}.csv").read_text().splitlines() for first in (0, 30, 60)]
    whole = (MSACCUCMP_26 / "detail/fc1_Relu_output_0_0.csv").read_text().splitlines()

    assert [line for part in parts for line in part[1:]] == whole[1:]


def test_a_long_name_is_replaced(paired: PairedNetwork, tmp_path: Path) -> None:
    name = next(row.operator.name for row in paired.rows if row.operator.name.startswith("tower_0"))
    compare_tensor(paired, DetailWish(name)).write(tmp_path)
    with open(tmp_path / network_detail.MAPPING, newline="") as file:
        renamed = dict(csv.reader(file))

    assert {f"{name.replace('/', '_')}_output_0_summary.txt"} <= set(renamed.values())
    assert all((tmp_path / short).is_file() for short in renamed)


def test_a_name_is_long_by_its_bytes(tmp_path: Path) -> None:
    detail = network_detail.TensorDetail.of(
        np.ones(2),
        np.ones(2),
        top=1,
        operator="层" * 100,
        side="output",
        position=0,
        names="",
        originals="",
        axes="NCHW",
    )
    written = network_detail.write_detail(detail, tmp_path)

    assert network_detail.MAPPING in written
    assert sorted(written) == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wish", "judgement", "code"),
    [
        (DetailWish("fc1/Relu"), "made_here", ExitCode.DIFFERENCE),
        (DetailWish("fc1/Relu", Side.INPUT), "rounding", ExitCode.OK),
        (DetailWish("fc2/MatMul"), "inherited", ExitCode.DIFFERENCE),
        (DetailWish("fc2/MatMul", Side.INPUT), "inherited", ExitCode.DIFFERENCE),
        (DetailWish(CONV, Side.INPUT, 1), "rounding", ExitCode.OK),
        (DetailWish("mask/Greater"), "identical", ExitCode.OK),
    ],
)
def test_a_tensor_is_judged_as_in_the_whole_network(
    paired: PairedNetwork, wish: DetailWish, judgement: str, code: ExitCode
) -> None:
    result = compare_tensor(paired, wish)

    assert (result.json()["judgement"], result.code) == (judgement, code)
    assert result.json()["verdict"] == ("diverged" if code else "agree")


def test_two_dumps_of_a_device() -> None:
    by_name = pair_without_graph(OTHER_DUMPS, DUMPS, NetworkOptions())
    found = compare_tensor(by_name, DetailWish("fc1_Relu", top=1)).json()

    assert found["shape"] == [2, 40]
    assert (found["dtype_reference"], found["dtype_target"]) == ("float16", "float16")
    assert found["judgement"] == "made_here"
    assert compare_tensor(by_name, DetailWish("fc1_MatMul")).json()["judgement"] == "identical"


@pytest.mark.parametrize(
    ("wish", "words", "code"),
    [
        (DetailWish("nothing"), "no operator 'nothing'", ExitCode.USAGE),
        (DetailWish("fc1/Relu", position=3), "no output 3", ExitCode.USAGE),
        (DetailWish("fc1/weights"), "no dump file", ExitCode.NOTHING),
        (DetailWish("bn/FusedBatchNormV3_Update", Side.INPUT, 1), "has no partner", ExitCode.NOTHING),
        (DetailWish("global_step/Add", Side.INPUT, 0), "different shapes", ExitCode.NOTHING),
    ],
)
def test_what_cannot_be_shown_says_why(paired: PairedNetwork, wish: DetailWish, words: str, code: ExitCode) -> None:
    with pytest.raises(UlpscopeError, match=words) as caught:
        compare_tensor(paired, wish)
    assert caught.value.code is code


def test_an_operator_by_its_name_in_files(paired: PairedNetwork) -> None:
    assert compare_tensor(paired, DetailWish("fc1_Relu")).json()["operator"] == "fc1/Relu"


def test_json_has_no_number_that_json_has_not(paired: PairedNetwork) -> None:
    json.dumps(compare_tensor(paired, DetailWish("fc1/Relu")).json(), allow_nan=False)


def test_unsigned_integers_do_not_wrap_around() -> None:
    errors = element_errors(np.array([1, 200], np.uint8), np.array([2, 100], np.uint8))

    assert errors.absolute.tolist() == [1, 100]
    assert errors.relative.tolist() == [0.5, 1.0]


def test_what_is_not_finite_on_one_side_is_the_largest_error() -> None:
    target = np.array([1.0, np.inf, np.nan, np.inf, 5.0], np.float16)
    errors = element_errors(target, np.array([1.0, np.inf, np.nan, 2.0, 0.0], np.float32))

    assert errors.largest_absolute(2) == [3, 4]
    assert errors.largest_relative(2) == [4, 3]
    assert range_of(errors.absolute) == (0.0, 5.0)


def test_fewer_elements_than_asked_for() -> None:
    errors = element_errors(np.array([1.0, 3.0]), np.array([1.0, 2.0]))

    assert errors.largest_absolute(20) == [1, 0]
    assert element_errors(np.empty(0), np.empty(0)).largest_absolute(3) == []
