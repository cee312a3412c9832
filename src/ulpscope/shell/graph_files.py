"""Which files of a directory are the graphs that ran.

ge_proto_00000_Build.txt, ge_proto_00000_Build.txt.json       text, and what atc made of it
ge_proto_00000001_graph_31_Build.txt                          of newer compilers
ge_onnx_00000001_graph_31_Build.pbtxt                         the same in another form
ge_proto_00000_PreRunAfterBuild.txt                           of compilers before May 2021
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

STAGES = ("Build", "PreRunAfterBuild")
"""Of the graph as it runs: the first of these that a directory has."""

_NAME = re.compile(
    r"ge_(?:proto|onnx)_(?P<number>\d{1,12})_(?:graph_(?P<graph>\d{1,12})_)?(?P<stage>Build|PreRunAfterBuild)"
    r"(?P<ending>\.txt|\.json|\.txt\.json|\.pbtxt)",
    re.ASCII,
)
_BEST_FIRST = (".txt", ".txt.json", ".json", ".pbtxt")
DEEPEST = 3
"""Directories below the one of the graphs: compilers make one a process and device."""


def graph_files(folder: Path, *, deepest: int = DEEPEST) -> tuple[Path, ...]:
    """The graphs of the last stage in a directory and so far below it, each in the form that says most."""
    found: dict[str, dict[tuple[int, int, Path], tuple[int, Path]]] = {stage: {} for stage in STAGES}
    for path, match in _named(folder, deepest):
        # Each process of a run numbers its graphs from 0, in a directory of its own.
        key = int(match["number"]), int(match["graph"] or -1), path.parent
        choice = _BEST_FIRST.index(match["ending"]), path
        known = found[match["stage"]].setdefault(key, choice)
        found[match["stage"]][key] = min(known, choice)
    chosen = next((found[stage] for stage in STAGES if found[stage]), {})
    return tuple(path for _, (_, path) in sorted(chosen.items()))


def _named(folder: Path, deepest: int) -> Iterator[tuple[Path, re.Match[str]]]:
    """Files of such names that are not empty: some tools leave an empty text beside the JSON that they read."""
    top = len(folder.parts)
    for directory, names, files in os.walk(folder):
        path = Path(directory)
        names.sort()
        if len(path.parts) - top >= deepest:
            names.clear()
        for name in sorted(files):
            match = _NAME.fullmatch(name)
            if match is not None and (path / name).is_file() and (path / name).stat().st_size:
                yield path / name, match
