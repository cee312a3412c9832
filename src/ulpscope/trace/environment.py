"""The environment of a trace's process, or of a file that `ulpscope env` wrote, in parts that two of them share.

Of a trace it has what only a run shows, too: digests of the parameters and of what the first steps were given, and
how many random calls each step made.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.records.enums import INPUT_ROLE, MODULE_KIND, PARAMETER_ROLE, Role
from ulpscope.records.environments import Environment
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import open_file, read_json
from ulpscope.trace.reader import RankTrace

FIRST_STEPS = 2
"""Whose inputs are told: data in another order shows in the first, or where the first batch is fixed in the second."""
HEAD = re.compile(rb'\s*\{\s*"schema"\s*:\s*\d+,\s*"command"\s*:\s*"env"')
"""How a file of `ulpscope env` begins."""
_NUMBER = re.compile(r"-?[\d.]")


def is_environment(path: Path) -> bool:
    """Whether `ulpscope env` wrote this file."""
    if not path.is_file():
        return False
    with open_file(path) as file:
        return HEAD.match(file.read(200)) is not None


def read_environment(path: Path) -> Environment:
    """What such a file says."""
    try:
        content = read_json(path)
        return environment_of(content)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UlpscopeError(
            f"{path} cannot be read: {error}",
            expected="what `ulpscope env -o FILE` wrote",
            next_step="write it again: ulpscope env -o FILE",
        ) from error


def environment_of(told: Mapping[str, Any]) -> Environment:
    """Of what rank.json and files of `ulpscope env` have in common; a part that is not there was not told."""
    around = _named(told["environment"]) or {}
    libraries, versions = _listed(around.get("libraries")), _named(told["versions"]) or {}
    packages, configs = around.get("packages"), around.get("configs")
    command = _listed((_named(told["process"]) or {}).get("command"))
    parts = {
        **{part: _named(around.get(part)) for part in _AS_THEY_ARE},
        "framework": _named(told["framework"]) or None,
        "packages": {**(_named(packages) or versions), "python": versions.get("python")} if versions else None,
        "devices": {str(place): name for place, name in enumerate(_listed(told["devices"]) or ())} or None,
        "seeds": _named(told["seeds"]) or None,
        "command": None if command is None else _options(command),
        "configs": dict(_settings(configs)) if isinstance(configs, Mapping) else None,
        "libraries": None if libraries is None else {_stem(name): name for name in libraries},
    }
    known = {part: entries for part, entries in parts.items() if entries is not None}
    return Environment(known, tuple(_listed(around.get("other_variables")) or ()))


_AS_THEY_ARE = ("switches", "variables", "build", "machine", "drivers", "compilers")


def _named(part: Any) -> dict[str, Any] | None:
    """What a file may hold as anything."""
    return {str(name): entry for name, entry in part.items()} if isinstance(part, Mapping) else None


def _listed(part: Any) -> list[str] | None:
    return list(map(str, part)) if isinstance(part, list | tuple) else None


def environment_of_rank(rank: RankTrace, *, contents: bool) -> Environment:
    """Of one process of a trace; with `contents` what it computed with, which takes a look into its tables."""
    info = rank.info
    names = ("framework", "versions", "devices", "seeds", "process", "environment")
    found = environment_of({name: getattr(info, name) for name in names})
    if not contents:
        return found
    looked: dict[str, Mapping[str, Any]] = {
        "parameters": _parameters(rank),
        "inputs": _inputs(rank),
        "random_calls": _random_calls(rank),
    }
    return Environment({**found.parts, **{part: entries for part, entries in looked.items() if entries}}, found.unread)


def _options(words: Sequence[str]) -> dict[str, str]:
    """`--lr` and its value; what is no option by its place. The interpreter is told elsewhere."""
    found: dict[str, str] = {}
    places = 0
    waiting = ""
    for word in words[1:]:
        if word.startswith("-") and not _NUMBER.match(word[1:2]):
            name, given, value = word.partition("=")
            found[name] = value if given else "given"
            waiting = "" if given else name
        elif waiting:
            found[waiting], waiting = word, ""
        else:
            found[f"argument {places}"] = word
            places += 1
    return found


def _settings(configs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each key of each file; the digest of a file that was not taken apart. A file may lie elsewhere on each side."""
    for path, told in configs.items():
        name = Path(path).name
        told_of = _named(told) or {}
        values = _named(told_of.get("values"))
        for key, value in ({"digest": told_of.get("digest")} if values is None else values).items():
            yield f"{name}: {key}", value


def _stem(library: str) -> str:
    """`libgomp` of libgomp-24e2ab19.so.1.0.0."""
    return re.split(r"[-.]", library, maxsplit=1)[0]


def _digests(rank: RankTrace, uses: pl.LazyFrame, step: int) -> dict[str, str]:
    """By name, of values that are used under it: the first one."""
    values = rank.values(step).select(pl.col("id").alias("value"), "digest")
    rows = rank.collect(uses.join(values, on="value").filter(pl.col("digest").is_not_null()).sort("call"))
    first = rows.unique("name", keep="first", maintain_order=True)
    return {row["name"]: f"{row['digest']:016x}" for row in first.iter_rows(named=True)}


def _parameters(rank: RankTrace) -> dict[str, str]:
    """Digests of the parameters and buffers as the first step's modules found them."""
    if not rank.steps:
        return {}
    step = rank.steps[0]
    roles = (PARAMETER_ROLE, Role.BUFFER.value)
    uses = rank.tensors(step).filter(pl.col("role").is_in(roles)).select("call", "value", "place")
    modules = rank.calls(step).filter(pl.col("kind") == MODULE_KIND).select(pl.col("id").alias("call"), "module")
    name = pl.concat_str(pl.col("module").fill_null("model"), pl.col("place"), separator=".")
    return _digests(rank, uses.join(modules, on="call").select("call", "value", name=name), step)


def _inputs(rank: RankTrace) -> dict[str, str]:
    """Digests of what the outermost modules were given in the first steps."""
    found: dict[str, str] = {}
    for step in rank.steps[:FIRST_STEPS]:
        outermost = pl.col("kind").eq(MODULE_KIND) & ~pl.col("module").fill_null("").str.contains(".", literal=True)
        calls = rank.calls(step).filter(outermost).select(pl.col("id").alias("call"), called=pl.col("name"))
        uses = rank.tensors(step).filter(pl.col("role") == INPUT_ROLE).select("call", "value", "place")
        name = pl.concat_str(pl.lit(f"step {step}"), pl.col("called"), pl.col("place"), separator=" ")
        found |= _digests(rank, uses.join(calls, on="call").select("call", "value", name=name), step)
    return found


def _random_calls(rank: RankTrace) -> dict[str, int]:
    """How many random calls each step made."""
    calls = rank.scan("calls", rank.steps).filter(pl.col("random"))
    counts = rank.collect(calls.group_by("step").agg(pl.len()).sort("step"))
    told = {f"step {step}": number for step, number in counts.iter_rows()}
    return {f"step {step}": told.get(f"step {step}", 0) for step in rank.steps}
