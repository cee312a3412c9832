"""The tensors behind a comparison's rows: found through the result, and a clear word where they cannot be shown."""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from network_data import DUMPS, GRAPH, REFERENCE
from tests.unit.saved_runs import SavedRun, write_result, write_runs
from tests.unit.sparse_runs import write_sparse_result

from ulpscope.cli.main import main
from ulpscope.numerics.dtypes import DTYPES, numpy_dtype
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.workflows.compare.command import compare
from ulpscope.workflows.report.tensor_answers import Running, TensorAnswers
from ulpscope.workflows.report.tensor_pairs import STATS, PairKey, Problem, TensorPair, TensorPairs
from ulpscope.workflows.results import prepare_result

IMAGE = np.linspace(-1, 1, 2 * 4 * 6, dtype=np.float32).reshape(2, 4, 6)


def spoilt() -> Any:
    image = IMAGE.copy()
    image[:, 2] += 0.25
    return image


@pytest.fixture
def result(tmp_path: Path) -> Path:
    return write_result(tmp_path, {"torch.relu": (IMAGE, spoilt())})


def key_of(result: Path, call: str = "") -> PairKey:
    made = pl.read_parquet(result / "pairs.parquet").filter(pl.col("place") == "output.0")
    row = made.filter((pl.col("call_target") == call) | (call == "")).row(0, named=True)
    return PairKey(row["rank"], Pair(row["value_reference"], row["value_target"]))


def pair_of(result: Path) -> TensorPair:
    return TensorPairs(result).find(key_of(result))


def asked(result: Path, question: str = "", query: str = "", *, call: str = "") -> Any:
    key = key_of(result, call)
    path = f"pairs/{key.rank}/{key.values.reference}/{key.values.target}"
    answers = TensorAnswers(TensorPairs(result))
    try:
        answer = answers.answer(f"{path}/{question}" if question else path, query)
        while isinstance(answer, Running):  # a busy machine takes longer than a request waits
            answer = answers.answer(f"{path}/{question}", query)
    finally:
        answers.close()
    assert answer is not None
    return json.loads(json.dumps(answer.answer, allow_nan=False))


def problem_of(found: TensorPair) -> Problem:
    assert found.problem is not None
    return found.problem.problem


def test_saved_tensors_stand_side_by_side_and_stay_mapped(result: Path) -> None:
    found = pair_of(result)
    assert found.problem is None
    boxes = found.readable()
    assert np.array_equal(boxes.arrays.reference, IMAGE)
    assert np.array_equal(boxes.arrays.target, spoilt())
    assert isinstance(found.sides.reference.array.base, np.memmap)  # type: ignore[union-attr]


def test_traces_are_found_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_runs(tmp_path, {"torch.relu": (IMAGE, spoilt())})
    monkeypatch.chdir(tmp_path)
    prepare_result(Path("result"), overwrite=False)
    compare("ref", "target").write(Path("result"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert pair_of(Path("../result")).problem is None


def test_stats_alone_are_told_with_how_to_save(tmp_path: Path) -> None:
    result = write_result(tmp_path, {"torch.relu": (IMAGE, spoilt())}, unsaved=True)
    about = asked(result)
    assert about["problem"]["kind"] == "not_saved"
    assert about["problem"]["next"].startswith("ulpscope run --save tensors -o ")
    assert about["problem"]["next"].endswith(" -- python train.py --name 'a b'")
    assert about["sides"]["target"]["stats"]["max"] == pytest.approx(float(spoilt().max()))
    with pytest.raises(UlpscopeError, match="not its elements"):
        asked(result, "overview")


def test_memory_that_nobody_wrote_is_said_to_be(tmp_path: Path) -> None:
    for name in ("ref", "target"):
        run = SavedRun(unsaved=True)
        run.call("torch.empty", makes={"output.0": run.value(IMAGE, initialized=False)})
        run.write(tmp_path / name)
    result = tmp_path / "result"
    prepare_result(result, overwrite=False)
    compare(tmp_path / "ref", tmp_path / "target").write(result)
    assert problem_of(pair_of(result)) is Problem.UNWRITTEN


def test_a_missing_file_is_named(result: Path) -> None:
    for file in (result.parent / "target").rglob("*.safetensors"):
        file.unlink()
    found = pair_of(result)
    assert problem_of(found) is Problem.UNREADABLE
    assert found.sides.reference.problem is None
    assert found.sides.target.value is not None
    assert "data-000.safetensors" in str(found.problem)


def test_a_file_that_comes_back_is_read(result: Path) -> None:
    [file] = (result.parent / "target").rglob("*.safetensors")
    pairs, key = TensorPairs(result), key_of(result)
    file.rename(file.with_suffix(".away"))
    assert pairs.find(key).problem is not None
    file.with_suffix(".away").rename(file)
    assert pairs.find(key).problem is None


def test_a_trace_that_is_gone_is_named(result: Path) -> None:
    shutil.rmtree(result.parent / "ref")
    found = pair_of(result)
    assert problem_of(found) is Problem.UNREADABLE
    assert "ref" in str(found.problem)
    assert found.sides.target.array is not None


def test_a_trace_that_was_captured_anew_is_not_taken_for_the_old_one(result: Path) -> None:
    shutil.rmtree(result.parent / "ref")
    shutil.rmtree(result.parent / "target")
    write_runs(result.parent, {"torch.relu": (IMAGE * 3, IMAGE * 3)})
    assert problem_of(pair_of(result)) is Problem.OTHER_TRACE


def test_a_trace_with_one_other_bit_is_not_taken_for_the_old_one(result: Path) -> None:
    shutil.rmtree(result.parent / "ref")
    shutil.rmtree(result.parent / "target")
    other = spoilt()
    other[1, 2, 5] = np.nextafter(other[1, 2, 5], np.float32(2.0))
    write_runs(result.parent, {"torch.relu": (IMAGE, other)})
    assert problem_of(pair_of(result)) is Problem.OTHER_TRACE


def test_tensors_of_a_network_are_left_to_the_command_that_pairs_them(tmp_path: Path) -> None:
    words = ["compare", str(REFERENCE), str(DUMPS), "--graph", str(GRAPH)]
    main([*words, "--out", str(tmp_path / "result")])
    table = pl.read_parquet(tmp_path / "result" / "pairs.parquet")
    row = table.filter(pl.col("module") == "fc1/Relu", pl.col("place") == "output.0").row(0, named=True)
    with pytest.raises(UlpscopeError, match="paired by its graph") as raised:
        TensorPairs(tmp_path / "result").find(PairKey(row["rank"], Pair(row["value_reference"], row["value_target"])))
    command = shlex.split(raised.value.next_step)
    assert command == ["ulpscope", *words, "--op=fc1/Relu", "--output", "0"]
    assert main(command[1:]) == ExitCode.DIFFERENCE


def test_masks_do_not_make_a_trace_another_one(tmp_path: Path) -> None:
    masked = np.where(IMAGE > 0, IMAGE, np.finfo(np.float32).min)
    assert pair_of(write_result(tmp_path, {"torch.relu": (masked, masked + 1)})).problem is None


def test_a_rank_that_is_not_there_any_more_is_named(result: Path) -> None:
    rank = result.parent / "ref" / "rank0"
    described = json.loads((rank / "rank.json").read_text(encoding="utf-8"))
    (rank / "rank.json").write_text(json.dumps(described | {"rank": 3}), encoding="utf-8")
    assert "no rank 0" in str(pair_of(result).problem)


def test_other_sizes_are_not_compared(result: Path) -> None:
    _change_target(result, IMAGE[:1])
    assert problem_of(pair_of(result)) is Problem.SIZES_DIFFER


def test_other_shapes_of_one_size_are_compared_and_said_to_be(tmp_path: Path) -> None:
    result = write_result(tmp_path, {"torch.relu": (IMAGE, spoilt().reshape(8, 6))})
    about = asked(result)
    assert about["shape"] == [48]
    assert (about["sides"]["reference"]["shape"], about["sides"]["target"]["shape"]) == ([2, 4, 6], [8, 6])
    assert asked(result, "overview")["different"] == 12


def test_real_and_complex_numbers_are_not_compared(result: Path) -> None:
    _change_target(result, IMAGE.astype(np.complex64))
    assert problem_of(pair_of(result)) is Problem.TYPES_DIFFER


def test_empty_tensors_are_said_to_be(result: Path) -> None:
    empty = write_result(result.parent / "other", {"torch.relu": (IMAGE[:0], IMAGE[:0])})
    assert problem_of(pair_of(empty)) is Problem.EMPTY


def _change_target(result: Path, array: Any) -> None:
    """Put another tensor in the target's place, in its trace and in the table."""
    shutil.rmtree(result.parent / "ref")
    shutil.rmtree(result.parent / "target")
    write_runs(result.parent, {"torch.relu": (IMAGE, array)})
    table = pl.read_parquet(result / "pairs.parquet")
    changed = pl.col("place") == "output.0"
    table.with_columns(
        dtype_target=pl.when(changed).then(pl.lit(array.dtype.name)).otherwise("dtype_target"),
        shape_target=pl.when(changed).then(pl.lit(list(array.shape))).otherwise("shape_target"),
        **{name: pl.when(changed).then(None).otherwise(name) for name in (f"{stat}_target" for stat in STATS)},
    ).write_parquet(result / "pairs.parquet")


def test_only_rows_of_the_result_are_found(result: Path) -> None:
    with pytest.raises(UlpscopeError, match="has no pair"):
        TensorPairs(result).find(PairKey(0, Pair(0, 1)))


def test_a_broken_table_is_named(result: Path) -> None:
    (result / "pairs.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(UlpscopeError, match=r"pairs\.parquet cannot be read"):
        TensorPairs(result)


def test_arrays_of_another_tool_are_looked_at_too(tmp_path: Path) -> None:
    for name, array in (("ref", IMAGE), ("target", spoilt())):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "layer_Relu.0.1700000000000000.npy", array)
    result = tmp_path / "result"
    prepare_result(result, overwrite=False)
    compare(tmp_path / "ref", tmp_path / "target").write(result)
    worst = asked(result, "overview")["axes"][1]["worst"]
    assert [one["first"] for one in worst] == [2]


def test_the_overview_names_the_spoilt_channel(result: Path) -> None:
    found = asked(result, "overview")
    assert (found["elements"], found["different"]) == (48, 12)
    [worst] = found["axes"][1]["worst"]
    assert (worst["first"], worst["last"], worst["share"]) == (2, 2, 1.0)
    assert found["worst"]["absolute"][0]["index"][1] == 2


def plain_pair(dtype: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Two arrays that differ in their last element: 1 in the reference, 2 in the target; of bools, by 1."""
    reference = np.ones(shape, numpy_dtype(dtype))
    target = reference.copy()
    target[(-1,) * len(shape)] = 0 if dtype == "bool" else 2
    return reference, target


@pytest.mark.parametrize("shape", [(), (1,), (3, 2)])
def test_elements_of_every_type_are_read_back(tmp_path: Path, shape: tuple[int, ...]) -> None:
    dtypes = sorted(DTYPES.keys() - {"complex32"})
    result = write_result(tmp_path, {dtype: plain_pair(dtype, shape) for dtype in dtypes})
    last = [size - 1 for size in shape or (1,)]
    for dtype in dtypes:
        found = asked(result, "overview", call=f"{dtype}.0")
        (worst,) = found["worst"]["absolute"]
        assert worst["index"] == ([*last, 0] if dtype.startswith("complex") and shape else last), dtype
        assert (found["different"], worst["absolute"]) == (1, 1.0), dtype


def test_a_histogram_counts_every_element_of_both(result: Path) -> None:
    found = asked(result, "histogram")
    assert sum(found["reference"]) == sum(found["target"]) == 48


def test_a_heat_map_has_the_chosen_axes(result: Path) -> None:
    found = asked(result, "heat", "rows=1&columns=0")
    assert [axis["axis"] for axis in found["axes"]] == [1, 0]
    assert np.array(found["largest"])[:, 0].round(6).tolist() == [0.0, 0.0, 0.25, 0.0]


def test_a_slice_is_a_window_of_both(result: Path) -> None:
    found = asked(result, "slice", "rows=2&columns=1&at=1,0,3")
    assert found["reference"] == IMAGE[1, :, 3:].T.astype(float).tolist()
    assert found["target"] == spoilt()[1, :, 3:].T.astype(float).tolist()


def test_a_window_is_bounded(tmp_path: Path) -> None:
    long = np.zeros((300, 600), np.float32)
    result = write_result(tmp_path, {"torch.relu": (long, long + 1)})
    found = asked(result, "slice", "rows=0&columns=1&at=0,0")
    assert np.array(found["target"]).shape == (256, 256)
    assert np.array(asked(result, "slice", "rows=0&columns=1&at=256,512")["target"]).shape == (44, 88)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """What this process may still allocate is far less than a tensor has."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    used = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def test_tensors_of_ten_gigabytes_are_looked_at_in_little_memory(tmp_path: Path, little_memory: None) -> None:
    shape = (5, 1024, 1024, 512)
    result = write_sparse_result(tmp_path, shape=shape, marked={int(np.ravel_multi_index((4, 9, 1023, 7), shape)): 3.0})
    assert asked(result)["shape"] == list(shape)
    found = asked(result, "slice", "rows=2&columns=3&at=4,9,1000,0")
    assert np.argwhere(np.array(found["target"])).tolist() == [[23, 7]]
    assert found["target"][23][7] == 3.0
    answers, key = TensorAnswers(TensorPairs(result)), key_of(result)
    path = f"pairs/{key.rank}/{key.values.reference}/{key.values.target}/overview"
    share = 0.0
    while share < 0.002:
        answer = answers.answer(path, "")
        assert answer is not None
        assert isinstance(answer, Running)
        share = answer.share
    answers.close()


@pytest.mark.parametrize(
    ("question", "query"),
    [
        ("heat", ""),
        ("heat", "rows=0"),
        ("heat", "rows=0&columns=0"),
        ("heat", "rows=0&columns=3"),
        ("heat", "rows=-1&columns=0"),
        ("heat", "rows=0,1&columns=2"),
        ("heat", "rows=0&rows=1&columns=2"),
        ("heat", "rows=1e9&columns=2"),
        ("slice", "rows=0&columns=1"),
        ("slice", "rows=0&columns=1&at=0,0"),
        ("slice", "rows=0&columns=1&at=0,0,6"),
        ("slice", "rows=0&columns=1&at=0,0,٣"),
        ("slice", "rows=0&columns=1&at=" + ",".join(["0"] * 1000)),
    ],
)
def test_what_is_not_there_is_refused(result: Path, question: str, query: str) -> None:
    with pytest.raises(UlpscopeError):
        asked(result, question, query)


def test_there_are_no_other_questions(result: Path) -> None:
    answers = TensorAnswers(TensorPairs(result))
    for path in ("", "pairs", "pairs/0/1", "pairs/0/1/2/all", "pairs/0/1/2/../../x", "pairs/0/1/-2", "summary.json"):
        assert answers.answer(path, "") is None
