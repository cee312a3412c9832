"""Messages of the compat modules: on stderr, each once a process."""

import sys

_TOLD: set[str] = set()


def tell(text: str) -> None:
    """Say something that the user should know, the first time it comes up."""
    if text not in _TOLD:
        _TOLD.add(text)
        print(f"ulpscope: {text}", file=sys.stderr, flush=True)
