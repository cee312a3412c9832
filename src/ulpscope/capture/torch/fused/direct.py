"""What it takes to launch a kernel that Triton has compiled without Triton."""

from functools import cache
from typing import Any, NamedTuple

# Since 3.3 a compiled kernel is launched with all of its arguments; before, without its constants.
DIRECT_LAUNCH = (3, 3)

WARP_THREADS = 32
_WIDE_TYPES = frozenset({"*i32", "*i64", "i64", "u64"})
_NARROW_TYPES = frozenset({"i32", "u32"})


class Direct(NamedTuple):
    """A compiled kernel as CUDA launches it."""

    function: int
    threads: int
    shared_bytes: int
    wide: tuple[bool, ...]
    """Which of its arguments have eight bytes; the others have four."""


def direct(compiled: Any) -> Direct | None:
    """What cuLaunchKernel wants to know; None for a kernel that needs more than threads and arguments."""
    described = compiled.metadata
    scratch = getattr(described, "global_scratch_size", 0) or getattr(described, "profile_scratch_size", 0)
    together = described.num_ctas > 1 or getattr(described, "launch_cooperative_grid", False)
    types = [kind for kind in compiled.src.signature.values() if kind != "constexpr"]
    if scratch or together or any(kind not in _WIDE_TYPES | _NARROW_TYPES for kind in types):
        return None
    return Direct(
        compiled.function,
        described.num_warps * WARP_THREADS,
        described.shared,
        tuple(kind in _WIDE_TYPES for kind in types),
    )


@cache
def launches_directly() -> bool:
    """Whether this Triton's compiled kernels are launched with all of their arguments."""
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= DIRECT_LAUNCH
