"""The words of `ulpscope run`: what will be captured, what was, what was not and why, how steps were told apart.

The words of `ulpscope demo` stand below.
"""

import json
import os
import shlex
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from ulpscope._version import __version__
from ulpscope.records.enums import Watch
from ulpscope.records.runs import (
    CapturedProcess,
    CaptureSettings,
    Coverage,
    IntRanges,
    RankInfo,
    Root,
    RunOutcome,
    Stepping,
)
from ulpscope.report.record_json import answer_json, fields_of
from ulpscope.report.terminal.anomalies import anomaly_entry, anomaly_text
from ulpscope.report.words.language import Language, bytes_text, count_text, phrases, ranges_text

ANOMALIES_SHOWN = 8
FORKED = "a forked process"
"""How a capture names a fork that it leaves alone."""

CHANGED_NUMBERS = "ulpscope: THIS RUN'S NUMBERS ARE CHANGED: the calls that are meant run in float32 or on the CPU"

Advice = tuple[str, str]
"""A sentence and the next step."""


def plan_text(settings: CaptureSettings, *, command: Sequence[str], interpreter: str | None) -> str:
    """What is about to be captured, before the command starts."""
    rows = {
        "command": shlex.join(command),
        "interpreter": interpreter or "whichever Python the command starts",
        "watch": "" if settings.watch is None else settings.watch.value,
        "level": "" if settings.watch in (Watch.GRADIENTS, Watch.TRAINING) else settings.level.value,
        "every": f"{settings.training.every} steps" if settings.training.every > 1 else "",
        "control": "" if settings.training.control is None else str(settings.training.control),
        "like": "" if settings.training.like is None else str(settings.training.like),
        "save": settings.save.value,
        "steps": str(settings.steps or "all"),
        "ranks": str(settings.ranks or "all"),
        "only": " ".join(settings.only),
        "skip": " ".join(settings.skip),
        "in-float32": " ".join(settings.in_float32),
        "on-cpu": " ".join(settings.on_cpu),
        "max-disk": "" if settings.max_disk is None else f"{bytes_text(settings.max_disk)} a rank",
        "stop": f"after step {settings.steps.last}" if settings.stop and settings.steps else "",
        "compiled": "run as eager" if settings.compiled.value == "eager" else "",
        "verify": "every reused summary" if settings.verify else "",
    }
    lines = [f"  {name:<11}  {text}" for name, text in rows.items() if text]
    return "\n".join([f"ulpscope: capturing into {settings.out}", *lines])


def summary_text(outcome: RunOutcome) -> str:
    """What came of the run, in a few lines."""
    if outcome.nothing_captured:
        sentence, step = why_nothing(outcome)
        lines = [f"ulpscope: warning: nothing was captured: {sentence}"]
    elif outcome.settings.watch is Watch.OVERFLOW:
        lines = [f"ulpscope: watched {_watched_text(outcome)}"]
        step = f"ulpscope overflow {shlex.quote(outcome.trace)}"
    else:
        lines = [f"ulpscope: captured {_total(outcome.captured)} in {outcome.trace}"]
        step = f"ulpscope show {shlex.quote(outcome.trace)}"
        if outcome.settings.watch is Watch.GRADIENTS:
            step = f"ulpscope compare {shlex.quote(outcome.trace)} OTHER"
        if outcome.settings.watch is Watch.TRAINING:
            lines += _anomaly_lines(outcome)
        if len(outcome.captured) > 1:
            lines += [f"  {process.directory}: {_total([process])}" for process in outcome.captured]
        # What one must know to read the numbers of steps and the paths of modules.
        infos = [process.info for process in outcome.captured]
        for texts in ([_begun_text(each) for each in infos], [roots_text(each.roots) for each in infos]):
            lines += [f"  {note}" for note in _once_if_alike(outcome.captured, texts)]
    lines += [f"  {note}" for note in notes(outcome)]
    return "\n".join([*lines, f"  next: {step}"])


def notes(outcome: RunOutcome) -> list[str]:
    """Everything that was not captured, or not as one might think."""
    texts = [_exit_note(outcome)]
    if not outcome.nothing_captured:
        texts += _unmatched(outcome)
        texts += [_without_ulpscope(*found)[0] for found in outcome.seen.without_ulpscope.items()]
    if outcome.settings.changes_numbers and not any(each.info.coverage.calls_raised for each in outcome.captured):
        texts.append("no call ran with other numbers: none that is meant ran in a captured step and would gain by it")
    for reason, count in sorted(outcome.seen.left_alone.items()):
        texts.append(f"left alone: {reason}{f' ({count:,} of them)' if count != 1 else ''}")
    for process in outcome.captured:
        texts += [f"{process.directory}: {text}" for text in _process_notes(process)]
    if not outcome.nothing_captured:
        # Why a capture ended before its script did was said when it happened, which may be long ago.
        ended = [text.partition("\n")[0] for text in outcome.seen.failures]
        texts += ended + [text for text in outcome.seen.messages if "capture ends" in text and text not in ended]
    return [text for text in texts if text]


def why_nothing(outcome: RunOutcome) -> Advice:
    """The most likely reason for an empty trace."""
    seen = outcome.seen
    if seen.failures:
        return seen.failures[0], "remove the cause, or report it if it is a fault of ulpscope"
    if not seen.ranks:
        return _why_never_started(outcome)
    if outcome.settings.ranks and not any(rank in outcome.settings.ranks for rank in seen.ranks):
        ranks = ranges_text(seen.ranks)
        return f"{_asked('rank', outcome.settings.ranks)}, but {_ran('rank', seen.ranks)}", f"use --ranks {ranks}"
    steps = range(_steps_ran(outcome))
    if outcome.settings.steps and steps and not any(step in outcome.settings.steps for step in steps):
        sentence = f"{_asked('step', outcome.settings.steps)}, but {_ran('step', steps)}"
        return sentence, f"use --steps {ranges_text(steps)} or fewer of them"
    calls = sum(process.calls for process in seen.finished)
    filters = [f"--only {shlex.quote(pattern)}" for pattern in outcome.settings.only]
    filters += [f"--skip {shlex.quote(pattern)}" for pattern in outcome.settings.skip]
    if calls and filters:
        return f"{' '.join(filters)} left none of {count_text(calls, 'call')}", "widen or drop the patterns"
    if outcome.script_exit or outcome.interrupted or not seen.finished:
        return "the script ended before anything was written", "run it to the end of a step at least"
    if seen.left_alone.get(FORKED):
        return "the script computes in forked processes, which are left alone", "start them by spawn or with torchrun"
    if outcome.settings.watch is Watch.GRADIENTS:
        return (
            "no update by an optimizer was seen; those inside of compiled code (torch.compile, XLA) are not",
            "check that the script trains, and leave its updates uncompiled (jit_compile=False)",
        )
    return (
        "torch was imported, but the script made no call that is recorded",
        "check that the script computes something",
    )


def outcome_object(outcome: RunOutcome) -> dict[str, Any]:
    """The object that `--json` prints."""
    captured, sentences, next_step = outcome.captured, [], f"ulpscope show {shlex.quote(outcome.trace)}"
    if outcome.nothing_captured:
        sentence, next_step = why_nothing(outcome)
        sentences = [sentence]
    told = [text.partition("\n")[0] for text in (*sentences, *notes(outcome), *outcome.seen.messages)]
    return answer_json(
        "run",
        verdict="nothing_captured" if outcome.nothing_captured else "captured",
        trace=outcome.trace,
        exit=outcome.exit_code,
        script={
            "command": outcome.command,
            "exit": outcome.script_exit,
            "interrupted": outcome.interrupted,
        },
        ranks=[_process_object(process) for process in captured],
        findings=[anomaly_entry(each) for each in outcome.anomalies],
        notes=[{"sentence": text} for text in dict.fromkeys(told)],
        counts={
            "ranks": len(captured),
            "calls": sum(process.calls for process in captured),
            "bytes": sum(process.bytes for process in captured),
        },
        next=next_step,
    )


def _process_object(process: CapturedProcess) -> dict[str, Any]:
    info = process.info
    return {
        "rank": info.rank,
        **fields_of(process, "directory", "steps", "calls", "bytes"),
        "closed": info.closed is not None,
        **fields_of(process, "unfinished", "last_call"),
        **fields_of(info, "exit", "errors"),
        "ended_early": info.coverage.ended_early,
        **fields_of(info, "stepping", "roots"),
    }


def _why_never_started(outcome: RunOutcome) -> Advice:
    seen = outcome.seen
    for interpreter, reason in seen.without_ulpscope.items():
        return _without_ulpscope(interpreter, reason)
    if seen.left_alone:
        return "the processes that imported torch were none that compute", "check what the command starts"
    if seen.pythons:
        runs = count_text(seen.pythons, "Python process")
        return f"{runs} ran, and none imported torch", "check that the command reaches the training script"
    return (
        "the command started no Python that could be watched",
        "start Python without -I, -E and -S, and keep PYTHONPATH: they hide the capture from it",
    )


def _without_ulpscope(interpreter: str, reason: str) -> Advice:
    install = f"{shlex.quote(interpreter)} -m pip install {_requirement()}"
    missing = reason.endswith("No module named 'ulpscope'")
    problem = "has no ulpscope" if missing else f"could not import ulpscope ({reason})"
    return f"{interpreter} imported torch but {problem}; install it there: {install}", install


def _requirement() -> str:
    """What pip must install elsewhere to get this very version: the release, or the directory it came from."""
    try:
        origin = distribution("ulpscope").read_text("direct_url.json")
    except PackageNotFoundError:
        origin = None
    url = str(json.loads(origin).get("url", "")) if origin else ""
    return shlex.quote(url.removeprefix("file://")) if url else f"ulpscope=={__version__}"


def _total(processes: Iterable[CapturedProcess]) -> str:
    processes = list(processes)
    steps = {step for process in processes for step in process.steps}
    parts = [
        _steps_text(steps) if steps else "no steps",
        count_text(sum(process.calls for process in processes), "call"),
        bytes_text(sum(process.bytes for process in processes)),
    ]
    if len(processes) > 1:
        parts.insert(0, count_text(len(processes), "process"))
    return ", ".join(parts)


def _watched_text(outcome: RunOutcome) -> str:
    """`300 steps, 12,345 calls: no overflow`, or the steps that are kept."""
    ran, calls = _steps_ran(outcome), sum(process.calls for process in outcome.captured)
    kept = {step for process in outcome.captured for step in process.steps}
    told = f"{_steps_text(kept)} kept in {outcome.trace}" if kept else "no overflow"
    return f"{count_text(ran, 'step')}, {count_text(calls, 'call')}: {told}"


def _anomaly_lines(outcome: RunOutcome) -> list[str]:
    """What was told while the run went on, once more where it is looked for."""
    several = len(outcome.captured) > 1
    told = [f"  {anomaly_text(each, several=several)}" for each in outcome.anomalies[:ANOMALIES_SHOWN]]
    left = len(outcome.anomalies) - len(told)
    more = [f"  {left:,} more: ulpscope show {shlex.quote(outcome.trace)}"] if left else []
    return [*told, *more] or [f"  {phrases(Language.EN).say('anomaly.none')}"]


def _exit_note(outcome: RunOutcome) -> str:
    if outcome.interrupted:
        return "interrupted; what was captured until then is kept"
    if outcome.script_exit <= 128:
        return f"the script ended with exit code {outcome.script_exit}" if outcome.script_exit else ""
    number = outcome.script_exit - 128
    told = signal.strsignal(number) if number in list(signal.Signals) else None
    name = f"signal {number}" if told is None else f"{signal.Signals(number).name} ({told.lower()})"
    return f"the script was ended by {name}"


def _process_notes(process: CapturedProcess) -> list[str]:
    found = coverage_notes(process.info.coverage)
    if process.info.closed is None:
        found.append(_how_it_died(process))
    elif process.info.exit not in (None, "ended"):
        found.append(f"ended: {process.info.exit}")
    return found + [f"error of ulpscope, the run went on: {error}" for error in process.info.errors]


def _how_it_died(process: CapturedProcess) -> str:
    """Of a process that did not close its part of the trace: where it was, and what of it is on disk."""
    where = "was not closed (killed, crashed, left by os._exit, or unable to write)"
    if process.last_call is not None:
        call = process.last_call
        module = f" of {call.module}" if call.module else ""
        phase = f" ({call.phase})" if call.phase in ("backward", "update") else ""
        inside = "inside" if call.running else "after"
        where = f"ended abruptly in step {call.step}, {inside} {call.name}{module}{phase}"
    whole = [step for step in process.steps if step not in process.unfinished]
    kept = [f"{_steps_text(whole)} whole"] if whole else []
    kept += [f"the beginning of {_steps_text(process.unfinished)}"] if process.unfinished else []
    return f"{where}; on disk: {' and '.join(kept) or 'nothing'}"


def _steps_text(steps: Collection[int]) -> str:
    return f"step{'s' * (len(steps) > 1)} {ranges_text(steps)}"


def coverage_notes(coverage: Coverage) -> list[str]:
    """What a capture did not see or not keep."""
    unobserved, unsummarized = coverage.calls_unobserved, coverage.values_unsummarized
    wrong, verified, raised = coverage.summaries_wrong, coverage.summaries_verified, coverage.calls_raised
    notes = (
        (coverage.calls_filtered, f"{count_text(coverage.calls_filtered, 'call')} left out by the filters"),
        (unobserved, _by_reason(unobserved, "call", "not looked into")),
        (raised, _by_reason(raised, "call", "run with other numbers than the script's")),
        (unsummarized, _by_reason(unsummarized, "value", "without stats")),
        (coverage.other_threads, f"{count_text(coverage.other_threads, 'module call')} in other threads not captured"),
        (coverage.not_saved, f"data of {count_text(coverage.not_saved, 'value')} not saved: --max-disk was reached"),
        (wrong, f"{count_text(wrong, 'reused summary')} differed from the value: report this"),
        (verified and not wrong, f"{count_text(verified, 'reused summary')} recomputed, none differed"),
    )
    return [text for applies, text in notes if applies]


def _by_reason(counts: Mapping[str, int], noun: str, what: str) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts.items()))
    return f"{count_text(sum(counts.values()), noun)} {what}: {reasons}"


def _unmatched(outcome: RunOutcome) -> Iterator[str]:
    """Ranks and steps that were asked for and did not run."""
    ranks, steps = outcome.settings.ranks, outcome.settings.steps
    if ranks is not None and not all(
        any(low <= rank <= high for rank in outcome.seen.ranks) for low, high in ranks.ranges
    ):
        yield f"{_asked('rank', ranks)}, but {_ran('rank', outcome.seen.ranks)}"
    ran = range(_steps_ran(outcome))
    if steps is not None and ran and steps.last >= len(ran) and not outcome.settings.stop:
        yield f"{_asked('step', steps)}, but {_ran('step', ran)}"


def _steps_ran(outcome: RunOutcome) -> int:
    return max((process.steps for process in outcome.seen.finished), default=0)


def _asked(noun: str, wanted: IntRanges) -> str:
    several = len(wanted.ranges) > 1 or wanted.ranges[0][0] != wanted.ranges[0][1]
    return f"{noun}{'s' * several} {wanted} asked for"


def _ran(noun: str, numbers: Sequence[int]) -> str:
    return f"{'only ' * (len(numbers) == 1)}{noun}{'s' * (len(numbers) > 1)} {ranges_text(numbers)} ran"


ROOTS_SHOWN = 6


def _begun_text(info: RankInfo) -> str:
    if info.capture.get("watch") == Watch.GRADIENTS.value and not info.stepping.marks:
        return "steps: one is an update by each optimizer"
    return stepping_text(info.stepping)


def stepping_text(stepping: Stepping) -> str:
    """Where steps begin; empty if there was one only."""
    if stepping.marks:
        return "steps: one begins where the script marks it"
    parts = []
    if stepping.updates:
        parts.append("one begins with the first forward after an optimizer's step")
    if stepping.forwards:
        again = f"before the first update, one began when a module was called again ({stepping.forwards:,} times)"
        parts.append(again if stepping.updates else "one begins whenever a module is called again")
    if stepping.updates and stepping.optimizers > 1:
        parts.append(f"{stepping.optimizers} optimizers took steps: an iteration where two do so in turn is two steps")
    return f"steps: {'; '.join(parts)}" if parts else ""


def roots_text(roots: Sequence[Root]) -> str:
    """Which module got which name; empty if there is no choice."""
    if len(roots) < 2:
        return ""
    told = [_root_text(root) for root in roots[:ROOTS_SHOWN]]
    if len(roots) > ROOTS_SHOWN:
        told.append(f"{len(roots) - ROOTS_SHOWN:,} more in rank.json")
    return f"modules: {'; '.join(told)}"


def _root_text(root: Root) -> str:
    kind = root.module_class.rpartition(".")[2]
    name = root.name if root.name.partition("-")[0] == kind else f"{root.name} is {kind}"
    calls = count_text(root.calls, "call")
    return f"{name} ({calls})" if root.source is None else f"{name} ({calls}, first {os.path.basename(root.source)})"


def _once_if_alike(processes: Sequence[CapturedProcess], texts: Sequence[str]) -> list[str]:
    if len(set(texts)) == 1:
        return [text for text in texts[:1] if text]
    return [f"{process.directory}: {text}" for process, text in zip(processes, texts, strict=True) if text]


INTRODUCTION = """
A two-layer transformer is trained twice for three steps on this CPU. The
second run has a fault planted in it: one LayerNorm uses eps=0.01 where the
first uses eps=0.00001. Both runs are captured, without a change to the script."""

COMPARE_INTRODUCTION = """
Every call of both runs is now on disk, with its inputs, outputs, gradients and
source line. Where did the target's numbers go wrong first?"""

SUSPECT_INTRODUCTION = """
The call itself, by the command that the answer proposes:"""


def losses_text(reference: Sequence[str], target: Sequence[str]) -> str:
    """The losses of both runs beside each other."""
    rows = [("step", "reference", "target")]
    rows += [(str(step), *pair) for step, pair in enumerate(zip(reference, target, strict=True))]
    table = "\n".join(f"  {step:>4}  {left:>12}  {right:>12}" for step, left, right in rows)
    return f"\nThe losses alone hardly tell that something is wrong, and nothing about where:\n\n{table}"


def ending(directory: str, *, page: str, program: str | None) -> str:
    """Where to go from here; `program` is our own path where typing `ulpscope` would not find it."""
    lines = [
        "",
        f"To look at all of it, open this page in a browser: {page}",
        f"The script, both traces and the result stay in {directory}.",
        "Your own script is captured and compared the same way:",
        "",
        "  ulpscope run -o runs/ref -- python train.py",
        "  ulpscope run -o runs/target -- python train.py   # there, where the numbers differ",
        "  ulpscope compare runs/ref runs/target --out result   # and open result/report.html",
    ]
    if program is not None:
        lines += ["", "`ulpscope` is not on your PATH. It is here:", "", f"  {program}"]
    return "\n".join(lines)
