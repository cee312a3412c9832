"""Writes the effect of every fault to cases.json: python measure.py [NAME ...]."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import torch
import train
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

HERE = Path(__file__).parent
Record = dict[tuple[str, str, int], list[Tensor]]


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [torch.view_as_real(value) if value.is_complex() else value]
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors(v)]
    if isinstance(value, dict):
        return tensors(list(value.values()))
    return []


def record(path: str, arguments: list[str]) -> None:
    """Runs train.py here and stores what modules give, gradients, parameters and losses."""
    made: Record = {}
    names: dict[int, str] = {}
    calls: dict[str, int] = {}
    steps = [0]
    model: list[nn.Module] = []

    def put(kind: str, name: str, index: int, value: Any) -> None:
        found = [t.detach().double().clone() for t in tensors(value) if t.is_floating_point()]
        if found:
            made[kind, name, index] = found

    def forward(module: nn.Module, _: Any, output: Any) -> None:
        name = names.get(id(module))
        if name is not None:
            index = calls.get(name, 0)
            calls[name] = index + 1
            put("out", name, index, output)

    def before(optimizer: Any, *_: Any) -> None:
        for name, p in model[0].named_parameters():
            if p.grad is not None:
                put("grad", name, steps[0], p.grad)
            put("before", name, steps[0], p)

    def after(optimizer: Any, *_: Any) -> None:
        for name, p in model[0].named_parameters():
            put("after", name, steps[0], p)
        steps[0] += 1

    original = common.Task.run

    def run(self: common.Task) -> None:
        build = self.build

        def watched() -> nn.Module:
            built = build()
            model.append(built)
            names.update({id(m): n for n, m in built.named_modules()})
            return built

        self.build = watched
        original(self)

    common.Task.run = run
    nn.modules.module.register_module_forward_hook(forward)
    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    options = train.main(arguments)
    for name, buffer in model[0].named_buffers():
        put("buffer", name, 0, buffer)
    made["loss", "", 0] = [torch.tensor(options.losses, dtype=torch.float64)]
    torch.save(made, path)


def child(path: str, arguments: list[str]) -> None:
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        record(path, arguments)


def recorded(arguments: list[str]) -> Record:
    """In a process of its own, so that no run sees another."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run.pt"
        process = multiprocessing.get_context("fork").Process(target=child, args=(path, arguments))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"train.py {' '.join(arguments)} failed")
        return torch.load(path, weights_only=False)


def without_fault(arguments: list[str]) -> list[str]:
    where = arguments.index("--fault")
    return arguments[:where] + arguments[where + 2 :]


def difference(a: list[Tensor], b: list[Tensor]) -> float | None:
    pairs = [(x, y) for x, y in zip(a, b, strict=False) if x.shape == y.shape]
    if not pairs:
        return None
    top = sum(float((x - y).square().sum()) for x, y in pairs) ** 0.5
    return top / (sum(float(x.square().sum()) for x, _ in pairs) ** 0.5 + 1e-30)


def updates(run: Record) -> Record:
    made: Record = {k: v for k, v in run.items() if k[0] in ("out", "grad", "buffer")}
    for (kind, name, index), value in run.items():
        if kind == "after":
            made["update", name, index] = [x - y for x, y in zip(value, run["before", name, index], strict=True)]
    return made


def effect(case: dict[str, Any]) -> tuple[float, str]:
    """Of results first, then of gradients, then of updates; with noise, at the first place where it is at least 2."""
    ref, bad = updates(recorded(case["reference"])), updates(recorded(case["target"]))
    good = updates(recorded(without_fault(case["target"]))) if case["noise"] else None
    modules = case["expect"]["modules"]
    best = (0.0, "nowhere")
    phases = case["expect"]["phases"]
    orders = [("out",)] if modules and "backward" not in phases else []
    orders += [("grad",)] if phases != ["optimizer"] else []
    for kinds in (*orders, ("update", "buffer")):
        for key, value in ref.items():
            kind, name, index = key
            if kind not in kinds or key not in bad or (modules and not any(m in name for m in modules)):
                continue
            d = difference(value, bad[key])
            if d is None:
                continue
            if good is not None:
                base = difference(value, good[key]) if key in good else None
                if base is None or base < 1e-9:
                    continue
                d = d / base
            where = f"{kind} of {name or 'the model'}, {index}"
            if good is not None and d >= 2:
                return d, where
            if d > best[0]:
                best = (d, where)
        if best[0] >= (2 if case["noise"] else 1e-4):
            break
    return best


def main() -> None:
    path = HERE / "cases.json"
    wanted = sys.argv[1:]
    cases = json.loads(path.read_text())
    for case in cases:
        if case["kind"] == "fault" and (not wanted or case["name"] in wanted):
            value, where = effect(case)
            case["effect"], case["effect_detail"] = float(f"{value:.3g}"), where
            print(f"{case['name']:50s} {value:10.3g}  {where}", flush=True)
            path.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
