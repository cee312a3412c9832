"""One capture at a time: two in one process would observe each other."""

from pathlib import Path

from ulpscope.records.errors import UlpscopeError

_OUT: list[Path] = []
"""Where the running capture writes."""


def claim(out: Path) -> None:
    if _OUT:
        raise UlpscopeError(
            f"a capture into {_OUT[0]} is running in this process",
            expected="one capture at a time",
            next_step="end that capture first, or run this script without `ulpscope run`",
        )
    _OUT.append(out)


def release() -> None:
    _OUT.clear()
