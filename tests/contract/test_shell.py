"""`ulpscope shell` in a real terminal: every word, completion, history, Ctrl-C, the end of input, a resized window.

Nothing waits for time to pass: each step waits for what only the step before it can have done.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pexpect
import pytest

ASCEND = Path(__file__).parents[1] / "data" / "ascend"
PROMPT = "ulpscope>"
RELU = "Relu.fc1_Relu.21.0.1767225600021123.output.0"
REFERENCE = "fc1_Relu.0.1767225600900010.npy"
UP, CTRL_D = "\x1b[A", "\x04"
PATIENCE = 60
"""Seconds until a text counts as missing; a busy machine may take some."""

LONG_TO_READ = 2**34
"""Elements that no machine reads before the terminal has passed a signal on."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, data: Path, home: Path, *, columns: int = 120) -> None:
        environment = {
            **os.environ,
            "HOME": str(home),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "SHELL": "/bin/sh",
            "TERM": "xterm",
            "LC_ALL": "C.UTF-8",
            # This terminal does not answer when it is asked where its cursor is.
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        environment.pop("COLUMNS", None)
        self._numbers = itertools.count(1)
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "ulpscope", "shell", str(data)],
            env=environment,
            encoding="utf-8",
            dimensions=(50, columns),
            timeout=PATIENCE,
        )
        self.child.expect(PROMPT)

    def ask(self, line: str) -> str:
        """What a line prints, without escape sequences: all before what the next line prints."""
        mark = f"mark-{next(self._numbers)}-end"
        self.child.send(f"{line}\r")
        # Typed in two parts, so that the words as they are typed are not taken for what they print.
        self.child.send(f"run echo {mark[:4]}''{mark[4:]}\r")
        self.child.expect_exact(f"{mark}\r\n")
        text = _ESCAPES.sub("", self.child.before)
        self.child.expect(PROMPT)
        return text

    def leave(self) -> int:
        self.child.expect(pexpect.EOF)
        self.child.close()
        assert self.child.signalstatus is None
        assert self.child.exitstatus is not None
        return self.child.exitstatus


Opened = Callable[..., Terminal]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "precision_data"
    shutil.copytree(ASCEND / "precision_data", root)
    (root / "fusion").mkdir()
    shutil.copy(ASCEND / "fusion" / "fusion_result.list.json", root / "fusion" / "fusion_result.json")
    return root


@pytest.fixture
def opened(data: Path, tmp_path: Path) -> Iterator[Opened]:
    """Opens terminals that are all closed at the end."""
    terminals = []

    def open_one(start: Path = data, **settings: int) -> Terminal:
        terminals.append(Terminal(start, tmp_path / "home", **settings))
        return terminals[-1]

    (tmp_path / "home").mkdir()
    yield open_one
    for terminal in terminals:
        terminal.child.close(force=True)


def test_every_word(opened: Opened, data: Path) -> None:
    shell = opened()
    assert "MatMulV2" in shell.ask("ls")
    assert "fc2/MatMul" in shell.ask("ls -t MatMul")
    assert "te_relu_8370230a_0__kernel0" in shell.ask("ni fc1/Relu -a -s 1")
    assert "[Shape: (2, 40)]" in shell.ask(f"pt {RELU}")
    assert "CosSim:   0.56753275" in shell.ask(f"cp {RELU} {REFERENCE} -p 4 -al 0.002 -rl 0.005 -s")
    assert "fc1_MatMul.20.0.1767225600020123.output.0.2x40.npy" in shell.ask("dc fc1/MatMul -f ND")
    assert "[15] fc1/Relu" in shell.ask("vc")
    assert "[18] fc2/MatMul" in shell.ask("vcs -l 2")
    checked = shell.ask("ac -c -l 2")
    for found in ("[15] fc1/Relu", "GraphID:0_11", "[Muls][27] scale/Mul", "[Cast][float32 -> int32]"):
        assert found in checked
    assert "scale/Mul" in shell.ask("overflow")
    assert "Ctrl-D" in shell.ask("help")
    assert "two words" in shell.ask("run echo two' 'words")
    assert str(data) in shell.ask(f"cd {data} && pwd")
    assert "error: " in shell.ask("cp one")
    shell.child.send("exit\r")
    assert shell.leave() == 0


def test_tab_completes_words_options_names_and_files(opened: Opened, data: Path) -> None:
    shell = opened()
    for begun, rest in (
        ("ove", "rflow"),
        ("cp --at", "ol"),
        ("ni fc1/R", "elu"),
        (f"pt {RELU[:-8]}o", "utput.0"),
        (f"dc {data}/npu/deb", "ug_0"),
    ):
        shell.child.send(f"{begun}\t")
        shell.child.expect_exact(rest)
        # The line is dropped; another prompt shows that this was understood.
        shell.child.sendintr()
        shell.child.expect(PROMPT)
        shell.child.expect(PROMPT)
    shell.child.send("ni fc1/R\t")
    shell.child.expect_exact("elu")
    assert "Op(Type/Name): [Relu] fc1/Relu" in shell.ask("")


def test_lines_are_remembered_from_session_to_session(opened: Opened) -> None:
    first = opened()
    first.ask("run echo forty-$((40 + 2))")
    first.child.send("exit\r")
    assert first.leave() == 0
    second = opened()
    # Before it came the line that marks the end of an answer, and exit.
    second.child.send(UP * 3)
    second.child.expect_exact("run echo forty-$((40 + 2))")
    assert "forty-42" in second.ask("")


def test_ctrl_c_stops_a_command_of_the_users_shell(opened: Opened, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("begun\n")
    shell = opened()
    # It prints what is there, and then waits for more; a shell that prints and then starts a command may lose a signal.
    shell.child.send(f"run tail -f {words}\r")
    shell.child.expect_exact("begun\r\n")
    shell.child.sendintr()
    shell.child.expect(PROMPT)
    assert "still there" in shell.ask("run echo still' 'there")


def test_ctrl_c_stops_a_command_of_ours(opened: Opened, tmp_path: Path) -> None:
    long = tmp_path / "long.npy"
    np.lib.format.open_memmap(long, mode="w+", dtype=np.float32, shape=(LONG_TO_READ,))  # takes no room on the disk
    shell = opened()
    shell.child.send(f"pt {long}\r")
    mapped = Path(f"/proc/{shell.child.pid}/maps")
    while long.name not in mapped.read_text():
        assert shell.child.isalive()
        time.sleep(0.01)
    shell.child.sendintr()
    shell.child.expect_exact("interrupted")
    shell.child.expect(PROMPT)
    assert "still there" in shell.ask("run echo still' 'there")


def test_ctrl_c_drops_a_line_and_leaves_at_an_empty_one(opened: Opened) -> None:
    shell = opened()
    shell.child.send("exi")
    shell.child.expect_exact("exi")
    shell.child.sendintr()
    assert "still there" in shell.ask("run echo still' 'there")
    shell.child.sendintr()
    assert shell.leave() == 0


def test_the_end_of_input_leaves(opened: Opened) -> None:
    shell = opened()
    shell.child.send(CTRL_D)
    assert shell.leave() == 0


def test_panels_are_as_wide_as_the_window_is_now(opened: Opened) -> None:
    shell = opened(columns=70)

    def width() -> int:
        return max(len(line.rstrip()) for line in shell.ask("overflow").splitlines() if line.startswith("╭"))

    assert width() == 70
    shell.child.setwinsize(50, 100)
    assert width() == 100
    shell.child.setwinsize(50, 60)
    assert width() == 60
    shell.child.send("exit\r")
    assert shell.leave() == 0


def test_a_run_is_looked_into(opened: Opened) -> None:
    shell = opened(ASCEND / "debug_1")
    assert "Relu.0" in shell.ask("ls -n fc1")
    assert "Outputs read by" in shell.ask("ni Relu.0")
    shell.child.send(CTRL_D)
    assert shell.leave() == 0


def run_piped(lines: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "ulpscope", "shell", *arguments]
    environment = {**os.environ, "SHELL": "/bin/sh", "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        words, input=lines, capture_output=True, text=True, encoding="utf-8", cwd=cwd, env=environment, check=False
    )


def test_lines_of_a_pipe_are_carried_out_to_their_end(data: Path) -> None:
    done = run_piped("ls -n fc1/Relu\nrun cat\nvcs\n", cwd=data.parent)
    assert "[Relu][] fc1/Relu" in done.stdout
    assert "holds no result" in done.stderr
    assert done.returncode == 3
    assert run_piped("ls\nexit\nnot reached\n", cwd=data.parent).returncode == 0


def test_a_directory_without_data(tmp_path: Path) -> None:
    assert run_piped("help\n", cwd=tmp_path).returncode == 0
    refused = run_piped("help\n", str(tmp_path), cwd=tmp_path)
    assert refused.returncode == 2
    assert "holds neither precision_data nor a graph, and does not open as a run" in refused.stderr
    assert "does not exist" in run_piped("", "nowhere", cwd=tmp_path).stderr
