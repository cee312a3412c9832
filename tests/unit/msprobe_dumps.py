"""Dumps of msprobe for tests: small ones written by hand, real ones unpacked from tests/data/msprobe."""

import json
import tarfile
from pathlib import Path
from typing import Any

ARCHIVES = Path(__file__).parents[1] / "data" / "msprobe"

Json = dict[str, Any]


def unpack(name: str, into: Path) -> Path:
    """A real dump; gives its dump_path."""
    folder = into / name
    with tarfile.open(ARCHIVES / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def tensor(number: float | None = 1.5, *, shape: tuple[int, ...] = (2, 3), **changes: Any) -> Json:
    """A float32 tensor whose content is told by one number."""
    if number is None:
        stats: Json = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    else:
        stats = {"Max": number + 1, "Min": -number - 1, "Mean": number / 8, "Norm": number}
    form = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape), **stats, "requires_grad": True}
    return form | changes


def scalar(value: Any) -> Json:
    return {"type": type(value).__name__, "value": value}


def forward(args: list[Any], output: list[Any], **more: Any) -> Json:
    return {"input_args": args, "input_kwargs": {}, "output": output, **more}


def backward(received: list[Any], gradients: list[Any]) -> Json:
    return {"input": received, "output": gradients}


def write_dump(
    directory: Path,
    data: Any,
    *,
    step: int = 0,
    process: str = "rank0",
    construct: Json | None = None,
    stack: Json | None = None,
    file: str = "dump.json",
    **head: Any,
) -> Path:
    """Write one step of one process; gives the directory of the process."""
    folder = directory / f"step{step}" / process
    folder.mkdir(parents=True, exist_ok=True)
    top = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, **head, "data": data}
    (folder / file).write_text(json.dumps(top, indent=1), encoding="utf-8")
    if construct is not None:
        (folder / "construct.json").write_text(json.dumps(construct), encoding="utf-8")
    if stack is not None:
        (folder / "stack.json").write_text(json.dumps(stack), encoding="utf-8")
    return folder
