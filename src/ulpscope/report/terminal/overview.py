"""Tells what a trace holds as a whole: its processes, their environment, what was seen of them."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ulpscope.records.enums import Compiled, Kind, Phase
from ulpscope.records.runs import Coverage
from ulpscope.report.tables import pairs, plain, section, table
from ulpscope.report.terminal.training_course import training_parts
from ulpscope.report.words.language import bytes_text, count_text, ranges_text
from ulpscope.trace.overview import Overview, RankOverview

MISSING_SHOWN = 10
UNKNOWN = "unknown: calls are counted when a trace is closed, and this one was not"
_COUNTERS = {
    "calls_seen": "calls seen",
    "calls_recorded": "calls recorded",
    "calls_filtered": "calls left out by --only, --skip, --steps",
    "values": "values",
    "summaries_made": "summaries made",
    "summaries_reused": "summaries reused",
    "summaries_verified": "reused summaries recomputed (--verify)",
    "summaries_wrong": "of these, wrong",
    "other_threads": "module calls in threads that are not observed",
    "waits": "times the run waited for the writer",
    "not_saved": "values not saved because --max-disk was reached",
}


def overview_part(overview: Overview) -> RenderableType:
    """Every process in a few lines."""
    ranks = overview.ranks
    calls = count_text(sum(rank.calls for rank in ranks), "call")
    processes = "1 process" if len(ranks) == 1 else f"{len(ranks)} processes"
    heads: list[RenderableType] = [plain(f"{overview.path}: {processes}, {calls}", style="bold")]
    heads += [plain(f"missing: {sentence}", style="yellow") for sentence in overview.missing]
    path = shlex.quote(overview.path)
    hints = [("List calls:", f"ulpscope show {path} --op '*'"), ("Look into one:", f"ulpscope show {path} ID")]
    parts = (section(rank.name, pairs(_rank_lines(rank)), _kinds(rank), *_training(rank)) for rank in ranks)
    return Group(*heads, *parts, Text(), pairs(hints))


def environment_part(overview: Overview) -> RenderableType:
    """Where and how each process ran."""
    return Group(*(section(rank.name, pairs(_environment_lines(rank))) for rank in overview.ranks))


def coverage_part(overview: Overview) -> RenderableType:
    """What was seen of each process, what was not and why."""
    return Group(*(section(rank.name, pairs(_coverage_lines(rank))) for rank in overview.ranks))


def _rank_lines(rank: RankOverview) -> list[tuple[str, object]]:
    info = rank.info
    return [
        ("framework", _words(info.framework)),
        ("devices", ", ".join(info.devices) or "none"),
        ("rank", f"{info.rank} (world size {info.world_size})"),
        ("command", _command(info.process)),
        ("captured", _settings_words(info.capture)),
        ("steps", f"{ranges_text(rank.steps) or 'none'} ({len(rank.steps)})"),
        ("values", f"{rank.values:,}, {rank.saved_values:,} with data"),
        ("started", info.started),
        ("closed", info.closed or plain("no", style="yellow")),
        ("exit", info.exit),
        ("coverage", _coverage_sentence(info.coverage) if info.closed else plain(UNKNOWN, style="yellow")),
        *_problems(rank),
    ]


def _problems(rank: RankOverview) -> Iterator[tuple[str, Text]]:
    for sentence in rank.missing[:MISSING_SHOWN]:
        yield "missing", plain(sentence, style="yellow")
    if len(rank.missing) > MISSING_SHOWN:
        yield "missing", plain(f"{len(rank.missing) - MISSING_SHOWN:,} more; --json lists all", style="yellow")
    if rank.info.coverage.ended_early:
        yield "ended early", plain(rank.info.coverage.ended_early, style="yellow")
    for error in rank.info.errors:
        yield "error", plain(error, style="red")


def _kinds(rank: RankOverview) -> RenderableType:
    if not rank.counts:
        return plain("No calls.")
    phases = _in_order({count.phase for count in rank.counts}, Phase)
    kinds = _in_order({count.kind for count in rank.counts}, Kind)
    calls = {(count.kind, count.phase): count.calls for count in rank.counts}
    rows = ([kind, *(f"{calls.get((kind, phase), 0):,}" for phase in phases)] for kind in kinds)
    return Group(Text(), table(["calls", *phases], rows, right=phases))


def _training(rank: RankOverview) -> Iterator[RenderableType]:
    if rank.training is not None:
        yield from (Text(), *training_parts(rank.training))


def _in_order(found: set[str], words: Iterable[Enum]) -> list[str]:
    """As a run goes through them; words that this version does not know come last."""
    known = [word.value for word in words if word.value in found]
    return [*known, *sorted(found - set(known))]


def _settings_words(capture: Mapping[str, Any]) -> str:
    """What the capture was asked for, without what goes without saying."""
    asked = {name: content for name, content in capture.items() if name != "out"}
    if asked.get("compiled") == Compiled.AS_COMPILED.value:
        del asked["compiled"]
    if isinstance(asked.get("max_disk"), int):
        asked["max_disk"] = bytes_text(asked["max_disk"])
    return _words({name.replace("_", "-"): content for name, content in asked.items()})


def _environment_lines(rank: RankOverview) -> Iterator[tuple[str, object]]:
    info = rank.info
    yield "command", _command(info.process)
    yield "devices", ", ".join(info.devices) or "none"
    parts = {"framework": info.framework, "version": info.versions, "process": info.process, "seed": info.seeds}
    around = {name: told for name, told in info.environment.items() if name != "packages"}
    for title, part in {**parts, "environment": around, "capture": info.capture}.items():
        rest = {name: content for name, content in part.items() if (title, name) != ("process", "command")}
        yield from _entries(title, rest)
    if packages := info.environment.get("packages"):
        yield "packages", f"{len(packages):,} (--json lists them)"


def _entries(title: str, part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, content in part.items():
        if isinstance(content, Mapping) and content:
            yield from _entries(name, content)
        else:
            yield f"{title} {name}", _word(content)


def _coverage_lines(rank: RankOverview) -> Iterator[tuple[str, object]]:
    if rank.info.closed is None:
        yield "coverage", plain(UNKNOWN, style="yellow")
        yield from _problems(rank)
        return
    coverage = rank.info.coverage
    for field, words in _COUNTERS.items():
        yield words, f"{getattr(coverage, field):,}"
    yield "data saved", bytes_text(coverage.saved_bytes)
    for reason, count in coverage.calls_unobserved.items():
        yield "calls not looked into", f"{count:,}: {reason}"
    for reason, count in coverage.values_unsummarized.items():
        yield "values without a summary", f"{count:,}: {reason}"
    yield from _problems(rank)


def _coverage_sentence(coverage: Coverage) -> str:
    parts = [f"{coverage.calls_recorded:,} of {coverage.calls_seen:,} calls recorded"]
    unobserved = sum(number for number in coverage.calls_unobserved.values() if isinstance(number, int))
    for number, words in (
        (coverage.calls_filtered, "filtered out"),
        (unobserved, "not looked into"),
        (coverage.other_threads, "in other threads"),
        (coverage.not_saved, "values not saved"),
        (coverage.summaries_wrong, "summaries wrong"),
    ):
        if number:
            parts.append(f"{number:,} {words}")
    return ", ".join(parts)


def _command(process: Mapping[str, Any]) -> str:
    command = process.get("command")
    if isinstance(command, list):
        return shlex.join(str(word) for word in command)
    return str(command) if command else "unknown"


def _words(content: Mapping[str, Any]) -> str:
    """`torch 2.13.0` for a name and a version, else every entry that says something."""
    named = [str(content[key]) for key in ("name", "version") if key in content]
    rest = [f"{key} {_word(item)}" for key, item in content.items() if key not in ("name", "version") and item]
    return ", ".join([" ".join(named), *rest] if named else rest) or "unknown"


def _word(content: object) -> str:
    if isinstance(content, Mapping):
        return ", ".join(f"{key} {_word(item)}" for key, item in content.items())
    if isinstance(content, list | tuple):
        return ", ".join(map(_word, content)) or "none"
    return "unset" if content is None else str(content)
