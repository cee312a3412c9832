"""`ulpscope diff` without torch: files of tensors, what is told of them, exit codes."""

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ulpscope.cli.main import main
from ulpscope.dialects.files.opening import load_tensor_file
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.diff import diff


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["diff", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def write_safetensors(path: Path, **tensors: np.ndarray) -> Path:
    save_file(dict(tensors), path)
    return path


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[Path, Path]:
    reference = np.arange(12, dtype=np.float32).reshape(3, 4)
    target = reference.copy()
    target[1, 2] = 6.5
    target[2, 3] = -11.0
    np.save(tmp_path / "a.npy", reference)
    np.save(tmp_path / "b.npy", target)
    return tmp_path / "a.npy", tmp_path / "b.npy"


def test_two_arrays(arrays: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arrays)
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0] == "Different: 2 of 12 numbers, the largest difference is 22 at [2, 3]."
    assert lines[2] == f"reference  {arrays[0]}  float32 [3, 4]"
    worst = lines.index("the 2 elements that differ most")
    assert [line.split() for line in lines[worst + 2 : worst + 4]] == [
        ["[2,", "3]", "11.0", "-11.0", "-22", "2"],
        ["[1,", "2]", "6.0", "6.5", "0.5", "0.0833333"],
    ]


def test_one_json_object(arrays: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *arrays, "--json", "-n", 1)
    answer = json.loads(out)
    assert (code, answer["schema"], answer["command"], answer["verdict"]) == (1, 1, "diff", "differ")
    (tensor,) = answer["tensors"]
    assert tensor["metrics"]["max_abs"] == 22.0
    assert tensor["worst"] == [{"index": [2, 3], "reference": 11.0, "target": -11.0}]
    assert (tensor["outside"], tensor["agreement"]) == (2, "different")
    assert answer["counts"] == {
        "tensors_compared": 1,
        "identical": 0,
        "equal": 0,
        "within": 0,
        "different": 1,
        "not_compared": 0,
    }


@pytest.mark.parametrize(
    ("options", "code", "outside"),
    [
        (["--atol", "22"], 0, 0),
        (["--atol", "21.9"], 1, 1),
        (["--rtol", "2"], 0, 0),
        (["--rtol", "0.1"], 1, 1),
        (["--atol", "0.5", "--rtol", "2"], 0, 0),
        (["--atol", "0"], 1, 2),
    ],
)
def test_tolerances_decide(
    arrays: tuple[Path, Path], capsys: pytest.CaptureFixture[str], options: list[str], code: int, outside: int
) -> None:
    got, out, _ = run(capsys, *arrays, "--json", *options)
    assert (got, json.loads(out)["tensors"][0]["outside"]) == (code, outside)
    assert run(capsys, *arrays, *options)[1].splitlines()[0].startswith("Different" if code else "Within the tolerance")


@pytest.mark.parametrize("option", [["--atol", "nan"], ["--rtol", "-1"], ["-n", "-1"], ["--atol", "x"]])
def test_bad_options(arrays: tuple[Path, Path], capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    code, out, err = run(capsys, *arrays, *option)
    assert (code, out) == (2, "")
    assert "from 0 up" in err


def test_identical_and_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.array([0.0, 1.5, np.nan], np.float32))
    np.save(tmp_path / "b.npy", np.array([-0.0, 1.5, np.nan], np.float32))
    np.save(tmp_path / "c.npy", np.array([0.0, 1.5, np.nan], np.float64))
    assert run(capsys, tmp_path / "a.npy", tmp_path / "a.npy")[:2][0] == 0
    for name, words in (("a", "Identical: 3 numbers"), ("b", "the sign of a zero"), ("c", "float32 and float64")):
        code, out, _ = run(capsys, tmp_path / "a.npy", tmp_path / f"{name}.npy")
        assert code == 0
        assert words in out.splitlines()[0]


def test_nan_and_inf_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.array([1.0, np.inf, np.nan, 5.0]))
    np.save(tmp_path / "b.npy", np.array([1e9, -np.inf, np.nan, np.nan]))
    code, out, _ = run(capsys, tmp_path / "a.npy", tmp_path / "b.npy", "--json", "--atol", "1e10")
    worst = json.loads(out)["tensors"][0]["worst"]
    assert code == 1
    assert worst == [
        {"index": [1], "reference": "inf", "target": "-inf"},
        {"index": [3], "reference": 5.0, "target": "nan"},
        {"index": [0], "reference": 1.0, "target": 1e9},
    ]


@pytest.mark.parametrize("count", [0, 1, 7, 300_000])
def test_worst_elements_of_many(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    reference, noise = rng.standard_normal((700, 1000)), rng.standard_normal((700, 1000))
    noise[rng.random(noise.shape) < 0.7] = 0.0
    np.save(tmp_path / "a.npy", reference)
    np.save(tmp_path / "b.npy", reference + noise)
    apart = np.abs((reference + noise) - reference).reshape(-1)
    expected = [int(i) for i in np.argsort(-apart, kind="stable") if apart[i] > 0]
    (found,) = diff(tmp_path / "a.npy", tmp_path / "b.npy", count=count).found.tensors
    places = [int(np.ravel_multi_index(pair.index, reference.shape)) for pair in found.worst]
    assert places == (expected[:count] if count else expected)


def test_shapes_that_differ_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.zeros((3, 2)))
    code, out, _ = run(capsys, tmp_path / "a.npy", tmp_path / "b.npy")
    assert (code, out.splitlines()[0]) == (1, "The shapes differ: [2, 3] and [3, 2].")


def test_integers_are_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limit = np.iinfo(np.int64).max
    np.save(tmp_path / "a.npy", np.array([limit, 3]))
    np.save(tmp_path / "b.npy", np.array([limit - 1, 3]))
    code, out, _ = run(capsys, tmp_path / "a.npy", tmp_path / "b.npy", "--json")
    assert code == 1
    assert json.loads(out)["tensors"][0]["worst"] == [{"index": [0], "reference": limit, "target": limit - 1}]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape))
    np.save(tmp_path / "b.npy", np.ones(shape))
    code, out, _ = run(capsys, tmp_path / "a.npy", tmp_path / "b.npy")
    assert code == (1 if shape == () else 0), out


def checkpoints(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((8, 4)).astype(np.float32)
    reference = {"same": weight, "near": weight, "far": weight, "typed": weight, "shaped": weight, "gone": weight}
    target = {
        "same": weight,
        "near": weight * np.float32(1 + 1e-6),
        "far": -weight,
        "typed": weight.astype(np.float64),
        "shaped": weight[:7],
        "new": rng.standard_normal((8, 4)).astype(np.float32),
    }
    return (
        write_safetensors(tmp_path / "a.safetensors", **reference),
        write_safetensors(tmp_path / "b.safetensors", **{k: np.ascontiguousarray(v) for k, v in target.items()}),
    )


def test_two_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = checkpoints(tmp_path)
    code, out, _ = run(capsys, *pair)
    lines = out.splitlines()
    assert code == 1
    assert lines[0] == (
        "Different: of 5 tensors 1 identical, 1 equal but for type or sign of zero, 2 different, 1 not compared; "
        "2 tensors on one side only."
    )
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert names == ["tensor", "shaped", "far", "near", "typed", "gone", "new"]
    _, out, _ = run(capsys, *pair, "--json")
    answer = json.loads(out)
    assert (answer["only_reference"], answer["only_target"]) == (["gone"], ["new"])
    assert [tensor["agreement"] for tensor in answer["tensors"]] == [
        *("not_compared", "different", "different", "equal", "identical")
    ]


def test_a_checkpoint_within_a_tolerance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = np.ones(4, np.float32)
    first = write_safetensors(tmp_path / "a.safetensors", x=weight, y=weight)
    second = write_safetensors(tmp_path / "b.safetensors", x=weight, y=weight * np.float32(1.001))
    assert run(capsys, first, second)[0] == 1
    code, out, _ = run(capsys, first, second, "--rtol", "0.01")
    assert (code, out.splitlines()[0]) == (0, "Agree: of 2 tensors 1 identical, 1 within the tolerance.")


def test_one_tensor_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = checkpoints(tmp_path)
    assert run(capsys, *pair, "--key", "same")[0] == 0
    assert run(capsys, *pair, "--key", "far")[0] == 1
    assert run(capsys, f"{pair[0]}::gone", f"{pair[1]}::same")[0] == 0
    code, _, err = run(capsys, *pair, "--key", "sane")
    assert code == 2
    assert "has no tensor 'sane'" in err
    assert "'same'" in err


def test_a_nameless_array_beside_a_named_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = checkpoints(tmp_path)
    np.save(tmp_path / "w.npy", load_tensor_file(pair[0])["same"].array())
    assert run(capsys, tmp_path / "w.npy", f"{pair[1]}::same")[0] == 0
    assert run(capsys, tmp_path / "w.npy", pair[1], "--key", "same")[0] == 0
    code, _, err = run(capsys, tmp_path / "w.npy", pair[1])
    assert code == 2
    assert "holds 6 tensors, the other side is one" in err


def test_no_name_in_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_safetensors(tmp_path / "a.safetensors", x=np.zeros(2))
    second = write_safetensors(tmp_path / "b.safetensors", y=np.zeros(2))
    code, out, _ = run(capsys, first, second, "--json")
    assert (code, json.loads(out)["verdict"]) == (3, "nothing_compared")
    assert run(capsys, first, second)[1].startswith("Nothing compared")


def test_names_below_a_wrapper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {"a.weight": np.ones(3), "b": np.zeros(2)}
    bare = write_safetensors(tmp_path / "a.safetensors", **weights)
    inner = {f"state.model.{name}": array for name, array in weights.items()}
    wrapped = write_safetensors(tmp_path / "b.safetensors", **inner, lr=np.ones(1))
    for order in ((bare, wrapped), (wrapped, bare)):
        code, out, _ = run(capsys, *order)
        assert (code, out.splitlines()[0]) == (0, "Agree: of 2 tensors 2 identical.")
        assert "names below 'state.model.'" in out


def test_sharded_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, split in (("one", 1), ("two", 2)):
        folder = tmp_path / name
        folder.mkdir()
        tensors = {f"w{i}": np.full(3, i, np.float32) for i in range(4)}
        parts = [dict(list(tensors.items())[:split]), dict(list(tensors.items())[split:])]
        weight_map = {}
        for i, part in enumerate(parts):
            write_safetensors(folder / f"model-{i}.safetensors", **part)
            weight_map |= dict.fromkeys(part, f"model-{i}.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert run(capsys, tmp_path / "one", tmp_path / "two")[0] == 0
    (tmp_path / "two" / "model-1.safetensors").unlink()
    code, _, err = run(capsys, tmp_path / "one", tmp_path / "two")
    assert code == 2
    assert "model-1.safetensors" in err


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str], save: Any) -> None:
    save(tmp_path / "a.npz", x=np.arange(5), y=np.ones((2, 2), np.float16))
    save(tmp_path / "b.npz", x=np.arange(5), y=np.full((2, 2), 2, np.float16))
    code, out, _ = run(capsys, tmp_path / "a.npz", tmp_path / "b.npz")
    assert code == 1
    assert out.startswith("Different: of 2 tensors 1 identical, 1 different.")
    assert run(capsys, tmp_path / "a.npz::x", tmp_path / "b.npz::x")[0] == 0


def test_bfloat16_and_float8(tmp_path: Path) -> None:
    for dtype, code in ((ml_dtypes.bfloat16, "BF16"), (ml_dtypes.float8_e4m3fn, "F8_E4M3")):
        data = np.array([1.0, 2.0], dtype)
        header = json.dumps({"x": {"dtype": code, "shape": [2], "data_offsets": [0, data.nbytes]}}).encode()
        (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data.tobytes())
        np.save(tmp_path / "b.npy", np.array([1.0, 2.5]))
        (found,) = diff(tmp_path / "a.safetensors", tmp_path / "b.npy").found.tensors
        assert found.metrics is not None
        assert (found.metrics.max_abs, found.metrics.different) == (0.5, 1)
    np.save(tmp_path / "c.npy", np.array([1.0, 2.0], ml_dtypes.bfloat16))
    assert load_tensor_file(tmp_path / "c.npy")[""].dtype == "bfloat16"


def test_arrays_of_other_layouts(tmp_path: Path) -> None:
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "a.npy", plain)
    for name, other in (("fortran", np.asfortranarray(plain)), ("swapped", plain.astype(">f4"))):
        np.save(tmp_path / f"{name}.npy", other)
        assert diff(tmp_path / "a.npy", tmp_path / f"{name}.npy").code == 0


class Bomb:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_nothing_is_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.array([Bomb(tmp_path / "fired")]), allow_pickle=True)
    code, _, err = run(capsys, tmp_path / "a.npy", tmp_path / "a.npy")
    assert code == 2
    assert "holds object" in err
    assert not (tmp_path / "fired").exists()


def broken_files(folder: Path) -> dict[str, bytes]:
    np.save(folder / "good.npy", np.arange(100.0))
    write_safetensors(folder / "good.safetensors", x=np.arange(100.0))
    np.savez(folder / "good.npz", x=np.arange(100.0))
    npy, safetensors, npz = ((folder / f"good.{kind}").read_bytes() for kind in ("npy", "safetensors", "npz"))
    header = b'{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,8]}}'
    return {
        "empty.npy": b"",
        "short.npy": npy[:40],
        "cut.npy": npy[:-8],
        "text.npy": b"hello world",
        "empty.safetensors": b"",
        "cut.safetensors": safetensors[:-8],
        "long.safetensors": struct.pack("<Q", 2**60) + b"{}",
        "words.safetensors": struct.pack("<Q", 5) + b"[1,2]",
        "sizes.safetensors": struct.pack("<Q", len(header)) + header + bytes(8),
        "cut.npz": npz[:-30],
        "text.npz": b"hello world",
        "unknown.xyz": b"hello world",
    }


@pytest.mark.parametrize(
    "name",
    [
        *(f"{k}.npy" for k in ("empty", "short", "cut", "text")),
        *(f"{k}.safetensors" for k in ("empty", "cut", "long", "words", "sizes")),
        "cut.npz",
        "text.npz",
        "unknown.xyz",
        "absent.npy",
    ],
)
def test_broken_files_give_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    content = broken_files(tmp_path).get(name)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, out, err = run(capsys, tmp_path / name, tmp_path / "good.npy")
    assert (code, out) == (2, ""), err
    assert name in err
    assert "expected:" in err
    assert "Traceback" not in err


def test_types_that_cannot_be_compared_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", names=np.array(["x", "y"]), x=np.zeros(2))
    code, out, _ = run(capsys, tmp_path / "a.npz", tmp_path / "a.npz")
    assert code == 1
    assert "1 identical, 1 not compared" in out
    assert "<U1" in out


def test_members_that_are_no_arrays_are_left_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    assert list(load_tensor_file(tmp_path / "a.npz")) == ["x"]


def test_names_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_safetensors(tmp_path / "a.safetensors", **{"\x1b[31m": np.zeros(2), "b": np.zeros(1)})
    second = write_safetensors(tmp_path / "b.safetensors", **{"\x1b[31m": np.ones(2), "b": np.zeros(1)})
    assert "\x1b" not in run(capsys, first, second)[1]


def test_a_directory_without_tensors(tmp_path: Path) -> None:
    with pytest.raises(UlpscopeError, match="holds no file of tensors"):
        load_tensor_file(tmp_path)


def test_two_folders_of_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, factor in (("a", 1.0), ("b", 2.0)):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "Torch_add_0_forward_output.npy", np.ones(3))
        np.save(tmp_path / side / "Torch_mul_0_forward_output.npy", factor * np.ones(3))
    code, out, _ = run(capsys, tmp_path / "a", tmp_path / "b")
    assert code == 1
    assert "Torch_mul_0_forward_output" in out
    assert "Torch_add_0_forward_output" not in out.split("identical")[0]


def test_reference_data_of_other_times_is_the_same_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, time in (("a", 1767225600900010), ("b", 1767225600900999)):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / f"fc1_Relu.0.{time}.npy", np.ones(3))
        np.save(tmp_path / side / f"fc1_Relu.0.{time + 1}.npy", np.zeros(3))
        np.save(tmp_path / side / f"fc1_Relu.1.{time}.npy", np.full(3, 7.0))
    code, out, _ = run(capsys, tmp_path / "a", tmp_path / "b")
    assert (code, out.splitlines()[0]) == (0, "Agree: of 3 tensors 3 identical.")
