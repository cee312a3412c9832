"""`ulpscope mixlist`: lists of mixed precision for an NPU's compiler, from what overflow and compare have found."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ulpscope.dialects.ascend.mixed_lists import (
    BLACK,
    PARTS,
    MixLists,
    is_mix_lists,
    is_op_type,
    merged,
    mix_text,
    read_mix_lists,
)
from ulpscope.dialects.ascend.settings_file import read_settings
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import FindingKind
from ulpscope.report.terminal import npu_files
from ulpscope.report.terminal.npu_files import MixView
from ulpscope.workflows.answers import Answer
from ulpscope.workflows.results import SUMMARY, write_new

NAMING = (FindingKind.OVERFLOW.value, FindingKind.COMPUTATION.value)
"""Findings that another type of an operator's numbers may mend."""


def mixlist(
    sources: Sequence[Path],
    *,
    added: Mapping[str, Sequence[str]],
    out: Path | None = None,
    overwrite: bool = False,
) -> Answer:
    """Types that findings name are kept in float32; `added` are those that the user names, by list."""
    _check(added)
    lists: MixLists = {}
    named: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    contents = {source: _content(source) for source in sources}
    for source, content in contents.items():
        if is_mix_lists(content):
            for name, parts in read_mix_lists(source).items():
                lists = {**lists, name: {**lists.get(name, {}), **parts}}
            continue
        for op, where in _named(source, content):
            if is_op_type(op):
                named.setdefault(op, []).append(where)
            else:
                left_out.setdefault(op, where)
    # What the user says of a type counts more than a finding.
    said = {each for types in added.values() for each in types}
    kept = [op for op in named if op not in said]
    whole = merged(lists, {name: [*added.get(name, ()), *(kept if name == BLACK else ())] for name in PARTS})
    if out is not None and whole:
        write_new(out, mix_text(whole), overwrite=overwrite)
    only = sources[0] if len(sources) == 1 and lists and not named and not said else None
    view = MixView(
        path=str(out) if out is not None and whole else None if only is None else str(only),
        lists=whole,
        written=out is not None and bool(whole),
        named={op: tuple(dict.fromkeys(places)) for op, places in named.items()},
        left_out=left_out,
    )
    return Answer(view, ExitCode.OK if whole else ExitCode.NOTHING, npu_files.mix_text, npu_files.mix_json)


def _check(added: Mapping[str, Sequence[str]]) -> None:
    places: dict[str, str] = {}
    for name, types in added.items():
        for each in types:
            if not is_op_type(each):
                raise UlpscopeError(
                    f"{each!r} is no type of operator",
                    expected="types as the NPU's compiler names them: MatMulV2, Conv2D",
                    next_step="look them up: ulpscope show GRAPH",
                )
            if places.setdefault(each, name) != name:
                raise UlpscopeError(
                    f"{each} is to be on {places[each]} and on {name}",
                    expected="each type on one list",
                    next_step="name it once",
                )


def _content(source: Path) -> Any:
    return read_settings(
        source / SUMMARY if source.is_dir() else source, lambda _, problem: _no_result(source, problem)
    )


def _named(source: Path, content: Any) -> Iterator[tuple[str, str]]:
    """Operations of the findings, each with the operator that it stands for."""
    findings = content.get("findings") if isinstance(content, dict) else None
    if not isinstance(findings, list) or content.get("command") not in ("overflow", "compare"):
        raise _no_result(source, "is no result of ulpscope overflow or ulpscope compare")
    for finding in _objects(findings):
        op, kind = finding.get("op"), finding.get("kind")
        if isinstance(op, str) and kind in NAMING:
            yield op, str(finding.get("module") or finding.get("call") or "-")


def _objects(findings: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return (finding for finding in findings if isinstance(finding, dict))


def _no_result(source: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"{source} {problem}",
        expected="a directory that ulpscope overflow or compare wrote with --out, or a file of such lists",
        next_step="ulpscope overflow DUMP --out result; ulpscope mixlist result --out ops_info.json",
    )
