"""Which versions of a framework can be watched."""

import re

from ulpscope.records.errors import UlpscopeError

OLDEST_TORCH = (2, 6)
"""The first whose function mode, accumulation hooks and autograd nodes tell what a capture needs."""


def refuse_old_torch(version: str) -> None:
    """Say in one message what can be done with a torch that cannot be captured; a version of unknown form may pass."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST_TORCH:
        return
    oldest = ".".join(map(str, OLDEST_TORCH))
    raise UlpscopeError(
        f"torch {version} is too old to be captured",
        expected=f"torch {oldest} or later",
        next_step=f"upgrade torch to {oldest}, or dump this run with the tool you have: dumps of msprobe and "
        "ptdbg_ascend, and forward_info files of the API accuracy checker, are read as they are: "
        "ulpscope compare DUMP DUMP, ulpscope check DUMP",
    )
