"""Tells what `ulpscope convert` made of traces and of dump files, as text and as JSON."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ulpscope.dialects.msprobe.names import LeftOut
from ulpscope.dialects.msprobe.writing import Written
from ulpscope.report.record_json import answer_json, fields_of
from ulpscope.report.words.language import (
    Language,
    Phrases,
    bytes_text,
    count_text,
    phrases,
    ranges_text,
    remark_text,
    shown_text,
)

EXAMPLES = 3
FAILURES_LISTED = 5

WHY = {
    LeftOut.OPTIMIZER: "msprobe has no form for optimizer steps; parameters_grad holds their gradients",
    LeftOut.ROOT: "msprobe records what is inside a root module, not the root itself",
    LeftOut.STARTS_BACKWARD: "they only start a backward pass",
    LeftOut.KERNEL: "msprobe has no form for kernels",
    LeftOut.NO_NAME: "msprobe has no name for these operations",
    LeftOut.NO_FORWARD: "backwards whose forward is not in the same step of the trace",
    LeftOut.REPEATED: "msprobe keeps one backward of a call",
}


@dataclass(frozen=True, slots=True)
class Converted:
    """One trace and what it became."""

    source: str
    out: str
    written: Written
    missing: tuple[str, ...]
    """What the trace itself lacks, one sentence each."""


@dataclass(frozen=True, slots=True)
class NotConverted:
    """A trace, a dump file, or one tensor of it, that could not be converted."""

    source: str
    why: str


def convert_text(results: list[Converted | NotConverted]) -> str:
    """Some lines a trace."""
    return "".join(f"{shown_text(line)}\n" for result in results for line in _lines(result))


def convert_json(results: list[Converted | NotConverted]) -> dict[str, Any]:
    return answer_json("convert", {"to": "msprobe", "traces": [_json(result) for result in results]})


def _lines(result: Converted | NotConverted) -> Iterator[str]:
    if isinstance(result, NotConverted):
        yield f"{result.source}: not converted: {result.why}"
        return
    written = result.written
    if not written.entries:
        yield f"{result.source}: nothing to convert, it has no call that msprobe has a form for"
    else:
        files = f" and {count_text(written.tensor_files, 'tensor')}" if written.tensor_files else ""
        where = f"steps {ranges_text(written.steps)}, {count_text(len(written.ranks), 'rank')}"
        yield f"{result.source}: {count_text(written.entries, 'entry')}{files}, {where}"
        yield f"  written to {result.out}"
    yield from (f"  the trace is incomplete: {sentence}" for sentence in result.missing)
    for reason, ops in _by_reason(written).items():
        names = [op for op, _ in ops.most_common(EXAMPLES)]
        more = ", ..." if len(ops) > EXAMPLES else ""
        yield f"  left out {count_text(ops.total(), 'call')} ({', '.join(names)}{more}): {WHY[reason]}"
    if written.without_data:
        yield f"  statistics only, their data is not in the trace: {count_text(written.without_data, 'tensor')}"
    yield from (f"  failed: {failure}" for failure in written.failures[:FAILURES_LISTED])
    if len(written.failures) > FAILURES_LISTED:
        yield f"  failed: {len(written.failures) - FAILURES_LISTED:,} more"


def _by_reason(written: Written) -> dict[LeftOut, Counter[str]]:
    grouped: dict[LeftOut, Counter[str]] = {}
    for (reason, op), count in written.left_out.items():
        grouped.setdefault(reason, Counter())[op] += count
    return dict(sorted(grouped.items(), key=lambda item: -item[1].total()))


def _json(result: Converted | NotConverted) -> dict[str, Any]:
    if isinstance(result, NotConverted):
        return {"source": result.source, "converted": False, "error": result.why}
    written = result.written
    return {
        "source": result.source,
        "converted": bool(written.entries),
        "out": result.out,
        "steps": sorted(written.steps),
        "ranks": sorted(written.ranks),
        **fields_of(written, "entries", "tensor_files"),
        "left_out": [
            {"reason": reason, "why": WHY[reason], "calls": ops.total(), "ops": dict(ops.most_common())}
            for reason, ops in _by_reason(written).items()
        ],
        **fields_of(written, "without_data", "failures"),
        "missing": result.missing,
    }


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
    failures: tuple[NotConverted, ...]
    failed_list: str | None
    told: tuple[str, ...] = ()
    """What is said of sources: steps that were not written, what a dump lacks."""


def dumps_text(result: DumpsConverted, language: Language = Language.EN) -> str:
    return "\n  ".join(map(shown_text, _dump_lines(result, phrases(language)))) + "\n"


def dumps_json(result: DumpsConverted) -> dict[str, Any]:
    return answer_json(
        "convert",
        to=result.kind,
        out=result.out,
        dumps=result.dumps,
        bytes=result.bytes_read,
        files=result.written,
        **fields_of(result, "renamed", "as_they_were", "without_data"),
        failures=[{"source": one.source, "error": one.why} for one in result.failures],
        remarks=result.told,
    )


def _dump_lines(result: DumpsConverted, words: Phrases) -> Iterator[str]:
    dumps = words.count(result.dumps, "dump" if result.of_npu else "source")
    size, files = bytes_text(result.bytes_read), words.count(result.written, "file")
    yield words.say("convert.written", dumps=dumps, size=size, files=files, out=result.out)
    yield from (remark_text(told, words.language) for told in result.told)
    if result.renamed:
        yield words.say("convert.renamed", count=result.renamed)
    if result.as_they_were:
        yield words.say("convert.as_they_were", names=words.some(result.as_they_were))
    if result.without_data:
        yield words.say("convert.without_data", names=words.some(result.without_data))
    yield from (words.say("convert.failed", why=failure.why) for failure in result.failures[:FAILURES_LISTED])
    if len(result.failures) > FAILURES_LISTED:
        yield words.say("convert.failed.more", count=len(result.failures) - FAILURES_LISTED)
    if result.failed_list is not None:
        yield words.say("convert.failed.list", path=result.failed_list)
