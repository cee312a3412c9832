"""What `ulpscope convert` has to tell of dump files."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ulpscope.report.words.language import Language, Phrases, bytes_text, phrases, shown_text

FAILURES_LISTED = 5
EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class FileFailure:
    """A dump file, or one tensor of it, that could not be converted."""

    source: str
    why: str


@dataclass(frozen=True, slots=True)
class DumpsConverted:
    """What became of all of them."""

    out: str
    kind: str
    dumps: int
    """Files that were converted, or folders of arrays."""
    of_npu: bool
    """Whether all of them are dumps of an NPU."""
    written: int
    bytes_read: int
    renamed: int
    as_they_were: tuple[str, ...]
    """Tensors that have no such layout as was asked for, and were written in their own."""
    without_data: tuple[str, ...]
    failures: tuple[FileFailure, ...]
    failed_list: str | None


def dumps_text(result: DumpsConverted, language: Language = Language.EN) -> str:
    return "\n  ".join(map(shown_text, _lines(result, phrases(language)))) + "\n"


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


def _lines(result: DumpsConverted, words: Phrases) -> Iterator[str]:
    dumps = words.count(result.dumps, "dump" if result.of_npu else "source")
    size, files = bytes_text(result.bytes_read), words.count(result.written, "file")
    yield words.say("convert.written", dumps=dumps, size=size, files=files, out=result.out)
    if result.renamed:
        yield words.say("convert.renamed", count=result.renamed)
    if result.as_they_were:
        yield words.say("convert.as_they_were", names=_some(result.as_they_were, words))
    if result.without_data:
        yield words.say("convert.without_data", names=_some(result.without_data, words))
    yield from (words.say("convert.failed", why=failure.why) for failure in result.failures[:FAILURES_LISTED])
    if len(result.failures) > FAILURES_LISTED:
        yield words.say("convert.failed.more", count=len(result.failures) - FAILURES_LISTED)
    if result.failed_list is not None:
        yield words.say("convert.failed.list", path=result.failed_list)


def _some(names: tuple[str, ...], words: Phrases) -> str:
    shown, left = words.comma.join(names[:EXAMPLES]), len(names) - EXAMPLES
    return words.say("names.and_more", names=shown, left=f"{left:,}") if left > 0 else shown
