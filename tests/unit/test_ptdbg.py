"""Dumps of ptdbg_ascend: lines of JSON in a .pkl, arrays beside it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ulpscope.cli.main import main
from ulpscope.dialects.msprobe.ptdbg import read_ptdbg
from ulpscope.dialects.opening import open_run
from ulpscope.records.errors import TraceError
from ulpscope.workflows.compare.command import compare

Arrays = dict[str, NDArray[Any]]
SCALE = 0.5


def tensor_line(prefix: str, array: NDArray[Any], *, numbers: int = 4) -> list[Any]:
    summary = [float(array.max()), float(array.min()), float(array.mean()), float(np.linalg.norm(array))]
    if array.dtype.kind != "f":
        summary[-1] = float("nan")
    return [prefix, 1, [], f"torch.{array.dtype}", list(array.shape), summary[:numbers]]


def run_arrays(*, bias: float = 0.0) -> Arrays:
    """A product, a scaling and its backward, as ptdbg names what they read and make."""
    generator = np.random.default_rng(3)
    x, w = generator.normal(size=(4, 8)).astype(np.float32), generator.normal(size=(8, 8)).astype(np.float32)
    y = x @ w
    z = y * np.float32(SCALE) + np.float32(bias)
    g = generator.normal(size=(4, 8)).astype(np.float32)
    return {
        "Torch_matmul_0_forward_input.0": x,
        "Torch_matmul_0_forward_input.1": w,
        "Torch_matmul_0_forward_output": y,
        "Tensor___mul___0_forward_input.0": y,
        "Tensor___mul___0_forward_output": z,
        "Tensor___mul___0_backward_input.0": g,
        "Tensor___mul___0_backward_output.0": g * np.float32(SCALE),
    }


def write_ptdbg(root: Path, arrays: Arrays, *, save: bool = True, numbers: int = 4, name: str = "dump.pkl") -> Path:
    """Gives the directory of the rank."""
    rank = root / "step0" / "rank0"
    rank.mkdir(parents=True)
    lines: list[list[Any]] = []
    for prefix, array in arrays.items():
        lines.append(tensor_line(prefix, array, numbers=numbers))
        if prefix == "Tensor___mul___0_forward_input.0":
            lines.append(["Tensor___mul___0_forward_input.1", 1, [], "<class 'float'>", "[]", [SCALE] * 3])
            frame = ["/home/user/model.py", 54, "forward", ["z = y * scale\n"]]
            lines.append(["Tensor___mul___0_forward_stack_info", [frame]])
    (rank / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if save:
        folder = rank / Path(name).stem
        folder.mkdir()
        for prefix, array in arrays.items():
            np.save(folder / f"{prefix}.npy", array)
    return rank


def test_a_dump_is_a_trace_with_its_data(tmp_path: Path) -> None:
    arrays = run_arrays()
    write_ptdbg(tmp_path, arrays)
    (rank,) = open_run(tmp_path).ranks
    calls = rank.calls().collect()
    assert calls["op"].to_list() == ["torch.matmul", "torch.Tensor.__mul__", "torch.Tensor.__mul__"]
    assert calls["phase"].to_list() == ["forward", "forward", "backward"]
    assert json.loads(calls["arguments"][1])["args"] == [{"$tensor": "args.0"}, SCALE]
    used = rank.uses(calls["id"][0])
    assert [use.place for use in used] == ["args.0", "args.1", "output.0"]
    for use, prefix in zip(used, arrays, strict=False):
        data = rank.data(rank.value(use.value))
        assert data is not None
        assert np.array_equal(data, arrays[prefix])


@pytest.mark.parametrize("which", ["step0", "step0/rank0", "step0/rank0/dump.pkl", "step0/rank0/dump"])
def test_every_part_of_it_opens(tmp_path: Path, which: str) -> None:
    write_ptdbg(tmp_path, run_arrays())
    assert open_run(tmp_path / which).ranks[0].calls().collect().height == 3


def test_two_dumps_are_compared(tmp_path: Path) -> None:
    write_ptdbg(tmp_path / "gpu", run_arrays(), numbers=3)
    write_ptdbg(tmp_path / "npu", run_arrays(bias=0.3), name="api_stack_dump.pkl")
    result = compare(tmp_path / "gpu", tmp_path / "npu")
    assert result.verdict == "diverged"
    assert (result.findings[0].op, result.findings[0].tensor) == ("torch.Tensor.__mul__", "output.0")
    assert "model.py:54" in (result.findings[0].source or "")
    assert compare(tmp_path / "gpu", tmp_path / "gpu").verdict == "agree"


def test_statistics_alone_are_compared(tmp_path: Path) -> None:
    write_ptdbg(tmp_path / "gpu", run_arrays(), save=False)
    write_ptdbg(tmp_path / "npu", run_arrays(bias=0.3), save=False)
    assert compare(tmp_path / "gpu", tmp_path / "npu").findings[0].op == "torch.Tensor.__mul__"


def test_checksums_nested_arguments_and_repeated_lines(tmp_path: Path) -> None:
    lines = [
        ["Torch_cat_0_forward_input.0.0", 1, "d41d8cd98f00b204e9800998ecf8427e", "torch.int64", [2], []],
        ["Torch_cat_0_forward_input.0.1", 1, "e41d8cd98f00b204e9800998ecf8427e", "torch.int64", [2], []],
        ["Torch_cat_0_forward_input.dim", 1, [], "<class 'int'>", "[]", [0, 0, 0]],
        ["Torch_cat_0_forward_output", 1, "f41d8cd98f00b204e9800998ecf8427e", "torch.int64", [4], []],
        ["Module_block.0.ln_LayerNorm_2_forward_output", 1, [], "torch.int64", [4], [3, 0, 1.5, float("nan")]],
        ["Torch_cat_0_forward_output", 2, "a41d8cd98f00b204e9800998ecf8427e", "torch.int64", [4], []],
    ]
    path = tmp_path / "dump.pkl"
    path.write_text("\n".join(map(json.dumps, lines)))
    dump = read_ptdbg(path)
    cat = dump.data["Torch.cat.0.forward"]
    assert [item["shape"] for item in cat["input_args"][0]] == [[2], [2]]
    assert cat["input_kwargs"] == {"dim": {"type": "int", "value": 0}}
    assert cat["output"][0]["md5"].startswith("f41d")
    assert dump.data["Module.block.0.ln.LayerNorm.forward.2"]["output"][0]["Norm"] is None
    (rank,) = open_run(path).ranks
    assert rank.calls().collect().height == 2
    assert rank.summary_id == "ptdbg-md5"
    assert "1 line of dump.pkl not read" in rank.missing[0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('["Torch_cat_0_forward_output", 1]', "line 2 on: has 2 parts"),
        ('["nothing", 1, [], "torch.int64", [4], []]', "line 2 on: begins with 'nothing'"),
        ('{"a": 1}', "line 2 on"),
        ('["Torch_cat_0_forward_outp', "line 2 on"),
        ("[" * 100_000, "line 2 on"),
        ('["Torch_cat_0_forward_input.99999999", 1, [], "torch.int64", [4], []]', "an argument 99999999"),
        ('["Torch_cat_0_forward_input.0", 1, [], 7, [4], []]', "line 2 on"),
    ],
)
def test_a_line_that_is_none_of_ptdbg_s_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "dump.pkl"
    path.write_text('["Torch_cat_0_forward_output", 1, [], "torch.float32", [4], [1.0, 0.0, 0.5, 2.0]]\n' + line)
    with pytest.raises(TraceError) as caught:
        open_run(path).ranks[0].calls()
    assert problem in caught.value.seen


def test_a_pickle_is_never_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04cos\nsystem\n(S'touch hacked'\ntR.")
    assert main(["show", str(tmp_path / "model.pkl")]) == 2
    assert "model.pkl is a pickle, of which only tensors are ever read" in capsys.readouterr().err
