"""`ulpscope diff` of two environments: files that `ulpscope env` wrote, or traces; and what `compare` asks of them."""

from functools import partial
from pathlib import Path

from ulpscope.diagnose.environment.differences import diff_environments
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.recognising import wrong_kind
from ulpscope.dialects.registry import is_trace
from ulpscope.records.enums import ExitCode
from ulpscope.records.environments import Environment, EnvironmentDifference
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.report.terminal.environment import environment_diff_json, environment_diff_text
from ulpscope.trace.environment import environment_of_rank, is_environment, read_environment
from ulpscope.trace.reader import Trace
from ulpscope.workflows.answers import SpokenAnswer

_EXPECTED = "two files of `ulpscope env -o FILE`, two traces, or one of each"


def tells_environment(reference: Path, target: Path) -> bool:
    """Whether these two are compared as environments: a file of one is enough, its partner's fault is told then."""
    return any(map(is_environment, (reference, target))) or all(map(is_trace, (reference, target)))


def diff_of_environments(reference: Path, target: Path, *, count: int) -> SpokenAnswer:
    """What two environments have otherwise, what is likely to matter first; `count` are listed, all if 0."""
    sides = Pair(_ranks(reference), _ranks(target))
    shared = [rank for rank in sides.reference if rank in sides.target]
    if not shared:
        raise UlpscopeError(
            f"{reference} and {target} have no rank in common",
            expected=_EXPECTED,
            next_step="name traces of the same ranks",
        )
    found = diff_environments(
        [(rank, Pair(sides.reference[rank], sides.target[rank])) for rank in shared],
        paths=Pair(str(reference), str(target)),
    )
    code = ExitCode.OK if found.agrees else ExitCode.DIFFERENCE
    return SpokenAnswer(
        found,
        code if found.compared else ExitCode.NOTHING,
        partial(environment_diff_text, count=count),
        environment_diff_json,
        has_page=False,
    )


def _ranks(path: Path) -> dict[int, Environment]:
    """By rank; a file of `ulpscope env` is of the first one."""
    if is_environment(path):
        return {0: read_environment(path)}
    if not is_trace(path):
        raise wrong_kind(path, "a file of `ulpscope env -o FILE` or a trace") or UlpscopeError(
            f"{path} is neither a trace nor a file of `ulpscope env`",
            expected=_EXPECTED,
            next_step="write one: ulpscope env -o FILE",
        )
    return {rank.info.rank: environment_of_rank(rank, contents=True) for rank in open_run(path).ranks}


def differences_of_runs(traces: Pair[Trace]) -> tuple[EnvironmentDifference, ...]:
    """What the processes of two runs had otherwise, beside what they computed with, of which compare tells itself."""
    told = traces.map(lambda trace: {rank.info.rank: environment_of_rank(rank, contents=False) for rank in trace.ranks})
    pairs = [(rank, Pair(told.reference[rank], told.target[rank])) for rank in told.reference if rank in told.target]
    return diff_environments(pairs, paths=traces.map(lambda trace: str(trace.path))).differences
