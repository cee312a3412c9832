"""Measures what each fault of `cases.json` does and writes it there: `measure.py [NAME ...]`."""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import train
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

CASES = Path(__file__).with_name("cases.json")


class Record:
    """Outputs of modules by name and call, gradients and updates of parameters by name and step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.outputs: dict[tuple[str, int], Tensor] = {}
        self.gradients: list[dict[str, Tensor]] = []
        self.updates: list[dict[str, Tensor]] = []


def first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return next((t for v in value if (t := first_tensor(v)) is not None), None)
    return None


def recorded(arguments: list[str]) -> Record:
    from models import MODELS

    record, roots, calls, before = Record(), [], [], {}
    task = MODELS[arguments[0]]
    build = task.model

    def remembered(self: Any) -> nn.Module:
        roots.append(build(self))
        return roots[-1]

    def names() -> dict[int, str]:
        return {id(p): n for n, p in roots[0].named_parameters()}

    def called(module: nn.Module, _: Any, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            calls.append((module, tensor.detach().double().clone()))

    def stepping(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        known = names()
        mine = [p for group in optimizer.param_groups for p in group["params"]]
        everyone = {id(p): p for p in roots[0].parameters()}
        everyone |= {id(p): p for p in mine}
        record.gradients.append(
            {
                known.get(i, str(n)): p.grad.double().clone()
                for n, (i, p) in enumerate(everyone.items())
                if p.grad is not None
            }
        )
        before.clear()
        before.update({i: (p, p.detach().double().clone()) for i, p in everyone.items()})

    def stepped(*_: Any) -> None:
        known = names()
        record.updates.append(
            {known.get(i, str(n)): p.detach().double() - old for n, (i, (p, old)) in enumerate(before.items())}
        )

    task.model = remembered
    torch.nn.modules.module.register_module_forward_hook(called)
    register_optimizer_step_pre_hook(stepping)
    register_optimizer_step_post_hook(stepped)
    record.losses = [float(loss) for loss in train.runs(arguments)]
    known = {id(m): n for root in reversed(roots) for n, m in root.named_modules()}
    counts: dict[str, int] = {}
    for module, tensor in calls:
        name = known.get(id(module), "?")
        record.outputs[name, counts.get(name, 0)] = tensor
        counts[name] = counts.get(name, 0) + 1
    return record


def run(arguments: list[str]) -> Record:
    """In a process of its own, as some faults change classes."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            answer: Any = recorded(arguments)
        except BaseException:
            answer = traceback.format_exc()
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pickle.load(pipe)
    os.waitpid(child, 0)
    if isinstance(answer, str):
        raise RuntimeError(f"{arguments}\n{answer}")
    return answer


def relative(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return 1.0
    return float((a - b).norm() / a.norm().clamp(min=1e-30))


def together(parts: dict[str, Tensor], keys: list[str]) -> Tensor:
    return torch.cat([parts[k].flatten() if k in parts else torch.zeros(0) for k in keys])


def difference(reference: Record, target: Record, expect: dict[str, Any]) -> tuple[float, str]:
    """How far the two are apart at the place of the fault."""
    phase, step = expect["phases"][0], expect.get("step", 0)
    if phase in ("backward", "optimizer") or not expect["modules"]:
        kind = "updates" if phase == "optimizer" else "gradients"
        a, b = getattr(reference, kind)[step], getattr(target, kind)[step]
        keys = [k for k in a if any(m in k for m in expect["modules"])] or list(a)
        b = {k: b.get(k, torch.zeros_like(a[k])) for k in keys}
        return relative(together(a, keys), together(b, keys)), f"{kind} of step {step}"
    for wanted in expect["modules"]:
        found = [k for k in reference.outputs if wanted in k[0] and k in target.outputs]
        found = [k for k in found if k[0].endswith(wanted)] or found
        if found:
            skip = expect.get("call", 0)
            key = next(k for k in found if k[1] >= skip)
            return relative(reference.outputs[key], target.outputs[key]), f"output of {key[0]}, call {key[1]}"
    raise RuntimeError(f"no module of {expect['modules']}")


def without_fault(arguments: list[str]) -> list[str]:
    at = arguments.index("--fault")
    return arguments[:at] + arguments[at + 2 :]


def measure(case: dict[str, Any]) -> None:
    reference, target = run(case["reference"]), run(case["target"])
    case["losses"] = [[float(f"{x:.9g}") for x in record.losses] for record in (reference, target)]
    if case["kind"] != "fault":
        return
    far, where = difference(reference, target, case["expect"])
    if case["noise"]:
        near, _ = difference(reference, run(without_fault(case["target"])), case["expect"])
        far = far / max(near, 1e-30)
    case["effect"], case["effect_detail"] = float(f"{far:.4g}"), where


def main() -> None:
    import models  # noqa: F401

    warnings.filterwarnings("ignore")
    cases = json.loads(CASES.read_text())
    for case in cases:
        if len(sys.argv) < 2 or case["name"] in sys.argv[1:]:
            measure(case)
            print(case["name"], case["losses"], case.get("effect", ""), case.get("effect_detail", ""), flush=True)
    CASES.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
