"""The tensors of paired calls, paired in their turn: by role and place, or by order where the places differ.

Of calls that replace each other (einsum for linear) the places say nothing: what has the same shape is the same. Nor do
numbers in lists of other lengths (gradients, one of which is missing): what partners have made is the same there.
"""

import polars as pl

from ulpscope.align.mapping import Mapped
from ulpscope.align.plan import RankPlan
from ulpscope.operations.registry import FUSED, Trait, is_fused, operation, operation_name
from ulpscope.records.enums import MAKING_ROLES, Kind, Role
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace

KEYS = ("pair", "role", "key")
IN_LIST = r"^\w+\.\w+\.\d+$"
COMPUTING = (Kind.API.value, Kind.BACKWARD.value)


def pair_tensors(plan: RankPlan, mapped: Mapped | None = None) -> pl.DataFrame:
    """A row a pair of tensors: pair (row of the plan), role, place, reference, target (values), order, reference_call.

    The place is the target's; rows stand in the order in which the target's calls used them.
    """
    uses = Pair(_uses(plan, "reference"), _uses(plan, "target"))
    keyed = Pair(uses.reference.with_columns(key="place"), uses.target.with_columns(key=reference_place(plan)))
    replaced = _replaced(plan)
    if not replaced.is_empty():
        sides = zip(keyed, plan.traces, strict=True)
        keyed = Pair(*(_keyed_by_shape(frame, trace, replaced) for frame, trace in sides))
    keyed = _keyed_by_makers(keyed, plan)
    exact = _joined(keyed)
    left = keyed.map(lambda frame: frame.join(exact, on=KEYS, how="anti", maintain_order="left"))
    moved = _moved(plan, left)
    left = Pair(
        left.reference.join(
            moved, left_on=["call", "role", "key"], right_on=["reference_call", "role", "key"], how="anti"
        ),
        left.target.join(moved, left_on=["call", "role", "key"], right_on=["target_call", "role", "key"], how="anti"),
    )
    left = left.map(lambda frame: frame.join(replaced, on="pair", how="anti", maintain_order="left"))
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


def reference_place(plan: RankPlan) -> pl.Expr:
    """Places that are parameters' names, in the reference's names."""
    if not plan.modules:
        return pl.col("place")
    prefixes = pl.col("place").str.extract(r"^(.+)\.[^.]+$", 1)
    owner = prefixes.replace_strict(plan.modules, default=None, return_dtype=pl.String)
    return pl.coalesce(owner + pl.col("place").str.extract(r"(\.[^.]+)$", 1), "place")


def _replaced(plan: RankPlan) -> pl.DataFrame:
    """Pairs of calls that are not of the same operation."""
    named = plan.calls.map(lambda calls: calls.filter(pl.col("kind").is_in(COMPUTING)).select("id", "op"))
    pairs = plan.pairs.with_row_index("pair").join(named.reference, left_on="reference", right_on="id")
    pairs = pairs.join(named.target, left_on="target", right_on="id", suffix="_target")
    differ = pairs.filter(pl.col("op") != pl.col("op_target")).select("pair", "op", "op_target")
    return differ.filter([operation_name(one) != operation_name(other) for _, one, other in differ.iter_rows()]).select(
        "pair"
    )


def _keyed_by_shape(uses: pl.DataFrame, trace: RankTrace, replaced: pl.DataFrame) -> pl.DataFrame:
    """The same uses, those of replaced calls keyed by their shape."""
    theirs = uses.join(replaced, on="pair", how="semi").select("value").unique()
    shapes = trace.collect(
        trace.values().select(value="id", shape=pl.col("shape").cast(pl.List(pl.String)).list.join(","))
    )
    known = theirs.join(shapes, on="value")
    joined = uses.join(known, on="value", how="left", maintain_order="left")
    is_replaced = pl.col("pair").is_in(replaced["pair"].implode())
    return joined.with_columns(key=pl.when(is_replaced).then("shape").otherwise("key")).drop("shape")


def _keyed_by_makers(uses: Pair[pl.DataFrame], plan: RankPlan) -> Pair[pl.DataFrame]:
    """The same uses, those whose places say nothing keyed by what made them: in lists that are not equally long, and
    operands that may stand in any order.

    What is made of a list of another length has no partner.
    """
    is_input, in_list = pl.col("role") == Role.INPUT.value, pl.col("place").str.contains(IN_LIST)
    counts = uses.map(lambda frame: frame.filter(is_input, in_list).group_by("pair").len())
    unequal = counts.reference.join(counts.target, on="pair", how="inner", suffix="_target")
    unequal = unequal.filter(pl.col("len") != pl.col("len_target")).select("pair")
    commuting, fused = _having(plan, Trait.COMMUTING), _fused(plan)
    if unequal.is_empty() and commuting.is_empty() and fused.is_empty():
        return uses
    of_unequal = pl.col("pair").is_in(unequal["pair"].implode())
    of_list = of_unequal & in_list
    of_fused = is_input & pl.col("pair").is_in(fused["pair"].implode())
    in_any_order = of_fused | (is_input & pl.col("pair").is_in(commuting["pair"].implode()))
    # The sum of a list is the same, however many of its terms were added up before.
    others = unequal.join(_having(plan, Trait.ADDING_UP), on="pair", how="anti")
    results = pl.col("pair").is_in(others["pair"].implode()) & (pl.col("role") == Role.OUTPUT.value)
    sides = Pair("reference", "target")
    free = uses.map(lambda frame: frame.filter(of_list | in_any_order))
    made = Pair(*(_makers(*side, plan) for side in zip(free, plan.traces, sides, strict=True)))
    shared = made.reference.join(made.target, on=("pair", "maker"), how="semi").select("pair", "maker").unique()

    def keyed(frame: pl.DataFrame, makers: pl.DataFrame, trace: RankTrace, side: str) -> pl.DataFrame:
        common = makers.join(shared, on=("pair", "maker"), how="semi", maintain_order="left")
        own = makers.filter(of_list).join(common, on="order", how="anti", maintain_order="left")
        # What a fused call reads is not what the last of its operations reads.
        inner = _made(frame.filter(of_fused), trace).join(common, on="order", how="anti", maintain_order="left")
        alone = inner.select("order", maker=pl.concat_str(pl.lit(f"{side} alone"), "order", separator=" "))
        known = pl.concat([*(each.select("order", "maker") for each in (common, own)), alone]).unique(
            "order", keep="first"
        )
        joined = frame.join(known, on="order", how="left", maintain_order="left")
        key = pl.when(pl.col("maker").is_not_null()).then("maker").when(results).then(pl.lit(side)).otherwise("key")
        return joined.with_columns(key=key).drop("maker")

    return Pair(*(keyed(*side) for side in zip(uses, made, plan.traces, sides, strict=True)))


def _made(uses: pl.DataFrame, trace: RankTrace) -> pl.DataFrame:
    """Those of these uses whose values a call of the run has made."""
    if uses.is_empty():
        return uses
    makers = trace.values().select("producer", value="id").drop_nulls()
    return uses.join(trace.collect(makers).select("value"), on="value", how="semi", maintain_order="left")


def _fused(plan: RankPlan) -> pl.DataFrame:
    """Pairs of which one call computes more than the other, whose operation is the last of its own."""
    columns = ("id", "op", "arguments")
    known = plan.calls.map(lambda calls: calls.filter(pl.col("op").str.contains(FUSED)).select(columns))
    if all(frame.is_empty() for frame in known):
        return pl.DataFrame(schema={"pair": pl.UInt32})
    ids = known.map(lambda frame: frame.filter([is_fused(op, told) for _, op, told in frame.iter_rows()])["id"])
    pairs = plan.pairs.with_row_index("pair")
    one_sided = pl.col("reference").is_in(ids.reference.implode()) ^ pl.col("target").is_in(ids.target.implode())
    return pairs.filter(one_sided).select("pair")


def _makers(uses: pl.DataFrame, trace: RankTrace, side: str, plan: RankPlan) -> pl.DataFrame:
    """For these uses the pairs of calls that made or gave their values, and as what; the first of several first."""
    pairs = plan.pairs.with_row_index("by").select("by", call=side)
    making = (
        trace.tensors(plan.steps).filter(pl.col("role").is_in(MAKING_ROLES)).select("call", "role", "place", "value")
    )
    found = trace.collect(making.join(uses.lazy().select("value"), on="value", how="semi", maintain_order="left"))
    named = found.join(pairs, on="call", how="inner", maintain_order="left").select(
        "value", maker=pl.concat_str(pl.lit("made by"), "by", "role", "place", separator=" ")
    )
    return uses.select("pair", "order", "place", "value").join(named, on="value", how="inner", maintain_order="left")


def _having(plan: RankPlan, trait: Trait) -> pl.DataFrame:
    """Pairs of calls of operations of which this is true in both runs."""
    known = plan.calls.map(lambda calls: calls.select("id", "op").filter(pl.col("op").is_in(_ops(calls, trait))))
    pairs = plan.pairs.with_row_index("pair").join(known.reference, left_on="reference", right_on="id", how="semi")
    return pairs.join(known.target, left_on="target", right_on="id", how="semi").select("pair")


def _ops(calls: pl.DataFrame, trait: Trait) -> list[str]:
    return [op for op in calls["op"].unique() if operation(op).has(trait)]


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
