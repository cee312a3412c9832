"""The plan of a comparison: which ranks, steps and calls of two traces belong together. It prints and saves itself."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from ulpscope.align.calls import StepCalls, plan_step, step_calls
from ulpscope.align.mapping import Mapped, NamePatterns
from ulpscope.align.modules import map_modules
from ulpscope.records.enums import ExitCode, Kind
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.records.remarks import remark
from ulpscope.records.settings import IntRanges
from ulpscope.trace.reader import RankTrace, Trace


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The pairs of one rank."""

    rank: int
    traces: Pair[RankTrace]
    steps: tuple[int, ...]
    pairs: pl.DataFrame
    """Columns step, reference, target (ids of calls), replaced."""
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
    common = [rank for rank in by_rank.reference if rank in by_rank.target]
    chosen = [(rank, by_rank.reference[rank], by_rank.target[rank]) for rank in common]
    if not common and len(by_rank.reference) == len(by_rank.target) == 1 and ranks is None:
        reference, target = (next(iter(found.values())) for found in by_rank)
        chosen = [(next(iter(by_rank.target)), reference, target)]
    if not chosen:
        raise _nothing("rank", traces, traces.map(lambda trace: [rank.info.rank for rank in trace.ranks]), ranks)
    plan = _plan_of(chosen, by_rank, steps, mapped or Mapped())
    if not plan.steps:
        raise _nothing("step", traces, traces.map(lambda trace: list(trace.steps)), steps)
    return plan


def _unpaired(calls: Pair[pl.DataFrame], pairs: pl.DataFrame) -> Pair[pl.DataFrame]:
    """Calls that are in no pair."""
    return Pair(
        calls.reference.join(pairs, left_on="id", right_on="reference", how="anti"),
        calls.target.join(pairs, left_on="id", right_on="target", how="anti"),
    )


def _plan_of(
    chosen: list[tuple[int, RankTrace, RankTrace]],
    by_rank: Pair[dict[int, RankTrace]],
    steps: IntRanges | None,
    mapped: Mapped,
) -> Plan:
    plans = tuple(
        plan_rank(rank, Pair(reference, target), steps=steps, mapped=mapped) for rank, reference, target in chosen
    )
    planned = {rank for rank, _, _ in chosen}
    sides = Pair([trace for _, trace, _ in chosen], [trace for _, _, trace in chosen])
    all_steps = sides.map(lambda traces: {step for trace in traces for step in trace.steps})
    common = {step for plan in plans for step in plan.steps}
    return Plan(
        ranks=plans,
        ranks_only=by_rank.map(lambda found: tuple(rank for rank in found if rank not in planned)),
        steps_only=all_steps.map(
            lambda found: tuple(sorted(step for step in found - common if steps is None or step in steps))
        ),
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
    by_step = calls.map(_by_step)
    planned = [_plan_step(step, traces, Pair(*(calls[step] for calls in by_step)), names) for step in common]
    pairs = pl.concat([_pairs_frame(0, [], [], []), *planned])
    pairs = pl.concat([pairs, _mapped_calls(pairs, calls, mapped)])
    renamed = {path: name for path, name in names.modules.items() if path != name}
    shared = Pair(frozenset(names.modules.values()), frozenset(names.modules))
    return RankPlan(rank, traces, common, pairs, calls, renamed, shared)


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
    ops: dict[str, str]


def _names(calls: Pair[pl.DataFrame], mapped: Mapped) -> _Names:
    classes = calls.map(_classes)
    modules = map_modules(classes.reference, _renamed(classes.target, mapped.modules))
    by_user = {path: renamed for path in classes.target if (renamed := mapped.modules.to_reference(path))}
    translated = {path: modules.get(by_user.get(path, path)) for path in classes.target}
    ops = calls.target["op"].unique().to_list() if mapped.ops else []
    return _Names(
        modules={path: name for path, name in translated.items() if name is not None},
        ops={op: renamed for op in ops if (renamed := mapped.ops.to_reference(op))},
    )


def _renamed(classes: Mapping[str, str | None], patterns: NamePatterns) -> dict[str, str | None]:
    return {patterns.to_reference(path) or path: class_name for path, class_name in classes.items()}


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


def _by_step(calls: pl.DataFrame) -> dict[int, pl.DataFrame]:
    parts = calls.partition_by("step", as_dict=True)
    # A step of which no call was recorded has no part.
    return defaultdict(calls.clear, {int(key[0]): part for key, part in parts.items()})


def _plan_step(step: int, traces: Pair[RankTrace], calls: Pair[pl.DataFrame], names: _Names) -> pl.DataFrame:
    common = set(names.modules.values())
    reference = _step(calls.reference, step, traces.reference, modules={}, mapped=common, ops={})
    target = _step(calls.target, step, traces.target, modules=names.modules, mapped=names.modules, ops=names.ops)
    plan = plan_step(reference, target)
    return _pairs_frame(
        step,
        [reference.id[r] for r, _ in plan.pairs],
        [target.id[t] for _, t in plan.pairs],
        [pair in plan.replaced for pair in plan.pairs] if plan.replaced else [False] * len(plan.pairs),
    )


def _step(calls: pl.DataFrame, step: int, trace: RankTrace, *, modules: Any, mapped: Any, ops: Any) -> StepCalls:
    return step_calls(calls, modules=modules, mapped=mapped, ops=ops, shapes=_shapes_of(trace, step))


def _shapes_of(trace: RankTrace, step: int) -> Callable[[str], dict[int, str]]:
    def shapes(role: str) -> dict[int, str]:
        uses = trace.collect(trace.tensors(step).filter(pl.col("role") == role).select("call", "value"))
        values = trace.collect(trace.values(step).select(value="id", shape="shape"))
        text = pl.col("shape").list.eval(pl.element().cast(pl.String)).list.join(",")
        joined = uses.join(values, on="value", how="left", maintain_order="left").with_columns(text)
        by_call = joined.group_by("call", maintain_order=True).agg(pl.col("shape").fill_null("?").str.join(";"))
        return dict(by_call.iter_rows())

    return shapes


def _pairs_frame(step: int, reference: list[int], target: list[int], replaced: list[bool]) -> pl.DataFrame:
    schema = {"reference": pl.Int64, "target": pl.Int64, "replaced": pl.Boolean}
    frame = pl.DataFrame({"reference": reference, "target": target, "replaced": replaced}, schema=schema)
    return frame.select(pl.lit(step, dtype=pl.Int64).alias("step"), *schema)


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
    pairs = rank.pairs
    return {
        "rank": rank.rank,
        "modules": rank.modules,
        "pairs": {column: pairs[column].to_list() for column in ("step", "reference", "target")},
        "replaced": pairs.filter("replaced").select("reference", "target").rows(),
        "unmatched_reference": _unmatched_json(rank.unmatched.reference),
        "unmatched_target": _unmatched_json(rank.unmatched.target),
    }


def _unmatched_json(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.select("id", "step", "name", "module", "phase").to_dicts()


def plan_lines(plan: Plan) -> list[str]:
    """The plan as text, a line a call, in the order of the target."""
    return [line for rank in plan.ranks for line in _rank_lines(rank)]


def _rank_lines(rank: RankPlan) -> list[str]:
    named = rank.calls.map(lambda calls: calls.select("id", "step", "name", "phase", "module"))
    joined = named.target.join(
        rank.pairs.drop("step"), left_on="id", right_on="target", how="left", maintain_order="left"
    )
    joined = joined.join(
        named.reference.select(reference="id", partner="name"), on="reference", how="left", maintain_order="left"
    )
    lines = [f"rank {rank.rank}: target <- reference"]
    for row in joined.iter_rows(named=True):
        partner = row["partner"] or "(no partner)"
        mark = " (replaced)" if row["replaced"] else ""
        lines.append(
            f"  step {row['step']} {row['phase']:<8} {row['name']} <- {partner}{mark}  {row['module'] or ''}".rstrip()
        )
    only = rank.unmatched.reference
    lines += [
        f"  step {row['step']} {row['phase']:<8} (no partner) <- {row['name']}  {row['module'] or ''}".rstrip()
        for row in only.iter_rows(named=True)
    ]
    return lines


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
