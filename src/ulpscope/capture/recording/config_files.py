"""Config files that the user names: their digest and, of yaml, json and toml, every key with its value.

Secrets are masked.
"""

import hashlib
import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ulpscope.capture.recording.secrets import MASK, masked, names_secret

MOST_KEYS = 10_000
"""A file can name one part of itself so often that its keys fill the memory."""
DEEPEST = 50
LONGEST = 1000
"""Characters of a value that are kept; of a longer one its digest, too."""
LARGEST = 2**20
"""Bytes of a file that is taken apart: a larger one is no list of settings, and yaml takes a minute for some of them
while the run waits."""


def config_files(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """By path: `digest` and `values`, or the `problem` with it."""
    return {str(path): _config_file(path) for path in paths}


def _config_file(path: Path) -> dict[str, Any]:
    try:
        content, digest = _read(path)
    except OSError as error:
        return {"problem": error.strerror or str(error)}
    if len(content) > LARGEST:
        return digest
    try:
        parsed = _parsed(content.decode("utf-8"), path.suffix.lower())
        found = [] if parsed is None else list(islice(_flat("", parsed), MOST_KEYS + 1))
    except Exception as error:  # parsers raise what they like; the run that names the file must not suffer
        return {**digest, "problem": masked(f"{type(error).__name__}: {error}".partition("\n")[0])}
    # The first of many keys may agree while others differ: then the whole file is compared.
    return {**digest, "values": dict(found)} if 0 < len(found) <= MOST_KEYS else digest


def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    """The beginning of a file, and the digest of all of it."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        content = block = file.read(LARGEST + 1)
        while block:
            digest.update(block)
            block = file.read(LARGEST)
    return content, {"digest": digest.hexdigest()}


def _parsed(text: str, kind: str) -> Any:
    """Plain values; None of a kind that is not taken apart."""
    if kind == ".json":
        return json.loads(text)
    if kind == ".toml":
        return importlib.import_module("tomllib").loads(text)  # from Python 3.11 on
    if kind in (".yaml", ".yml"):
        import yaml

        return yaml.safe_load(text)
    return None


def _flat(name: str, content: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """`model.layers[0].eps` and its value."""
    if depth < DEEPEST and isinstance(content, Mapping) and content:
        for key, item in content.items():
            inner = f"{name}.{key}" if name else str(key)
            if names_secret(str(key)):
                yield inner, MASK
            else:
                yield from _flat(inner, item, depth + 1)
    elif depth < DEEPEST and isinstance(content, list) and content:
        for place, item in enumerate(content):
            yield from _flat(f"{name}[{place}]", item, depth + 1)
    else:
        yield name or "content", _leaf(content)


def _leaf(content: Any) -> bool | int | float | str | None:
    if isinstance(content, int) and not -(2**63) <= content < 2**63:
        return hex(content)[:LONGEST]  # Python writes no number of thousands of digits
    if content is None or isinstance(content, bool | int) or (isinstance(content, float) and math.isfinite(content)):
        return content
    # What lies too deep is not written out: parts of it may stand for each other without end.
    return type(content).__name__ if isinstance(content, Mapping | list) else _shortened(masked(str(content)))


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}... {hashlib.blake2b(text.encode('utf-8', 'replace'), digest_size=8).hexdigest()}"
