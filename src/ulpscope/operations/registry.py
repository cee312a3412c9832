"""The one registry: an entry an operation, read from the tables beside this file.

A table is a CSV file, a row an operation: its name, its family, what it chooses, places of operands that are only
added, data that stresses it, its traits, and another operation that it is like: whose traits it has beside its own, and
whose entry it takes where its own is empty. Names are those of `operation_name`, or with the marks of one form (`set_`)
where that form differs. `torch.csv` has torch's functions, methods and kernels (aten), which MindSpore and
others mostly share, `ge.csv` types of GE, the compiler of Ascend devices.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import resources

from ulpscope.operations.names import gradient_of, operation_name, own_word
from ulpscope.operations.traits import Choosing, Family, Operation, Trait
from ulpscope.records.checks import Variant

TABLES = ("torch.csv", "ge.csv")


@cache
def operation(op: str) -> Operation:
    """The entry of what a call executes, by any of its names."""
    name = operation_name(op)
    known = _entries().get(own_word(op)) or _entries().get(name)
    if known is not None:
        return known
    differentiated = gradient_of(name)
    if differentiated is None:
        return Operation(name)
    known = operation(differentiated)
    return replace(known, name=name, traits=known.traits | {Trait.GRADIENT})


def names_with(trait: Trait) -> frozenset[str]:
    """Names of all operations of which this is true."""
    return frozenset(name for name, entry in _entries().items() if trait in entry.traits)


@cache
def _entries() -> dict[str, Operation]:
    rows = {row["operation"]: row for table in TABLES for row in _rows(table)}
    return {name: _entry(name, rows) for name in rows}


def _rows(table: str) -> Iterator[dict[str, str]]:
    text = resources.files("ulpscope.operations").joinpath(table).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def _entry(name: str, rows: dict[str, dict[str, str]]) -> Operation:
    row = rows[name]
    known = _entry(row["like"], rows) if row["like"] else Operation(name)
    return replace(
        known,
        name=operation_name(name),
        family=Family(row["family"]) if row["family"] else known.family,
        chooses=Choosing(row["chooses"]) if row["chooses"] else known.chooses,
        added=frozenset(row["added"].split()) or known.added,
        stress=tuple(map(Variant, row["stress"].split())) or known.stress,
        traits=known.traits | frozenset(map(Trait, row["traits"].split())),
    )
