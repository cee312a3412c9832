"""Samples of PyTorch's operator database, called under capture: forward, and backward where there is one.

captured = capture_operator(Wanted("linalg.svd", "float32", samples=4), folder)
captured.path                            a trace with one step a sample
captured.reason                          why there is none
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_leaves, tree_map_only

import ulpscope

SEED = 1
SAMPLES_SEEN = 60
"""Of so many the first that are not empty are taken: some operators have thousands."""
MOST_ELEMENTS = 2**18
Given = tuple[tuple[Any, ...], dict[str, Any]]
FORMS = ("function", "method", "inplace", "operator")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One operator in one dtype."""

    operator: str
    dtype: str
    samples: int
    forms: tuple[str, ...] = ("function",)


@dataclass(frozen=True, slots=True)
class Captured:
    """What capturing an operator left."""

    path: Path | None = None
    reason: str | None = None
    """Why there is no trace."""
    steps: dict[int, Tried] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tried:
    """One captured sample."""

    form: str
    differentiable: bool


@dataclass(frozen=True, slots=True)
class _Sample:
    form: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: tuple[Tensor | None, ...]


def operator_names(quick: int | None = None) -> list[str]:
    """Names of the database's operators: all, or some spread over it."""
    if not quick:
        return [full_name(op) for op in op_db]
    places = np.linspace(0, len(op_db) - 1, min(quick, len(op_db))).round().astype(int)
    return [full_name(op_db[place]) for place in places]


def full_name(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def find_operator(name: str) -> OpInfo:
    return next(op for op in op_db if full_name(op) == name)


def capture_operator(wanted: Wanted, folder: Path) -> Captured:
    """Call the operator's samples in one trace."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    op = find_operator(wanted.operator)
    dtype = getattr(torch, wanted.dtype)
    if dtype not in op.supported_dtypes("cpu"):
        return Captured(reason=f"has no {wanted.dtype} on the CPU")
    samples = list(_samples(op, dtype, wanted))
    if not samples:
        return Captured(reason="has no sample that runs on the CPU and is not empty")
    steps = {}
    copies = [_copies(sample) for sample in samples]
    with ulpscope.capture(folder, level="api", save="tensors") as capture:
        for step, (sample, given) in enumerate(zip(samples, copies, strict=True), start=1):
            capture.step()
            steps[step] = Tried(sample.form, any(each is not None for each in sample.gradients))
            _call(sample, given)
    if not any(folder.iterdir() if folder.is_dir() else ()):
        return Captured(reason="calls nothing that takes or gives a tensor")
    return Captured(folder, steps=steps)


def _samples(op: OpInfo, dtype: torch.dtype, wanted: Wanted) -> Iterator[_Sample]:
    for form in wanted.forms:
        function = _form(op, form)
        if function is None:
            continue
        found = (_sample(op, dtype, each, form, function) for each in _drawn(op, dtype))
        kept = (sample for sample in found if sample is not None)
        yield from itertools.islice(kept, wanted.samples if form == "function" else 1)


def _form(op: OpInfo, form: str) -> Callable[..., Any] | None:
    if form == "function":
        return _as_users_call(op)
    return {"method": op.method_variant, "inplace": op.inplace_variant, "operator": op.operator_variant}[form]


def _as_users_call(op: OpInfo) -> Callable[..., Any]:
    """What the operator's public name stands for now: the database keeps functions as they were at its import."""
    found: Any = torch
    for part in op.name.split("."):
        found = getattr(found, part, None)
    return found if found is not None and getattr(found, "__wrapped__", None) is op.op else op.op


def _drawn(op: OpInfo, dtype: torch.dtype) -> Iterator[Any]:
    torch.manual_seed(SEED)
    differentiable = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    try:
        yield from itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=differentiable), SAMPLES_SEEN)
    except RuntimeError:
        # Some samples cannot be made with gradients.
        yield from itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES_SEEN)


def _sample(op: OpInfo, dtype: torch.dtype, drawn: Any, form: str, function: Callable[..., Any]) -> _Sample | None:
    """The sample with gradients for its outputs; nothing if it does not run, or is empty."""
    args, kwargs = (drawn.input, *drawn.args), dict(drawn.kwargs)
    sizes = [tensor.numel() for tensor in tensors_of((args, kwargs))]
    if 0 in sizes or sum(sizes) > MOST_ELEMENTS or (form == "inplace" and drawn.broadcasts_input):
        return None
    plain = _Sample(form, function, args, kwargs, ())
    try:
        outputs = _outputs(plain, _copies(plain))
    except Exception:
        return None
    sample = replace(plain, gradients=tuple(_gradient(output) for output in outputs))
    try:
        _call(sample, _copies(sample))
    except Exception:
        # Some have gradients for some losses only.
        sample = replace(plain, gradients=(None,) * len(outputs))
    return sample if all(output.numel() for output in outputs) else None


def _gradient(output: Tensor) -> Tensor | None:
    if not output.requires_grad or output.layout is not torch.strided:
        return None
    return torch.randn(output.shape, dtype=torch.promote_types(output.dtype, torch.float32)).to(output.dtype)


def _copies(sample: _Sample) -> Given:
    """Tensors of its own that are no leaves: an in-place call may write them."""
    args, kwargs = tree_map_only(Tensor, _copied, (sample.args, sample.kwargs))
    return args, kwargs


def _copied(tensor: Tensor) -> Tensor:
    leaf = tensor.detach().requires_grad_(tensor.requires_grad)
    return leaf.clone() if tensor.layout is torch.strided else leaf


def _outputs(sample: _Sample, given: Given) -> list[Tensor]:
    torch.manual_seed(SEED)
    args, kwargs = given
    return tensors_of(sample.function(*args, **kwargs))


def _call(sample: _Sample, given: Given) -> None:
    outputs = _outputs(sample, given)
    pairs = [
        (output, gradient)
        for output, gradient in zip(outputs, sample.gradients, strict=True)
        if gradient is not None and output.requires_grad
    ]
    if pairs:
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def chosen_operators(names: Sequence[str], quick: int | None) -> list[str]:
    """Those named, or those that --quick leaves."""
    known = operator_names()
    unknown = set(names) - set(known)
    if unknown:
        raise SystemExit(f"no such operator: {', '.join(sorted(unknown))}")
    return list(names) or operator_names(quick)
