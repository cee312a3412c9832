"""Fusion files of an Ascend compiler: what was fused how often, and which passes are switched off.

fusion_result.json has had three forms: objects one after the other, a list of them, and one object with a key a graph.
fusion_switch.cfg is JSON; an old form has `Pass:off` a line.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import open_text

ALL = "ALL"
"""The switch of all passes of a stage."""
_GRAPH_KEYS = ("session_and_graph_id", "graphId")
_NESTED_PREFIX = "session_and_graph_id_"
_FILE_LIMIT = 256 * 2**20
"""Real ones have some kilobytes."""


class Stage(str, Enum):
    """Where a pass works: on the graph, or on operators that share a buffer."""

    GRAPH = "GraphFusion"
    UB = "UBFusion"


_RESULT_KEYS = {Stage.GRAPH: "graph_fusion", Stage.UB: "ub_fusion"}


@dataclass(frozen=True, slots=True)
class PassCount:
    """How often a pass found its pattern, and how often it fused."""

    name: str
    stage: Stage
    effect: int
    match: int
    repository_hits: int | None = None


@dataclass(frozen=True, slots=True)
class GraphFusion:
    """The passes of one graph."""

    graph: str
    """`0_11`: session and graph."""
    passes: tuple[PassCount, ...]


@dataclass(frozen=True, slots=True)
class FusionSwitch:
    """Which passes are on; what is not named is as ALL says, and on if nothing does."""

    states: Mapping[Stage, Mapping[str, bool]]

    def without(self, passes: Iterable[tuple[Stage, str]]) -> "FusionSwitch":
        """The same with these passes off."""
        states = {stage: dict(self.states.get(stage, {})) for stage in Stage}
        for stage, name in passes:
            states[stage][name] = False
        return FusionSwitch(states)

    def text(self) -> str:
        """The file, in the form that every compiler since 2021 reads."""
        switch = {stage.value: {ALL: "on", **_words(self.states.get(stage, {}))} for stage in Stage}
        return json.dumps({"Switch": switch}, indent=2) + "\n"


def is_switch_file(path: Path) -> bool:
    """Whether a file is of switches, not of results."""
    text = _read(path)
    if not text.strip():
        raise _bad_file(path, "is empty")
    if not text.lstrip().startswith(("{", "[")):
        return True
    first = _documents(path, text)[0]
    return isinstance(first, dict) and "Switch" in first


def read_fusion_result(path: Path) -> tuple[GraphFusion, ...]:
    """The graphs of a fusion_result.json of any generation; UlpscopeError if it is none."""
    found = [graph for content in _documents(path, _read(path)) for graph in _graphs(path, content)]
    if not found:
        raise _bad_file(path, "holds no graph")
    return tuple(found)


def read_fusion_switch(path: Path) -> FusionSwitch:
    """A switch file; UlpscopeError if it is none."""
    text = _read(path)
    if not text.lstrip().startswith("{"):
        return _old_switch(path, text)
    (content, *more) = _documents(path, text)
    switch = content.get("Switch") if isinstance(content, dict) and not more else None
    if not isinstance(switch, dict):
        raise _bad_file(path, "has no field Switch")
    unknown = set(switch) - {stage.value for stage in Stage}
    if unknown:
        # A switch file that is written from this one would lose it.
        raise _bad_file(
            path, f"has switches of a stage that is not known: {', '.join(map(repr, sorted(unknown)))[:80]}"
        )
    return FusionSwitch({stage: _states(path, stage, switch.get(stage.value, {})) for stage in Stage})


def _read(path: Path) -> str:
    try:
        with open_text(path, limit=_FILE_LIMIT, errors="replace") as file:
            return file.read()
    except OSError as error:
        raise _bad_file(path, f"cannot be read: {error.strerror}") from error


def _documents(path: Path, text: str) -> list[Any]:
    """The JSON values of a text, one after the other."""
    decoder, position, found = json.JSONDecoder(), 0, []
    while position < len(text):
        if text[position] in " \t\r\n,":
            position += 1
            continue
        try:
            content, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise _bad_file(path, f"is not JSON from character {position:,} on ({error})") from error
        found.append(content)
    if not found:
        raise _bad_file(path, "is empty")
    return found


def _graphs(path: Path, content: Any) -> Iterable[GraphFusion]:
    if isinstance(content, list):
        return [_graph(path, item) for item in content]
    if isinstance(content, dict) and not any(key in content for key in (*_RESULT_KEYS.values(), *_GRAPH_KEYS)):
        return [_graph(path, item, key) for key, item in content.items()]
    return [_graph(path, content)]


def _graph(path: Path, content: Any, name: str = "") -> GraphFusion:
    if not isinstance(content, dict):
        raise _bad_file(path, f"holds a {type(content).__name__} where a graph is expected")
    known = any(key in content for key in (*_RESULT_KEYS.values(), *_GRAPH_KEYS))
    if not known and not name.startswith(_NESTED_PREFIX):
        raise _bad_file(path, f"has neither {' nor '.join(_RESULT_KEYS.values())} in {name[:40] or 'an object'!r}")
    stated = next((content[key] for key in _GRAPH_KEYS if key in content), name.removeprefix(_NESTED_PREFIX))
    passes = [each for stage in Stage for each in _passes(path, stage, content.get(_RESULT_KEYS[stage], {}))]
    return GraphFusion(str(stated), tuple(passes))


def _passes(path: Path, stage: Stage, content: Any) -> Iterable[PassCount]:
    if not isinstance(content, dict):
        raise _bad_file(path, f"field {_RESULT_KEYS[stage]} is no object of passes")
    for name, counters in content.items():
        if not isinstance(counters, dict):
            raise _bad_file(path, f"pass {name!r} has no counters")
        hits = counters.get("repository_hit_times")
        yield PassCount(
            name=name,
            stage=stage,
            effect=_count(path, name, counters.get("effect_times", 0)),
            match=_count(path, name, counters.get("match_times", 0)),
            repository_hits=None if hits is None else _count(path, name, hits),
        )


def _count(path: Path, name: str, counter: Any) -> int:
    if isinstance(counter, int) and not isinstance(counter, bool):
        return counter
    if isinstance(counter, str) and counter.strip().isascii() and counter.strip().isdigit() and len(counter) < 20:
        return int(counter)
    raise _bad_file(path, f"pass {name!r} has a counter that is no number: {str(counter)[:40]!r}")


def _states(path: Path, stage: Stage, content: Any) -> dict[str, bool]:
    if not isinstance(content, dict):
        raise _bad_file(path, f"field {stage.value} is no object of switches")
    return {name: _is_on(path, name, state) for name, state in content.items()}


def _is_on(path: Path, name: str, state: Any) -> bool:
    if state not in ("on", "off"):
        raise _bad_file(path, f"switch {name!r} is {str(state)[:40]!r}, neither on nor off")
    return bool(state == "on")


def _old_switch(path: Path, text: str) -> FusionSwitch:
    """`Pass:off` a line; which stage a pass is of is not told, so it is switched in both."""
    states = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, separator, state = line.rpartition(":")
        if not separator:
            raise _bad_file(path, f"has the line {line[:60]!r}")
        states[name.strip()] = _is_on(path, name, state.strip().lower())
    return FusionSwitch({stage: dict(states) for stage in Stage})


def _words(states: Mapping[str, bool]) -> dict[str, str]:
    return {name: "on" if state else "off" for name, state in states.items()}


def _bad_file(path: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"{path} {problem}",
        expected="a fusion_result.json or fusion_switch.cfg of the Ascend compiler",
        next_step="check the path; the compiler writes fusion_result.json into the directory it runs in",
    )
