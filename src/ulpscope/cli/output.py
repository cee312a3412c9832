"""How answers reach stdout."""

import sys


def write_answer(text: str) -> None:
    """Write to stdout; names may be in any script, and a terminal that cannot write them must still get the rest."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
