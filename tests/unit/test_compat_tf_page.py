"""docs/compat-tf-config.md names everything that a script or a settings file may ask for."""

import ast
from pathlib import Path

import pytest

from ulpscope.compat.tf_switches import WORDS
from ulpscope.workflows.tf_runs.settings import FOLDERS, NUMBERS, TEXTS, WITHOUT_EFFECT

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/compat-tf-config.md").read_text(encoding="utf-8")


def names_of_scripts() -> list[str]:
    """Without importing the module, which seeds every generator."""
    tree = ast.parse((ROOT / "src/ulpscope/compat/tf_config.py").read_text(encoding="utf-8"))
    (names,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    ]
    found: list[str] = ast.literal_eval(names)
    return found


@pytest.mark.parametrize("name", [*names_of_scripts(), *WORDS])
def test_names_and_actions(name: str) -> None:
    assert f"`{name}" in PAGE


@pytest.mark.parametrize("key", [*NUMBERS, *TEXTS, *FOLDERS, *WITHOUT_EFFECT])
def test_keys(key: str) -> None:
    assert f"`{key}`" in PAGE


@pytest.mark.parametrize("key", NUMBERS)
def test_defaults_of_numbers(key: str) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| `") and f"`{key}`" in line]
    assert str(NUMBERS[key]) in row.split("|")[2]
