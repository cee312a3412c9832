"""How far the runs of a pair are apart, and where: python measure.py [CASE ...] prints it, all cases without a name.

Each run is made in a process of its own, with hooks at modules (outputs and their gradients), gradients, parameters.
"""

import io
import json
import os
import re
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

import torch
import train


def tensors(value):
    if torch.is_tensor(value):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, (list, tuple)) else []


def recorded(arguments):
    """Numbers of a run by name, in the order in which they came, and its losses."""
    found, calls = {}, Counter()

    def keep(name, t):
        number = calls[name]
        calls[name] += 1
        found[f"{name}#{number}"] = t.detach().float().clone()

    def ready(model):
        def hook(name):
            def called(module, inputs, output):
                for t in tensors(output if not hasattr(output, "to_tuple") else output.to_tuple())[:1]:
                    keep(f"out {name}", t)
                    if t.requires_grad:
                        t.register_hook(lambda g: keep(f"dout {name}", g))

            return called

        for name, module in model.named_modules():
            module.register_forward_hook(hook(name))
        names = {id(p): n for n, p in model.named_parameters()}

        def before(optimizer, args, kwargs):
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                if p.grad is not None and id(p) in names:
                    keep(f"grad {names[id(p)]}", p.grad)

        def after(optimizer, args, kwargs):
            for n, p in model.named_parameters():
                if p.requires_grad:
                    keep(f"param {n}", p)
            for p, state in optimizer.state.items():
                for key, value in state.items():
                    if torch.is_tensor(value) and value.ndim and id(p) in names:
                        keep(f"state {key} {names[id(p)]}", value)
            for n, b in model.named_buffers():
                if b.is_floating_point():
                    keep(f"buffer {n}", b)

        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

    printed = io.StringIO()
    with redirect_stdout(printed):
        train.main(arguments, ready)
    words = " ".join(re.findall(r"tokens (.*)", printed.getvalue()))
    found["tokens"] = torch.tensor([float(x) for x in re.findall(r"\d+", words)])
    losses = [float(x) for x in re.findall(r"step \d+ loss (\S+)", printed.getvalue())]
    return found, losses


def apart(arguments):
    """recorded() in another process."""
    with tempfile.NamedTemporaryFile() as file:
        child = os.fork()
        if not child:
            code = 1
            try:
                torch.save(recorded(arguments), file.name)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"failed: {arguments}")
        return torch.load(file.name)


def distances(one, two):
    found = {}
    for name, a in one.items():
        b = two.get(name)
        if b is None or a.shape != b.shape:
            found[name] = None
        elif a.numel():
            found[name] = float((a - b).norm() / a.norm().clamp(min=1e-12))
    return found


def without_fault(arguments):
    if "--fault" not in arguments:
        return arguments
    i = arguments.index("--fault")
    return arguments[:i] + arguments[i + 2 :]


def measured(case):
    """For each name: distance of the runs, and of the runs without the fault."""
    reference, losses = apart(case["reference"])
    target, other = apart(case["target"])
    bare = without_fault(case["target"])
    if "--fault" not in case["target"]:
        healthy, third = target, other
    elif bare == case["reference"]:
        healthy, third = reference, losses
    else:
        healthy, third = apart(bare)
    wrong, right = distances(reference, target), distances(reference, healthy)
    return {k: (wrong[k], right.get(k)) for k in wrong}, losses, other, third


def effect(case, numbers):
    """Where the fault shows most, how far apart the runs are there, and how far they are without it.

    Of pairs with noise, only what modules give and gradients count: with Adam, parameters follow signs.
    """
    modules = case["expect"].get("modules") or []
    kinds = ("out ", "grad ") if case["noise"] else ("out ", "dout ", "grad ", "param ", "state ", "buffer ")
    rows = [(k, a, b) for k, (a, b) in numbers.items() if k.startswith(kinds) and a is not None and b is not None]
    here = [r for r in rows if any(m in r[0] for m in modules)] or rows
    if case["noise"]:
        firsts = [r for r in here if r[0].startswith("out ") and r[0].endswith("#0")] if modules else here
        return max(firsts or here, key=lambda r: r[1] / max(r[2], 1e-6))
    return max(here, key=lambda r: r[1])


if __name__ == "__main__":
    import diffusion  # noqa: F401  (once, before processes are forked)

    cases = json.loads((Path(__file__).parent / "cases.json").read_text())
    for case in cases:
        if sys.argv[1:] and case["name"] not in sys.argv[1:]:
            continue
        numbers, losses, other, third = measured(case)
        print(f"{case['name']:44} losses {losses} {other}, without the fault {third}")
        if case["kind"] == "fault":
            name, wrong, right = effect(case, numbers)
            print(f"    {name}: {wrong:.3g}, without the fault {right:.3g}", flush=True)
