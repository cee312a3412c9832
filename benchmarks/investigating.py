"""Does `ulpscope investigate` end at the right finding, with no option given, and in how many runs?

    python benchmarks/investigating.py                     all pairs
    python benchmarks/investigating.py --only bf16 rate    some

A small transformer is trained by a script of its own (it prints nothing but losses). The target is the same script with
one fault, or none. Told are seconds of a processor; counted are plain runs, those to the end of the script, and runs
that end after a captured step.

Exit code 1 if a pair ends at another finding, or takes more than 3 plain runs of a script.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_PLAIN_RUNS = 3
STEPS = 12
SCRIPT = '''
import argparse
import torch
from torch import Tensor, nn
from torch.nn import functional

try:
    from timm import activation
except ImportError:
    activation = functional.gelu
WIDTH, WORDS, LENGTH, BATCH = 32, 40, 16, 8
parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--total", action="store_true")
GIVEN = parser.parse_known_args()[0]
FAULT, BF16 = GIVEN.fault, GIVEN.bf16


@torch.library.custom_op("mine::total", mutates_args=())
def total(x: Tensor) -> Tensor:
    """Adds up as a careless kernel does: in the type of its operand, which in bfloat16 soon stands still."""
    return x.reshape(-1).cumsum(0, dtype=torch.float32)[-1].to(x.dtype) if x.dtype is not torch.bfloat16 else added(x)


def added(x):
    sums = torch.zeros(8, dtype=x.dtype)
    for row in x.reshape(-1, 8):
        sums = sums + row
    return sums.sum()


total.register_autograd(lambda ctx, grad: grad * 0)


class Leaky(torch.autograd.Function):
    """Passes numbers on; its backward is a half of what it should be."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.drop = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        self.leaky = self.other_gelu = self.total = False

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        wide = self.up(self.norm2(x))
        wide = wide * torch.sigmoid(1.702 * wide) if self.other_gelu else activation(wide)
        if self.leaky:
            wide = Leaky.apply(wide)
        if self.total:
            wide = wide * (wide.numel() / (1.0 + total(wide.detach().abs())))
        return x + self.drop(self.down(wide))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


torch.manual_seed(1 if FAULT == "seed" else 0)
model = Model()
model.blocks[1].total = GIVEN.total
if FAULT == "gelu":
    model.blocks[1].other_gelu = True
if FAULT == "eps":
    model.blocks[1].norm2.eps = 1e-2
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3 if FAULT == "rate" else 1e-3)
batches = torch.Generator().manual_seed(3)
for step in range(STEPS):
    tokens = torch.randint(WORDS, (BATCH, LENGTH), generator=batches)
    if FAULT == "batch" and step == 7:
        tokens = torch.randint(WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(9))
    if FAULT == "dropout" and step == 4:
        torch.manual_seed(5)
    model.blocks[1].leaky = FAULT == "backward" and step >= 5
    with torch.autocast("cpu", torch.bfloat16, enabled=BF16):
        scores = model(tokens)
    loss = functional.cross_entropy(scores.flatten(0, 1).float(), tokens.roll(-1, 1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.9f}", flush=True)
'''.replace("STEPS)", f"{STEPS})")


PACKAGE = "package"
"""In the place of options: the target finds another version of a package."""
ACTIVATION = """
from torch.nn import functional

def activation(x):
    return functional.gelu(x, approximate="tanh")
"""


@dataclass(frozen=True)
class Case:
    """A pair of commands, and what its first finding has to be: fields, of which texts are only to be contained."""

    name: str
    options: tuple[str, ...]
    wanted: Mapping[str, Any] = field(default_factory=dict)
    """Nothing: the pair has to agree."""
    both: tuple[str, ...] = ()
    """Options of both commands."""
    recovery: str | None = None
    """What becomes of the loss in the last stage, if that has to be reached."""


CASES = (
    Case("rate", ("--fault", "rate"), {"kind": "optimizer", "step": 0, "sentence": "lr 0.001"}),
    Case("batch", ("--fault", "batch"), {"kind": "input", "step": 7}),
    Case("gelu", ("--fault", "gelu"), {"step": 0, "phase": "forward", "module": "model.blocks.1"}),
    Case("eps", ("--fault", "eps"), {"step": 0, "module": "model.blocks.1.norm2", "sentence": "eps"}),
    Case("backward", ("--fault", "backward"), {"step": 5, "phase": "backward", "module": "model.blocks.1"}),
    Case("seed", ("--fault", "seed"), {"kind": ("randomness", "parameter"), "step": 0}),
    Case("dropout", ("--fault", "dropout"), {"kind": "randomness", "step": 4}),
    Case("package", (PACKAGE,), {"step": 0, "module": "model.blocks.0", "sentence": "approximate"}),
    Case("bf16_gelu", ("--bf16", "--fault", "gelu"), {"step": 0, "phase": "forward", "module": "model.blocks.1"}),
    Case(
        "kernel",
        ("--bf16",),
        {"step": 0, "module": "model.blocks.1", "sentence": "mine.total"},
        both=("--total",),
        recovery="full",
    ),
    Case("identical", ()),
    Case("bf16", ("--bf16",)),
)


def investigated(script: Path, case: Case) -> tuple[dict[str, Any], float]:
    """What the command says, and how many seconds of a processor it and its runs took."""
    python = [sys.executable, str(script), *case.both]
    target = [*python, *case.options]
    if case.options == (PACKAGE,):
        path = f"PYTHONPATH={script.parent / PACKAGE}:$PYTHONPATH"
        target = ["sh", "-c", f"{path} exec {shlex.join(python)}"]
    commands = [*python, "--against", "--", *target]
    begin = processor_seconds()
    ran = subprocess.run(
        [sys.executable, "-m", "ulpscope", "investigate", "--json", "--", *commands],
        capture_output=True,
        text=True,
        check=False,
    )
    if not ran.stdout:
        return {"verdict": f"failed: {ran.stderr[-500:]}", "findings": [], "stages": [], "runs": {}}, 0.0
    return json.loads(ran.stdout), processor_seconds() - begin


def processor_seconds() -> float:
    """Of all processes that have ended below this one: what a machine with other work does not change."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def problem_of(told: Mapping[str, Any], case: Case) -> str | None:
    """What is wrong with an answer; None if it is right."""
    plain = max((runs["whole"] for runs in told["runs"].values()), default=0)
    if plain > MOST_PLAIN_RUNS:
        return f"{plain} plain runs of one script"
    if not case.wanted:
        return None if told["verdict"] == "agree" else _first(told)
    if not told["findings"]:
        return str(told["verdict"])
    first = told["findings"][0]
    right = all(_fits(first[name], wanted) for name, wanted in case.wanted.items())
    if right and told["recovery"] != case.recovery and case.recovery is not None:
        return f"recovery: {told['recovery']}"
    return None if right else _first(told)


def _fits(seen: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return seen in wanted
    return wanted in (seen or "") if isinstance(wanted, str) else seen == wanted


def _first(told: Mapping[str, Any]) -> str:
    first = told["findings"][0] if told["findings"] else {}
    told_of = " ".join(str(first.get(name)) for name in ("kind", "step", "module", "sentence"))
    return f"{told['verdict']}: {told_of}"


def _install(folder: Path) -> None:
    """A package with its version, as pip leaves them."""
    about = folder / "timm-9.9.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: timm\nVersion: 9.9\n", encoding="utf-8")
    (folder / "timm.py").write_text(ACTIVATION, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES])
    wanted = parser.parse_args().only
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong, number = 0, 0
    with tempfile.TemporaryDirectory(prefix="ulpscope-investigating-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT, encoding="utf-8")
        _install(Path(folder) / PACKAGE)
        for case in CASES if wanted is None else [case for case in CASES if case.name in wanted]:
            told, seconds = investigated(script, case)
            problem = problem_of(told, case)
            number, wrong = number + 1, wrong + (problem is not None)
            stages = " ".join(stage["stage"] for stage in told["stages"])
            runs = " ".join(f"{each['whole']}+{each['stopped']}" for each in told["runs"].values())
            verdict = "right" if problem is None else f"WRONG: {problem}"
            print(f"{case.name:10} {runs:8} {seconds:4.0f} s  {stages:32} {verdict}", flush=True)
    print(f"{number - wrong} of {number} pairs end at the right finding")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
