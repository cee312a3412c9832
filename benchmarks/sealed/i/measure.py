"""How much a fault changes: python measure.py [NAME...] writes `effect` and `effect_detail` into cases.json."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch
import train
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

CASES = Path(__file__).with_name("cases.json")


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
        return [] if wrapped or not (value.is_floating_point() or value.is_complex()) else [value]
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in tensors(v)]
    return []


class Record:
    """Results of modules, gradients and changes of weights of one run."""

    def __init__(self, arguments: list[str]) -> None:
        self.out: dict[tuple[Any, ...], Tensor] = {}
        self.grad: dict[int, list[Tensor]] = {}
        self.change: dict[int, list[Tensor]] = {}
        self.calls: dict[str, int] = {}
        self.step = 0
        with contextlib.redirect_stdout(io.StringIO()):
            script = train.make(arguments)
            self.script = script
            for i, net in enumerate(script.nets):
                for name, module in net.named_modules():
                    module.register_forward_hook(self.hook(f"{i}/{name}"))
            known = [p for net in script.nets for p in net.parameters()]
            before: list[Tensor] = []

            def trained(optimizer: Any) -> list[Tensor]:
                ids = {id(p) for p in known}
                return known + [p for g in optimizer.param_groups for p in g["params"] if id(p) not in ids]

            def pre(optimizer: Any, *_: Any) -> None:
                params = trained(optimizer)
                before[:] = [p.detach().clone() for p in params]
                self.grad[self.step] = [
                    torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in params
                ]

            def post(optimizer: Any, *_: Any) -> None:
                self.change[self.step] = [p.detach() - b for p, b in zip(trained(optimizer), before, strict=True)]
                self.step += 1

            handles = [register_optimizer_step_pre_hook(pre), register_optimizer_step_post_hook(post)]
            try:
                script.run()
            finally:
                for handle in handles:
                    handle.remove()
        self.losses = script.losses
        self.weights = [p.detach().clone() for net in script.nets for p in net.state_dict().values()]

    def hook(self, path: str) -> Any:
        def take(_: Any, __: Any, output: Any) -> None:
            call = self.calls.get(path, 0)
            self.calls[path] = call + 1
            for k, t in enumerate(tensors(output)):
                self.out[(path, self.step, call, k)] = t.detach().clone()

        return take


def relative(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    kind = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(kind), b.to(kind)
    size = max(float(a.norm()), float(b.norm()))
    return float((a - b).norm()) / size if size else 0.0


def together(a: list[Tensor], b: list[Tensor]) -> float:
    if len(a) != len(b):
        return float("inf")
    return relative(torch.cat([t.flatten().double() for t in a]), torch.cat([t.flatten().double() for t in b]))


def differences(a: Record, b: Record, words: list[str]) -> dict[str, float]:
    """By place: modules whose path holds one of the words (all without words), gradients, changes of weights."""
    found: dict[str, float] = {}
    for key in a.out.keys() & b.out.keys():
        path = key[0].split("/", 1)[1]
        if not words or any(w in path for w in words):
            place = f"{key[0]} step {key[1]}"
            found[place] = max(found.get(place, 0.0), relative(a.out[key], b.out[key]))
    for step in sorted(a.grad.keys() & b.grad.keys()):
        found[f"gradients step {step}"] = together(a.grad[step], b.grad[step])
        found[f"updates step {step}"] = together(a.change[step], b.change[step])
    return found


def effect(case: dict[str, Any]) -> tuple[float, str]:
    words = case["expect"]["modules"]
    reference, target = Record(case["reference"]), Record(case["target"])
    faulty = differences(reference, target, words)
    if not case["noise"]:
        here = {k: v for k, v in faulty.items() if not words or not k.startswith(("gradients", "updates"))}
        if max(here.values(), default=0.0) < 1e-4:
            here = faulty
        first = {k: v for k, v in here.items() if k.endswith("step 0")}
        if max(first.values(), default=0.0) >= 1e-4:
            here = first
        place = max(here, key=lambda k: here[k])
        return here[place], place
    at = case["target"].index("--fault")
    clean = differences(reference, Record(case["target"][:at] + case["target"][at + 2 :]), words)
    ratios = {k: v / clean[k] for k, v in faulty.items() if clean.get(k, 0.0) > 1e-6}
    here = {k: v for k, v in ratios.items() if words and not k.startswith(("gradients", "updates"))}
    if max(here.values(), default=0.0) < 2:
        here = {k: v for k, v in ratios.items() if k.startswith(("gradients", "updates"))}
    first = {k: v for k, v in here.items() if k.endswith("step 0")}
    if max(first.values(), default=0.0) >= 2:
        here = first
    place = max(here, key=lambda k: here[k])
    return here[place], f"{place}: {faulty[place]:.3g} against {clean[place]:.3g}"


def main() -> None:
    cases = json.loads(CASES.read_text())
    for case in cases:
        if case["kind"] == "fault" and (len(sys.argv) < 2 or case["name"] in sys.argv[1:]):
            value, place = effect(case)
            case["effect"], case["effect_detail"] = float(f"{value:.4g}"), place
            print(case["name"], case["effect"], place, flush=True)
    CASES.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
