"""How far the runs of a case are apart, and how far they would be without its fault: python measure.py CASE [CASE ...]

Compares the outputs of modules, the tensors given to `probe`, gradients (at each optimizer step), and changes of parameters.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

HERE = Path(__file__).resolve().parent


def dump(out, arguments):
    import train
    from common import cfg

    seen, calls, names = {}, {}, {}

    def keep(key, tensor):
        n = calls[key] = calls.get(key, -1) + 1
        seen[f"{key}#{n}"] = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64).clone()

    def name_of(module):
        if id(module) not in names:
            for root, top in cfg.roots.items():
                names.update({id(m): f"{root}.{path}".rstrip(".") for path, m in top.named_modules()})
        return names.get(id(module))

    def after(module, inputs, output):
        name = name_of(module)
        for k, t in enumerate(output if isinstance(output, tuple) else (output,)):
            if name and torch.is_tensor(t) and not torch._C._functorch.is_functorch_wrapped_tensor(t):
                keep(f"out {name}/{k}", t)

    def listener(name, tensor):
        keep(f"probe {name}", tensor)
        if tensor.requires_grad:
            tensor.register_hook(lambda g: keep(f"slope {name}", g))

    before = {}

    def parameters():
        return {f"{root}.{n}": p for root, top in cfg.roots.items() for n, p in top.named_parameters()}

    def pre(optimizer, args, kwargs):
        mine = {id(p) for g in optimizer.param_groups for p in g["params"]}
        for n, p in parameters().items():
            if id(p) in mine and p.grad is not None:
                keep(f"grad {n}", p.grad)
                before[n] = p.detach().clone()

    def post(optimizer, args, kwargs):
        mine = {id(p) for g in optimizer.param_groups for p in g["params"]}
        for n, p in parameters().items():
            if id(p) in mine and n in before:
                keep(f"change {n}", p.detach().double() - before[n].double())

    cfg.listener = listener
    torch.nn.modules.module.register_module_forward_hook(after)
    register_optimizer_step_pre_hook(pre)
    register_optimizer_step_post_hook(post)
    train.main(arguments)
    for n, p in parameters().items():
        keep(f"end {n}", p)
    for root, top in cfg.roots.items():
        for n, b in top.named_buffers():
            keep(f"end {root}.{n}", b)
    torch.save((seen, cfg.losses), out)


def run(arguments, kept={}):
    key = tuple(arguments)
    if key not in kept:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, __file__, "--dump", f"{folder}/x", *arguments], cwd=HERE, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:])
            kept[key] = torch.load(f"{folder}/x")
    return kept[key]


def differences(a, b):
    found = {}
    for key in a:
        if key in b and a[key].shape == b[key].shape:
            size = float(a[key].abs().pow(2).mean().sqrt())
            apart = float((a[key] - b[key]).abs().pow(2).mean().sqrt())
            found[key] = apart / size if size else (0.0 if apart == 0 else float("inf"))
    return found


def without_fault(arguments):
    at = arguments.index("--fault")
    return arguments[:at] + arguments[at + 2:]


def measure(case):
    reference, losses = run(case["reference"])
    target, target_losses = run(case["target"])
    far = differences(reference, target)
    near = {}
    if case["kind"] == "fault":
        near = differences(reference, run(without_fault(case["target"]))[0])
    return far, near, [losses, target_losses]


def main():
    if sys.argv[1] == "--dump":
        dump(sys.argv[2], sys.argv[3:])
        return
    cases = {case["name"]: case for case in json.loads((HERE / "cases.json").read_text())}
    for name in sys.argv[1:]:
        far, near, losses = measure(cases[name])
        print(name, losses)
        for key in sorted(far, key=lambda k: -far[k] / (near.get(k, 0) + 1e-7))[:12]:
            print(f"  {far[key]:.3e} without {near.get(key, 0):.3e}  {key}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    main()
