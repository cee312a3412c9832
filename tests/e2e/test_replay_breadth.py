"""Some of PyTorch's operators executed again and judged: benchmarks/check_breadth.py and check_sound.py run all."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

OPS = """add addmm cat clamp cumsum einsum fft.fft gather index_put linalg.svd linalg.solve log_softmax mul
nn.functional.conv2d nn.functional.dropout nn.functional.gelu nn.functional.layer_norm norm permute randn_like sort
split topk unfold""".split()


def measure(benchmark: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / benchmark), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)


def test_operators_are_executed_again_bit_for_bit() -> None:
    done = measure("check_breadth.py", "--ops", *OPS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{len(OPS)} of {len(OPS)} operators replay (100.00%)")


def test_what_cannot_be_executed_again_is_counted() -> None:
    done = measure("check_breadth.py", "--ops", "to_sparse", "add")
    assert done.returncode == 1
    assert "FAILED to_sparse" in done.stdout
    assert "1 of 2 operators replay" in done.stdout


def test_sound_kernels_are_left_alone() -> None:
    done = measure("check_sound.py", "--ops", "addmm", "exp", "sum", "nn.functional.linear", "softmax", "sort")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 FAIL that no find explains" in done.stdout
