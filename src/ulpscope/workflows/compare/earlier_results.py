"""Results of earlier network-wide comparisons: the operators whose outputs are the least alike."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.ascend.result_table import is_result_table, read_result_table
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.terminal.earlier_results import LowOperators, low_json, low_text

DEFAULT_COSINE = 0.98
"""At or below it an output counts as wrong: what precision_tool has always taken."""
DEFAULT_LIMIT = 3


@dataclass(frozen=True, slots=True)
class LowResult:
    """The operators of some results that are not alike, to be told as text or JSON."""

    found: tuple[LowOperators, ...]

    @property
    def code(self) -> ExitCode:
        if not any(each.compared for each in self.found):
            return ExitCode.NOTHING
        return ExitCode.DIFFERENCE if any(each.total for each in self.found) else ExitCode.OK

    def text(self, *, width: int = 80, color: bool = False) -> str:
        return low_text(self.found, width=width, color=color)

    def json(self) -> dict[str, Any]:
        return low_json(self.found)


def show_results(path: Path, *, cosine: float = DEFAULT_COSINE, limit: int = DEFAULT_LIMIT) -> LowResult:
    """Look at a result CSV, or at each one of a directory; 0 lists all operators."""
    return LowResult(low_operators(path, cosine=cosine, limit=limit or None))


def low_operators(
    path: Path, *, cosine: float = DEFAULT_COSINE, limit: int | None = DEFAULT_LIMIT
) -> tuple[LowOperators, ...]:
    """Of a result CSV, or of each one of a directory, the operators with an output's cosine at or below `cosine`."""
    return tuple(_low(file, cosine, limit) for file in _tables(path))


def _low(path: Path, cosine: float, limit: int | None) -> LowOperators:
    operators = read_result_table(path)
    # A comparison with nan is false: what was not computed is not low.
    low = [one for one in operators if any(tensor.cosine <= cosine for tensor in one.of(Side.OUTPUT))]
    return LowOperators(path, cosine, tuple(low[:limit]), total=len(low), compared=len(operators))


def _results(path: Path, pattern: str) -> list[Path]:
    return [file for file in sorted(path.glob(pattern)) if is_result_table(file)]


def _tables(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    # Results of several times lie each in a directory of its own.
    found = next(filter(None, (_results(path, pattern) for pattern in ("*.csv", "*/*.csv"))), [])
    if not found:
        raise UlpscopeError(
            f"{path} {'holds no result of a comparison' if path.is_dir() else 'does not exist'}",
            expected="a result CSV, a directory with some, or a directory of such directories",
            next_step="check the path, or compare again: ulpscope compare REFERENCE DUMPS --graph GRAPH",
            code=ExitCode.NOTHING if path.is_dir() else ExitCode.USAGE,
        )
    return found
