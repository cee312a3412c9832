"""Makes two large msprobe dumps, a reference and a target with one fault, and times reading them.

    python benchmarks/make_msprobe_dump.py make runs/msprobe            # 27 MB each: 32,912 calls, 108,900 arguments
    python benchmarks/make_msprobe_dump.py time runs/msprobe/reference  # seconds and peak memory

The calls are those of a transformer trained with AdamW, one step, as an L1 statistics dump writes them. The target's
stats are those of the reference with rounding noise; from layer_norm number `layers` on (the first of the middle
layer) its outputs are off by two percent, and what follows by less.
"""

import argparse
import json
import math
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Tensor = dict[str, Any]
Entry = dict[str, Any]

BATCH, TOKENS, WIDTH, HEADS = 8, 128, 256, 8
ROUNDING, FAULT, AFTERMATH = 1e-6, 2e-2, 2e-3
ADAMW_OPS = ("__iadd__", "mul_", "lerp_", "mul_", "addcmul_", "sqrt", "__truediv__", "add_", "addcdiv_")


def scalar(value: float | int | bool) -> dict[str, Any]:
    return {"type": type(value).__name__, "value": value}


@dataclass
class Run:
    """Writes entries in execution order; stats are drawn when a tensor is made, so that both runs draw the same."""

    noise: float = 0.0
    faulty_call: str | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    stacks: dict[str, list[str]] = field(default_factory=dict)
    stats: random.Random = field(default_factory=lambda: random.Random(7))
    rounding: random.Random = field(default_factory=lambda: random.Random(11))
    after_fault: bool = False

    def tensor(self, shape: list[int], *, grad: bool = True) -> Tensor:
        size = self.stats.uniform(0.5, 3.0)
        mean, norm = self.stats.gauss(0, 0.02), size * math.sqrt(math.prod(shape))
        numbers = {"Max": 3.1 * size, "Min": -2.9 * size, "Mean": mean, "Norm": norm}
        stats = {name: self._rounded(number) for name, number in numbers.items()}
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape, **stats, "requires_grad": grad}

    def _rounded(self, number: float) -> float:
        error = self.rounding.gauss(0, self.noise)
        if self.noise and self.after_fault:
            error += AFTERMATH
        return number * (1 + error)

    def call(self, api: str, args: list[Any], shape: list[int], *, line: int) -> tuple[str, Tensor]:
        number = self.numbers.get(api, 0)
        self.numbers[api] = number + 1
        name = f"{api}.{number}"
        output = self.tensor(shape)
        if self.noise and name == self.faulty_call:
            output["Norm"] *= 1 + FAULT
            self.after_fault = True
        self.entries[f"{name}.forward"] = {"input_args": args, "input_kwargs": {}, "output": [output]}
        self.stacks[f"{name}.forward"] = [
            f"File /home/user/model.py, line {line}, in forward, \n return {api}(x)",
            "File /home/user/train.py, line 46, in <module>, \n loss = model(*data[i])",
        ]
        return name, output

    def backward(self, name: str, gradient: Tensor) -> Tensor:
        made = [tensor for tensor in self.entries[f"{name}.forward"]["input_args"] if "shape" in tensor]
        gradients = [self.tensor(tensor["shape"], grad=False) for tensor in made]
        self.entries[f"{name}.backward"] = {"input": [gradient], "output": gradients}
        return gradients[0]


def write_layer(run: Run, x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, list[str]]:
    """Attention and a feed-forward part, each with its norm and residual."""
    hidden = [BATCH, TOKENS, WIDTH]
    scores = [BATCH, HEADS, TOKENS, TOKENS]
    steps: list[tuple[str, list[int]]] = [
        ("Functional.layer_norm", hidden),
        ("Functional.linear", [BATCH, TOKENS, 3 * WIDTH]),
        ("Torch.matmul", scores),
        ("Tensor.__truediv__", scores),
        ("Tensor.masked_fill", scores),
        ("Functional.softmax", scores),
        ("Torch.matmul", hidden),
        ("Functional.linear", hidden),
        ("Tensor.__add__", hidden),
        ("Functional.layer_norm", hidden),
        ("Functional.linear", [BATCH, TOKENS, 4 * WIDTH]),
        ("Functional.gelu", [BATCH, TOKENS, 4 * WIDTH]),
        ("Functional.linear", hidden),
        ("Tensor.__add__", hidden),
    ]
    names, residual = [], x
    weights = iter(parameters)
    for line, (api, shape) in enumerate(steps):
        args: list[Any] = [x]
        if api in ("Functional.linear", "Functional.layer_norm"):
            args += [next(weights), next(weights)]
        if api in ("Torch.matmul", "Tensor.__add__"):
            args.append(residual)
        if api == "Functional.layer_norm":
            args.append(scalar(1e-5))
        name, x = run.call(api, args, shape, line=line)
        names.append(name)
        if api == "Tensor.__add__":
            residual = x
    return x, names


def layer_parameters(run: Run) -> list[Tensor]:
    shapes = [[WIDTH], [WIDTH], [3 * WIDTH, WIDTH], [3 * WIDTH], [WIDTH, WIDTH], [WIDTH], [WIDTH], [WIDTH]]
    shapes += [[4 * WIDTH, WIDTH], [4 * WIDTH], [WIDTH, 4 * WIDTH], [WIDTH]]
    return [run.tensor(shape) for shape in shapes]


def write_update(run: Run, parameter: Tensor) -> None:
    """The torch calls of AdamW for one parameter."""
    state = run.tensor(parameter["shape"], grad=False)
    for line, op in enumerate(ADAMW_OPS):
        args = [state, parameter, scalar(0.9)] if op in ("lerp_", "addcmul_", "addcdiv_") else [state, scalar(1.0)]
        _, state = run.call(f"Tensor.{op}", args, parameter["shape"], line=100 + line)


def make_run(layers: int, *, noise: float) -> Run:
    run = Run(noise=noise, faulty_call=f"Functional.layer_norm.{layers}")
    parameters = [layer_parameters(run) for _ in range(layers)]
    x, names = run.tensor([BATCH, TOKENS, WIDTH]), list[str]()
    for layer in parameters:
        x, added = write_layer(run, x, layer)
        names += added
    gradient = run.tensor(x["shape"], grad=False)
    for name in reversed(names):
        gradient = run.backward(name, gradient)
    for layer in parameters:
        for parameter in layer:
            write_update(run, parameter)
    return run


def write_dump(run: Run, directory: Path) -> None:
    folder = directory / "step0" / "rank0"
    folder.mkdir(parents=True, exist_ok=True)
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**head, "data": run.entries}, indent=1), encoding="utf-8")
    (folder / "stack.json").write_text(json.dumps(_shared_stacks(run.stacks), indent=1), encoding="utf-8")
    (folder / "construct.json").write_text("{}", encoding="utf-8")


def _shared_stacks(stacks: dict[str, list[str]]) -> dict[str, Any]:
    names: dict[tuple[str, ...], list[str]] = {}
    for name, frames in stacks.items():
        names.setdefault(tuple(frames), []).append(name)
    return {str(number): [users, list(frames)] for number, (frames, users) in enumerate(names.items())}


def make(directory: Path, layers: int) -> Iterator[str]:
    for word, noise in (("reference", 0.0), ("target", ROUNDING)):
        run = make_run(layers, noise=noise)
        write_dump(run, directory / word)
        tensors = sum(_count(entry, "shape") for entry in run.entries.values())
        numbers = sum(_count(entry, "value") for entry in run.entries.values())
        size = (directory / word / "step0" / "rank0" / "dump.json").stat().st_size
        counts = f"{len(run.entries)} calls, {tensors} tensors, {numbers} numbers"
        yield f"{directory / word}: {counts}, dump.json {size / 1e6:.1f} MB"


def _count(found: Any, key: str) -> int:
    if isinstance(found, dict):
        return 1 if key in found else sum(_count(item, key) for item in found.values())
    return sum(_count(item, key) for item in found) if isinstance(found, list) else 0


def measure(dumps: list[Path]) -> Iterator[str]:
    """Read each dump whole; the peak is that of this process, interpreter and libraries included."""
    from ulpscope.dialects.opening import open_run

    kept = []
    for dump in dumps:
        start, computing = time.perf_counter(), time.process_time()
        trace = open_run(dump)
        calls, values, uses = (trace.collect(frame) for frame in (trace.calls(), trace.values(), trace.tensors()))
        seconds, computed = time.perf_counter() - start, time.process_time() - computing
        kept.append(trace)
        counts = f"{calls.height} calls, {values.height} values, {uses.height} uses"
        yield f"{dump}: {counts} in {seconds:.2f} s ({computed:.2f} s of processor time)"
    yield f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="write DIR/reference and DIR/target")
    making.add_argument("directory", type=Path)
    making.add_argument("--layers", type=int, default=242)
    timing = commands.add_parser("time", help="read dumps, one after the other")
    timing.add_argument("dumps", type=Path, nargs="+")
    args = parser.parse_args()
    for line in make(args.directory, args.layers) if args.command == "make" else measure(args.dumps):
        print(line)


if __name__ == "__main__":
    main()
