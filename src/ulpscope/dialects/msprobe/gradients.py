"""Gradients of a watched training in the layout of msprobe's task grad_probe, and how alike two such folders are.

rank0/grad_summary_0.csv      a parameter a row; intervals where bounds were given: the share of elements in each
rank0/step0/NAME.npy          which elements are positive, where signs were kept
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.dialects.msprobe.writing import Written
from ulpscope.records.calls import Use, Value
from ulpscope.records.enums import Role
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import LARGEST_DUMP, check_file
from ulpscope.trace.objects import use_from_row
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.trace.watched import AT_MOST, POSITIVE, parameter_of

ROOT = "model."
"""What names of parameters begin with here, and not in msprobe's files."""
NO_STATS = ("nan",) * 3
SIMILARITIES = "similarities.csv"


def write_gradients(trace: Trace, out: Path, *, told: Callable[[], None] = lambda: None) -> Written:
    """Write all steps and ranks of a watched training into `out`."""
    written = Written()
    for rank in trace.ranks:
        folder = f"rank{rank.info.rank}"
        if folder in written.ranks:
            folder = f"proc{rank.info.process.get('pid', len(written.ranks))}"
        written.ranks.add(folder)
        for step in rank.steps:
            _Step(rank, step).write(out / folder, written)
            told()
    return written


class _Step:
    """The gradients of one step."""

    def __init__(self, rank: RankTrace, step: int) -> None:
        self._rank = rank
        self._step = step
        self._bounds = [float(bound) for bound in rank.info.capture.get("gradients", {}).get("bounds", [])]
        rows = rank.collect(rank.tensors(step)).iter_rows(named=True)
        uses: list[Use] = [use for use in map(use_from_row, rows) if use.role is Role.GRADIENT]
        values = rank.find_values(use.value for use in uses)
        self._kept = {parameter_of(use.place): values[use.value] for use in uses if use.value in values}

    def write(self, folder: Path, written: Written) -> None:
        names = [name for name, what in self._kept if not what]
        if not names:
            return
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"grad_summary_{self._step}.csv", "w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(self._header())
            table.writerows(self._row(name) for name in names)
        written.steps.add(self._step)
        written.entries += len(names)
        for name in names:
            written.tensor_files += self._write_signs(name, folder / f"step{self._step}")

    @property
    def _has_signs(self) -> bool:
        return any(what == POSITIVE for _, what in self._kept)

    def _header(self) -> list[str]:
        hashed = [] if self._has_signs or self._bounds else ["MD5"]
        return ["param_name", *hashed, *intervals(self._bounds), "max", "min", "norm", "shape"]

    def _row(self, name: str) -> list[object]:
        value = self._kept[name, ""]
        stats = value.stats
        numbers = NO_STATS if stats is None else (stats.max, stats.min, stats.norm)
        hashed = [] if self._has_signs or self._bounds else [f"{value.digest or 0:016x}"]
        return [name.removeprefix(ROOT), *hashed, *self._shares(name, value), *numbers, list(value.shape)]

    def _shares(self, name: str, value: Value) -> list[object]:
        """Of all elements, those between neighbouring bounds, and zeros."""
        if not self._bounds:
            return []
        counts = self._data(name, AT_MOST)
        number = int(np.prod(value.shape, dtype=np.int64))
        if counts is None or not number:
            return [""] * (len(self._bounds) + 2)
        zeros = 0 if value.stats is None else value.stats.zero or 0
        nans = 0 if value.stats is None else value.stats.nan
        parts = np.diff([0, *counts.tolist(), number - nans])
        return [*(int(part) / number for part in parts), zeros / number]

    def _write_signs(self, name: str, folder: Path) -> int:
        bits, value = self._data(name, POSITIVE), self._kept[name, ""]
        if bits is None:
            return 0
        number = int(np.prod(value.shape, dtype=np.int64))
        folder.mkdir(exist_ok=True)
        signs = np.unpackbits(bits, bitorder="little", count=number).astype(np.bool_).reshape(value.shape)
        np.save(folder / f"{name.removeprefix(ROOT)}.npy", signs)
        return 1

    def _data(self, name: str, what: str) -> NDArray[Any] | None:
        value = self._kept.get((name, what))
        return None if value is None else self._rank.data(value)


def intervals(bounds: Sequence[float]) -> list[str]:
    """Columns of intervals as msprobe calls them."""
    if not bounds:
        return []
    texts = [f"{bound:g}" for bound in bounds]
    inner = [f"({low}, {high}]" for low, high in pairwise(texts)]
    return [f"(-inf, {texts[0]}]", *inner, f"({texts[-1]}, inf)", "=0"]


def write_similarities(reference: Path, target: Path, out: Path) -> list[Path]:
    """Of each rank that both folders have, the share of equal signs by step; gives the files."""
    files = []
    for rank in sorted(folder.name for folder in reference.glob("rank*") if (target / folder.name).is_dir()):
        rows = list(_similar_steps(reference / rank, target / rank))
        if rows:
            (out / rank).mkdir(parents=True, exist_ok=True)
            files.append(out / rank / SIMILARITIES)
            with open(files[-1], "w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("step", "similarity"), *rows])
    if not files:
        raise UlpscopeError(
            f"{reference} and {target} have no step of a rank with signs of gradients in common",
            expected="two folders that task grad_probe wrote with grad_level L1 or L2",
            next_step="of two traces: ulpscope compare REFERENCE TARGET --out DIR",
        )
    return files


def _similar_steps(reference: Path, target: Path) -> Iterator[tuple[int, float]]:
    steps = (re.fullmatch(r"step(\d+)", folder.name) for folder in reference.iterdir() if folder.is_dir())
    for number in sorted(int(step[1]) for step in steps if step is not None):
        counts = [_equal_signs(file, target / f"step{number}" / file.name) for file in _signs(reference, number)]
        known = [each for each in counts if each is not None]
        if known:
            yield number, sum(equal for equal, _ in known) / max(1, sum(of for _, of in known))


def _signs(folder: Path, step: int) -> list[Path]:
    return sorted((folder / f"step{step}").glob("*.npy"))


def _equal_signs(one: Path, other: Path) -> tuple[int, int] | None:
    """How many of how many signs are equal; None where the other has no such file."""
    if not other.is_file():
        return None
    for file in (one, other):
        check_file(file)
        if file.stat().st_size > LARGEST_DUMP:
            return None
    signs = [np.load(file, allow_pickle=False) for file in (one, other)]
    if signs[0].shape != signs[1].shape:
        return None
    return int((signs[0] == signs[1]).sum()), signs[0].size
