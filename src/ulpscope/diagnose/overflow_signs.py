"""In which tensors of a step an overflow shows: nan, inf, a saturated float16."""

import polars as pl

from ulpscope.numerics.dtypes import FLOATING
from ulpscope.records.enums import Kind, Role
from ulpscope.records.overflow_findings import FLOAT16_LARGEST
from ulpscope.trace.neighbours import MADE_ROLES
from ulpscope.trace.reader import RankTrace

COUNTS = ("nan", "pos_inf", "neg_inf")
_NUMBERS = (*COUNTS, "min", "max")


def is_made(role: Role, kind: Kind) -> bool:
    """Whether a call gives this; everything else it is given."""
    return role in MADE_ROLES or (role is Role.GRADIENT and kind is not Kind.OPTIMIZER)


def signs_of(rank: RankTrace, step: int) -> pl.DataFrame:
    """A row a tensor of a call: whether the call made it, whether something shows in it, and not as in a mask.

    `told` is false where no number of it is recorded that could show anything.
    """
    wrong = pl.sum_horizontal(pl.col(name).fill_null(0) for name in ("nan", "pos_inf")) > 0
    ends = {"nan": pl.col("nan") > 0, "high": _end("max", "pos_inf"), "low": _end("min", "neg_inf")}
    shown = {name: expression.fill_null(False) for name, expression in ends.items()}
    signs = rank.values(step).select(
        pl.col("id").alias("value"), "digest", "storage", sign=_sign(), wrong=_sign() & wrong, told=_told(), **shown
    )
    kinds = rank.calls(step).select(pl.col("id").alias("call"), "kind")
    gradient = (pl.col("role") == Role.GRADIENT.value) & (pl.col("kind") != Kind.OPTIMIZER.value)
    made = pl.col("role").is_in([role.value for role in MADE_ROLES]) | gradient.fill_null(False)
    uses = rank.tensors(step).join(kinds, on="call", how="left", maintain_order="left")
    picked = uses.select("call", "role", "place", "value", made=made)
    return rank.collect(picked.join(signs, on="value", maintain_order="left"))


def _sign() -> pl.Expr:
    counts = pl.sum_horizontal(pl.col(name).fill_null(0) for name in COUNTS)
    largest = pl.max_horizontal(pl.col("min").abs(), pl.col("max").abs())
    saturated = (pl.col("dtype") == "float16") & (largest >= FLOAT16_LARGEST)
    return ((counts > 0) | saturated.fill_null(False)) & pl.col("initialized").fill_null(True)


def _told() -> pl.Expr:
    number = pl.any_horizontal(pl.col(name).is_not_null() for name in _NUMBERS)
    nothing = ~pl.col("dtype").is_in(FLOATING) | ~pl.col("initialized") | pl.col("shape").list.contains(0)
    return number | nothing.fill_null(True)


def _end(extreme: str, infinite: str) -> pl.Expr:
    """Whether numbers leave their type on this side."""
    beyond = pl.col("max") >= FLOAT16_LARGEST if extreme == "max" else pl.col("min") <= -FLOAT16_LARGEST
    saturated = (pl.col("dtype") == "float16") & beyond
    return (pl.col(infinite).fill_null(0) > 0) | saturated.fill_null(False)
