"""What `ulpscope convert` has to tell of dump files."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ulpscope.report.quantities import bytes_text, count_text

FAILURES_LISTED = 5
EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class FileFailure:
    """A dump file that could not be converted."""

    source: str
    why: str


@dataclass(frozen=True, slots=True)
class DumpsConverted:
    """What became of all of them."""

    out: str
    kind: str
    dumps: int
    written: int
    bytes_read: int
    renamed: int
    as_they_were: tuple[str, ...]
    """Tensors that have no such layout as was asked for, and were written in their own."""
    without_data: tuple[str, ...]
    failures: tuple[FileFailure, ...]
    failed_list: str | None


def dumps_text(result: DumpsConverted) -> str:
    return "".join(f"{line}\n" for line in _lines(result))


def dumps_json(result: DumpsConverted) -> dict[str, Any]:
    return {
        "schema": 1,
        "command": "convert",
        "to": result.kind,
        "out": result.out,
        "dumps": result.dumps,
        "bytes": result.bytes_read,
        "files": result.written,
        "renamed": result.renamed,
        "as_they_were": list(result.as_they_were),
        "without_data": list(result.without_data),
        "failures": [{"source": one.source, "error": one.why} for one in result.failures],
    }


def _lines(result: DumpsConverted) -> Iterator[str]:
    read = f"{count_text(result.dumps, 'dump')} ({bytes_text(result.bytes_read)})"
    yield f"{read}: {count_text(result.written, f'{result.kind} file')} written to {result.out}"
    if result.renamed:
        yield f"  names too long for a file system: {result.renamed:,}; mapping.csv beside them has the real ones"
    if result.as_they_were:
        yield f"  left in the device's own layout: {_some(result.as_they_were)}"
    if result.without_data:
        yield f"  nothing was dumped of: {_some(result.without_data)}"
    yield from (f"  failed: {failure.why}" for failure in result.failures[:FAILURES_LISTED])
    if len(result.failures) > FAILURES_LISTED:
        yield f"  failed: {len(result.failures) - FAILURES_LISTED:,} more"
    if result.failed_list is not None:
        yield f"  all that failed: {result.failed_list}"


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - EXAMPLES:,} more" if len(names) > EXAMPLES else ""
    return f"{', '.join(names[:EXAMPLES])}{more}"
