"""`ulpscope run` as a launcher: exit codes, signals, refusals and the terminal, whatever the capture itself sees."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ULPSCOPE = [sys.executable, "-m", "ulpscope"]
PYTHON = sys.executable


def launch(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ULPSCOPE, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def make_trace(out: Path) -> None:
    (out / "rank0").mkdir(parents=True)
    (out / "rank0" / "rank.json").write_text("{}")


def test_output_and_exit_code_are_passed_on(tmp_path: Path) -> None:
    done = launch(tmp_path, "run", "-o", "t", "--", PYTHON, "-c", "print('out'); raise SystemExit(7)")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "the script ended with exit code 7" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_becomes_128_plus_n(tmp_path: Path, number: signal.Signals) -> None:
    done = launch(tmp_path, "run", "-o", "t", "--", PYTHON, "-c", f"import os; os.kill(os.getpid(), {int(number)})")
    assert done.returncode == 128 + number
    assert f"the script was ended by {number.name}" in done.stderr


def test_no_torch_is_3_and_leaves_no_directory(tmp_path: Path) -> None:
    done = launch(tmp_path, "run", "-o", "t", "--", PYTHON, "-c", "pass")
    assert done.returncode == 3
    assert "nothing was captured: 1 Python process ran, and none imported torch" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_python_is_3(tmp_path: Path) -> None:
    done = launch(tmp_path, "run", "-o", "t", "--", "true")
    assert done.returncode == 3
    assert "started no Python that could be watched" in done.stderr


def test_isolated_python_is_3(tmp_path: Path) -> None:
    done = launch(tmp_path, "run", "-o", "t", "--", PYTHON, "-I", "-c", "pass")
    assert done.returncode == 3
    assert "without -I, -E and -S" in done.stderr


def test_another_interpreter_without_ulpscope(tmp_path: Path) -> None:
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    packages = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    (packages / "torch.py").touch()
    done = launch(tmp_path, "run", "-o", "t", "--", str(python), "-c", "import torch; print('ran')")
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert f"{python} imported torch but has no ulpscope" in done.stderr
    assert f"next: {python} -m pip install " in done.stderr


def test_an_existing_trace_is_refused(tmp_path: Path) -> None:
    make_trace(tmp_path / "t")
    done = launch(tmp_path, "run", "-o", "t", "--", PYTHON, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "t already holds a trace (rank0)" in done.stderr
    assert (tmp_path / "t" / "rank0" / "rank.json").exists()


def test_overwrite_removes_a_trace_and_nothing_else(tmp_path: Path) -> None:
    make_trace(tmp_path / "t")
    assert launch(tmp_path, "run", "-o", "t", "--overwrite", "--", PYTHON, "-c", "pass").returncode == 3
    assert not (tmp_path / "t").exists()
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "thesis.tex").touch()
    done = launch(tmp_path, "run", "-o", "u", "--overwrite", "--", PYTHON, "-c", "pass")
    assert done.returncode == 2
    assert "holds files that are no trace (thesis.tex)" in done.stderr
    assert (tmp_path / "u" / "thesis.tex").exists()


def test_an_unwritable_destination_is_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = launch(tmp_path, "run", "-o", "file/t", "--", PYTHON, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot write to file/t: Not a directory" in done.stderr


def test_an_unknown_command_is_2(tmp_path: Path) -> None:
    done = launch(tmp_path, "run", "-o", "t", "--", "no-such-command")
    assert done.returncode == 2
    assert "there is no command 'no-such-command'" in done.stderr


def test_a_script_without_its_interpreter_is_2_and_told_how(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    done = launch(tmp_path, "run", "-o", "t", "--", "./train.py", "--lr", "1")
    assert done.returncode == 2
    assert "next: ulpscope run -o t -- python ./train.py --lr 1" in done.stderr


def test_a_program_that_cannot_be_executed_is_2(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("no interpreter line")
    (tmp_path / "broken").chmod(0o755)
    done = launch(tmp_path, "run", "-o", "t", "--", "./broken")
    assert done.returncode == 2
    assert "./broken cannot be started: Exec format error" in done.stderr


def test_json_is_one_object_on_stdout(tmp_path: Path) -> None:
    done = launch(tmp_path, "run", "-o", "t", "--json", "--", PYTHON, "-c", "print('the script')")
    told = json.loads(done.stdout)
    assert (told["verdict"], told["exit"], told["script"]["exit"]) == ("nothing_captured", 3, 0)
    assert "the script" in done.stderr


def test_a_shell_script_and_stdin_work(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(f"#!/bin/sh\nread line\necho $line\n{PYTHON} -c 'pass'\n{PYTHON} -c 'pass'\n")
    script.chmod(0o755)
    done = subprocess.run(
        [*ULPSCOPE, "run", "-o", "t", "--", "./start.sh"],
        cwd=tmp_path,
        input="hello\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "hello\n")
    assert "2 Python processes ran" in done.stderr


def test_sigterm_is_forwarded(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *a: sys.exit(5)); "
        "print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [*ULPSCOPE, "run", "-o", "t", "--", PYTHON, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    assert process.wait(timeout=30) == 5
    process.stdout.close()


def test_sigint_without_a_terminal_is_forwarded(tmp_path: Path) -> None:
    code = "import time; print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [*ULPSCOPE, "run", "-o", "t", "--", PYTHON, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    process.stdout.close()


PROGRESS = (
    "import os, json, time; "
    "file = open(os.path.join(os.environ['ULPSCOPE_EVENTS'], '%d.jsonl' % os.getpid()), 'a', buffering=1); "
    "emit = lambda step: file.write(json.dumps(dict(event='progress', pid=os.getpid(), rank=0, step=step, calls=40, "
    "bytes=5000, seconds_per_step=0.5)) + chr(10)); "
)


class Terminal:
    """A pseudo-terminal of 24 rows in which a command runs in the foreground."""

    def __init__(self, cwd: Path, *command: str) -> None:
        self.output = ""
        self.pid, self.master = os.forkpty()
        if self.pid == 0:
            os.chdir(cwd)
            os.environ["TERM"] = "xterm"
            os.execv(command[0], command)
        self.resize(24)

    def resize(self, rows: int) -> None:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))

    def read_until(self, text: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline, self.output
            self._read()

    def _read(self) -> bool:
        try:
            chunk = os.read(self.master, 4096)
        except OSError:
            return False
        self.output += chunk.decode()
        return bool(chunk)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        os.close(self.master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_in_a_terminal_is_130_and_reaches_the_script_once(tmp_path: Path) -> None:
    code = (
        "import signal, time; seen = []; signal.signal(signal.SIGINT, lambda *a: seen.append(1)); "
        "print('ready', flush=True); time.sleep(1.5); print('interrupts:', len(seen))"
    )
    terminal = Terminal(tmp_path, *ULPSCOPE, "run", "-o", "t", "--", PYTHON, "-c", code)
    terminal.read_until("\nready")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "interrupts: 1" in terminal.output
    assert "interrupted; what was captured until then is kept" in terminal.output


def test_the_status_line_has_the_bottom_row_and_gives_it_back(tmp_path: Path) -> None:
    code = PROGRESS + "emit(0); time.sleep(1); print('line of the script', flush=True); emit(1); time.sleep(1); input()"
    terminal = Terminal(tmp_path, *ULPSCOPE, "run", "-o", "t", "--", PYTHON, "-c", code)
    terminal.read_until("\033[1;23r")
    terminal.read_until("\033[24;1H\033[2Kulpscope: step 0 · 40 calls · 5.0 KB · 0.50 s a step\0338")
    terminal.read_until("line of the script")
    terminal.read_until("ulpscope: step 1 ·")
    terminal.resize(30)
    terminal.read_until("\033[1;29r")
    terminal.type("\n")
    terminal.end()
    assert terminal.output.rindex("\033[r\033[30;1H\033[2K\0338") > terminal.output.rindex("\033[1;29r")


def test_the_terminal_is_given_back_after_a_crash(tmp_path: Path) -> None:
    code = PROGRESS + "emit(0); time.sleep(1); os.kill(os.getpid(), 9)"
    terminal = Terminal(tmp_path, *ULPSCOPE, "run", "-o", "t", "--", PYTHON, "-c", code)
    assert terminal.end() == 137
    assert terminal.output.rindex("\033[r") > terminal.output.rindex("\033[1;23r")


def test_no_status_line_without_a_terminal(tmp_path: Path) -> None:
    done = launch(tmp_path, "run", "-o", "t", "--", PYTHON, "-c", PROGRESS + "emit(0); time.sleep(1)")
    assert "\033" not in done.stderr
