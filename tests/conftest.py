"""Settings that must hold before any test imports torch, also in the processes that tests start."""

import os
import signal

import pytest
from hypothesis import settings

from ulpscope.replay import registry

# Without this limit, oneDNN may choose AMX for bf16 on CPUs whose kernel forbids it, and the process dies of SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

# Whoever records the calls is chosen by the test, not by what an earlier run has left in the user's cache.
os.environ.setdefault("ULPSCOPE_HOST", "python")

# A shell's background job ignores Ctrl-C, and so would all that tests start; some of them send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time; HYPOTHESIS_PROFILE=explore looks for new ones.
# None has a deadline: how long a machine takes is no property of the code.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_sessionstart() -> None:
    """Tests that ask for the compiled recorder fail where it cannot be made: a capture would go on without it."""
    if os.environ["ULPSCOPE_HOST"] == "compiled":
        from ulpscope.capture.torch.host import loading

        loading.load()


@pytest.fixture(autouse=True)
def references_of_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers with reference_for is not there for the next one."""
    monkeypatch.setattr(registry, "_registered", {})
