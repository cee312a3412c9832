"""msprobe's compare() and compare_distributed(): two dumps or traces, answered by ulpscope."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulpscope.compat.msprobe_table import PAGE
from ulpscope.compat.telling import tell
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.workflows.compare.command import CompareResult

# Of all versions, the newest first: dumps as JSON, and those of ptdbg_ascend.
TARGETS = ("target_path", "npu_path", "npu_json_path", "npu_pkl_path")
REFERENCES = ("golden_path", "bench_path", "bench_json_path", "bench_pkl_path")
# Whatever they say, stacks and all columns are there and the answer explains itself.
_QUIET = frozenset({"stack_mode", "auto_analyze", "xlsx", "summary_compare", "md5_compare", "suffix"})


def compare(input_param: Mapping[str, Any], output_path: str, **options: Any) -> "CompareResult":
    """Compare the dumps that input_param names; print the answer, and write it below output_path."""
    reference, target = (_path(input_param, names) for names in (REFERENCES, TARGETS))
    return _compare(reference, target, Path(output_path), options)


pt_compare = compare


def compare_distributed(npu_dump_dir: str, bench_dump_dir: str, output_path: str, **options: Any) -> "CompareResult":
    """Compare all ranks of two dumps; print the answer, and write it below output_path."""
    return _compare(Path(bench_dump_dir), Path(npu_dump_dir), Path(output_path), options)


def _compare(reference: Path, target: Path, out: Path, options: Mapping[str, Any]) -> "CompareResult":
    from ulpscope.workflows.compare.command import CompareOptions
    from ulpscope.workflows.compare.command import compare as compare_runs
    from ulpscope.workflows.results import prepare_result

    ignored = sorted(name for name, value in options.items() if value and name not in _QUIET)
    if ignored:
        tell(f"compare: {', '.join(ignored)} has no effect: calls are aligned by their order and shapes ({PAGE})")
    result = compare_runs(reference, target, CompareOptions())
    folder = out / f"compare_result_{time.strftime('%Y%m%d%H%M%S')}"
    prepare_result(folder, overwrite=True)
    page = result.write(folder, xlsx=bool(options.get("xlsx")))
    print(result.text(), end="")
    tell(f"compare: the tables are in {folder}, the page is {page}")
    return result


def _path(given: Mapping[str, Any], names: tuple[str, ...]) -> Path:
    stated = next((given[name] for name in names if isinstance(given.get(name), str) and given[name]), None)
    if stated is None:
        raise UlpscopeError(
            f"compare: input_param has {', '.join(map(str, given)) or 'nothing'}",
            expected=f"a dump.json or a directory of dumps as one of {', '.join(names)}",
            next_step=f"add it, or ulpscope compare REFERENCE TARGET; see {PAGE}",
        )
    return Path(stated)
