"""Messages of the compat modules, on stderr, each once a process; stand-ins for names without a counterpart here."""

import sys
from typing import Any

from ulpscope.compat.msprobe_table import PAGE, Old
from ulpscope.records.errors import UlpscopeError

_TOLD: set[str] = set()


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
