"""The plan of a comparison: which ranks, steps and calls of two traces belong together. It prints and saves itself."""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import polars as pl

from ulpscope.align.calls import Origin, StepCalls, plan_step, step_calls
from ulpscope.align.mapping import Mapped, map_modules
from ulpscope.align.sums import Sender
from ulpscope.operations.registry import operation_name
from ulpscope.records.enums import INPUT_ROLE, ExitCode, Kind, Phase, Role
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.records.remarks import remark
from ulpscope.records.runs import IntRanges
from ulpscope.trace.reader import RankTrace, Trace

IN_UPDATE = pl.col("phase") == Phase.UPDATE.value
PAIRS = {"step": pl.Int64, "reference": pl.Int64, "target": pl.Int64, "replaced": pl.Boolean}
"""Columns of pairs of calls: ids, and whether one replaces the other rather than being the same operation."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The pairs of one rank."""

    rank: int
    traces: Pair[RankTrace]
    steps: tuple[int, ...]
    pairs: pl.DataFrame
    """Columns of PAIRS."""
    calls: Pair[pl.DataFrame]
    """Calls of the planned steps, columns of the trace."""
    modules: dict[str, str]
    """Module paths of the target that bear another name in the reference, with that name."""
    shared_modules: Pair[frozenset[str]]
    """Module paths that the other run has, too."""

    @property
    def unmatched(self) -> Pair[pl.DataFrame]:
        """Calls without a partner."""
        return _unpaired(self.calls, self.pairs)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be compared with what."""

    ranks: tuple[RankPlan, ...]
    ranks_only: Pair[tuple[int, ...]]
    steps_only: Pair[tuple[int, ...]]

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted({step for rank in self.ranks for step in rank.steps}))


def make_plan(
    traces: Pair[Trace], *, steps: IntRanges | None = None, ranks: IntRanges | None = None, mapped: Mapped | None = None
) -> Plan:
    """Plan the comparison of two traces."""
    by_rank = traces.map(lambda trace: _ranks(trace, ranks))
    chosen = {
        rank: Pair(found, by_rank.target[rank]) for rank, found in by_rank.reference.items() if rank in by_rank.target
    }
    if not chosen and len(by_rank.reference) == len(by_rank.target) == 1 and ranks is None:
        chosen = {next(iter(by_rank.target)): by_rank.map(lambda found: next(iter(found.values())))}
    if not chosen:
        raise _nothing("rank", traces, traces.map(lambda trace: [rank.info.rank for rank in trace.ranks]), ranks)
    plans = tuple(plan_rank(rank, pair, steps=steps, mapped=mapped or Mapped()) for rank, pair in chosen.items())
    common = {step for plan in plans for step in plan.steps}
    if not common:
        raise _nothing("step", traces, traces.map(lambda trace: list(trace.steps)), steps)
    sides = Pair([pair.reference for pair in chosen.values()], [pair.target for pair in chosen.values()])

    def steps_only(found: list[RankTrace]) -> tuple[int, ...]:
        there = {step for trace in found for step in trace.steps} - common
        return tuple(sorted(step for step in there if steps is None or step in steps))

    return Plan(
        ranks=plans,
        ranks_only=by_rank.map(lambda found: tuple(rank for rank in found if rank not in chosen)),
        steps_only=sides.map(steps_only),
    )


def _unpaired(calls: Pair[pl.DataFrame], pairs: pl.DataFrame) -> Pair[pl.DataFrame]:
    """Calls that are in no pair."""
    return Pair(
        calls.reference.join(pairs, left_on="id", right_on="reference", how="anti"),
        calls.target.join(pairs, left_on="id", right_on="target", how="anti"),
    )


def _ranks(trace: Trace, wanted: IntRanges | None) -> dict[int, RankTrace]:
    found: dict[int, RankTrace] = {}
    for rank in trace.ranks:
        if wanted is None or rank.info.rank in wanted:
            found.setdefault(rank.info.rank, rank)
    return found


def plan_rank(rank: int, traces: Pair[RankTrace], *, steps: IntRanges | None, mapped: Mapped) -> RankPlan:
    """Pair the calls of one rank in all steps that both traces have."""
    common = tuple(
        step for step in traces.reference.steps if step in traces.target.steps and (steps is None or step in steps)
    )
    calls = traces.map(lambda trace: _with_modules(trace.collect(trace.calls(common)).sort("id")))
    recorded = set(calls.reference["step"]) & set(calls.target["step"])
    common = tuple(step for step in common if step in recorded)
    names = _names(calls, mapped)
    updated = set.intersection(*(set(frame.filter(IN_UPDATE)["step"]) for frame in calls))
    iterations = calls.map(lambda frame: _iterations(frame, common, updated))
    planned = [
        _plan_step(traces, Pair(iterations.reference[step,], iterations.target[step,]), names) for step in common
    ]
    pairs = pl.concat([pl.DataFrame(schema=PAIRS), *planned])
    pairs = pl.concat([pairs, _mapped_calls(pairs, calls, mapped)])
    renamed = {path: name for path, name in names.modules.items() if path != name}
    shared = Pair(frozenset(names.modules.values()), frozenset(names.modules))
    return RankPlan(rank, traces, common, pairs, calls, renamed, shared)


def _iterations(calls: pl.DataFrame, steps: Sequence[int], updated: set[int]) -> dict[tuple[int], pl.DataFrame]:
    """Calls by the step that they belong to: what runs after an update (the next batch is made) is of the next one.

    `updated` are steps in which both runs recorded one.
    """
    known_updates = calls.filter(IN_UPDATE, pl.col("step").is_in(list(updated)))
    updates = known_updates.group_by("step").agg(updated=pl.col("id").max())
    following = pl.DataFrame(
        {"step": steps[:-1], "following": steps[1:]},
        schema_overrides=dict.fromkeys(("step", "following"), calls.schema["step"]),
    )
    known = calls.join(updates, on="step", how="left", maintain_order="left")
    known = known.join(following, on="step", how="left", maintain_order="left")
    late = (pl.col("id") > pl.col("updated")) & pl.col("following").is_not_null() & pl.col("forward").is_null()
    belongs = known.with_columns(iteration=pl.when(late).then("following").otherwise("step"))
    return belongs.drop("updated", "following").partition_by("iteration", as_dict=True, include_key=False)


def _with_modules(calls: pl.DataFrame) -> pl.DataFrame:
    """Calls inside of a call belong to its module: those of a custom backward run in none of their own."""
    homeless = pl.col("module").is_null() & pl.col("parent").is_not_null()
    while not calls.filter(homeless).is_empty():
        parents = calls.select(parent="id", parent_module="module", parent_class="module_class")
        joined = calls.join(parents, on="parent", how="left", maintain_order="left")
        if joined.filter(homeless & pl.col("parent_module").is_not_null()).is_empty():
            break
        calls = joined.with_columns(
            pl.coalesce("module", "parent_module").alias("module"),
            pl.coalesce("module_class", "parent_class").alias("module_class"),
        ).drop("parent_module", "parent_class")
    return calls


@dataclass(frozen=True, slots=True)
class _Names:
    modules: dict[str, str]
    """All mapped module paths of the target, with the reference's."""
    called: Pair[frozenset[str]]
    """Paths of either run whose modules the other calls, too; a filter may have left such calls out."""
    ops: dict[str, str]


def _names(calls: Pair[pl.DataFrame], mapped: Mapped) -> _Names:
    classes = calls.map(_classes)
    by_user = {path: mapped.modules.to_reference(path) or path for path in classes.target}
    modules = map_modules(classes.reference, {by_user[path]: found for path, found in classes.target.items()})
    translated = {path: modules.get(name) for path, name in by_user.items()}
    ops = calls.target["op"].unique().to_list() if mapped.ops else []
    known = {path: name for path, name in translated.items() if name is not None}
    reference, target = calls.map(lambda frame: set(frame.filter(pl.col("kind") == Kind.MODULE.value)["module"]))
    return _Names(
        modules=known,
        called=Pair(
            frozenset(name for path, name in known.items() if path in target),
            frozenset(path for path, name in known.items() if name in reference),
        ),
        ops={op: renamed for op in ops if (renamed := mapped.ops.to_reference(op))},
    )


def _classes(calls: pl.DataFrame) -> dict[str, str | None]:
    """Class of each module path, in order of first appearance."""
    known = calls.filter(pl.col("module").is_not_null()).select("module", "module_class", "kind")
    first = known.unique("module", keep="first", maintain_order=True)
    named = known.filter(pl.col("kind") == Kind.MODULE.value).unique("module", keep="first")
    classes = dict(zip(named["module"], named["module_class"], strict=True))
    return {path: classes.get(path, class_name) for path, class_name, _ in first.iter_rows()}


def _mapped_calls(pairs: pl.DataFrame, calls: Pair[pl.DataFrame], mapped: Mapped) -> pl.DataFrame:
    """Calls without partners whose tensors a mapping file pairs."""
    names = pl.DataFrame(
        [(target.call, reference.call) for target, reference in mapped.tensors.items()],
        schema={"name": pl.String, "reference_name": pl.String},
        orient="row",
    ).unique()
    keys = ("step", "phase", "kind")
    left = _unpaired(calls, pairs)
    free = left.target.select(*keys, "name", target="id")
    partners = left.reference.select(*keys, reference_name="name", reference="id")
    found = free.join(names, on="name").join(partners, on=[*keys, "reference_name"])
    return found.select("step", "reference", "target", pl.lit(True).alias("replaced"))


def unused_rules(plan: Plan, mapped: Mapped) -> list[str]:
    """What a mapping file says that fits nothing in the target, a sentence each."""
    calls = [rank.calls.target for rank in plan.ranks]
    paths = {path for frame in calls for path in frame["module"].drop_nulls().unique()}
    ops = {op for frame in calls for op in frame["op"].unique()}
    names = {name for frame in calls for name in frame["name"].unique()}
    unused = [remark("unused_module", rule=repr(rule)) for rule in mapped.modules.without_match(paths)]
    unused += [remark("unused_operation", rule=repr(rule)) for rule in mapped.ops.without_match(ops)]
    unused += [remark("unused_tensor", call=repr(each.call)) for each in mapped.tensors if each.call not in names]
    return unused


def _plan_step(traces: Pair[RankTrace], calls: Pair[pl.DataFrame], names: _Names) -> pl.DataFrame:
    steps = calls.map(lambda frame: frame["step"].to_list())

    def one_run(
        trace: RankTrace,
        frame: pl.DataFrame,
        called: Container[str],
        modules: Mapping[str, str],
        ops: Mapping[str, str],
    ) -> StepCalls:
        known = frame["step"].unique().sort().to_list()
        shapes, made_by = partial(_shapes, trace, known), partial(_makers, trace, frame, ops)
        origins, senders = partial(_origins, trace, known), partial(_senders, trace, known)
        return step_calls(
            frame,
            modules=modules,
            mapped=called,
            ops=ops,
            shapes=shapes,
            made_by=made_by,
            origins=origins,
            senders=senders,
            readers=partial(_readers, trace, known),
        )

    reference = one_run(traces.reference, calls.reference, names.called.reference, {}, {})
    target = one_run(traces.target, calls.target, names.called.target, names.modules, names.ops)
    plan = plan_step(reference, target)
    columns = {
        "step": [steps.target[t] for _, t in plan.pairs],
        "reference": [reference.id[r] for r, _ in plan.pairs],
        "target": [target.id[t] for _, t in plan.pairs],
        "replaced": [pair in plan.replaced for pair in plan.pairs],
    }
    return pl.DataFrame(columns, schema=PAIRS)


def _shapes(trace: RankTrace, steps: Sequence[int], role: str) -> dict[int, str]:
    """For a role, the shapes of each call's tensors as text."""
    uses = trace.collect(trace.tensors(steps).filter(pl.col("role") == role).select("call", "value"))
    values = trace.collect(trace.values(steps).select(value="id", shape="shape"))
    text = pl.col("shape").list.eval(pl.element().cast(pl.String)).list.join(",")
    joined = uses.join(values, on="value", how="left", maintain_order="left").with_columns(text)
    by_call = joined.group_by("call", maintain_order=True).agg(pl.col("shape").fill_null("?").str.join(";"))
    return dict(by_call.iter_rows())


def _makers(trace: RankTrace, calls: pl.DataFrame, ops: Mapping[str, str]) -> dict[int, tuple[str | None, ...]]:
    """For each of these calls the operations that made its operands, in order; what is made before them is none."""
    steps = calls["step"].unique().sort().to_list()
    uses = trace.tensors(steps).filter(pl.col("role") == INPUT_ROLE).select("call", "value")
    values = trace.values(steps).select("producer", value="id")
    made = calls.lazy().select("op", producer="id")
    known = uses.join(values, on="value", how="left", maintain_order="left")
    joined = trace.collect(known.join(made, on="producer", how="left", maintain_order="left"))
    names = {op: operation_name(ops.get(op, op)) for op in joined["op"].drop_nulls().unique()}
    found: dict[int, list[str | None]] = defaultdict(list)
    for call, op in joined.select("call", "op").iter_rows():
        found[call].append(names.get(op))
    return {call: tuple(makers) for call, makers in found.items()}


def _origins(trace: RankTrace, steps: Sequence[int]) -> dict[int, tuple[Origin, ...]]:
    """For each call which call made its operands, and as which of its outputs, in order."""
    uses = trace.tensors(steps)
    read = uses.filter(pl.col("role") == INPUT_ROLE).select("call", "value")
    values = trace.values(steps).select("producer", value="id")
    made = uses.filter(pl.col("role") == Role.OUTPUT.value).select("value", "place", producer="call")
    known = read.join(values, on="value", how="left", maintain_order="left")
    placed = made.unique(["value", "producer"], keep="first")
    joined = trace.collect(known.join(placed, on=["value", "producer"], how="left", maintain_order="left"))
    found: dict[int, list[Origin]] = defaultdict(list)
    for call, maker, place in joined.select("call", "producer", "place").iter_rows():
        found[call].append((maker, place))
    return {call: tuple(origins) for call, origins in found.items()}


def _senders(trace: RankTrace, steps: Sequence[int], calls: Sequence[int]) -> dict[int, list[list[Sender]]]:
    """For each operand of these calls which calls made it, or gave it as a gradient, and as what."""
    uses = trace.tensors(steps)
    read = uses.filter(pl.col("role") == INPUT_ROLE, pl.col("call").is_in(calls)).select("value", reader="call")
    made = uses.filter(pl.col("role").is_in([Role.OUTPUT.value, Role.GRAD_INPUT.value])).select(
        "value", "call", "place"
    )
    joined = trace.collect(read.with_row_index("operand").join(made, on="value").sort("operand", "call"))
    operands: dict[tuple[int, int], list[Sender]] = defaultdict(list)
    for operand, reader, call, place in joined.select("operand", "reader", "call", "place").iter_rows():
        operands[reader, operand].append((call, place))
    found: dict[int, list[list[Sender]]] = defaultdict(list)
    for (reader, _), senders in operands.items():
        found[reader].append(senders)
    return found


def _readers(trace: RankTrace, steps: Sequence[int], calls: Sequence[int]) -> dict[int, set[int]]:
    """For these calls those that read their results, or are backwards of what they gave."""
    uses = trace.tensors(steps)
    made = uses.filter(pl.col("role") == Role.OUTPUT.value, pl.col("call").is_in(calls)).select("value", maker="call")
    read = uses.filter(pl.col("role") != Role.OUTPUT.value).select("value", "call")
    found: dict[int, set[int]] = {call: set() for call in calls}
    for maker, call in trace.collect(made.join(read, on="value").select("maker", "call").unique()).iter_rows():
        found[maker].add(call)
    return found


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON: what is paired with what, and what has no partner."""
    return {
        "schema": 1,
        "steps": list(plan.steps),
        "ranks_only": asdict(plan.ranks_only.map(list)),
        "steps_only": asdict(plan.steps_only.map(list)),
        "ranks": [_rank_json(rank) for rank in plan.ranks],
    }


def _rank_json(rank: RankPlan) -> dict[str, Any]:
    unmatched = rank.unmatched.map(lambda calls: calls.select("id", "step", "name", "module", "phase").to_dicts())
    return {
        "rank": rank.rank,
        "modules": rank.modules,
        "pairs": rank.pairs.select("step", "reference", "target").to_dict(as_series=False),
        "replaced": rank.pairs.filter("replaced").select("reference", "target").rows(),
        "unmatched_reference": unmatched.reference,
        "unmatched_target": unmatched.target,
    }


def plan_lines(plan: Plan) -> list[str]:
    """The plan as text, a line a call, in the order of the target."""
    return [line for rank in plan.ranks for line in _rank_lines(rank)]


def _rank_lines(rank: RankPlan) -> list[str]:
    pairs, partners = rank.pairs.drop("step"), rank.calls.reference.select(reference="id", partner="name")
    joined = rank.calls.target.join(pairs, left_on="id", right_on="target", how="left", maintain_order="left")
    joined = joined.join(partners, on="reference", how="left", maintain_order="left")
    lines = [f"rank {rank.rank}: target <- reference"]
    for row in joined.iter_rows(named=True):
        mark = " (replaced)" if row["replaced"] else ""
        lines.append(_call_line(row, f"{row['name']} <- {row['partner'] or '(no partner)'}{mark}"))
    only = rank.unmatched.reference.iter_rows(named=True)
    return lines + [_call_line(row, f"(no partner) <- {row['name']}") for row in only]


def _call_line(row: Mapping[str, Any], told: str) -> str:
    return f"  step {row['step']} {row['phase']:<8} {told}  {row['module'] or ''}".rstrip()


def _nothing(word: str, traces: Pair[Trace], numbers: Pair[list[int]], wanted: IntRanges | None) -> UlpscopeError:
    among = f" among --{word}s {wanted}" if wanted is not None else ""
    return UlpscopeError(
        f"no common {word}{among}: {traces.reference.path} has {_listed(numbers.reference)}, "
        f"{traces.target.path} has {_listed(numbers.target)}",
        expected=f"at least one {word} that both traces have",
        next_step=f"capture both with the same --{word}s, or choose others here with --{word}s",
        code=ExitCode.NOTHING,
    )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "") if numbers else "none"
