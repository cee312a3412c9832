"""How many of PyTorch's operators run under capture unchanged and are recorded truly.

    python benchmarks/breadth.py                 every operator of torch.testing's database, CPU
    python benchmarks/breadth.py --ops add lu    some of them
    python benchmarks/breadth.py --quick 40      40 of them, spread over the database

An operator passes if, for each of its first samples, the captured result equals the plain one bit for bit (or both
raise the same), and one recorded call's saved inputs and outputs are the true ones. Exit code 1 below 99 %.
"""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse
import contextlib
import copy
import itertools
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map_only

import ulpscope
from ulpscope.records.calls import Value
from ulpscope.trace.reader import RankTrace, open_trace

BAR = 0.99
SAMPLES = 12
OPS_PER_TRACE = 60
SEED = 1

UNDEFINED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_".split()
)


UNDEFINED_CONTENTS = "contents undefined"
VARYING = "plain runs differ from each other"
PLAIN_RUNS = 40


@dataclass(slots=True)
class Arguments:
    """What an operator is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[Tensor]:
        return tensors_of((self.args, self.kwargs))

    def copied(self) -> "Arguments":
        """Independent tensors with the same strides and sharing."""
        memo: dict[int, Any] = {}
        return Arguments(*tree_map_only(Tensor, lambda t: copy_tensor(t, memo), (self.args, self.kwargs)))


@dataclass(slots=True)
class Outcome:
    """What an operator gave, or raised."""

    result: Any = None
    error: str | None = None


@dataclass(slots=True)
class Trial:
    """One sample of one operator, run plain and under capture."""

    op: OpInfo
    given: Arguments
    inputs: list[Tensor]
    """Copies of the tensors, made before any run."""
    plain: Outcome
    repeatable: bool
    captured: Outcome = field(default_factory=Outcome)
    step: int = -1


@dataclass(slots=True)
class Verdict:
    """What became of one operator."""

    name: str
    excluded: str | None = None
    failure: str | None = None
    wrapped: bool = False
    composed: bool = False
    """Failed, but every true tensor belongs to a recorded call inside: torch's own Python code, which no mode sees."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    ops = choose(arguments.ops, arguments.quick)
    verdicts = []
    errors: dict[str, int] = defaultdict(int)
    with tempfile.TemporaryDirectory(prefix="ulpscope-breadth-") as folder:
        for number, group in enumerate(groups(ops)):
            verdicts += measure(group, Path(folder) / str(number), errors, samples=arguments.samples)
    return tell(verdicts, errors, seconds=time.monotonic() - began)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", default=[], metavar="NAME", help="only these operators")
    parser.add_argument("--quick", type=int, metavar="N", help="only N operators, evenly spread")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"samples an operator (default: {SAMPLES})")
    return parser.parse_args(argv)


def choose(names: Sequence[str], quick: int | None) -> list[OpInfo]:
    if names:
        chosen = [op for op in op_db if op.name in names or full_name(op) in names]
        unknown = set(names) - {op.name for op in chosen} - {full_name(op) for op in chosen}
        if unknown:
            raise SystemExit(f"breadth: no such operator: {', '.join(sorted(unknown))}")
        return chosen
    if quick:
        places = np.linspace(0, len(op_db) - 1, min(quick, len(op_db))).round().astype(int)
        return [op_db[place] for place in places]
    return list(op_db)


def groups(ops: Sequence[OpInfo]) -> Iterator[Sequence[OpInfo]]:
    for start in range(0, len(ops), OPS_PER_TRACE):
        yield ops[start : start + OPS_PER_TRACE]


def measure(ops: Sequence[OpInfo], out: Path, errors: dict[str, int], *, samples: int) -> list[Verdict]:
    """Run these operators, all in one trace, and judge each."""
    trials = {full_name(op): list(trials_of(op, samples)) for op in ops}
    run_captured([trial for each in trials.values() for trial in each], out)
    rank = open_trace(out).ranks[0]
    for error in rank.info.errors:
        errors[error] += 1
    recorded = Recorded(rank)
    return [judge(full_name(op), trials[full_name(op)], recorded) for op in ops]


def full_name(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def trials_of(op: OpInfo, samples: int) -> Iterator[Trial]:
    dtypes = [torch.float32] if torch.float32 in op.dtypes else sorted(op.dtypes, key=str)
    if not dtypes:
        return
    torch.manual_seed(SEED)
    for sample in itertools.islice(op.sample_inputs("cpu", dtypes[0]), samples):
        given = Arguments((sample.input, *sample.args), dict(sample.kwargs))
        inputs = given.copied().tensors()
        plain = run(op, given.copied())
        again = run(op, given.copied())
        yield Trial(op, given.copied(), inputs, plain, repeatable=difference(plain, again) is None)


def run_captured(trials: Sequence[Trial], out: Path) -> None:
    copies = [trial.given.copied() for trial in trials]
    with ulpscope.capture(out, level="api", save="tensors") as capture:
        for step, (trial, given) in enumerate(zip(trials, copies, strict=True), start=1):
            capture.step()
            trial.step = step
            trial.captured = run(trial.op, given)


def run(op: OpInfo, given: Arguments) -> Outcome:
    torch.manual_seed(SEED)
    try:
        return Outcome(result=as_users_call(op)(*given.args, **given.kwargs))
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {error}")


def as_users_call(op: OpInfo) -> Callable[..., Any]:
    """What the operator's public name stands for now: the database keeps functions as they were at its import."""
    found: Any = torch
    for part in op.name.split("."):
        found = getattr(found, part, None)
    return found if found is not None and getattr(found, "__wrapped__", None) is op.op else op.op


def varies(trial: Trial) -> bool:
    """Whether the operator does not even give the same result twice without capture."""
    return any(difference(trial.plain, run(trial.op, trial.given.copied())) is not None for _ in range(PLAIN_RUNS))


def judge(name: str, trials: Sequence[Trial], recorded: "Recorded") -> Verdict:
    reason = why_excluded(trials)
    verdict = Verdict(name, excluded=reason)
    if reason == UNDEFINED_CONTENTS:
        differing = [trial for trial in trials if form_of(trial.plain) != form_of(trial.captured)]
        if differing:
            return Verdict(
                name, failure=f"plain: {form_of(differing[0].plain)}, captured: {form_of(differing[0].captured)}"
            )
        return verdict
    for number, trial in enumerate(trials):
        try:
            problem = difference(trial.plain, trial.captured) if trial.repeatable else None
            if problem is None and reason is None and trial.captured.error is None:
                problem, inside = recorded.check(trial)
                verdict.wrapped |= inside and is_wrapper(trial.op)
                verdict.composed = inside and problem is not None
        except Exception as error:
            problem = f"cannot be read back: {type(error).__name__}: {str(error).splitlines()[0]}"
        if problem is not None and difference(trial.plain, trial.captured) is not None and varies(trial):
            return Verdict(name, excluded=VARYING)
        if problem is not None:
            verdict.failure = f"sample {number}: {problem}"
            verdict.excluded = None
            return verdict
    return verdict


def why_excluded(trials: Sequence[Trial]) -> str | None:
    if not trials:
        return "no samples on the CPU"
    if trials[0].op.name in UNDEFINED:
        return UNDEFINED_CONTENTS
    if not all(trial.repeatable for trial in trials):
        return VARYING
    if all(trial.plain.error is not None for trial in trials):
        return f"raises without capture too: {trials[0].plain.error}"[:160]
    if not any(tensors_of(trial.plain.result) for trial in trials):
        return "no tensor comes out"
    return None


class Recorded:
    """The calls of a trace by step, with the contents that were saved for them."""

    def __init__(self, rank: RankTrace) -> None:
        self._rank = rank
        self._values: dict[int, Value] = {}
        self._uses: dict[int, dict[str, list[int]]] = defaultdict(lambda: {"input": [], "output": []})
        for call, role, value in rank.collect(rank.tensors().select("call", "role", "value")).iter_rows():
            if role in ("input", "output"):
                self._uses[call][role].append(value)
        self._calls: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for call, name, step in rank.collect(rank.calls().select("id", "name", "step").sort("id")).iter_rows():
            self._calls[step].append((call, name))

    def check(self, trial: Trial) -> tuple[str | None, bool]:
        """What is wrong with the record of a trial, if anything; and whether only calls inside the operator have it."""
        calls = self._calls[trial.step]
        if not calls:
            return "no call recorded", False
        self._values = self._rank.find_values(self._used_by(calls))
        outputs = tensors_of(trial.captured.result)
        problems = [self._compare(call, trial.inputs, outputs) for call, _ in calls]
        if None in problems:
            return None, False
        inside = self._have_all(calls, trial.inputs, outputs)
        if inside and is_wrapper(trial.op):
            return None, True
        names = ", ".join(name for _, name in calls[:6])
        return f"{problems[0]} (recorded: {names})", inside

    def _used_by(self, calls: Sequence[tuple[int, str]]) -> set[int]:
        return {value for call, _ in calls for values in self._uses[call].values() for value in values}

    def _compare(self, call: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str | None:
        uses = self._uses[call]
        for role, tensors in (("input", inputs), ("output", outputs)):
            if len(uses[role]) != len(tensors):
                return f"{len(uses[role])} {role}s recorded, {len(tensors)} are true"
            for place, (value, tensor) in enumerate(zip(uses[role], tensors, strict=True)):
                problem = self._differs(self._values[value], tensor)
                if problem is not None:
                    return f"{role} {place}: {problem}"
        return None

    def _have_all(self, calls: Sequence[tuple[int, str]], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
        return all(
            any(
                self._differs(self._values[value], tensor) is None
                for call, _ in calls
                for value in self._uses[call][role]
            )
            for role, tensors in (("input", inputs), ("output", outputs))
            for tensor in tensors
        )

    def _differs(self, value: Value, tensor: Tensor) -> str | None:
        if value.dtype != str(tensor.dtype).removeprefix("torch."):
            return f"dtype {value.dtype}, true is {tensor.dtype}"
        if value.shape != tuple(tensor.shape):
            return f"shape {value.shape}, true is {tuple(tensor.shape)}"
        data = self._rank.data(value)
        if data is None:
            return f"no data (initialized {value.initialized}, layout {value.layout})"
        true = elements_of(tensor)
        if true is None:
            return f"cannot be told for layout {tensor.layout}"
        return None if same_elements(plain_array(data), true) else "data is not the true data"


def is_wrapper(op: OpInfo) -> bool:
    """Whether the database calls the operator through a function of its own."""
    return str(getattr(op.op, "__module__", "")).startswith("torch.testing")


def copy_tensor(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    with contextlib.suppress(Exception):
        return copy.deepcopy(tensor.detach(), memo).requires_grad_(tensor.requires_grad)
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def form_of(outcome: Outcome) -> Any:
    """What a result looks like apart from its contents."""
    return outcome.error or [(t.dtype, t.shape, t.stride()) for t in tensors_of(outcome.result)]


def difference(plain: Outcome, captured: Outcome) -> str | None:
    if plain.error != captured.error:
        return f"plain: {plain.error or 'a result'}, captured: {captured.error or 'a result'}"
    leaves, shape = tree_flatten(plain.result)
    others, other_shape = tree_flatten(captured.result)
    if shape != other_shape:
        return "captured result has another structure"
    for place, (leaf, other) in enumerate(zip(leaves, others, strict=True)):
        if not same_leaf(leaf, other):
            return f"captured result {place} differs from the plain one"
    return None


def same_leaf(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if not isinstance(one, Tensor):
        return bool(one == other) or one != one
    return same_tensor(one, other)


def same_tensor(one: Tensor, other: Tensor) -> bool:
    traits = [(t.dtype, t.shape, t.layout, t.device, t.requires_grad, t.is_quantized) for t in (one, other)]
    if traits[0] != traits[1]:
        return False
    if one.layout is not torch.strided:
        return all(same_tensor(a, b) for a, b in zip(parts_of(one), parts_of(other), strict=True))
    left, right = elements_of(one), elements_of(other)
    return one.stride() == other.stride() and left is not None and right is not None and same_elements(left, right)


def parts_of(tensor: Tensor) -> list[Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


def elements_of(tensor: Tensor) -> np.ndarray[Any, Any] | None:
    """Elements as an array of numbers, or of bits where numpy has none; None if the tensor is not a plain one."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    tensor = tensor.detach().resolve_neg()
    tensor = tensor.resolve_conj().contiguous() if tensor.is_conj() else tensor.contiguous()
    if tensor.dtype is torch.complex32:
        tensor = torch.view_as_real(tensor)
    elif tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.int16)
    elif str(tensor.dtype).startswith("torch.float8"):
        tensor = tensor.view(torch.uint8)
    return tensor.numpy()


def plain_array(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    whole = np.array(data, order="C")
    return whole if whole.dtype.fields is None else whole.reshape(*whole.shape, 1).view(np.float16)


def same_elements(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Equal bits; any nan equals any nan."""
    if one.shape != other.shape or one.dtype.itemsize != other.dtype.itemsize:
        return False
    if one.dtype.kind == "c":
        return same_elements(one.real.copy(), other.real.copy()) and same_elements(one.imag.copy(), other.imag.copy())
    if one.tobytes() == other.tobytes():
        return True
    if one.dtype.kind != "f" or other.dtype != one.dtype:
        return False
    bits = np.dtype(f"u{one.dtype.itemsize}")
    return bool(((one.view(bits) == other.view(bits)) | (np.isnan(one) & np.isnan(other))).all())


def tell(verdicts: Sequence[Verdict], errors: dict[str, int], *, seconds: float) -> int:
    counted = [verdict for verdict in verdicts if verdict.excluded is None]
    failed = [verdict for verdict in counted if verdict.failure is not None]
    print(f"{len(verdicts)} operators, {len(verdicts) - len(counted)} not counted, {seconds:.0f} s\n")
    for reason, names in by_reason(verdicts).items():
        print(f"not counted, {reason}: {', '.join(names)}")
    wrapped = [verdict.name for verdict in counted if verdict.wrapped and verdict.failure is None]
    print(f"recorded as the calls inside the database's own wrapper: {', '.join(wrapped) or 'none'}")
    for error, count in errors.items():
        print(f"error of ours ({count} traces): {error}")
    for verdict in failed:
        print(f"FAILED {verdict.name}: {verdict.failure}{' [every tensor seen inside]' if verdict.composed else ''}")
    passed = len(counted) - len(failed)
    share = passed / len(counted) if counted else 0.0
    print(f"\n{passed} of {len(counted)} operators pass ({share:.2%}); bar {BAR:.0%}")
    return 0 if share >= BAR else 1


def by_reason(verdicts: Sequence[Verdict]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.excluded is not None:
            reasons[verdict.excluded].append(verdict.name)
    return dict(reasons)


if __name__ == "__main__":
    sys.exit(main())
