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
from ulpscope.report.demo import (
    INTRODUCTION,
    SHOW_INTRODUCTION,
    SUSPECT_INTRODUCTION,
    ending,
    heading,
    losses_text,
    prompt,
)
from ulpscope.workflows.destination import prepare_destination

SCRIPT = Path(__file__).parent.parent / "demo_script" / "train.py"
DEFAULT_DIRECTORY = Path("ulpscope-demo")
SUSPECT_MODULE = "blocks.1.norm1"
SUSPECT_CALL = "torch.nn.functional.layer_norm.2"

_LOSS = re.compile(r"^step \d+ loss (\S+)$", re.MULTILINE)


def run_demo(out: Path | None) -> None:
    """Capture a good and a faulty run below `out`, and show where they part."""
    _require_torch()
    directory = _demo_directory(out)
    script = Path(shutil.copy(SCRIPT, directory))
    _say(heading(INTRODUCTION))
    reference, target = directory / "reference", directory / "target"
    losses = [_train(script, reference), _train(script, target, "--fault")]
    _say(losses_text(*losses))
    _say(SHOW_INTRODUCTION)
    for trace in (reference, target):
        _ulpscope("show", str(trace), "--module", SUSPECT_MODULE, "--step", "0")
    _say(heading(SUSPECT_INTRODUCTION).rstrip("\n"))
    for trace in (reference, target):
        _ulpscope("show", str(trace), SUSPECT_CALL, "--step", "0", "--phase", "forward")
    _say(ending(str(directory)))


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise UlpscopeError(
            f"{sys.executable} has no torch",
            expected="PyTorch, which the demo trains with",
            next_step=f"{shlex.quote(sys.executable)} -m pip install 'ulpscope[torch]'",
        )


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
    _say(output.rstrip("\n"))
    return _LOSS.findall(output)


def _ulpscope(*arguments: str, stdout: int | None = None) -> str:
    """Run one of our own commands as the user would; gives what it printed into a pipe."""
    typed = shlex.join(["ulpscope", *arguments])
    _say(prompt(typed))
    command = [sys.executable, "-m", "ulpscope", *arguments]
    done = subprocess.run(command, stdout=stdout, text=True, check=False)
    if done.returncode == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if done.returncode:
        raise _failed(typed, done.returncode)
    return done.stdout or ""


def _failed(command: str, code: int) -> UlpscopeError:
    return UlpscopeError(
        f"`{command}` ended with exit code {code}",
        expected="0: the demo's own script and traces are sound",
        next_step=f"{command} --debug" if " -- " not in command else "run it alone and report what it says",
        code=ExitCode.OWN_FAULT,
    )


def _python() -> str:
    """`python` where that is this interpreter, so that the printed command works when it is typed."""
    found = shutil.which("python")
    same = found is not None and os.path.abspath(found) == os.path.abspath(sys.executable)
    return "python" if same else sys.executable


def _say(text: str) -> None:
    print(text, flush=True)
