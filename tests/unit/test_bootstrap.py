"""The injected start-up in fresh interpreters, with a stand-in for torch and for the capture session."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ulpscope.capture.events import EVENTS_VARIABLE, Event, EventReader
from ulpscope.capture.settings import SETTINGS_VARIABLE, settings_to_json
from ulpscope.records.runs import CaptureSettings
from ulpscope.workflows.run.command import INJECT_DIRECTORY, child_environment

SESSION = """
import sys, types

class Session:
    def __init__(self, events):
        self.events = events
    def close(self, exit):
        self.events.emit("closed", exit=exit)
    def abandon(self):
        self.events.emit("abandoned")

def start_session(settings, *, events):
    events.emit("session", level=settings.level.value)
    return Session(events)

stub = types.ModuleType("ulpscope.capture.torch.session")
stub.start_session = start_session
sys.modules[stub.__name__] = stub
"""


@pytest.fixture
def user_path(tmp_path: Path) -> Path:
    """A PYTHONPATH entry of the user: a stand-in for torch, and a sitecustomize of their own."""
    folder = tmp_path / "user"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("print('torch executed')\n")
    (folder / "sitecustomize.py").write_text(SESSION)
    return folder


def run_python(
    user_path: Path, *arguments: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], list[Event]]:
    rendezvous = user_path.parent / "events"
    rendezvous.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(user_path), **variables}
    environment = child_environment(environ, CaptureSettings(out=user_path.parent / "out"), rendezvous=rendezvous)
    done = subprocess.run(
        [sys.executable, *arguments], env={**environment, **variables}, capture_output=True, text=True, check=False
    )
    return done, EventReader(rendezvous).read_new()


def names(events: list[Event]) -> list[str]:
    return [event["event"] for event in events]


def test_capture_starts_with_torch_and_closes_at_exit(user_path: Path) -> None:
    done, events = run_python(user_path, "-c", "import torch; print('script')")
    assert done.stdout == "torch executed\nscript\n"
    assert names(events) == ["python", "started", "session", "closed"]
    assert events[1]["interpreter"] == sys.executable
    assert (events[1]["rank"], events[1]["world_size"]) == (0, 1)
    assert events[3]["exit"] == "ended"


def test_a_python_without_torch_is_only_counted(user_path: Path) -> None:
    done, events = run_python(user_path, "-c", "import sys; print('json' in sys.modules, 'ulpscope' in sys.modules)")
    assert done.stdout == "False False\n"
    assert names(events) == ["python"]


def test_nothing_is_left_to_see(user_path: Path) -> None:
    code = "import torch, sys; print(vars(torch.__spec__.loader).keys(), sys.meta_path, sys.path)"
    done, _ = run_python(user_path, "-c", code)
    told = done.stdout.splitlines()[1]
    assert "exec_module" not in told
    assert "TorchWatch" not in told
    assert str(INJECT_DIRECTORY) not in told
    assert str(user_path) in told


def test_looking_for_torch_is_not_importing_it(user_path: Path) -> None:
    code = "import importlib.util; print(importlib.util.find_spec('torch') is not None)"
    done, events = run_python(user_path, "-c", code)
    assert done.stdout == "True\n"
    assert names(events) == ["python"]


def test_a_torch_that_fails_to_import_fails_as_ever(user_path: Path) -> None:
    (user_path / "torch" / "__init__.py").write_text("raise ImportError('broken torch')")
    done, events = run_python(user_path, "-c", "import torch")
    assert done.stderr.splitlines()[-1] == "ImportError: broken torch"
    assert names(events) == ["python"]


def test_an_uncaught_exception_is_noted_and_shown_as_ever(user_path: Path) -> None:
    done, events = run_python(user_path, "-c", "import torch; 1 / 0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert events[-1]["exit"] == "ZeroDivisionError: division by zero"


def test_exit_codes_are_untouched(user_path: Path) -> None:
    done, events = run_python(user_path, "-c", "import torch, sys; sys.exit(7)")
    assert done.returncode == 7
    assert events[-1]["exit"] == "ended"


def test_a_fork_is_left_alone(user_path: Path) -> None:
    code = "import torch, os, sys; child = os.fork(); child and os.waitpid(child, 0); sys.exit(0)"
    _, events = run_python(user_path, "-c", code)
    child = [event for event in events if event["pid"] != events[0]["pid"]]
    assert sorted(names(events)) == ["abandoned", "closed", "left_alone", "python", "session", "started"]
    assert names(child) == ["abandoned", "left_alone"]


def test_grandchildren_are_captured_too(user_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'])"
    _, events = run_python(user_path, "-c", code, RANK="1", WORLD_SIZE="2")
    assert sorted(names(events)) == ["closed", "python", "python", "session", "started"]
    assert next(event["rank"] for event in events if event["event"] == "started") == 1


def test_a_launcher_is_left_alone_but_not_its_ranks(user_path: Path) -> None:
    launcher = user_path / "torchrun"
    launcher.write_text("import torch, subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'])")
    _, events = run_python(user_path, str(launcher))
    assert sorted(names(events)) == ["closed", "left_alone", "python", "python", "session", "started"]


def test_children_of_a_compile_worker_are_left_alone(user_path: Path) -> None:
    worker = user_path / "torch" / "_inductor" / "compile_worker" / "__main__.py"
    worker.parent.mkdir(parents=True)
    worker.write_text("import torch, subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'])")
    done, events = run_python(user_path, str(worker))
    assert done.stdout == "torch executed\ntorch executed\n"
    assert names(events) == ["python", "left_alone"]


def test_our_own_error_does_not_reach_the_script(user_path: Path) -> None:
    (user_path / "sitecustomize.py").write_text(SESSION + "\ndel stub.start_session\n")
    done, events = run_python(user_path, "-c", "import torch; print('script')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "torch executed\nscript\n", "")
    assert events[-1]["event"] == "failed"
    assert events[-1]["text"].startswith("capture did not start: AttributeError")


def test_an_error_while_closing_does_not_reach_the_script(user_path: Path) -> None:
    (user_path / "sitecustomize.py").write_text(SESSION + "\nSession.close = None\n")
    done, events = run_python(user_path, "-c", "import torch")
    assert (done.returncode, done.stderr) == (0, "")
    assert events[-1]["text"].startswith("the trace could not be closed: TypeError")


def test_settings_of_another_version_do_not_reach_the_script(user_path: Path) -> None:
    done, events = run_python(user_path, "-c", "import torch", **{SETTINGS_VARIABLE: "{}"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "ULPSCOPE_SETTINGS cannot be read" in events[-1]["text"]


def test_an_interpreter_without_ulpscope_says_so(user_path: Path) -> None:
    (user_path / "ulpscope.py").write_text("raise ModuleNotFoundError(\"No module named 'ulpscope'\")")
    done, events = run_python(user_path, "-c", "import torch; print('script')")
    assert done.stdout == "torch executed\nscript\n"
    assert events[-1]["event"] == "no_ulpscope"
    assert events[-1]["interpreter"] == sys.executable


def test_the_users_own_sitecustomize_may_fail_as_ever(user_path: Path) -> None:
    (user_path / "sitecustomize.py").write_text("raise ZeroDivisionError('theirs')")
    done, events = run_python(user_path, "-c", "print('script')")
    assert done.stdout == "script\n"
    assert "Error in sitecustomize" in done.stderr
    assert names(events) == ["python"]


def test_the_environment_keeps_what_was_there(tmp_path: Path) -> None:
    settings = CaptureSettings(out=Path("runs/ref"))
    environment = child_environment({"A": "1", "PYTHONPATH": "/x:/y"}, settings, rendezvous=tmp_path)
    assert environment["A"] == "1"
    assert environment["PYTHONPATH"] == f"{INJECT_DIRECTORY}:/x:/y"
    assert environment[EVENTS_VARIABLE] == str(tmp_path)
    assert json.loads(environment[SETTINGS_VARIABLE])["out"] == str(Path.cwd() / "runs" / "ref")
    assert child_environment({"PYTHONPATH": ""}, settings, rendezvous=tmp_path)["PYTHONPATH"] == str(INJECT_DIRECTORY)
    assert settings_to_json(settings) != environment[SETTINGS_VARIABLE]
