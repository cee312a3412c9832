"""Data that is not as simple as the test network's: a second run, files that come later, nothing to compare."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.unit.shells import ASCEND, RELU, Told, make_data, rows

from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_data(tmp_path / "precision_data")


@pytest.fixture
def told(root: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    return Told(root, capsys)


def with_second_run(root: Path) -> Path:
    shutil.copytree(ASCEND / "debug_1" / "dump", root / "npu" / "debug_1" / "dump")
    return root


def test_the_names_that_ni_tells_are_those_that_pt_finds(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graphs = "npu/debug_{}/graph"
    shutil.copytree(root / graphs.format(0), with_second_run(root) / graphs.format(1))
    told = Told(root, capsys)
    text = told("ni fc1/Relu")
    outputs = re.findall(r"-\[0\] (\S*Relu\.21\S+output\.0\.npy)", text)
    assert outputs == [RELU, f"debug_1/{RELU}"]
    shown = re.findall(r"Dtype: float16\] \[Max: (\S+)\]", text)
    # Each run has an input and an output.
    assert [re.findall(r"\[Max: (\S+)\]", told(f"pt {name}")) for name in outputs] == [[shown[1]], [shown[3]]]
    assert shown[1] != shown[3]


def test_texts_of_two_runs_and_of_two_files_of_one_name_are_not_one(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told(with_second_run(root), capsys)
    for folder, content in (("a", 1.0), ("b", 2.0)):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "x.npy", np.full(3, content))
    for line in (f"cp {RELU} debug_1/{RELU} -s", f"cp {tmp_path}/a/x.npy {tmp_path}/b/x.npy -s"):
        # Frames fold long lines.
        names = re.findall(r"([\w.]+\.txt)", told(line).replace("│\n│", "").replace(" ", ""))
        assert len(set(names)) == 2
    texts = root / "temp" / "decode" / "dump_decode"
    assert {np.loadtxt(texts / name)[0] for name in names} == {1.0, 2.0}


def test_the_name_of_a_tensor_leads_nowhere_else(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "keys.npz", **{"../../../outside": np.zeros(2), "other": np.zeros(1)})
    told = Told(root, capsys)
    told(f"pt {tmp_path}/keys.npz::../../../outside")
    assert [path.parent for path in tmp_path.rglob("*outside*")] == [root / "temp" / "decode" / "dump_decode"]


def test_cp_of_nothing_is_not_agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "empty.npy", np.zeros(0))
    told = Told(tmp_path, capsys)
    told(f"cp {tmp_path}/empty.npy {tmp_path}/empty.npy")
    assert told.code is ExitCode.NOTHING


def test_dc_takes_the_first_run_and_no_two_files_of_one_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(with_second_run(root), capsys)
    told("dc fc1/Relu -f ND")
    (file,) = (root / "temp").rglob("*output.0.2x40.npy")
    first = told.context.dumped.find(RELU).stored.array()
    assert np.array_equal(np.load(file), first)
    device = next((root / "npu" / "debug_0" / "dump").glob("*/0"))
    shutil.copytree(device, device.with_name("1"))
    with pytest.raises(UlpscopeError, match="would be written to the same files"):
        told("dc fc1/Relu")
    with pytest.raises(UlpscopeError, match=r"MatMulV2\.fc1_MatMul"):
        told("dc fc1")


def test_a_limit_of_0_shows_all(told: Told) -> None:
    assert len(re.findall(r"─ (\[\d+\] \S+) ─", told("vcs -l 0"))) > 3
    assert told("overflow -l 0").count("First overflow file timestamp") == 1


def test_checks_that_could_not_be_made_are_no_agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "npu" / "debug_0" / "graph").mkdir(parents=True)
    told = Told(tmp_path, capsys)
    assert told("ac").count("\n") == 5
    assert told.code is ExitCode.NOTHING
    told("overflow")
    assert told.code is ExitCode.NOTHING


def test_a_graph_that_comes_later_is_found_and_a_bad_one_is_passed_over(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = root / "npu" / "debug_0" / "graph" / "ge_proto_00000_Build.txt"
    text = graph.read_text()
    for old in graph.parent.iterdir():
        old.unlink()
    told = Told(root, capsys)
    with pytest.raises(UlpscopeError, match="holds no graph"):
        told("ls")
    graph.with_name("ge_proto_00000_Build.txt").write_text("no graph {")
    graph.with_name("ge_proto_00001_Build.txt").write_text(text)
    assert "fc1/Relu" in told("ls -n fc1")
    assert "Op(Type/Name): [Relu] fc1/Relu" in told("ni fc1/Relu")


def test_a_call_of_a_dump_is_printed_too(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(ASCEND / "debug_1", capsys)
    by_call, by_file = rows(told("pt Relu.0::output.0")), rows(told(f"pt {RELU}"))
    assert by_call == by_file
    assert len(by_call) == 10
    with pytest.raises(UlpscopeError, match="was not saved"):
        Told(ASCEND / "stats", capsys)("pt Relu.0")


def test_words_are_parted_by_tabs_and_the_home_directory_is_known(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    np.save(tmp_path / "a.npy", np.arange(4.0))
    assert "0.0 1.0 2.0 3.0" in told("pt\t~/a.npy")
    with pytest.raises(UlpscopeError, match="'nothing' is no command"):
        told("help nothing")


def test_vc_of_an_error_that_a_cosine_does_not_show(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything is alike by its cosine, but not by what rounding explains."""
    reference = root / "tf" / "dump" / "fc1_Relu.0.1767225600900010.npy"
    target = Told(root, capsys).context.dumped.find(RELU).stored.array().astype(np.float32)
    np.save(reference, target * np.where(np.arange(80).reshape(2, 40) % 2, 1.1, 0.9).astype(np.float32))
    for name in ("fc2_BiasAdd.0.*", "pred_ArgMax.0.*", "scale_Mul.0.*", "2581421007.npy"):
        next((root / "tf" / "dump").glob(name)).unlink()
    told = Told(root, capsys)
    text = told("vc")
    assert "Find 0 of " in text
    assert "DIVERGED" in text
    assert told.code is ExitCode.DIFFERENCE


def test_what_ni_tells_of_a_reference_of_tfdbg_is_what_pt_finds(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(root / "tf" / "dump")
    shutil.copytree(ASCEND / "tf_debug_real", root / "tf" / "tf_debug")
    told = Told(root, capsys)
    (name,) = re.findall(r"-\[0\] (\S+DebugIdentity\S+)", told("ni fc1/Relu"))
    expected = np.load(ASCEND / "tf_debug_real" / "expected_tensors.npz")["fc1|Relu:0"]
    assert f"[Max: {expected.max():.8g}]" in told(f"pt {name}")
    assert f"[Max: {expected.max():.8g}]" in told("pt fc1/Relu.0")
