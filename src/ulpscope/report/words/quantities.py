"""Counts, sizes and times as people read them."""

from collections.abc import Iterable

_SIZES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB"))


def count_text(number: int, noun: str) -> str:
    """`1 call`, `12,345 calls`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {_plural(noun)}"


def bytes_text(number: int) -> str:
    """`812 B`, `3.4 MB`; thousands, as `--max-disk 10GB` counts them."""
    for size, unit in _SIZES:
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def seconds_text(seconds: float) -> str:
    """`0.041 s`, `1.3 s`, `75 s`."""
    digits = 3 if seconds < 0.1 else 2 if seconds < 1 else 1 if seconds < 10 else 0
    return f"{seconds:.{digits}f} s"


def ranges_text(numbers: Iterable[int]) -> str:
    """`0-2,5` for 0, 1, 2 and 5: the form in which `--steps` and `--ranks` take them."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _plural(noun: str) -> str:
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"
