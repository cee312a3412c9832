"""Checkpoints whose names differ: paired by what they hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ulpscope.cli.main import main

RNG = np.random.default_rng(7)
LAYERS = {
    f"layers.{layer}.{name}": array.astype(np.float32)
    for layer in range(4)
    for name, array in (("w", RNG.standard_normal((8, 8))), ("norm", np.ones(8)), ("b", np.zeros(8)))
}


def diffed(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    for name, tensors in (("a", LAYERS), ("b", target)):
        save_file(
            {key: np.ascontiguousarray(array) for key, array in tensors.items()}, tmp_path / f"{name}.safetensors"
        )
    code = main(["diff", str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors"), "--json"])
    return code, json.loads(capsys.readouterr().out)


def renamed(name: str) -> str:
    return name.replace("layers", "blocks").replace(".w", ".weight")


def test_the_same_weights_under_other_names_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = diffed(tmp_path, capsys, {renamed(name): array for name, array in LAYERS.items()})
    assert (code, told["verdict"], told["only_reference"]) == (0, "agree", [])
    assert {each["reference"]: each["target"] for each in told["renamed"]} == {name: renamed(name) for name in LAYERS}


def test_weights_that_were_trained_on_are_found_by_nearness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moved = {renamed(name): array + 0.02 * RNG.standard_normal(array.shape) for name, array in LAYERS.items()}
    code, told = diffed(tmp_path, capsys, {name: array.astype(np.float32) for name, array in moved.items()})
    assert code == 1
    assert {each["reference"]: each["target"] for each in told["renamed"]} == {name: renamed(name) for name in LAYERS}


def test_what_is_not_there_is_missing_and_not_taken_for_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = {renamed(name): array for name, array in LAYERS.items() if not name.startswith("layers.2")}
    target["head.weight"] = RNG.standard_normal((8, 8)).astype(np.float32)
    code, told = diffed(tmp_path, capsys, target)
    assert code == 1
    assert set(told["only_reference"]) == {name for name in LAYERS if name.startswith("layers.2")}
    assert told["only_target"] == ["head.weight"]


def test_constants_alone_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = diffed(tmp_path, capsys, {"other.norm": np.ones(8, np.float32)})
    assert (code, told["verdict"]) == (3, "nothing_compared")
