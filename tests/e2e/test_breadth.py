"""A spread of PyTorch's operator database under capture: benchmarks/breadth.py runs all of it."""

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "breadth.py"

OPS = """abs add addmm argsort baddbmm bernoulli bmm cat cdist clamp complex cumsum diag_embed einsum exp fft.fft gather
index_put index_select linalg.svd linalg.solve log_softmax logsumexp masked_scatter max.reduction_with_dim meshgrid
native_layer_norm nn.functional.conv2d nn.functional.dropout nn.functional.gelu nn.functional.grid_sample
nn.functional.scaled_dot_product_attention norm permute polar randn_like scatter_add split topk unfold""".split()


def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False, timeout=240
    )


def test_operators_run_unchanged_and_are_recorded_truly() -> None:
    done = measure("--samples", "2", "--ops", *OPS)
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    counted = int(first.split()[0])
    assert counted >= len(OPS)
    assert f"{counted} operators, 0 not counted" in first
    assert last.startswith(f"{counted} of {counted} operators pass")
    assert "error of ours" not in done.stdout


def test_what_is_not_recorded_truly_fails() -> None:
    """A sparse result has no saved data: the benchmark must not let it pass."""
    done = measure("--ops", "to_sparse", "add")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED to_sparse" in done.stdout
    assert "FAILED add" not in done.stdout
