"""The compare.json that users of msprobe have: which two dumps its compare command was to compare.

{"npu_path": "./npu/step0/rank0/dump.json", "bench_path": "./gpu/step0/rank0/dump.json", "stack_path": "..."}
"""

from pathlib import Path
from typing import Any

from ulpscope.dialects.msprobe.json_files import read_object
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair

REFERENCE, TARGET = "bench_path", "npu_path"


def is_compare_config(path: Path) -> bool:
    """Whether a file is such a config, by its content."""
    return path.is_file() and path.suffix == ".json" and path.stat().st_size < 2**20 and _has_paths(path)


def read_compare_config(path: Path) -> Pair[Path]:
    """The dump that is trusted (bench_path) and the one under suspicion (npu_path); everything else has no use here."""
    content = read_object(path)
    return Pair(reference=_dump(path, content, REFERENCE), target=_dump(path, content, TARGET))


def _has_paths(path: Path) -> bool:
    try:
        content = read_object(path)
    except UlpscopeError:
        return False
    return REFERENCE in content and TARGET in content


def _dump(config: Path, content: dict[str, Any], field: str) -> Path:
    """Relative to the config's directory or to the current one: msprobe's users write both."""
    stated = content.get(field)
    if not isinstance(stated, str) or not stated or "\0" in stated:
        seen = f"{config} has no field {field}" if field not in content else f"field {field} of {config} is {stated!r}"
        raise UlpscopeError(
            seen,
            expected='{"npu_path": "...", "bench_path": "..."}, each a dump.json or a directory of dumps',
            next_step=f"add {field}, or name the two dumps: ulpscope compare REFERENCE TARGET",
        )
    candidates = [config.parent / stated, Path(stated)]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise UlpscopeError(
        f"field {field} of {config} says {stated!r}: not at {candidates[0]} nor at {candidates[1].absolute()}",
        expected="a dump.json or a directory of dumps",
        next_step=f"correct {field}, or name the two dumps: ulpscope compare REFERENCE TARGET",
    )
