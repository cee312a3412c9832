"""How much a fault changes, and how little another way: python measure.py [NAME...] fills cases.json.

Writes `losses`, and for a fault `effect` and `effect_detail`; of a healthy pair that computes in another way it prints
how far the two ways are apart in float64.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import train
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

CASES = Path(__file__).with_name("cases.json")


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
        return [value] if value.is_floating_point() and not wrapped else []
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


class Record:
    """Results of modules, gradients and changes of weights of one run."""

    def __init__(self, arguments: list[str]) -> None:
        self.out: dict[tuple[Any, ...], Tensor] = {}
        self.grad: dict[int, list[Tensor]] = {}
        self.change: dict[int, list[Tensor]] = {}
        self.calls: dict[tuple[str, int], int] = {}
        self.step = 0
        self.before: list[Tensor] = []
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            script = train.make(arguments)
            for i, net in enumerate(script.nets):
                for name, module in net.named_modules():
                    module.register_forward_hook(self.hook(f"{i}/{name}"))
            self.known = [p for net in script.nets for p in net.parameters()]
            handles = [register_optimizer_step_pre_hook(self.pre), register_optimizer_step_post_hook(self.post)]
            try:
                script.run()
            finally:
                for handle in handles:
                    handle.remove()
        self.losses = script.losses
        self.weights = sorted(float(p.detach().double().norm()) for p in self.known)

    def pre(self, *_: Any) -> None:
        self.before = [p.detach().clone() for p in self.known]
        self.grad[self.step] = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in self.known]

    def post(self, *_: Any) -> None:
        self.change[self.step] = [p.detach() - b for p, b in zip(self.known, self.before, strict=True)]
        self.step += 1

    def hook(self, path: str) -> Any:
        def take(_: Any, __: Any, output: Any) -> None:
            call = self.calls.get((path, self.step), 0)
            self.calls[path, self.step] = call + 1
            for k, t in enumerate(tensors(output)):
                self.out[path, self.step, call, k] = t.detach().clone()

        return take


def relative(a: list[Tensor], b: list[Tensor]) -> float:
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return float("inf")
    first, second = (torch.cat([t.flatten().double() for t in of]) for of in (a, b))
    size = max(float(first.norm()), float(second.norm()))
    return float((first - second).norm()) / size if size else 0.0


def differences(a: Record, b: Record) -> dict[str, float]:
    """By place: modules, losses, gradients, changes of weights."""
    found: dict[str, float] = {}
    for key in a.out.keys() & b.out.keys():
        place = f"{key[0]} step {key[1]}"
        found[place] = max(found.get(place, 0.0), relative([a.out[key]], [b.out[key]]))
    for step in sorted(a.grad.keys() & b.grad.keys()):
        found[f"gradients step {step}"] = relative(a.grad[step], b.grad[step])
        found[f"updates step {step}"] = relative(a.change[step], b.change[step])
    for step, (x, y) in enumerate(zip(a.losses, b.losses, strict=True)):
        found[f"loss step {step}"] = abs(x - y) / max(abs(x), abs(y), 1e-30)
    return found


def is_at(place: str, words: list[str]) -> bool:
    """A word is part of a module's path or, as `updates`, of the name of what else is compared."""
    return any(word in place.rpartition(" step ")[0] for word in words)


def without_fault(arguments: list[str]) -> list[str]:
    at = arguments.index("--fault")
    return arguments[:at] + arguments[at + 2 :]


def effect(case: dict[str, Any]) -> tuple[float, str, Record, Record]:
    reference, target = Record(case["reference"]), Record(case["target"])
    words = case["measured_at"]
    faulty = {k: v for k, v in differences(reference, target).items() if is_at(k, words)}
    size, least = faulty, 1e-4
    if case["noise"]:
        clean = differences(reference, Record(without_fault(case["target"])))
        size, least = {k: v / clean[k] for k, v in faulty.items() if clean.get(k, 0.0) > 1e-7}, 2.0
    steps = sorted({int(k.rpartition(" ")[2]) for k in size})
    for step in steps:
        here = {k: v for k, v in size.items() if k.endswith(f" step {step}")}
        place = max(here, key=lambda k: here[k])
        if here[place] >= least or step == steps[-1]:
            break
    detail = f"{place}: {faulty[place]:.3g} against {clean[place]:.3g}" if case["noise"] else place
    return size[place], detail, reference, target


def apart_in_double(case: dict[str, Any]) -> float:
    """Of losses and norms of weights, of all and of each; where a package asks for float32, float64 stands in."""
    words = [[*case[side], "--precision", "fp64"] for side in ("reference", "target")]
    with mock.patch.multiple(torch, float32=torch.float64, float=torch.float64):
        a, b = (Record(of) for of in words)
    pairs = [*zip(a.losses, b.losses, strict=True)]
    pairs.append((math.hypot(*a.weights), math.hypot(*b.weights)))
    if len(a.weights) == len(b.weights):
        pairs += zip(a.weights, b.weights, strict=True)
    return max(abs(x - y) / max(abs(x), abs(y), 1.0) for x, y in pairs)


def main() -> None:
    cases = json.loads(CASES.read_text())
    for case in cases:
        if len(sys.argv) > 1 and case["name"] not in sys.argv[1:]:
            continue
        if case["kind"] == "fault":
            value, place, reference, target = effect(case)
            case["effect"], case["effect_detail"] = float(f"{value:.4g}"), place
            print(case["name"], case["effect"], place, flush=True)
        else:
            reference, target = Record(case["reference"]), Record(case["target"])
            apart = f"{apart_in_double(case):.2g} in float64" if "--variant" in case["target"] else ""
            print(case["name"], reference.losses, target.losses, apart, flush=True)
        case["losses"] = [[float(f"{x:.9g}") for x in run.losses] for run in (reference, target)]
    CASES.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
