"""What holds of all detectors and of the numbers that they and the rule of rounding decide by."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ulpscope.diagnose import detectors
from ulpscope.diagnose import limits as of_diagnose
from ulpscope.diagnose.detectors.asking import Computation, Detector
from ulpscope.diagnose.detectors.order import OF_A_DIFFERENCE
from ulpscope.judge.rounding import limits as of_rounding

HOMES = [Path(str(module.__file__)) for module in (of_diagnose, of_rounding)]


def test_every_detector_is_asked_once_and_the_last_knows_everything() -> None:
    for module in pkgutil.iter_modules(detectors.__path__):
        importlib.import_module(f"{detectors.__name__}.{module.name}")
    assert sorted(OF_A_DIFFERENCE, key=str) == sorted(Detector.__subclasses__(), key=str)
    assert OF_A_DIFFERENCE[-1] is Computation


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.parent.name)
def test_numbers_stand_in_one_file_of_their_room(home: Path) -> None:
    modules = [path for path in home.parent.rglob("*.py") if path != home]
    assert len(modules) > 5
    assert [f"{path.name}: {name}" for path in modules for name in numbers_in(path)] == []


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.parent.name)
def test_every_number_says_what_it_is(home: Path) -> None:
    """In a text or comment beside it, of its own or of its neighbour."""
    lines = home.read_text(encoding="utf-8").splitlines()
    told = [number for number, line in enumerate(lines) if line.lstrip().startswith(('"""', "# "))]
    for name, number in numbers_in(home).items():
        assert any(abs(number - beside) <= 3 for beside in told), name


def numbers_in(path: Path) -> dict[str, int]:
    """Names of a module that stand for plain numbers, with their lines."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    named = ((target, node) for node in body if isinstance(node, ast.Assign) for target in node.targets)
    return {name: node.lineno for target, node in named if is_number(node.value) for name in names_of(target)}


def is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(is_number, node.elts))
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return is_number(node.operand) if isinstance(node, ast.UnaryOp) else is_plain_number(node)


def is_plain_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def names_of(target: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
