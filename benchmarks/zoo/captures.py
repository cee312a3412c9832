"""Captures the runs of the zoo, each once; a run is known by its family and options.

Most runs are forked from a process that has imported torch already and are captured by `ulpscope.capture`; those of
several processes or threads, and compiled ones, are started by `ulpscope run`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from threading import Lock

from zoo.expectations import CleanPair, Fault, Flags

FAMILIES = Path(__file__).resolve().parent / "families"
PROCESSES = {"parallel": 2}
STARTED_ALONE = frozenset({"--threads", "--compiled", "--wrap", "--onednn"})
TIME_LIMIT = 300
ENVIRONMENT = {
    # Without this limit, oneDNN may choose AMX for bf16 on CPUs whose kernel forbids it, and the process dies.
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}

# A start reads the exit codes of all processes that ended; of two threads that read the same one, the second gets 255.
_one_reads_exit_codes = Lock()


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a family's script."""

    family: str
    flags: Flags = ()
    families: Path = FAMILIES
    """The folder of the family's script."""

    @property
    def name(self) -> str:
        return "-".join([self.family, *(word.strip("-") for word in self.flags)])

    @property
    def script(self) -> list[str]:
        return [str(self.families / f"{self.family}.py"), *self.flags]

    @property
    def command(self) -> list[str]:
        if self.family not in PROCESSES:
            return [sys.executable, *self.script]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES[self.family])]
        return [sys.executable, *launcher, *self.script]

    @property
    def is_forked(self) -> bool:
        return self.family not in PROCESSES and not STARTED_ALONE & set(self.flags)


@dataclass(frozen=True, slots=True)
class Asked:
    """How runs are captured."""

    save: str = "stats"
    level: str = "api"


@dataclass(frozen=True, slots=True)
class Case:
    """Two runs to compare: a fault in one precision, or a clean pair."""

    subject: Fault | CleanPair
    variant: str
    reference: Run
    target: Run
    baseline: Run | None = None
    """The target without its fault: what separates it from the reference is noise."""

    @property
    def name(self) -> str:
        return f"{self.subject.name} {self.variant}"

    @property
    def runs(self) -> tuple[Run, ...]:
        runs = (self.reference, self.target, self.baseline)
        return tuple(run for run in runs if run is not None)


def case_of_fault(fault: Fault, variant: str, families: Path = FAMILIES) -> Case:
    noisy = () if variant == "fp32" else ("--autocast", variant)
    wrong = () if fault.fault == "none" else ("--fault", fault.fault)
    baseline = Run(fault.family, (*fault.flags, *noisy), families) if variant != "fp32" and wrong else None
    target = Run(fault.family, (*fault.flags, *noisy, *wrong), families)
    return Case(fault, variant, Run(fault.family, fault.flags, families), target, baseline)


def case_of_clean_pair(pair: CleanPair, families: Path = FAMILIES) -> Case:
    return Case(pair, "clean", Run(pair.family, pair.reference, families), Run(pair.family, pair.target, families))


def missing_runs(cases: Iterable[Case], directory: Path) -> list[Run]:
    wanted = dict.fromkeys(run for case in cases for run in case.runs)
    return [run for run in wanted if not (directory / run.name).exists()]


def capture_all(
    runs: list[Run],
    directory: Path,
    *,
    asked: Asked,
    jobs: int,
    done: Callable[[Run], None],
    prepared: str = "zoo.prepared",
) -> None:
    """`prepared` names the module that is imported before the runs are forked."""
    inherited = os.environ.get("PYTHONPATH")
    os.environ.update(ENVIRONMENT)
    # The fork server looks here for what it loads first.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FAMILIES.parents[1]), *([inherited] if inherited else [])])
    directory.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([prepared])

    def work(run: Run) -> None:
        capture(run, directory / run.name, asked, context=context)
        done(run)

    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(work, runs):
            pass


def capture(run: Run, trace: Path, asked: Asked, *, context: ForkServerContext) -> None:
    """Captures aside and renames, so that a trace that exists is whole."""
    aside, log = trace.with_name(f".{trace.name}"), trace.with_name(f".{trace.name}.log")
    shutil.rmtree(aside, ignore_errors=True)
    code = _fork(run, aside, log, asked, context=context) if run.is_forked else _start(run, aside, log, asked)
    if code != 0:
        raise RuntimeError(f"{' '.join(run.command)} ended with {code}:\n{log.read_text()[-2000:]}")
    log.unlink()
    aside.rename(trace)


def _start(run: Run, trace: Path, log: Path, asked: Asked) -> int:
    options = ["-o", str(trace), "--save", asked.save, "--level", asked.level]
    command = [sys.executable, "-m", "ulpscope", "run", *options, "--", *run.command]
    with log.open("w") as told:
        return subprocess.run(command, stdout=told, stderr=told, check=False, timeout=TIME_LIMIT).returncode


def _fork(run: Run, trace: Path, log: Path, asked: Asked, *, context: ForkServerContext) -> int:
    process = context.Process(target=run_script, args=(run.script, trace, log, asked))
    with _one_reads_exit_codes:
        process.start()
    ended = wait([process.sentinel], TIME_LIMIT)
    with _one_reads_exit_codes:
        if not ended:
            process.kill()
        process.join()
        return process.exitcode if ended and process.exitcode is not None else 1


def run_script(script: list[str], trace: Path, log: Path, asked: Asked) -> None:
    """In a process of its own: runs a script as if it had been started, and captures it."""
    import ulpscope

    sys.argv = script
    sys.path.insert(0, str(Path(script[0]).parent))
    captured = ulpscope.capture(trace, save=asked.save, level=asked.level)
    with log.open("w") as told, redirect_stdout(told), redirect_stderr(told), captured:
        runpy.run_path(script[0], run_name="__main__")
