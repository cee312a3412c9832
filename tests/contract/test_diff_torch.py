"""Files that torch.save wrote: read as they are, mapped where possible, and never executed."""

import argparse
import contextlib
import io
import pickle
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import save_file

from ulpscope.cli.main import main
from ulpscope.dialects.files.opening import load_tensor_file
from ulpscope.dialects.files.torch_archives import Part, read_archive
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


@pytest.mark.parametrize("form", ["legacy", "pickle"])
@pytest.mark.parametrize("name", ["x.pt", "x.bin", "x"])
def test_a_bomb_does_not_go_off(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, name: str) -> None:
    write_bomb(tmp_path / name, form)
    code = main(["diff", str(tmp_path / name), str(tmp_path / name)])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith(f"ulpscope: error: {tmp_path / name}")
    assert "weights_only" not in captured.err
    assert not (tmp_path / "fired").exists()


@pytest.mark.parametrize("name", ["x.pt", "x.bin", "x"])
def test_what_lies_beside_a_bomb_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    write_bomb(tmp_path / name, "archive")
    assert main(["diff", str(tmp_path / name), str(tmp_path / name)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Identical: 2 numbers")
    assert re.search(r"left out of the target, nothing of it was executed: 1 object\n  bomb: _?io\.open", told)
    assert not (tmp_path / "fired").exists()


def test_a_bomb_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"bomb": Bomb(tmp_path / "fired")}, tmp_path / "x.pt")
    assert main(["diff", str(tmp_path / "x.pt"), str(tmp_path / "x.pt")]) == 2
    assert "open, and is not loaded" in capsys.readouterr().err
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
    torch.save(torch.ones(1), tmp_path / "x.pt", _use_new_zipfile_serialization=False)
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


def everything() -> dict[str, Any]:
    weight = torch.randn(3, 4)
    return {
        "model": {
            "weight": weight,
            "transposed": weight.T,
            "part": weight[1:, ::2],
            "tied": torch.nn.Parameter(weight),
        },
        "types": [torch.arange(4).to(dtype) for dtype in (torch.bfloat16, torch.float8_e5m2, torch.bool, torch.int8)],
        "wide": [torch.ones(2, dtype=dtype) for dtype in (torch.complex128, torch.float16, torch.uint16)],
        "empty": torch.empty(0, 3),
        "lr": 0.1,
        "size": torch.Size([2, 3]),
    }


def test_an_archive_is_read_alike_with_torch_and_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(everything(), tmp_path / "x.pt")
    with_torch = read_pt(tmp_path / "x.pt")
    monkeypatch.setitem(sys.modules, "torch", None)
    without = read_pt(tmp_path / "x.pt")
    monkeypatch.undo()
    assert list(without) == list(with_torch)
    for name, tensor in without.items():
        assert (tensor.dtype, tensor.shape) == (with_torch[name].dtype, with_torch[name].shape), name
        assert tensor.array().tobytes() == with_torch[name].array().tobytes(), name


def test_a_distributed_checkpoint_is_put_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {"model": torch.nn.Linear(3, 2).state_dict(), "step": 5, "half": torch.ones(4, dtype=torch.bfloat16)}
    torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    torch.save(state, tmp_path / "a.pt")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "a.pt")]) == 0
    assert capsys.readouterr().out.startswith("Agree: of 4 tensors 4 identical.")
    (tmp_path / "a/__0_0.distcp").write_bytes(b"")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "a.pt")]) == 2
    (tmp_path / "a/.metadata").write_bytes(pickle.dumps({"storage_data": Bomb(tmp_path / "fired")}))
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "a.pt")]) == 2
    assert not (tmp_path / "fired").exists()


def test_pieces_of_several_ranks_make_one_tensor(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import metadata as told
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    whole, placed, data = torch.arange(12.0).reshape(4, 3), {}, b""
    for row in (0, 2):
        file = io.BytesIO()
        torch.save(whole[row : row + 2].clone(), file)
        index = told.MetadataIndex("w", torch.Size([row, 0]))
        placed[index] = _StorageInfo("__0_0.distcp", len(data), len(file.getvalue()))
        data += file.getvalue()
    chunks = [told.ChunkStorageMetadata(torch.Size([row, 0]), torch.Size([2, 3])) for row in (0, 2)]
    about = told.TensorStorageMetadata(told.TensorProperties(torch.float32), torch.Size([4, 3]), chunks)
    (tmp_path / "__0_0.distcp").write_bytes(data)
    for storage, is_whole in ((placed, True), (dict(list(placed.items())[:1]), False)):
        described = told.Metadata({"w": about}, storage_data=storage)
        (tmp_path / ".metadata").write_bytes(pickle.dumps(described))
        if is_whole:
            assert load_tensor_file(tmp_path)["w"].array().tolist() == whole.tolist()
        else:
            with pytest.raises(UlpscopeError, match="pieces of tensor 'w' are missing"):
                load_tensor_file(tmp_path)


class OfMegatron:
    """What only a training's own code knows."""


def test_a_megatron_checkpoint_is_read_rank_by_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, lr in (("a", 0.1), ("b", 0.2)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "latest_checkpointed_iteration.txt").write_text("20")
        for rank in range(2):
            folder = tmp_path / side / "iter_0000020" / f"mp_rank_{rank:02d}"
            folder.mkdir(parents=True)
            args = argparse.Namespace(lr=lr, name="run", backend=OfMegatron())
            content = {"model": {"w": torch.full((2,), rank + 1.0)}, "args": args, "iteration": 20}
            torch.save(content, folder / "model_optim_rng.pt")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    told = capsys.readouterr().out
    assert told.startswith("Different: of 6 tensors 4 identical, 2 different.")
    assert "mp_rank_01.args.backend: tests.contract.test_diff_torch.OfMegatron" in told


def test_no_damage_of_an_archive_is_a_fault_of_ours(tmp_path: Path) -> None:
    torch.save({"a": torch.randn(3, 4), "b": [torch.ones(2).bfloat16(), 1.0]}, tmp_path / "x.pt")
    whole, drawn = (tmp_path / "x.pt").read_bytes(), random.Random(1)
    read = 0
    for _ in range(300):
        damaged = bytearray(whole)
        # The pickle lies near the beginning, the table of contents at the end.
        place = drawn.choice((drawn.randrange(700), drawn.randrange(len(whole) - 700, len(whole))))
        damaged[place] = drawn.randrange(256)
        (tmp_path / "y.pt").write_bytes(damaged)
        with contextlib.suppress(UlpscopeError):
            read += all(
                tensor.array().shape == tensor.shape for tensor in read_archive(Part(tmp_path / "y.pt")).values()
            )
    assert 0 < read < 300
