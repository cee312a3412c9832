"""Cases and results as a check has them, and a worker that executes nothing.

    pool = Pool([case(0, "relu"), case(1, "segfault")], settings(tmp_path))

What the worker does with a case stands in the case's name; it needs no framework and starts in milliseconds.
"""

import sys
from pathlib import Path
from typing import Any

from ulpscope.records.check_runs import CheckedCall, CheckedCase, CheckRun
from ulpscope.records.checks import CaseId, CaseResult, DataSource, Direction, OutputResult, Variant, Verdict
from ulpscope.records.enums import Phase
from ulpscope.records.findings import Place
from ulpscope.workflows.check.pool import PoolSettings

SCRIPT = """
import json, os, signal, sys, time

def result(case, device):
    name = case["name"]
    if "segfault" in name:
        print("about to fall", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if "leave" in name:
        sys.exit(7)
    if "hang" in name:
        time.sleep(600)
    verdict = "FAIL" if "wrong" in name else "PASS"
    output = {
        "place": "output.0", "direction": "forward", "verdict": verdict, "statistic": "outlier", "message": "off",
        "dtype": "float32", "shape": [2, 3], "worst": [1, 2], "worst_computed": 1.5, "worst_exact": "-inf",
        "metrics": {"outlier": float(len(name)), "noise": "inf"},
    }
    with open(log, "a") as file:
        file.write(f"{name}\\n")
    return {"case": case, "device": device, "forward": verdict, "backward": None,
            "message": "" if verdict == "PASS" else "off", "outputs": [output], "seconds": 0.001}

settings = json.loads(sys.stdin.readline())
log = sys.argv[1]
START
print(json.dumps({"hello": settings["device"]}), flush=True)
for line in sys.stdin:
    for case in json.loads(line):
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
        print(json.dumps(result(case, settings["device"])), flush=True)
"""


def worker(folder: Path, *, start: str = "") -> tuple[str, ...]:
    """The command of a worker that does `start` before it greets."""
    script = folder / "worker.py"
    script.write_text(SCRIPT.replace("START", start))
    return (sys.executable, "-S", "-E", str(script), str(folder / "log"))


def log_of(folder: Path) -> list[str]:
    """Names of the cases that workers have executed to their end."""
    log = folder / "log"
    return log.read_text().split() if log.exists() else []


def settings(folder: Path, *, devices: tuple[str, ...] = ("cpu",), start: str = "", **changes: Any) -> PoolSettings:
    first = {device: {"device": device} for device in devices}
    options: dict[str, Any] = {"jobs": 2, "timeout": 30.0} | changes
    return PoolSettings(first, command=worker(folder, start=start), **options)


def case(number: int, name: str, variant: Variant = Variant.RECORDED) -> CaseId:
    return CaseId("rank0", number, f"torch.{name}.0", f"torch.{name}", variant, DataSource.RANDOM)


def output(verdict: Verdict, direction: Direction = Direction.FORWARD, **changes: Any) -> OutputResult:
    fields: dict[str, Any] = {
        "place": "output.0" if direction is Direction.FORWARD else "grad.args.0",
        "statistic": "outlier",
        "message": "outlier: a single error is 31 times what rounding can make it",
        "dtype": "bfloat16",
        "shape": (2, 3),
        "worst": (1, 2),
        "worst_computed": 1.25,
        "worst_exact": 1.5,
        "metrics": (("outlier", 31.0),),
    }
    return OutputResult(direction=direction, verdict=verdict, **(fields | changes))


def checked(
    name: str,
    forward: Verdict | None,
    backward: Verdict | None = None,
    *,
    number: int = 0,
    variant: Variant = Variant.RECORDED,
    message: str = "",
    outputs: tuple[OutputResult, ...] = (),
) -> CheckedCase:
    return CheckedCase(CaseResult(case(number, name, variant), forward, backward, message, outputs), "cuda:0")


def call(name: str, *cases: CheckedCase, number: int = 0, **changes: Any) -> CheckedCall:
    place = Place(rank=0, step=0, phase=Phase.FORWARD, call=f"torch.{name}.0", call_id=number, op=f"torch.{name}")
    return CheckedCall(place, "rank0", cases, **changes)


def failing(name: str = "layer_norm", number: int = 57) -> CheckedCall:
    """A call whose output is wrong and whose gradient is not."""
    outputs = (output(Verdict.FAIL), output(Verdict.PASS, Direction.BACKWARD))
    message = outputs[0].message
    case_ = checked(name, Verdict.FAIL, Verdict.PASS, number=number, message=message, outputs=outputs)
    return call(name, case_, number=number)


def passing(name: str, number: int = 0) -> CheckedCall:
    return call(name, checked(name, Verdict.PASS, number=number, outputs=(output(Verdict.PASS),)), number=number)


def ended(name: str, verdict: Verdict, message: str, number: int = 0) -> CheckedCall:
    """A call without outputs: skipped, crashed or given up."""
    return call(name, checked(name, verdict, number=number, message=message), number=number)


def run(*calls: CheckedCall, **changes: Any) -> CheckRun:
    from ulpscope.records.check_runs import CheckOptions

    fields: dict[str, Any] = {"options": CheckOptions(devices=("cuda:0",))} | changes
    return CheckRun("runs/ref", calls=calls, **fields)
