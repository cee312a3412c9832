"""What scripts get for a name that has no counterpart here: it is said what to use instead, and the run goes on."""

from typing import Any

from ulpscope.compat.msprobe_table import PAGE, Old
from ulpscope.compat.telling import tell


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
