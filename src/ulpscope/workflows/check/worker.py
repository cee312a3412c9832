"""A process that executes and judges cases, so that a crash or a hang costs one case and not the check.

It reads JSON lines and answers with JSON lines: first its settings, answered by a greeting or by an error of the
user's; then lists of cases, answered by one result a case, in order. It ends when nothing more comes.

python -m ulpscope.workflows.check.worker                                      is each case right?
python -m ulpscope.workflows.check.worker overflow                             is an overflow the type's own limit?
python -m ulpscope.workflows.check.worker perturb rounding condition           how far does a small change move it?
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO

from numpy.typing import NDArray
from safetensors import SafetensorError

from ulpscope.dialects.opening import open_run
from ulpscope.judge.soundness.overflows import judge_overflow
from ulpscope.judge.soundness.perturbation import judge_perturbed
from ulpscope.judge.soundness.verdicts import judge_output, judge_share
from ulpscope.judge.standards.check_metrics import judge_msprobe_a, judge_thousandth, metrics_of
from ulpscope.records.check_runs import CheckedCase, CheckStandard, worst_output, worst_tested
from ulpscope.records.checks import (
    CaseId,
    CaseResult,
    Direction,
    OutputEvidence,
    OutputResult,
    Perturbation,
    PerturbStandard,
    ShareEvidence,
    Verdict,
)
from ulpscope.records.errors import UlpscopeError
from ulpscope.replay.frameworks import Framework
from ulpscope.replay.recorded import CannotReplayError, RecordedCall, read_calls
from ulpscope.trace.reader import RankTrace
from ulpscope.workflows.check.journal import Message, WorkerSettings, checked_json, json_line, record_from_json

LONGEST_REASON = 200
LONGEST_NAME = 80

# After one of these the device answers every further call with the same error: only a new process helps.
# A status of cuBLAS or cuDNN tells of one call only.
_DEVICE_IS_LOST = re.compile(
    r"(CUDA|HIP|NPU|ACL)\w* error(?!: (CUBLAS|CUDNN)_STATUS)|device-side assert", re.IGNORECASE
)


class Executed(Protocol):
    """What an engine gives for one case."""

    @property
    def evidence(self) -> Sequence[Any]:
        """What the judge that goes with the engine can judge."""
        ...

    def refine(self) -> None: ...

    def tensors(self) -> dict[str, NDArray[Any]]: ...


class Engine(Protocol):
    """Executes cases on one device."""

    def execute(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> Executed: ...


Recorded = dict[tuple[str, int], RecordedCall]
"""Calls by process and id."""
EngineMaker = Callable[[WorkerSettings], Engine]
Judge = Callable[[Executed, WorkerSettings], tuple[OutputResult, ...]]


def serve(
    make_engine: EngineMaker,
    *,
    judged_by: Judge | None = None,
    orders: TextIO,
    answers: TextIO,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Greet, then execute what is ordered until nothing more comes; `between` is done before each case."""
    settings = record_from_json(WorkerSettings, json.loads(orders.readline()))
    try:
        bench = Bench(settings, make_engine(settings), judged_by)
    except UlpscopeError as error:
        _answer(answers, {"error": [error.seen, error.expected, error.next_step]})
        return
    _answer(answers, {"hello": settings.device})
    for line in orders:
        between()
        for checked in bench.check([record_from_json(CaseId, message) for message in json.loads(line)]):
            _answer(answers, checked_json(checked))
            between()


class Bench:
    """Executes cases of one trace on one device and judges what comes out."""

    def __init__(self, settings: WorkerSettings, engine: Engine, judged_by: Judge | None = None) -> None:
        self._settings = settings
        self._engine = engine
        self._judge = judged_by or judge
        self._trace = open_run(settings.trace)

    def check(self, cases: Sequence[CaseId]) -> Iterator[CheckedCase]:
        """One result a case, in order; their calls are read together."""
        recorded = self._read_together(cases)
        for case in cases:
            yield CheckedCase(self._check(case, recorded), self._settings.device)

    def _read_together(self, cases: Sequence[CaseId]) -> Recorded:
        ids: dict[str, set[int]] = {}
        for case in cases:
            ids.setdefault(case.process, set()).add(case.call)
        found: Recorded = {}
        # What cannot be read is told of the case it belongs to, which is read once more by itself.
        with suppress(UlpscopeError, LookupError):
            for process, numbers in ids.items():
                calls = read_calls(self._trace.process(process), numbers)
                found.update({(process, number): call for number, call in calls.items()})
        return found

    def _check(self, case: CaseId, recorded: Recorded) -> CaseResult:
        begun, reason = time.perf_counter(), ""
        try:
            rank = self._trace.process(case.process)
            call = recorded.get((case.process, case.call)) or read_calls(rank, [case.call])[case.call]
        except Exception as error:
            return skipped(case, reason_of(error), seconds=time.perf_counter() - begun)
        # A call whose backward may be what cannot be executed: its forward is judged all the same.
        for tried in (call, replace(call, grad_outputs={})) if call.grad_outputs else (call,):
            try:
                result = self._execute(case, tried, rank, begun)
            except Exception as error:
                if _DEVICE_IS_LOST.search(str(error)):
                    raise
                reason = reason or reason_of(error)
                continue
            if not reason:
                return result
            if result.forward not in (None, Verdict.SKIP):
                return replace(result, backward=Verdict.SKIP, message=result.message or f"backward: {reason}")
        return skipped(case, reason, seconds=time.perf_counter() - begun)

    def _execute(self, case: CaseId, call: RecordedCall, rank: RankTrace, begun: float) -> CaseResult:
        executed = self._engine.execute(case, call, rank)
        outputs = self._judge(executed, self._settings)
        result = judged_case(case, outputs, seconds=time.perf_counter() - begun)
        failed = Verdict.FAIL in (result.forward, result.backward)
        return self._saved(result, executed) if failed and self._settings.failing is not None else result

    def _saved(self, result: CaseResult, executed: Executed) -> CaseResult:
        assert self._settings.failing is not None
        try:
            save_tensors(self._settings.failing, result.case, executed.tensors())
        except (OSError, SafetensorError) as error:
            return replace(result, message=f"{result.message} (its tensors cannot be saved: {error})")
        return result


def judge(executed: Executed, settings: WorkerSettings) -> tuple[OutputResult, ...]:
    """A verdict for each piece of evidence; what each output is sensitive to is computed only if one needs it."""
    judged = [_judged(evidence, settings.standard) for evidence in executed.evidence]
    if any(result is None for result in judged):
        executed.refine()
        judged = [_judged(evidence, settings.standard) for evidence in executed.evidence]
    told = [result or _undecided(evidence) for result, evidence in zip(judged, executed.evidence, strict=True)]
    if settings.figures:
        told = [_with_figures(*each) for each in zip(told, executed.evidence, strict=True)]
    return tuple(told)


def _undecided(evidence: OutputEvidence | ShareEvidence) -> OutputResult:
    """An output that stays without a verdict is told, not left out: leaving it out would read as PASS."""
    return OutputResult(
        place=evidence.place,
        direction=evidence.direction,
        verdict=Verdict.UNTESTED,
        statistic="undecided",
        message="how much it depends on its inputs could not be measured, so its error cannot be judged",
        dtype=evidence.dtype if isinstance(evidence, OutputEvidence) else None,
        shape=tuple(evidence.exact.shape) if isinstance(evidence, OutputEvidence) else (),
    )


def _judged(evidence: OutputEvidence | ShareEvidence, standard: CheckStandard) -> OutputResult | None:
    if isinstance(evidence, ShareEvidence):
        return judge_share(evidence)
    if standard is CheckStandard.THOUSANDTH:
        return judge_thousandth(evidence)
    return judge_msprobe_a(evidence) if standard is CheckStandard.MSPROBE_A else judge_output(evidence)


def _with_figures(result: OutputResult, evidence: OutputEvidence | ShareEvidence) -> OutputResult:
    """With the metrics that tables have columns for, beside those that were needed to judge."""
    if isinstance(evidence, ShareEvidence):
        return result
    figures = {name: figure for name, figure in metrics_of(evidence).items() if figure is not None}
    return replace(result, metrics=tuple((figures | dict(result.metrics)).items()))


def judged_case(case: CaseId, outputs: tuple[OutputResult, ...], *, seconds: float) -> CaseResult:
    """What came of a case whose outputs were judged."""
    if not outputs:
        return skipped(case, "it gives nothing that can be judged", seconds=seconds)
    forward, backward = (worst_output(outputs, direction) for direction in Direction)
    worst = worst_tested((forward, backward))
    message = "" if worst is Verdict.PASS else next(each.message for each in outputs if each.verdict is worst)
    return CaseResult(case, forward, backward, message, outputs, seconds)


def skipped(case: CaseId, reason: str, *, seconds: float = 0.0) -> CaseResult:
    """A case that was not executed, or not to its end."""
    return CaseResult(case, forward=Verdict.SKIP, backward=None, message=reason, seconds=seconds)


def reason_of(error: Exception) -> str:
    """Why a case was not executed, in one line."""
    if isinstance(error, CannotReplayError):
        return str(error)
    first = (str(error).splitlines() or [""])[0][:LONGEST_REASON]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def save_tensors(folder: Path, case: CaseId, tensors: dict[str, NDArray[Any]]) -> None:
    """Inputs and outputs of a failing case, as one safetensors file."""
    import numpy as np
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    save_file(contiguous, folder / failing_name(case), metadata={"case": case.text})


def failing_name(case: CaseId) -> str:
    """A file name: what a trace calls an operation may hold anything."""
    process, name = (re.sub(r"[^A-Za-z0-9_.-]+", "_", text)[:LONGEST_NAME] for text in (case.process, case.name))
    return f"{process}.{case.call}.{name}.{case.variant.value}.safetensors"


def private_stdout() -> TextIO:
    """Our own way to the parent; whatever else writes to stdout goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def forget_stderr() -> None:
    """What is written from here on belongs to the next case: should it crash, these are its last words."""
    sys.stderr.flush()
    # The parent gives us a file; what is none cannot be cut.
    with suppress(OSError):
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)


def _answer(answers: TextIO, message: Message) -> None:
    answers.write(json_line(message))
    answers.flush()


def _asked(words: Sequence[str]) -> tuple[EngineMaker, Judge]:
    """What executes and what judges: by default whether calls are right, else another question."""
    if not words:
        return _engine, judge
    if words[0] == "overflow":
        return _overflow_engine, _judge_overflows
    mode, standard = Perturbation(words[1]), PerturbStandard(words[2])
    return partial(_perturbing_engine, mode=mode, standard=standard), partial(_judge_perturbed, standard=standard)


def _engine(settings: WorkerSettings) -> Engine:
    if settings.framework is Framework.TENSORFLOW:
        from ulpscope.replay.tensorflow.engine import Engine as TensorFlowEngine

        return TensorFlowEngine(settings.device, seed=settings.seed, references=settings.references)
    from ulpscope.replay.torch.engine import Engine as TorchEngine

    return TorchEngine(settings.device, seed=settings.seed, references=settings.references)


def _probe(framework: Framework) -> None:
    """Use the framework once."""
    if framework is Framework.TENSORFLOW:
        from ulpscope.replay.tensorflow.running import probe as probe_tensorflow

        probe_tensorflow()
        return
    from ulpscope.replay.torch.running import probe as probe_torch

    probe_torch()


def _overflow_engine(settings: WorkerSettings) -> Engine:
    from ulpscope.replay.torch.modes import Overflower

    return Overflower(settings.device, seed=settings.seed, references=settings.references)


def _judge_overflows(executed: Executed, _settings: WorkerSettings) -> tuple[OutputResult, ...]:
    return tuple(judge_overflow(each) for each in executed.evidence)


def _perturbing_engine(settings: WorkerSettings, *, mode: Perturbation, standard: PerturbStandard) -> Engine:
    from ulpscope.replay.torch.modes import Perturber

    first_only, references = standard is PerturbStandard.FREE_BENCHMARK, settings.references
    return Perturber(settings.device, mode=mode, first_only=first_only, seed=settings.seed, references=references)


def _judge_perturbed(
    executed: Executed, _settings: WorkerSettings, *, standard: PerturbStandard
) -> tuple[OutputResult, ...]:
    judged = tuple(judge_perturbed(each, standard) for each in executed.evidence)
    if standard is PerturbStandard.CONDITION and any(each.verdict is not Verdict.PASS for each in judged):
        # Without sensitivities the bounds are narrower, never wider.
        executed.refine()
        judged = tuple(judge_perturbed(each, standard) for each in executed.evidence)
    return judged


def _main(words: Sequence[str]) -> None:
    # Ctrl-C reaches the whole terminal: it is the parent's to decide, and no crash of the case at hand.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    make_engine, judged_by = _asked(words)

    def probed(settings: WorkerSettings) -> Engine:
        _probe(settings.framework)
        return make_engine(settings)

    serve(probed, judged_by=judged_by, orders=sys.stdin, answers=private_stdout(), between=forget_stderr)


if __name__ == "__main__":
    _main(sys.argv[1:])
