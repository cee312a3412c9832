"""`ulpscope check NPUDIR --graph GRAPH`: every dumped operator against its definition in high precision."""

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from ulpscope.align.network.names import by_file_name, possible_owners, tell_whole_names
from ulpscope.dialects.ascend.executed import Executed, dumped_run, preferred_of
from ulpscope.dialects.ascend.logical import Preferred
from ulpscope.dialects.ascend.tree import without_parts
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.graph.names import sanitised
from ulpscope.graph.query import all_operators
from ulpscope.judge.soundness.verdicts import judge_output
from ulpscope.records.check_runs import CheckedCall, CheckedCase, CheckOptions, CheckRun, CheckStandard
from ulpscope.records.checks import CaseId, DataSource, OutputResult, Variant, Verdict
from ulpscope.records.enums import ExitCode, Phase
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Place
from ulpscope.records.graphs import Operator
from ulpscope.records.remarks import Counted, remark
from ulpscope.replay.ascend.engine import Dumped, ExecutedOperator
from ulpscope.replay.planning import matches
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.workflows.check.command import CheckResult, Heard, told_check
from ulpscope.workflows.check.journal import WorkerSettings
from ulpscope.workflows.check.worker import judge, judged_case, reason_of, skipped


@dataclass(frozen=True, slots=True)
class DumpedCase:
    """One execution of an operator that is to be checked."""

    case: CaseId
    place: Place
    executed: Executed
    operators: tuple[Operator, ...]
    """As the graph has it; none if it does not, several if its name does not tell which it is."""
    preferred: Preferred

    @property
    def device(self) -> str:
        return f"npu:{self.place.rank}"


@dataclass(frozen=True, slots=True)
class DumpCheckPlan:
    """What of a dump is checked."""

    path: Path
    graph: Path
    cases: tuple[DumpedCase, ...]
    missing: tuple[str, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.device for each in self.cases))


def plan_dump_check(path: Path, graph: Path, options: CheckOptions) -> DumpCheckPlan:
    """Read a graph and the heads of a dump; nothing to check is an error that says why."""
    missing: list[str] = []
    every = list(_cases(path, by_file_name(all_operators(open_graph(graph))), missing))
    listed = f"list what was dumped: ulpscope show {shlex.quote(str(path))}"
    if not any(each.operators for each in every):
        raise UlpscopeError(
            f"{graph} has none of the {len(every)} operators that {path} holds",
            expected="the graph that the device ran when it dumped, ge_proto_*_Build.txt",
            next_step=listed,
            code=ExitCode.NOTHING,
        )
    cases = [each for each in every if _wanted(each.place, options)]
    if not cases:
        raise UlpscopeError(
            f"--only, --skip, --steps and --ranks leave none of the {len(every)} operators of {path}",
            expected="patterns that fit a type, a name or a call, and steps and devices that were dumped",
            next_step=listed,
            code=ExitCode.NOTHING,
        )
    return DumpCheckPlan(path, graph, tuple(cases), tuple(missing))


def check_dumps(plan: DumpCheckPlan, options: CheckOptions, *, figures: bool, heard: Heard) -> CheckResult:
    """Compute and judge every operator; `figures` asks for every metric, also those that no verdict needs."""
    settings = WorkerSettings(str(plan.path), "npu", seed=0, standard=options.standard, figures=figures)
    done: dict[str, tuple[CheckedCase, int]] = {}
    interrupted = False
    pool = ThreadPoolExecutor(options.jobs)
    try:
        for finished in as_completed([pool.submit(_check, each, settings) for each in plan.cases]):
            checked, saturated = finished.result()
            done[checked.result.case.text] = checked, saturated
            heard(checked)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        pool.shutdown(cancel_futures=True)
    ordered = [(each, *done[each.case.text]) for each in plan.cases if each.case.text in done]
    overflowing = [saturated for _, _, saturated in ordered if saturated]
    remarks = []
    if overflowing:
        elements, operators = Counted(sum(overflowing), "element"), Counted(len(overflowing), "operator")
        path = shlex.quote(str(plan.path))
        remarks.append(remark("overflowing", elements=elements, operators=operators, path=path))
    run = CheckRun(
        trace=str(plan.path),
        options=replace(options, devices=plan.devices, stress=False, source=DataSource.REAL),
        calls=tuple([CheckedCall(each.place, each.case.process, (checked,)) for each, checked, _ in ordered]),
        processes=len(plan.devices),
        interrupted=interrupted,
        pending=len(plan.cases) - len(ordered),
        remarks=tuple(remarks),
        missing=plan.missing,
        graph=str(plan.graph),
    )
    return told_check(run)


def _check(each: DumpedCase, settings: WorkerSettings) -> tuple[CheckedCase, int]:
    """What came of a case, and how many elements overflow."""
    begun = time.perf_counter()
    try:
        executed = _executed(each)
        outputs = _judged(executed, settings)
        result = judged_case(each.case, outputs, seconds=time.perf_counter() - begun)
        return CheckedCase(result, each.device), executed.saturated
    except UlpscopeError as error:
        reason = error.seen
    # What one operator's numbers or attributes provoke costs this operator, not the check.
    except Exception as error:
        reason = reason_of(error)
    return CheckedCase(skipped(each.case, reason, seconds=time.perf_counter() - begun), each.device), 0


def _judged(executed: ExecutedOperator, settings: WorkerSettings) -> tuple[OutputResult, ...]:
    """As any call; what fails, but not if the device did what devices may do, is WARN."""
    outputs = judge(executed, settings)
    failing = any(output.verdict is Verdict.FAIL for output in outputs)
    if not failing or settings.standard is not CheckStandard.ROUNDING:
        return outputs
    for words, evidence in executed.excuses():
        again = [judge_output(each) for each in evidence]
        explained = [other is not None and other.verdict is not Verdict.FAIL for other in again]
        outputs = tuple(
            replace(output, verdict=Verdict.WARN, message=f"{output.message}; {words} explains it")
            if excused and output.verdict is Verdict.FAIL
            else output
            for output, excused in zip(outputs, explained, strict=True)
        )
    return outputs


def _executed(each: DumpedCase) -> ExecutedOperator:
    operation = each.executed.operation
    if not each.operators:
        raise CannotReplayError("it is not in the graph")
    if operation is None:
        raise CannotReplayError("only its stats were dumped")
    alike = [one for one in each.operators if sanitised(one.type) == sanitised(each.executed.op_type)]
    if not alike:
        raise CannotReplayError(f"it is {each.operators[0].type} in the graph")
    if len(alike) > 1:
        raise CannotReplayError(f"the graph has {len(alike)} operators of its name and type")
    return ExecutedOperator(alike[0], Dumped(operation.inputs, operation.outputs), each.preferred)


def _cases(path: Path, operators: Mapping[str, Sequence[Operator]], missing: list[str]) -> Iterator[DumpedCase]:
    """All executions in the order, and with the names and ids, that they have where the dump is opened as a trace."""
    steps, left_out = dumped_run(path)
    if not steps:
        raise UlpscopeError(
            f"{path} holds no dump of an NPU",
            expected="a dump path, or a directory of it: files called TYPE.OPERATOR.TASK.STREAM.TIME",
            next_step="check the path; for a trace of ulpscope leave out --graph",
        )
    missing += left_out
    numbers: Counter[int] = Counter()
    for dumped in steps:
        device, step = dumped.device, dumped.step
        missing += dumped.unnamed
        executed, problems = dumped.read()
        missing += [
            remark("step", step=step, remark=remark("problem", problem=error.seen)) for error in problems.values()
        ]
        preferred = preferred_of(executed)
        whole = tell_whole_names(each.op_name for each in executed if each.operation is not None)
        for each in executed:
            number = numbers[device]
            numbers[device] += 1
            case = CaseId(f"device{device}", number, each.name, each.op_type, Variant.RECORDED, DataSource.REAL)
            place = Place(device, step, Phase.FORWARD, each.name, number, each.op_type, each.op_name)
            rivals = operators.get(without_parts(sanitised(each.op_name)), ())
            owners = rivals if each.operation is None else possible_owners(each.operation, rivals, whole=whole)
            yield DumpedCase(case, place, each, tuple(owners), preferred)


def _wanted(place: Place, options: CheckOptions) -> bool:
    if options.ranks is not None and place.rank not in options.ranks:
        return False
    if options.steps is not None and place.step not in options.steps:
        return False
    texts = (place.module or "", place.op or ""), (place.call or "", place.op or "")
    named = [any(matches(patterns, *text) for text in texts) for patterns in (options.only, options.skip)]
    return (not options.only or named[0]) and not (options.skip and named[1])
