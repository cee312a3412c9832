"""Does capture change nothing? Every model plain and captured, compared bit for bit.

    python benchmarks/same_numbers.py                    every model, level and way of saving
    python benchmarks/same_numbers.py --only gpt --quick level api, save stats
    python benchmarks/same_numbers.py --only gpt --device cuda

Compared are losses, gradients, weights, outputs and the states of the random generators at the end. One more captured
run a level recomputes every reused summary; none may be wrong. Exit code 1 if anything differs or capture erred.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])

import torch  # noqa: E402

from scenarios import SCENARIOS, Setting  # noqa: E402

Tensors = dict[str, torch.Tensor]
DISTRIBUTED = ("ddp", "ddp_hooked", "fsdp", "tensor_parallel", "collectives")
DISTRIBUTED_SCRIPT = HERE / "ddp_model.py"
RANKS = 2


@dataclass(frozen=True)
class Variant:
    """How a run is captured."""

    level: str
    save: str
    verify: bool = False

    def __str__(self) -> str:
        return f"{self.level}/{self.save}" + ("/verify" if self.verify else "")


ALL = tuple(
    Variant(level, save) for level, save in itertools.product(("module", "api", "kernel"), ("stats", "tensors"))
)
VERIFYING = tuple(Variant(level, "stats", verify=True) for level in ("module", "api", "kernel"))
QUICK = (Variant("api", "stats"), Variant("api", "stats", verify=True))


@dataclass
class Outcome:
    """What came of one captured run against the plain one."""

    model: str
    variant: Variant
    compared: int = 0
    different: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    coverage: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return bool(self.compared and self.coverage) and not (self.different or self.errors or self.unproven)

    @property
    def unproven(self) -> str | None:
        """Why the reuse of summaries is wrong or was not checked."""
        if not self.variant.verify:
            return None
        if self.coverage["summaries_wrong"]:
            return f"{self.coverage['summaries_wrong']} reused summaries are wrong"
        return None if self.coverage["summaries_verified"] == self.coverage["summaries_reused"] else "not all verified"

    def row(self) -> str:
        coverage = self.coverage
        unobserved = ", ".join(f"{reason} {count}" for reason, count in coverage.get("calls_unobserved", {}).items())
        verified = f"{coverage.get('summaries_reused', 0)}/{coverage.get('summaries_verified', 0)}"
        return (
            f"{self.model:<24} {self.variant!s:<20} {'ok' if self.passed else 'FAILED':<7} {self.compared:>5} "
            f"{len(self.different):>5} {coverage.get('calls_recorded', 0):>6} {verified:>12} "
            f"{coverage.get('summaries_wrong', 0):>6} {len(self.errors):>6}  {unobserved}"
        )

    def details(self) -> Iterator[str]:
        if self.different:
            more = len(self.different) - 4
            yield f"differs: {', '.join(self.different[:4])}" + (f" and {more} more" if more > 0 else "")
        yield from (f"error of capture: {error}" for error in self.errors[:4])
        if self.coverage and self.unproven:
            yield self.unproven
        if not self.coverage:
            yield "no closed trace was written"


HEADER = (
    f"{'model':<24} {'capture':<20} {'result':<7} {'same':>5} {'diff':>5} {'calls':>6} {'reuse/verify':>12} "
    f"{'wrong':>6} {'errors':>6}  unobserved"
)


def random_states(device: str) -> Tensors:
    states = {"random torch": torch.get_rng_state()}
    states["random python"] = torch.tensor(random.getstate()[1], dtype=torch.int64)
    if device != "cpu":
        states[f"random {device}"] = torch.get_device_module(device).get_rng_state()
    return states


def run_plain(model: str, setting: Setting) -> Tensors:
    random.seed(setting.seed)
    return {**SCENARIOS[model].run(setting).flat(), **random_states(setting.device)}


def run_captured(model: str, setting: Setting, variant: Variant, trace: Path) -> Tensors:
    from ulpscope.workflows.run.python_capture import capture

    with capture(trace, level=variant.level, save=variant.save, verify=variant.verify):
        return run_plain(model, setting)


def run_apart(model: str, setting: Setting, variant: Variant | None, folder: Path) -> Tensors:
    """The same in a process of its own."""
    out = folder / "results.pt"
    command = [sys.executable, __file__, "--child", str(out), "--only", model, "--device", setting.device]
    command += ["--seed", str(setting.seed), "--steps", str(setting.steps), *capture_options(variant, folder)]
    return {} if not succeeds(command) else dict(torch.load(out, weights_only=True))


def run_distributed(kind: str, setting: Setting, variant: Variant | None, folder: Path) -> Tensors:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    options = ["--kind", kind, "--out", str(folder), "--seed", str(setting.seed), "--steps", str(setting.steps)]
    if not succeeds([*launcher, str(DISTRIBUTED_SCRIPT), *options, *capture_options(variant, folder)]):
        return {}
    ranks = [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]
    return {f"rank {rank} {name}": tensor for rank, found in enumerate(ranks) for name, tensor in found.items()}


def capture_options(variant: Variant | None, folder: Path) -> list[str]:
    if variant is None:
        return []
    options = ["--trace", str(folder / "trace"), "--level", variant.level, "--save", variant.save]
    return [*options, "--verify"] if variant.verify else options


def succeeds(command: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        print(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr[-3000:]}", file=sys.stderr)
    return done.returncode == 0


def run(model: str, setting: Setting, variant: Variant | None, folder: Path) -> Tensors:
    if model in DISTRIBUTED:
        return run_distributed(model, setting, variant, folder)
    if SCENARIOS[model].compiled:
        return run_apart(model, setting, variant, folder)
    if variant is None:
        return run_plain(model, setting)
    return run_captured(model, setting, variant, folder / "trace")


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device):
        return False
    return torch.equal(bits(one), bits(other))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def compare(model: str, variant: Variant, plain: Tensors, captured: Tensors, trace: Path) -> Outcome:
    outcome = Outcome(model, variant, compared=len(plain))
    outcome.different = sorted(plain.keys() ^ captured.keys())
    outcome.different += [name for name in plain.keys() & captured.keys() if not same_bits(plain[name], captured[name])]
    for file in sorted(trace.glob("*/rank.json")):
        info = json.loads(file.read_text())
        outcome.errors += info["errors"]
        if info["closed"] is not None:
            outcome.coverage = merged(outcome.coverage, info["coverage"])
    return outcome


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Coverage of several ranks as one."""
    if not one:
        return other
    return {
        key: merged(one[key], other[key]) if isinstance(one[key], dict) else one[key] + other[key]
        for key in one.keys() & other.keys()
    } | {key: both[key] for both in (one, other) for key in one.keys() ^ other.keys() if key in both}


def check(model: str, setting: Setting, variants: Iterable[Variant]) -> Iterator[Outcome]:
    """Run a model plain once, then captured in every way."""
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as root:
        folder = Path(root) / "plain"
        folder.mkdir()
        plain = run(model, setting, None, folder)
        for number, variant in enumerate(variants):
            folder = Path(root) / str(number)
            folder.mkdir()
            captured = run(model, setting, variant, folder)
            yield compare(model, variant, plain, captured, folder / "trace")


def child(options: argparse.Namespace, setting: Setting) -> int:
    (model,) = options.only
    if options.trace is None:
        results = run_plain(model, setting)
    else:
        variant = Variant(options.level, options.save, verify=options.verify)
        results = run_captured(model, setting, variant, options.trace)
    torch.save(results, options.child)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", choices=[*SCENARIOS, *DISTRIBUTED], help="this model; may be given again"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="level api, save stats only")
    for name, kind in (("--child", Path), ("--trace", Path), ("--level", str), ("--save", str)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--verify", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(1)
    setting = Setting(seed=options.seed, steps=options.steps, device=options.device)
    if options.child is not None:
        return child(options, setting)
    models = options.only or ([*SCENARIOS, *DISTRIBUTED] if options.device == "cpu" else ["gpt"])
    passed = failed = 0
    print(HEADER)
    for model in models:
        for outcome in check(model, setting, QUICK if options.quick else (*ALL, *VERIFYING)):
            passed, failed = passed + outcome.passed, failed + (not outcome.passed)
            print(outcome.row(), flush=True)
            if not outcome.passed:
                print(*(f"    {line}" for line in outcome.details()), sep="\n", flush=True)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main())
