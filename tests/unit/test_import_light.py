"""Importing ulpscope must cost nothing; `ulpscope.capture` is a room and a function in every order of imports."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "tensorflow", "mindspore", "jax", "numpy", "polars", "rich", "numba", "safetensors")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "imports",
    [
        "import ulpscope",
        "import ulpscope.capture.processes, ulpscope.capture.settings, ulpscope.capture.events",
        "from ulpscope.cli.main import build_parser; build_parser()",
        "import ulpscope.workflows.run.command",
    ],
)
def test_importing_loads_nothing_heavy(imports: str) -> None:
    heavy = run_python(f"import sys; {imports}; print([name for name in {HEAVY!r} if name in sys.modules])")
    assert heavy == "[]"


def test_reading_seeds_loads_no_generator_that_nobody_has_asked_for() -> None:
    """numpy loads its generators late, and what a signal's handler raises while it does is lost."""
    read = "import sys, numpy; from ulpscope.capture.recording.environment import seeds; found = seeds()"
    assert run_python(f"{read}; print('numpy.random' in sys.modules, 'numpy_state' in found)") == "False False"
    drawn = read.replace("numpy;", "numpy; numpy.random.rand();")
    assert run_python(f"{drawn}; print('numpy_state' in found)") == "True"


@pytest.mark.parametrize(
    "imports",
    [
        "import ulpscope",
        "import ulpscope.capture.settings",
        "from ulpscope.capture import settings; import ulpscope",
        "import ulpscope; from ulpscope import capture; import ulpscope.capture.events",
        "import ulpscope; ulpscope.capture; import ulpscope.capture.events as events",
    ],
)
def test_capture_is_callable_in_every_import_order(imports: str) -> None:
    stub = "import sys, types; stub = types.ModuleType('stub'); stub.capture = lambda *a, **k: (a, k)"
    place = "sys.modules['ulpscope.workflows.run.python_capture'] = stub"
    called = run_python(f"{stub}; {imports}; {place}; print(ulpscope.capture('runs/ref', level='api'))")
    assert called == "(('runs/ref',), {'level': 'api'})"


def test_unknown_names_are_attribute_errors() -> None:
    assert run_python("import ulpscope; print(hasattr(ulpscope, 'no_such_name'))") == "False"


def test_open_trace_is_the_reader() -> None:
    assert run_python("import ulpscope; print(ulpscope.open_trace.__module__)") == "ulpscope.trace.reader"
