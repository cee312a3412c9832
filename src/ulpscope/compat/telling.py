"""Messages of the compat modules: on stderr, each once a process."""

import sys

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
