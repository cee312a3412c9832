"""What became of every name that msprobe gave its users, and messages about it, on stderr, each once a process.

msprobe.csv has a row a name: a key of config.json, a task, a Python name or a command. Behaviour, messages and the
tables of docs/compat-msprobe.md come from there.
"""

import csv
import json
import sys
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from typing import Any

from ulpscope.records.errors import UlpscopeError

PAGE = "docs/compat-msprobe.md"
_TOLD: set[str] = set()


class Fate(str, Enum):
    """What a name does here."""

    KEPT = "kept"
    """What it did in msprobe."""
    MAPPED = "mapped"
    """Something else that serves the same purpose."""
    TOLD = "told"
    """Nothing: what to write instead is said, once."""


@dataclass(frozen=True, slots=True)
class Old:
    """One name of msprobe."""

    name: str
    fate: Fate
    here: str
    """What it does, or what to write instead: half a sentence."""
    quiet: tuple[Any, ...]
    """Values for which nothing need be said: they ask for what happens anyway."""


def _rows(table: str) -> tuple[Old, ...]:
    text = resources.files("ulpscope.compat").joinpath("msprobe.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="|", quoting=csv.QUOTE_NONE)
    return tuple(
        Old(row["name"], Fate(row["fate"]), row["here"], (None, *map(json.loads, row["quiet"].split())))
        for row in rows
        if row["table"] == table
    )


KEYS, TASKS, NAMES, COMMANDS = map(_rows, ("key", "task", "name", "command"))


def by_name(rows: tuple[Old, ...]) -> dict[str, Old]:
    return {row.name: row for row in rows}


def tell(text: str) -> None:
    """Say something that the user should know, the first time it comes up."""
    if text not in _TOLD:
        _TOLD.add(text)
        print(f"ulpscope: {text}", file=sys.stderr, flush=True)


def problem_of(error: Exception) -> str:
    """What went wrong and what to do, in one line."""
    if isinstance(error, UlpscopeError):
        return f"{error.seen}; expected: {error.expected}; next: {error.next_step}"
    return f"{type(error).__name__}: {error}"


class StandIn:
    """Takes every call and does nothing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A class gives an object that does nothing either, a function nothing."""
        return self if self._name[:1].isupper() else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _hand_back

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *error: object) -> None:
        """What happens inside is the script's own."""


def stand_in(row: Old) -> StandIn:
    """Say once what to use instead, and give what takes the name's place."""
    tell(f"msprobe's {row.name} does nothing here, the run goes on; use: {row.here} ({PAGE})")
    return StandIn(row.name)


def _hand_back(*args: Any, **kwargs: Any) -> Any:
    """A method that wraps a model would return it."""
    return args[0] if args else None
