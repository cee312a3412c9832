"""Factorisations by what must hold of them: signs and order of the factors are free."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ulpscope.operations.registry import operation_name


@dataclass(frozen=True, slots=True)
class Invariant:
    """Two matrices that are equal if the factors are right, in float64, and the norm that errors are small beside."""

    name: str
    computed: Tensor
    exact: Tensor
    scale: float
    length: int
    """Of the longest sums inside."""


Outputs = Mapping[str, Tensor]


def invariants(op: str, arguments: Mapping[str, Any], source: Tensor, outputs: Outputs) -> tuple[Invariant, ...] | None:
    """What must hold of the outputs of this call; none where it is no factorisation."""
    rule = _rule(op)
    factors = [outputs[f"output.{index}"] for index in range(len(outputs)) if f"output.{index}" in outputs]
    if rule is None or source.dim() < 2 or len(factors) not in rule.outputs:
        return None
    high = [_raised(factor) if factor.is_floating_point() or factor.is_complex() else factor for factor in factors]
    read = _raised(source)
    if "U" in (*arguments.get("args", ()), *arguments.get("kwargs", {}).values()):
        # Only the upper triangle is read: the rules look at the lower one.
        read = read.mH
    return tuple(rule.check(read, high))


@dataclass(frozen=True, slots=True)
class _Rule:
    outputs: tuple[int, ...]
    """How many there may be."""
    check: Callable[[Tensor, list[Tensor]], list[Invariant]]
    signed: Mapping[str, int] = field(default_factory=dict)
    """Factors that hold vectors whose signs are free: the axis that counts them."""


def _raised(tensor: Tensor) -> Tensor:
    plain = tensor.detach().to("cpu")
    return plain.to(torch.complex128 if plain.is_complex() else torch.float64)


def _product(source: Tensor, product: Tensor) -> Invariant:
    return Invariant("reconstruction", product, source, float(source.norm()), max(source.shape[-2:]))


def _orthogonal(name: str, factor: Tensor) -> Invariant:
    gram = factor.mH @ factor
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype).expand_as(gram)
    return Invariant(name, gram, identity, float(identity.norm()), max(factor.shape[-2:]))


def _svd(source: Tensor, factors: list[Tensor]) -> list[Invariant]:
    u, s, v = factors
    # torch.svd gives V, torch.linalg.svd its conjugate transpose.
    rank = s.shape[-1]
    kept = u[..., :rank] * s.unsqueeze(-2)
    vh = v[..., :rank, :]
    return [
        _product(source, kept @ vh.to(kept.dtype)),
        _orthogonal("left vectors", u),
        _orthogonal("right vectors", v.mH),
    ]


def _old_svd(source: Tensor, factors: list[Tensor]) -> list[Invariant]:
    u, s, v = factors
    return _svd(source, [u, s, v.mH])


def _qr(source: Tensor, factors: list[Tensor]) -> list[Invariant]:
    q, r = factors
    if q.numel():
        return [_product(source, q @ r), _orthogonal("orthogonal factor", q)]
    below = torch.tril(r, -1)
    return [Invariant("triangle", below, torch.zeros_like(below), float(r.norm()), max(r.shape[-2:]))]


def _eigh(source: Tensor, factors: list[Tensor]) -> list[Invariant]:
    values, vectors = factors
    # Only one triangle was read.
    lower = torch.tril(source)
    whole = lower + torch.tril(source, -1).mH
    product = (vectors * values.unsqueeze(-2).to(vectors.dtype)) @ vectors.mH
    return [_product(whole, product), _orthogonal("eigenvectors", vectors)]


def _eig(source: Tensor, factors: list[Tensor]) -> list[Invariant]:
    values, vectors = factors
    moved = source.to(vectors.dtype) @ vectors
    return [
        Invariant("eigenpairs", vectors * values.unsqueeze(-2), moved, float(source.norm()), max(source.shape[-2:]))
    ]


def _lu(source: Tensor, factors: list[Tensor]) -> list[Invariant]:
    p, lower, upper = factors
    return [_product(source, p.to(lower.dtype) @ lower @ upper)] if p.numel() else []


def _packed_lu(source: Tensor, factors: list[Tensor]) -> list[Invariant]:
    """Both triangles in one matrix, and the rows that were exchanged."""
    return _lu(source, list(torch.lu_unpack(factors[0], factors[1].to(torch.int32))))


def _packed_ldl(source: Tensor, factors: list[Tensor]) -> list[Invariant]:
    """Multiplied out by solving: torch has no other way to unpack it."""
    whole = torch.tril(source) + torch.tril(source, -1).mT
    identity = torch.eye(source.shape[-1], dtype=source.dtype).expand_as(source)
    inverse = torch.linalg.ldl_solve(factors[0], factors[1].to(torch.int32), identity)
    size, condition = source.shape[-1], float(torch.linalg.cond(whole).max())
    return [Invariant("inverse", whole @ inverse, identity.clone(), condition * size**0.5, size)]


_OLD_SVD = _Rule((3,), _old_svd, {"output.0": -1, "output.2": -1})
_RULES: dict[str, _Rule] = {
    "svd": _Rule((3,), _svd, {"output.0": -1, "output.2": -2}),
    # These give V instead of its conjugate transpose, and both triangles in one matrix.
    "torch.svd": _OLD_SVD,
    "torch.Tensor.svd": _OLD_SVD,
    "torch.lu": _Rule((2, 3), _packed_lu),
    "torch.Tensor.lu": _Rule((2, 3), _packed_lu),
    "qr": _Rule((2,), _qr, {"output.0": -1, "output.1": -2}),
    "eigh": _Rule((2,), _eigh, {"output.1": -1}),
    "eig": _Rule((2,), _eig),
    "lu": _Rule((3,), _lu),
    "lu_factor": _Rule((2,), _packed_lu),
    "lu_factor_ex": _Rule((3,), _packed_lu),
    "lu_with_info": _Rule((3,), _packed_lu),
    "ldl_factor": _Rule((2,), _packed_ldl),
    "ldl_factor_ex": _Rule((3,), _packed_ldl),
}


def _rule(op: str) -> _Rule | None:
    return _RULES.get(op) or _RULES.get(operation_name(op).removeprefix("linalg_"))


def factorises(op: str) -> bool:
    return _rule(op) is not None


def with_signs_of(op: str, computed: Outputs, precise: Outputs, grads: Outputs) -> dict[str, Tensor]:
    """Gradients for the precise factors such that they say of them what the given ones say of the computed."""
    aligned, rule = dict(grads), _rule(op)
    for place, axis in (rule.signed if rule is not None else {}).items():
        if place in grads and place in computed and computed[place].shape == precise[place].shape:
            along = (_raised(computed[place]) * _raised(precise[place]).conj()).real.sum(-3 - axis, keepdim=True)
            aligned[place] = torch.where(along < 0, -grads[place], grads[place])
    return aligned
