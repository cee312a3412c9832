"""The tensors of paired calls, paired in their turn: by role and place, or by order where the places differ."""

import polars as pl

from ulpscope.align.mapping import Mapped
from ulpscope.align.plan import RankPlan
from ulpscope.records.enums import Kind, Role
from ulpscope.records.pairs import Pair

KEYS = ("pair", "role", "key")


def pair_tensors(plan: RankPlan, mapped: Mapped | None = None) -> pl.DataFrame:
    """A row a pair of tensors: pair (row of the plan), role, place, reference, target (values), order, reference_call.

    The place is the target's; rows stand in the order in which the target's calls used them.
    """
    uses = Pair(_uses(plan, "reference"), _uses(plan, "target"))
    keyed = Pair(uses.reference.with_columns(key="place"), uses.target.with_columns(key=_reference_place(plan)))
    exact = _joined(keyed)
    left = keyed.map(lambda frame: frame.join(exact, on=KEYS, how="anti", maintain_order="left"))
    moved = _moved(plan, left)
    left = Pair(
        left.reference.join(
            moved, left_on=["call", "role", "key"], right_on=["reference_call", "role", "key"], how="anti"
        ),
        left.target.join(moved, left_on=["call", "role", "key"], right_on=["target_call", "role", "key"], how="anti"),
    )
    by_order = _joined(Pair(_numbered(left.reference, left.target), _numbered(left.target, left.reference)))
    slots = pl.concat([exact, by_order, moved.select(exact.columns)]).sort("order")
    if mapped is None or not mapped.tensors:
        return slots
    by_user = _mapped_by_user(plan, uses, mapped)
    return pl.concat([slots.join(by_user, on="order", how="anti"), by_user]).sort("order")


def _uses(plan: RankPlan, side: str) -> pl.DataFrame:
    trace = plan.traces.reference if side == "reference" else plan.traces.target
    pairs = plan.pairs.with_row_index("pair").select("pair", call=side)
    used = trace.collect(trace.tensors(plan.steps).select("call", "role", "place", "value").with_row_index("order"))
    return used.join(pairs, on="call", how="inner", maintain_order="left")


def _reference_place(plan: RankPlan) -> pl.Expr:
    """Places that are parameters' names, in the reference's names."""
    if not plan.modules:
        return pl.col("place")
    prefixes = pl.col("place").str.extract(r"^(.+)\.[^.]+$", 1)
    owner = prefixes.replace_strict(plan.modules, default=None, return_dtype=pl.String)
    return pl.coalesce(owner + pl.col("place").str.extract(r"(\.[^.]+)$", 1), "place")


def _joined(uses: Pair[pl.DataFrame]) -> pl.DataFrame:
    """Uses with equal keys; one that stands twice under a key on both sides is paired in order."""
    reference, target = uses.map(_counted)
    partners = reference.select(*KEYS, "again", reference="value", reference_call="call")
    return _slots(target.join(partners, on=[*KEYS, "again"], how="inner"))


def _slots(joined: pl.DataFrame) -> pl.DataFrame:
    columns = ("pair", "role", "key", "place", "reference")
    return joined.select(*columns, target="value", order="order", reference_call="reference_call")


def _counted(uses: pl.DataFrame) -> pl.DataFrame:
    if uses.select(KEYS).is_duplicated().any():
        return uses.with_columns(again=pl.int_range(pl.len()).over(KEYS))
    return uses.with_columns(again=pl.lit(0, dtype=pl.Int64))


def _moved(plan: RankPlan, left: Pair[pl.DataFrame]) -> pl.DataFrame:
    """Parameters that are in another group of the optimizer than in the reference."""
    sides = []
    for uses, calls in zip(left, plan.calls, strict=True):
        groups = calls.filter(pl.col("kind") == Kind.OPTIMIZER.value).select(call="id", step="step")
        sides.append(uses.join(groups, on="call", how="inner", maintain_order="left"))
    reference = sides[0].select("step", "role", "key", reference="value", reference_call="call")
    joined = sides[1].join(reference, on=["step", "role", "key"], how="inner", maintain_order="left")
    return joined.rename({"value": "target", "call": "target_call"})


def _numbered(uses: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """Uses of pairs that have as many left over on either side in this role, keyed by their number."""
    per_role = ["pair", "role"]
    counts = uses.group_by(per_role).len().join(other.group_by(per_role).len(), on=[*per_role, "len"])
    kept = uses.join(counts, on=per_role, how="semi", maintain_order="left")
    return kept.with_columns(key=pl.int_range(pl.len()).over(per_role).cast(pl.String))


def _mapped_by_user(plan: RankPlan, uses: Pair[pl.DataFrame], mapped: Mapped) -> pl.DataFrame:
    """Tensors that a mapping file pairs, whatever their calls."""
    called = plan.calls.map(lambda calls: calls.select("name", "step", call="id"))
    partners = uses.reference.join(called.reference, on="call", maintain_order="left")
    found = uses.target.join(called.target, on="call", maintain_order="left").with_columns(key="place")
    wanted = pl.DataFrame(
        [(t.call, t.place, r.call, r.place) for t, r in mapped.tensors.items()],
        schema=["name", "place", "reference_name", "reference_place"],
        orient="row",
    )
    partners = partners.select(
        "step", reference_name="name", reference_place="place", reference="value", reference_call="call"
    )
    found = found.join(wanted, on=["name", "place"])
    return _slots(found.join(partners, on=["reference_name", "reference_place", "step"]))


OWNED_ROLES = (Role.PARAMETER.value, Role.BUFFER.value)
KEPT_ROLES = (*OWNED_ROLES, Role.STATE.value)
"""What stays from step to step."""
GRADIENT_ROLES = (Role.GRADIENT.value, Role.GRAD_INPUT.value, Role.GRAD_OUTPUT.value)
BACKWARD_KINDS = (Kind.BACKWARD.value, Kind.MODULE_BACKWARD.value)
