import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ulpscope.cli import main as cli
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError


def stub_command(monkeypatch: pytest.MonkeyPatch, run: object) -> None:
    stub = SimpleNamespace(register=lambda subparsers: subparsers.add_parser("stub"), run=run)
    monkeypatch.setattr(cli, "COMMANDS", ("stub",))
    monkeypatch.setattr(cli, "_module", lambda name: stub)


def raising(error: BaseException) -> object:
    def run(arguments: object) -> int:
        raise error

    return run


def test_help_imports_nothing_heavy() -> None:
    """benchmarks/start.py measures its time."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ulpscope", "--help"], capture_output=True, text=True, check=True
    )
    assert "run" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"numpy", "polars", "rich", "torch", "numba", "safetensors"}


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == ExitCode.OK
    assert "usage: ulpscope" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["show", "x", "--nonsense"],
        ["run", "-o", "x", "true"],
        ["--nonsense"],
        ["run", "-o", "x", "--nonsense", "--", "true"],
        ["run", "-o", "x", "--over", "--", "true"],
        ["run", "--", "true"],
        ["run", "-o", "x", "--level", "deep", "--", "true"],
        ["run", "-o", "x", "--steps", "two", "--", "true"],
        ["run", "-o", "x", "--max-disk", "much", "--", "true"],
        ["run", "-o", "x", "--stop", "--", "true"],
        ["run", "-o", "x"],
    ],
)
def test_bad_usage_says_what_to_do_next(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == ExitCode.USAGE
    first, expected, next_step = capsys.readouterr().err.splitlines()
    assert first.startswith("ulpscope: error: ")
    assert expected.startswith("  expected: ")
    assert next_step.startswith("  next: ")


def test_a_command_without_its_border_is_written_out_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "-o", "x", "python", "t.py", "--steps", "3", "--lr", "1"]) == ExitCode.USAGE
    assert capsys.readouterr().err.endswith("next: ulpscope run -o x -- python t.py --steps 3 --lr 1\n")


def test_the_users_own_options_are_not_read() -> None:
    words = ["run", "-o", "x", "--", "python", "t.py", "--debug", "--", "-o"]
    assert cli.split_command(words) == (["run", "-o", "x"], ["python", "t.py", "--debug", "--", "-o"])
    assert cli.split_command(["show", "run", "--", "x"]) == (["show", "run", "--", "x"], [])


def test_an_error_of_the_user_has_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = UlpscopeError("seen", expected="this", next_step="that", code=ExitCode.NOTHING)
    stub_command(monkeypatch, raising(error))
    assert cli.main(["stub"]) == ExitCode.NOTHING
    assert capsys.readouterr().err == "ulpscope: error: seen\n  expected: this\n  next: that\n"


def test_our_own_fault_is_70_and_asks_for_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub_command(monkeypatch, raising(ZeroDivisionError("by zero")))
    assert cli.main(["stub"]) == ExitCode.OWN_FAULT
    told = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in told
    assert "--debug" in told
    assert "Traceback" not in told
    assert cli.main(["--debug", "stub"]) == ExitCode.OWN_FAULT
    assert "Traceback" in capsys.readouterr().err


def test_interruption_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_command(monkeypatch, raising(KeyboardInterrupt()))
    assert cli.main(["stub"]) == ExitCode.INTERRUPTED


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_went_away_is_no_traceback(unbuffered: str) -> None:
    code = (
        "import sys, types; from ulpscope.cli import main as cli; from ulpscope.cli.command import write_answer; "
        "run = lambda a: write_answer('x' * 10**6) or 0; "
        "stub = types.SimpleNamespace(register=lambda s: s.add_parser('stub'), run=run); "
        "cli.COMMANDS = ('stub',); cli._module = lambda name: stub; sys.exit(cli.main(['stub']))"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)
    assert process.stdout is not None
    assert process.stderr is not None
    # It is gone while the answer is being written.
    assert process.stdout.read(1) == b"x"
    process.stdout.close()
    assert process.wait() == cli.BROKEN_PIPE
    assert process.stderr.read() == b""
    process.stderr.close()
