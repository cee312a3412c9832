"""Which framework executes the calls of a trace again: the one that made them."""

import shlex
import sys
from enum import Enum
from importlib.util import find_spec

from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.reader import RankTrace, Trace


class Framework(str, Enum):
    """Frameworks that replay has a room for, by the names of their packages."""

    TORCH = "torch"
    TENSORFLOW = "tensorflow"

    @property
    def shown(self) -> str:
        return "TensorFlow" if self is Framework.TENSORFLOW else self.value


def framework_of(rank: RankTrace) -> Framework:
    """What ran there; other tools' dumps, which do not say, are torch's."""
    return Framework.TENSORFLOW if rank.info.framework.get("name") == Framework.TENSORFLOW.value else Framework.TORCH


def needed_framework(trace: Trace) -> Framework:
    """The framework that a trace's calls need; a clear word where it is not installed beside ulpscope."""
    framework = framework_of(trace.ranks[0])
    if find_spec(framework.value) is None:
        raise UlpscopeError(
            f"{trace.path} is a trace of {framework.shown}, which is not installed for {sys.executable}",
            expected=f"{framework.shown} beside ulpscope, to execute its calls again; no other framework is needed",
            next_step=f"pip install {shlex.quote(f'ulpscope[{framework.value}]')}",
        )
    return framework
