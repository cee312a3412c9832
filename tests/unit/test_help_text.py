"""Help that fits the terminal."""

import pytest

from ulpscope.cli.command import fill
from ulpscope.cli.main import COMMANDS, main


@pytest.mark.parametrize("width", [72, 80, 140])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_no_line_is_wider_than_the_terminal(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([word for word in (command, "--help") if word]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > width] == []


def test_prose_is_filled_and_examples_stand_beside_or_above_what_they_do() -> None:
    text = """Do things.

  tool one        the first
  tool two --all  the second

It does many
things."""
    wide = "Do things.\n\n  tool one        the first\n  tool two --all  the second\n\nIt does many things."
    assert fill(text, 40) == wide
    below = "  tool one\n      the first\n  tool two --all\n      the second\n\nIt does many\nthings."
    assert fill(text, 18).endswith(below)


def test_a_command_that_is_too_long_goes_on_as_a_shell_reads_it() -> None:
    text = "  tool compare left.npy right.npy --rtol 0.1\n              two tensors"
    told = fill(text, 30)
    assert told == "  tool compare left.npy \\\n      right.npy --rtol 0.1\n      two tensors"
