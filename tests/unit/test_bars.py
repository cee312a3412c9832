"""benchmarks/bars.py reads what benchmarks print, and none that has a bar is forgotten."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

PRINTED = {
    "start": """ulpscope --help              0.03 s (0.03 s of processor): 0.03 s, at most 0.4: holds
one step, plain              1.82 s (1.67 s of processor)
first capture, on top        1.01 s (1.06 s of processor): 1.01 s, at most 3.0: holds
second capture, on top       0.40 s (0.42 s of processor): 0.40 s, at most 1.0: holds
""",
    "metrics": """float32              default     9.03   8.46   8.12  14.74  1.81x    0.1 MiB  bar 2.0: ok
float32              detailed    3.55   3.48   3.16   1.83  0.58x    0.1 MiB  bar 0.5: ok
bfloat16             default     2.51   2.48   2.16   2.83  0.58x    0.1 MiB  bar 2.0: ok
bfloat16             detailed    0.67   0.48   0.16   0.83  0.58x    0.1 MiB  bar 0.5: ok
bfloat16 / float32   default     7.77   7.43   6.00   7.41  1.24x    0.1 MiB
float32 transposed   default     3.48   0.49   0.24   0.24  1.01x    2.1 MiB  bar 1.0: ok
float32 transposed   detailed    1.24   0.24   0.14   0.11  0.82x    2.1 MiB  bar 0.4: ok
""",
    "ascend": """2.00 GB of dumps, 2 processes
convert --to npy                2.63 s    0.76 GB/s  ok
convert --to npy --layout ND    2.33 s    0.86 GB/s  ok
""",
    "report": """| tensors | make s | MB | first view s | table s | filter s | sort s |
| 5,000 | 0.15 | 3.20 (at most 8) | 0.41 (at most 2) | 0.10 | 0.12 | 0.05 |
| 200,000 | 1.10 | 26 (at most 40) | 0.98 (at most 6) | 0.20 | 0.31 (MISSES 0.3) | 0.05 |
""",
    "hostile": """calls          1,095 answer, 904 error, 1 wrong in 100 s
values         1,283 answer, 715 error, 2 wrong in 100 s
""",
    "wrong": """
FAIL 95.3% (bar 85%), FAIL or WARN 98.2% (bar 95%)
0 of 636 unharmed calls FAIL and no find explains it (bar 0)
""",
}
FIGURES = {
    "start": [0.03, 1.01, 0.40],
    "metrics": [9.03, 3.55, 2.51, 0.67, 3.48, 1.24],
    "ascend": [0.76, 0.86],
    "report": [3.2, 0.41, 26.0, 0.98, 0.31],
    "hostile": [3.0],
    "wrong": [95.3, 98.2, 0.0],
}


@pytest.fixture(scope="module")
def bars() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bars_of_benchmarks", BENCHMARKS / "bars.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PRINTED)
def test_figures_are_read_from_what_a_benchmark_prints(bars: ModuleType, name: str) -> None:
    assert [bar.figure(PRINTED[name]) for bar in bars.BENCHMARKS[name].bars] == FIGURES[name]


def test_a_figure_that_is_not_there_is_missed(bars: ModuleType) -> None:
    bar = bars.BENCHMARKS["start"].bars[0]
    assert not bar.met(bar.figure("Traceback"))


def test_a_benchmark_is_run_and_told_beside_its_bar(bars: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    helped = bars.Benchmark(("start.py help --rounds 1",), bars.BENCHMARKS["start"].bars[:1])
    list(bars._told(helped))
    assert re.match(r"ulpscope --help +[\d.]+ s +bar at most 0.4", capsys.readouterr().out)


def test_every_benchmark_that_has_a_bar_is_joined_or_run_by_hand(bars: ModuleType) -> None:
    commands = [command for benchmark in bars.BENCHMARKS.values() for command in benchmark.commands]
    named = set(re.findall(r"\w+\.py", " ".join([*commands, *bars.BY_HAND.values()])))
    told = (BENCHMARKS.parent / "docs/benchmarks.md").read_text(encoding="utf-8")
    measured = set(re.findall(r"`(?:python )?(?:benchmarks/)?(\w+\.py)", told)) & {
        path.name for path in BENCHMARKS.glob("*.py")
    }
    assert named <= {path.name for path in BENCHMARKS.glob("*.py")}
    without_a_bar = {"bars.py", "host_cost.py", "sound_finds.py", "watched_traces.py"}
    assert measured - named <= without_a_bar
