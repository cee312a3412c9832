"""Whether the calls of two traces can be executed again; if not, why, and what to do about it."""

import importlib.util

import polars as pl

from ulpscope.align.plan import Plan
from ulpscope.dialects.rank_infos import is_network
from ulpscope.operations.names import STARTS_BACKWARD
from ulpscope.records.enums import Kind
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.ledger import Ledger, Replay
from ulpscope.trace.reader import RankTrace

NO_TORCH = "torch is not installed here"
NO_CALLS = "no pair of API calls"
NOT_TORCH = "the operators are a network's, which torch does not have"
NO_DATA = {side: f"the {side} has no saved data" for side in ("reference", "target")}
_NEXT_STEPS = {
    NO_TORCH: "install torch, or leave --replay on out",
    NO_CALLS: "capture both runs again at level api with --save tensors, or leave --replay on out",
    NOT_TORCH: "leave --replay on out; ulpscope check DUMP --graph GRAPH computes operators that an NPU dumped",
}
_CAPTURE_AGAIN = "capture both runs again with --save tensors, or leave --replay on out"


def obstacles(plan: Plan) -> list[str]:
    """Why these calls cannot be executed again; the dearest to mend first."""
    if any(is_network(trace.info) for side in NO_DATA for trace in _side(plan, side)):
        return [NOT_TORCH]
    without = [text for side, text in NO_DATA.items() if not all(_has_data(traces) for traces in _side(plan, side))]
    found = [*without, *([] if api_pairs(plan) else [NO_CALLS])]
    return found if importlib.util.find_spec("torch") is not None else [*found, NO_TORCH]


def refuse(seen: list[str]) -> UlpscopeError:
    """What to say to a user who asked for it."""
    return UlpscopeError(
        f"--replay on, but {seen[0]}",
        expected="two traces with API calls and the data of their tensors, and torch to execute them with",
        next_step=_NEXT_STEPS.get(seen[0], _CAPTURE_AGAIN),
    )


def nothing_executed(plan: Plan, seen: list[str]) -> Ledger | None:
    """What to say to a user who did not ask: nothing, if no trace holds data, or calls of torch."""
    if NOT_TORCH in seen or all(text in seen for text in NO_DATA.values()):
        return None
    return Ledger(Replay.AUTO, left=((seen[0], api_pairs(plan)),))


def api_pairs(plan: Plan) -> int:
    """How many pairs of API calls there are, beside those that only run backwards."""
    found = 0
    for rank in plan.ranks:
        calls = rank.calls.target.filter(pl.col("kind") == Kind.API.value, ~pl.col("op").is_in(STARTS_BACKWARD))
        found += rank.pairs.join(calls, left_on="target", right_on="id", how="semi").height
    return found


def _side(plan: Plan, side: str) -> list[RankTrace]:
    return [rank.traces.reference if side == "reference" else rank.traces.target for rank in plan.ranks]


def _has_data(trace: RankTrace) -> bool:
    saved = trace.values().filter(pl.col("data_file").is_not_null()).select("id").head(1)
    return not trace.collect(saved).is_empty()
