"""`ulpscope demo`: captures a small training run twice, once with a planted fault, and shows what a user would do."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.terminal.run import (
    COMPARE_INTRODUCTION,
    INTRODUCTION,
    SUSPECT_INTRODUCTION,
    ending,
    losses_text,
)
from ulpscope.workflows.results import REPORT, prepare_destination

SCRIPT = Path(__file__).parent.parent / "demo_script" / "train.py"
DEFAULT_DIRECTORY = Path("ulpscope-demo")
SUSPECT_CALL = "torch.nn.functional.layer_norm.2"

_LOSS = re.compile(r"^step \d+ loss (\S+)$", re.MULTILINE)


def run_demo(out: Path | None) -> None:
    """Capture a good and a faulty run below `out`, and show where they part."""
    if importlib.util.find_spec("torch") is None:
        raise UlpscopeError(
            f"{sys.executable} has no torch",
            expected="PyTorch, which the demo trains with",
            next_step=f"{shlex.quote(sys.executable)} -m pip install torch",
        )
    directory = _demo_directory(out)
    script = Path(shutil.copy(SCRIPT, directory))
    _say(INTRODUCTION)
    reference, target, result = (directory / name for name in ("reference", "target", "result"))
    losses = [_train(script, reference), _train(script, target, "--fault")]
    _say(losses_text(*losses))
    _say(COMPARE_INTRODUCTION)
    _ulpscope("compare", str(reference), str(target), "--out", str(result), expected=ExitCode.DIFFERENCE)
    _say(SUSPECT_INTRODUCTION)
    _ulpscope("show", str(target), SUSPECT_CALL, "--step", "0", "--phase", "forward")
    _say(ending(str(directory), page=str(result / REPORT), program=_program()))


def _demo_directory(out: Path | None) -> Path:
    if out is not None:
        prepare_destination(out, overwrite=False)
        return out
    try:
        DEFAULT_DIRECTORY.mkdir()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="ulpscope-demo-"))
    return DEFAULT_DIRECTORY


def _train(script: Path, trace: Path, *options: str) -> list[str]:
    output = _ulpscope("run", "-o", str(trace), "--", _python(), str(script), *options, stdout=subprocess.PIPE)
    return _LOSS.findall(output)


def _ulpscope(*arguments: str, stdout: int | None = None, expected: ExitCode = ExitCode.OK) -> str:
    """Run one of our own commands as the user would; shows what comes through a pipe, and gives it."""
    typed = shlex.join(["ulpscope", *arguments])
    _say(f"\n$ {typed}")
    printed = []
    with subprocess.Popen([sys.executable, "-m", "ulpscope", *arguments], stdout=stdout, text=True) as process:
        for line in process.stdout or ():
            printed.append(line)
            _say(line.rstrip("\n"))
    if process.returncode == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode != expected:
        raise UlpscopeError(
            f"`{typed}` ended with exit code {process.returncode}",
            expected=f"{expected.value}: the demo knows what its own script does",
            next_step=f"{typed} --debug" if " -- " not in typed else "run it alone and report what it says",
            code=ExitCode.OWN_FAULT,
        )
    return "".join(printed)


def _python() -> str:
    """`python` where that is this interpreter, so that the printed command works when it is typed."""
    found = shutil.which("python")
    return "python" if found is not None and _is_same(found, sys.executable) else sys.executable


def _program() -> str | None:
    """Our own program, if typing `ulpscope` would start another one or none."""
    own = Path(sys.executable).with_name("ulpscope")
    found = shutil.which("ulpscope")
    known = found is not None and _is_same(found, str(own))
    return None if known or not own.exists() else str(own)


def _is_same(one: str, other: str) -> bool:
    """Two names of one program, such as python and python3; another environment's link to it is another program."""
    return os.path.dirname(os.path.abspath(one)) == os.path.dirname(os.path.abspath(other)) and (
        os.path.realpath(one) == os.path.realpath(other)
    )


def _say(text: str) -> None:
    print(text, flush=True)
