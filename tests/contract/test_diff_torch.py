"""Files that torch.save wrote: read as they are, mapped where possible, and never executed."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ulpscope.cli.main import main
from ulpscope.dialects.files.opening import load_tensor_file
from ulpscope.dialects.files.torch_files import read_pt
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.errors import UlpscopeError

DTYPE_NAMES = [name for name in DTYPES if hasattr(torch, name)]
# Of the form without an archive torch itself reads only these.
OLD_DTYPE_NAMES = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "int64", "uint8", "bool")


def elements(dtype: str) -> torch.Tensor:
    numbers = torch.tensor([0.0, 1.0, 2.0, 0.5])
    return numbers.to(getattr(torch, dtype))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    ("dtype", "archive"), [*((name, True) for name in DTYPE_NAMES), *((name, False) for name in OLD_DTYPE_NAMES)]
)
def test_every_type_keeps_its_bits(tmp_path: Path, dtype: str, archive: bool) -> None:
    tensor = elements(dtype)
    torch.save(tensor, tmp_path / "x.pt", _use_new_zipfile_serialization=archive)
    stored = load_tensor_file(tmp_path / "x.pt")[""]
    assert (stored.dtype, stored.shape) == (dtype, (4,))
    array = stored.array()
    assert array.tobytes() == tensor.contiguous().view(torch.uint8).numpy().tobytes()
    assert not array.flags.writeable


def test_places_of_nested_tensors(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    content = {"model": {"w": weight}, "steps": [1, 2.5], "epoch": True, "note": "text", 0: torch.zeros(1)}
    torch.save(content, tmp_path / "x.pt")
    tensors = read_pt(tmp_path / "x.pt")
    assert {key: (tensor.dtype, tensor.shape) for key, tensor in tensors.items()} == {
        "model.w": ("float32", (2,)),
        "steps.0": ("int64", ()),
        "steps.1": ("float64", ()),
        "epoch": ("bool", ()),
        "0": ("float32", (1,)),
    }
    assert tensors["steps.1"].array() == 2.5


def test_views_and_conjugates(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    torch.save({"t": base.T, "part": base[:, 1], "conj": torch.tensor([1 + 2j]).conj()}, tmp_path / "x.pt")
    tensors = read_pt(tmp_path / "x.pt")
    np.testing.assert_array_equal(tensors["t"].array(), base.T.numpy())
    np.testing.assert_array_equal(tensors["part"].array(), [1.0, 4.0])
    np.testing.assert_array_equal(tensors["conj"].array(), [1 - 2j])


def test_an_archive_is_mapped(tmp_path: Path) -> None:
    torch.save(torch.zeros(8_000_000), tmp_path / "x.pt")
    before = anonymous_bytes()
    array = read_pt(tmp_path / "x.pt")[""].array()
    assert array.sum() == 0.0
    assert anonymous_bytes() - before < 16_000_000


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def test_sparse_and_nested_tensors_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"s": torch.eye(3).to_sparse(), "x": torch.ones(1)}, tmp_path / "x.pt")
    assert read_pt(tmp_path / "x.pt")["s"].dtype == "a sparse_coo tensor"
    code = main(["diff", str(tmp_path / "x.pt"), str(tmp_path / "x.pt")])
    assert code == 1
    assert "1 identical, 1 not compared" in capsys.readouterr().out


class Bomb:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def write_bomb(path: Path, form: str) -> None:
    content = {"weight": torch.ones(2), "bomb": Bomb(path.parent / "fired")}
    if form == "pickle":
        path.write_bytes(pickle.dumps(content["bomb"]))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "archive")


@pytest.mark.parametrize("form", ["archive", "legacy", "pickle"])
@pytest.mark.parametrize("name", ["x.pt", "x.bin", "x"])
def test_a_bomb_does_not_go_off(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, name: str) -> None:
    write_bomb(tmp_path / name, form)
    code = main(["diff", str(tmp_path / name), str(tmp_path / name)])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith(f"ulpscope: error: {tmp_path / name}")
    assert "weights_only" not in captured.err
    assert not (tmp_path / "fired").exists()


def test_a_damaged_file(tmp_path: Path) -> None:
    torch.save(torch.ones(1000), tmp_path / "x.pt")
    whole = (tmp_path / "x.pt").read_bytes()
    for length in (0, 10, 500, len(whole) - 100):
        (tmp_path / "x.pt").write_bytes(whole[:length])
        with pytest.raises(UlpscopeError, match=r"x\.pt: torch cannot read it"):
            read_pt(tmp_path / "x.pt")


def test_lists_that_hold_themselves(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    torch.save(endless, tmp_path / "x.pt")
    with pytest.raises(UlpscopeError, match="hold themselves"):
        read_pt(tmp_path / "x.pt")


def test_without_torch_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(torch.ones(1), tmp_path / "x.pt")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UlpscopeError, match="torch is not here") as caught:
        read_pt(tmp_path / "x.pt")
    assert "pip install" in caught.value.next_step


def test_a_checkpoint_in_two_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {
        "a.weight": torch.randn(3, 3),
        "a.bias": torch.randn(3).bfloat16(),
        "b": torch.randn(4).to(torch.float8_e5m2),
    }
    torch.save(state, tmp_path / "x.pt")
    save_file(state, tmp_path / "x.safetensors")
    assert main(["diff", str(tmp_path / "x.pt"), str(tmp_path / "x.safetensors")]) == 0
    assert capsys.readouterr().out.startswith("Agree: of 3 tensors 3 identical.")
