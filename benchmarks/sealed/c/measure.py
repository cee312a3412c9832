"""How far the runs of a case are apart: python measure.py [CASE ...], all cases without names.

Of every module its inputs and outputs, of every optimizer step the gradients and what becomes of the parameters,
and the losses are taken from plain runs. A distance is the norm of a difference beside that of the reference.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

HERE = Path(__file__).parent
UNIT = {"bf16-autocast": 2.0**-9, "bf16": 2.0**-9, "fp16-autocast": 2.0**-12, "fp16": 2.0**-12}
Values = dict[tuple[str, str, int], torch.Tensor]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All floating tensors of nested outputs."""
    if isinstance(value, torch.Tensor):
        return [value.detach().double().flatten().clone()] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors_in(v)] if isinstance(value, (list, tuple)) else []


def record(path: str, args: list[str]) -> None:
    """One plain run of train.py, its values saved."""
    import common
    import train

    values: list[tuple[str, Any, list[torch.Tensor]]] = []
    roots: list[torch.nn.Module] = []
    names: dict[int, str] = {}

    def keep_forward(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        roots.append(module)
        values.append(("in", module, tensors_in(inputs)))
        values.append(("out", module, tensors_in(output)))

    def keep_update(kind: str) -> Any:
        def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    taken = p.grad if kind == "grad" else p
                    if taken is not None:
                        taken = taken.to_dense() if taken.is_sparse else taken
                        values.append((kind, p, tensors_in(taken)))

        return keep

    torch.nn.modules.module.register_module_forward_hook(keep_forward)
    register_optimizer_step_pre_hook(keep_update("grad"))
    register_optimizer_step_post_hook(keep_update("param"))
    plain = common.report

    def report(step: int, loss: Any) -> None:
        values.append(("loss", None, [torch.tensor([float(loss)], dtype=torch.float64)]))
        plain(step, loss)

    common.report = report
    sys.argv = ["train.py", *args]
    train.main()
    children = {id(c) for root in roots for c in root.modules() if c is not root}
    for number, root in enumerate(dict.fromkeys(r for r in roots if id(r) not in children)):
        for name, module in root.named_modules():
            names.setdefault(id(module), f"{number}:{type(root).__name__}.{name}")
        for name, parameter in root.named_parameters():
            names.setdefault(id(parameter), f"{number}:{type(root).__name__}.{name}")
    counts: dict[tuple[str, str], int] = {}
    saved: Values = {}
    for kind, owner, found in values:
        name = "" if owner is None else names.get(id(owner), "?")
        for tensor in found:
            count = counts[kind, name] = counts.get((kind, name), -1) + 1
            saved[kind, name, count] = tensor
    torch.save(saved, path)


def values_of(args: list[str], folder: str) -> Values:
    """The values of one run, from a process of its own."""
    path = str(Path(folder) / (" ".join(args).replace("/", "_") + ".pt"))
    if not Path(path).exists():
        command = [sys.executable, str(HERE / "measure.py"), "--record", path, *args]
        subprocess.run(command, check=True, cwd=HERE, stdout=subprocess.DEVNULL)
    loaded: Values = torch.load(path)
    return loaded


def distance(a: torch.Tensor, b: torch.Tensor) -> float | None:
    """Norm of the difference beside the norm of the first."""
    if a.shape != b.shape:
        return None
    return float((a - b).norm() / a.norm().clamp(min=1e-30))


def without_fault(args: list[str]) -> list[str]:
    """The same run, sound."""
    if "--fault" not in args:
        return args
    at = args.index("--fault")
    return args[:at] + args[at + 2 :]


def measure(case: dict[str, Any], folder: str) -> dict[str, Any]:
    """Losses, and the effect of the fault where it is planted."""
    reference, target = values_of(case["reference"], folder), values_of(case["target"], folder)
    losses = [[float(v) for (kind, _, _), v in run.items() if kind == "loss"] for run in (reference, target)]
    result: dict[str, Any] = {"losses": losses}
    if case["kind"] == "healthy":
        return result
    sound = values_of(without_fault(case["target"]), folder)
    precision = case["target"][case["target"].index("--precision") + 1] if "--precision" in case["target"] else "fp32"
    floor = UNIT.get(precision, 2.0**-23)
    effects = []
    for key, value in reference.items():
        kind, name, _ = key
        if kind != "loss" and (kind == "param") != (case["expect"]["kinds"][0] == "optimizer"):
            continue
        inside = any(part in name for part in case["expect"].get("modules") or [])
        if kind != "loss" and not inside and case["expect"].get("modules"):
            continue
        if key not in target or key not in sound:
            continue
        apart, healthy = distance(value, target[key]), distance(value, sound[key])
        if apart is not None and healthy is not None:
            effects.append((apart / max(healthy, floor), key, apart, healthy))
    effects.sort(key=lambda e: -e[0])
    result["effect"] = float(f"{effects[0][0]:.3g}")
    result["where"] = effects[:3]
    return result


def main() -> None:
    """Measures the cases that are named."""
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2], sys.argv[3:])
        return
    cases = json.loads((HERE / "cases.json").read_text())
    wanted = [c for c in cases if not sys.argv[1:] or c["name"] in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        for case in wanted:
            print(case["name"], measure(case, folder), flush=True)


if __name__ == "__main__":
    main()
