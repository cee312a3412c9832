"""How the two runs of a comparison were captured: at which level, with which filters, and whether they are one run."""

from ulpscope.align.plan import Plan
from ulpscope.diagnose.comparing import Captured
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace, Trace


def captured_alike(traces: Pair[Trace], plan: Plan) -> Captured:
    """What was captured of both runs, as far as it bears on what can be compared."""
    reference, target = (trace.ranks[0].info.capture for trace in (traces.reference, traces.target))
    filters = _filters(reference), _filters(target)
    return Captured(
        levels=(str(reference.get("level", "api")), str(target.get("level", "api"))),
        filters=filters if filters[0] != filters[1] else None,
        same_run=all(_is_one(rank.traces) for rank in plan.ranks),
    )


def _filters(capture: dict[str, object]) -> str:
    """`--only torch.relu --skip torch.mul`; empty where every call was captured."""
    given = [(option, capture.get(option)) for option in ("only", "skip")]
    return " ".join(f"--{option} {name}" for option, names in given if isinstance(names, list) for name in names)


def _is_one(traces: Pair[RankTrace]) -> bool:
    """Whether both are one process of one run."""
    one, other = traces.reference, traces.target
    return (one.directory.resolve(), one.name) == (other.directory.resolve(), other.name)
