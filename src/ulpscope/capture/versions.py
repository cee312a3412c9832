"""Which versions of a framework can be watched."""

import re
import sys

from ulpscope.records.errors import UlpscopeError

OLDEST = {"torch": (2, 6)}
"""The first torch whose function mode, accumulation hooks and autograd nodes tell what a capture needs."""


def refuse_old_version(framework: str) -> None:
    """Say in one message what can be done with a framework that is imported and too old to be captured.

    To be asked before our own modules are imported that need a newer one. A version of another form may pass.
    """
    version = str(getattr(sys.modules.get(framework), "__version__", ""))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST[framework]:
        return
    oldest = ".".join(map(str, OLDEST[framework]))
    raise UlpscopeError(
        f"{framework} {version} is too old to be captured",
        expected=f"{framework} {oldest} or later",
        next_step=f"upgrade {framework} to {oldest}, or dump this run with the tool you have: dumps of msprobe and "
        "ptdbg_ascend, and forward_info files of the API accuracy checker, are read as they are, on any machine: "
        "ulpscope compare DUMP DUMP, ulpscope check DUMP",
    )
