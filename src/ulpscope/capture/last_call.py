"""The call that a captured process is in, where `ulpscope run` finds it after whatever death.

A file in the rendezvous directory is mapped into memory and written into at every call: what is there outlives the
process, and costs less than a microsecond. host/last_call.h writes the same.

    (3\nforward\ntorch.nn.functional.linear.7\nmodel.layers.0\n\0
"""

import contextlib
import mmap
import os
from pathlib import Path

from ulpscope.records.runs import LastCall

BYTES = 1024

_RUNNING, _DONE = ord("("), ord(")")


class LastCallFile:
    """Written by the captured process, through the map alone."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where there is no such place."""
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.write(file, bytes(BYTES))  # a hole in a file on a full disk would end the run by SIGBUS
            self.memory = mmap.mmap(file, BYTES)
        finally:
            os.close(file)

    def opened(self, step: int, phase: str, name: str, module: str | None) -> None:
        text = f"({step}\n{phase}\n{name}\n{module or ''}\n\0".encode(errors="replace")
        self.memory[: len(text)] = text if len(text) <= BYTES else text[:BYTES]

    def closed(self) -> None:
        self.memory[0] = _DONE


def read_last_call(path: Path) -> LastCall | None:
    """What the file says; None if there is none, or if the process died while it wrote."""
    content = b""
    with contextlib.suppress(OSError):
        content = path.read_bytes()
    state, lines = content[:1], content[1:].partition(b"\0")[0].decode(errors="replace").split("\n")
    if state not in (b"(", b")") or len(lines) < 4 or not lines[0].isdigit():
        return None
    step, phase, name, module, *_ = lines
    return LastCall(step=int(step), phase=phase, name=name, module=module, running=state[0] == _RUNNING)
