"""How the steps of a captured run were told apart, and what its outermost modules are called."""

import os
from collections.abc import Callable, Sequence

from ulpscope.records.outcomes import CapturedProcess
from ulpscope.records.runs import Root, Stepping
from ulpscope.report.quantities import count_text

ROOTS_SHOWN = 6


def step_notes(processes: Sequence[CapturedProcess]) -> list[str]:
    """What one must know to read the numbers of steps and the paths of modules."""
    return [
        *_once_if_alike(processes, lambda process: stepping_text(process.info.stepping)),
        *_once_if_alike(processes, lambda process: roots_text(process.info.roots)),
    ]


def stepping_text(stepping: Stepping) -> str:
    """Where steps begin; empty if there was one only."""
    if stepping.marks:
        return "steps: one begins where the script marks it"
    parts = []
    if stepping.updates:
        parts.append("one begins with the first forward after an optimizer's step")
    if stepping.forwards:
        parts.append(_forwards(stepping))
    if stepping.updates and stepping.optimizers > 1:
        parts.append(f"{stepping.optimizers} optimizers took steps: an iteration where two do so in turn is two steps")
    return f"steps: {'; '.join(parts)}" if parts else ""


def _forwards(stepping: Stepping) -> str:
    if not stepping.updates:
        return "one begins whenever a module is called again"
    return f"before the first update, one began when a module was called again ({stepping.forwards:,} times)"


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


def _once_if_alike(processes: Sequence[CapturedProcess], tell: Callable[[CapturedProcess], str]) -> list[str]:
    texts = [tell(process) for process in processes]
    if len(set(texts)) == 1:
        return [text for text in texts[:1] if text]
    return [f"{process.directory}: {text}" for process, text in zip(processes, texts, strict=True) if text]
