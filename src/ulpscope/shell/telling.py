"""How the shell tells what went wrong."""

import sys

from rich.console import Console

from ulpscope.records.errors import UlpscopeError
from ulpscope.report.tables import plain


def complain(error: UlpscopeError) -> None:
    """What was seen, what was expected, what to do next."""
    warn(f"error: {error}")


def warn(text: str) -> None:
    """A line on stderr; nothing in it steers the terminal."""
    sys.stdout.flush()
    Console(file=sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True).print(plain(text, style="red"))
