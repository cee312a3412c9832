"""A shell on a copy of the fixtures, without a terminal."""

import shutil
from pathlib import Path

import pytest

from ulpscope.records.enums import ExitCode
from ulpscope.shell.commands import all_commands, carry_out
from ulpscope.shell.data import Context, find_data, no_data

ASCEND = Path(__file__).parents[1] / "data" / "ascend"
RELU = "Relu.fc1_Relu.21.0.1767225600021123.output.0.npy"
COMMANDS = all_commands()


class Told:
    """A shell, and what it printed last."""

    def __init__(self, start: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.context = Context(find_data(start) or no_data(start))
        self._capsys = capsys
        self.code: ExitCode | None = None

    def __call__(self, line: str) -> str:
        self._capsys.readouterr()
        self.code = carry_out(line, self.context, COMMANDS)
        return self._capsys.readouterr().out


def make_data(root: Path) -> Path:
    """The test network with fusion results and the result of a comparison."""
    shutil.copytree(ASCEND / "precision_data", root)
    (root / "fusion").mkdir()
    shutil.copy(ASCEND / "fusion" / "fusion_result.concat.json", root / "fusion" / "fusion_result.json")
    result = root / "temp" / "vector_compare" / "20261115061727"
    result.mkdir(parents=True)
    shutil.copy(ASCEND / "expected" / "msprobe_26.2.0" / "cmp_npu_tf_plain.csv", result / "result_1.csv")
    return root


def rows(text: str) -> list[list[str]]:
    """The cells of tables with frames."""
    return [[cell.strip() for cell in line.strip("│ ").split("│")] for line in text.splitlines() if line.count("│") > 2]
