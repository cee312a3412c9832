"""A process that asks other questions to cases than whether they are right; it speaks as check_worker does.

python -m ulpscope.workflows.check.modes_worker overflow
python -m ulpscope.workflows.check.modes_worker perturb bit_noise condition
"""

import signal
import sys
from collections.abc import Sequence

from ulpscope.judge.soundness.overflows import judge_overflow
from ulpscope.judge.soundness.perturbation import judge_perturbed
from ulpscope.records.checks import OutputResult, Perturbation, PerturbStandard, Verdict
from ulpscope.workflows.check.journal import WorkerSettings
from ulpscope.workflows.check.worker import Engine, Executed, forget_stderr, private_stdout, serve


def overflow_engine(settings: WorkerSettings) -> Engine:
    from ulpscope.replay.torch.overflow import Overflower

    return Overflower(settings.device, seed=settings.seed, references=settings.references)


def judge_overflows(executed: Executed, _settings: WorkerSettings) -> tuple[OutputResult, ...]:
    return tuple(judge_overflow(each) for each in executed.evidence)


class Perturbing:
    """How far outputs move: the engine that changes inputs, and the judge."""

    def __init__(self, mode: Perturbation, standard: PerturbStandard) -> None:
        self._mode = mode
        self._standard = standard

    def engine(self, settings: WorkerSettings) -> Engine:
        from ulpscope.replay.torch.perturb import Perturber

        return Perturber(
            settings.device,
            mode=self._mode,
            first_only=self._standard is PerturbStandard.FREE_BENCHMARK,
            seed=settings.seed,
            references=settings.references,
        )

    def judge(self, executed: Executed, _settings: WorkerSettings) -> tuple[OutputResult, ...]:
        judged = self._judged(executed)
        if self._standard is PerturbStandard.CONDITION and any(each.verdict is not Verdict.PASS for each in judged):
            # Without sensitivities the bounds are narrower, never wider.
            executed.refine()
            judged = self._judged(executed)
        return judged

    def _judged(self, executed: Executed) -> tuple[OutputResult, ...]:
        return tuple(judge_perturbed(each, self._standard) for each in executed.evidence)


def _serve(question: Sequence[str]) -> None:
    from ulpscope.replay.torch.running import probe

    # Ctrl-C reaches the whole group; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    probe()
    make_engine, judge = overflow_engine, judge_overflows
    if question[0] == "perturb":
        perturbing = Perturbing(Perturbation(question[1]), PerturbStandard(question[2]))
        make_engine, judge = perturbing.engine, perturbing.judge
    serve(make_engine, judged_by=judge, orders=sys.stdin, answers=private_stdout(), between=forget_stderr)


if __name__ == "__main__":
    _serve(sys.argv[1:])
