"""What `ulpscope convert` has to tell of dump files."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ulpscope.report.words.language import Language, shown_text
from ulpscope.report.words.quantities import bytes_text, count_text

FAILURES_LISTED = 5
EXAMPLES = 3

_ENGLISH = {
    "written": "{dumps} ({size}): {files} written to {out}",
    "renamed": "names too long for a file system: {count:,}; mapping.csv beside them has the real ones",
    "as_they_were": "left in the device's own layout: {names}",
    "without_data": "nothing was dumped of: {names}",
    "failed": "failed: {why}",
    "failed.more": "failed: {count:,} more",
    "failed.list": "all that failed: {path}",
    "names.more": "{names} and {count:,} more",
    "names.comma": ", ",
}
_CHINESE = {
    "written": "{dumps}（{size}）：已写出 {files}，位于 {out}",
    "renamed": "文件名过长而改名的有 {count:,} 个；真实名称见同目录的 mapping.csv",
    "as_they_were": "仍保持设备自身的数据排布：{names}",
    "without_data": "没有 dump 数据：{names}",
    "failed": "失败：{why}",
    "failed.more": "失败：另有 {count:,} 个",
    "failed.list": "全部失败文件的清单：{path}",
    "names.more": "{names} 等，另有 {count:,} 个",
    "names.comma": "、",
}


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
    return "\n  ".join(map(shown_text, _lines(result, language))) + "\n"


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


def _lines(result: DumpsConverted, language: Language) -> Iterator[str]:
    said = _CHINESE if language is Language.ZH else _ENGLISH
    dumps, files = _counts(result, language)
    yield said["written"].format(dumps=dumps, size=bytes_text(result.bytes_read), files=files, out=result.out)
    if result.renamed:
        yield said["renamed"].format(count=result.renamed)
    if result.as_they_were:
        yield said["as_they_were"].format(names=_some(result.as_they_were, said))
    if result.without_data:
        yield said["without_data"].format(names=_some(result.without_data, said))
    yield from (said["failed"].format(why=failure.why) for failure in result.failures[:FAILURES_LISTED])
    if len(result.failures) > FAILURES_LISTED:
        yield said["failed.more"].format(count=len(result.failures) - FAILURES_LISTED)
    if result.failed_list is not None:
        yield said["failed.list"].format(path=result.failed_list)


def _counts(result: DumpsConverted, language: Language) -> tuple[str, str]:
    if language is Language.ZH:
        return f"{result.dumps:,} 个{' dump 文件' if result.of_npu else '来源'}", f"{result.written:,} 个文件"
    return count_text(result.dumps, "dump" if result.of_npu else "source"), count_text(result.written, "file")


def _some(names: tuple[str, ...], said: dict[str, str]) -> str:
    shown = said["names.comma"].join(names[:EXAMPLES])
    if len(names) <= EXAMPLES:
        return shown
    return said["names.more"].format(names=shown, count=len(names) - EXAMPLES)
