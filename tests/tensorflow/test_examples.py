"""The walk-throughs of examples/, typed as they stand there: what comes is what the pages show, but for numbers."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("examples/lenet_tf1/README.md", "examples/keras_transformer/README.md")
LEFT_OUT = "..."


def shown(page: str) -> Iterator[tuple[str, str]]:
    """The commands of a page, each with what it is shown to print."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```\n(\$ .*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def without_numbers(text: str) -> str:
    """Words as they are, whatever machine has computed the numbers beside them, and when."""
    text = re.sub(r"\d{12,}", "N", text)
    return " ".join(re.sub(r"(?<![\w.])-?\d[\d,.]*(e[-+]?\d+)?( ?[KMG]B)?", "N", text).split())


def typed(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """What a shell makes of it, where `python` and `ulpscope` are this environment's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "120", "LC_ALL": "C"}
    both = subprocess.STDOUT  # as a terminal shows them
    done = subprocess.run(
        command, shell=True, cwd=folder, stdout=subprocess.PIPE, stderr=both, text=True, env=environment, timeout=300
    )
    assert done.returncode in (0, 1), done.stdout
    return done


@pytest.mark.parametrize("page", PAGES)
def test_a_walk_through_gives_what_it_shows(page: str, tmp_path: Path) -> None:
    shutil.copytree((ROOT / page).parent, tmp_path / "example")
    commands = list(shown(page))
    assert [command.split()[1] for command, _ in commands if command.startswith("ulpscope")][:3] == [
        "run",
        "run",
        "compare",
    ]
    for command, output in commands:
        done = typed(command, tmp_path / "example")
        came = without_numbers(done.stdout)
        for piece in output.split(LEFT_OUT):
            assert without_numbers(piece) in came, command
