"""What a worker makes of an engine's evidence: judged, skipped with a reason, saved, or given up."""

import io
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tests.unit.handmade import HandmadeRun

from ulpscope.records.check_runs import CheckStandard
from ulpscope.records.checks import (
    CaseId,
    DataSource,
    Direction,
    OutputEvidence,
    Rule,
    ShareEvidence,
    Variant,
    Verdict,
)
from ulpscope.records.errors import UlpscopeError
from ulpscope.replay.recorded import CannotReplayError, RecordedCall
from ulpscope.trace.reader import RankTrace
from ulpscope.workflows.check.journal import Message, WorkerSettings, record_json
from ulpscope.workflows.check.worker import Bench, Engine, failing_name, serve


def evidence(computed: list[float], exact: list[float], direction: Direction = Direction.FORWARD) -> OutputEvidence:
    return OutputEvidence(
        place="output.0" if direction is Direction.FORWARD else "grad.args.0",
        direction=direction,
        rule=Rule.EXACT,
        dtype="float32",
        computed=np.array(computed),
        exact=np.array(exact),
        reduction=1.0,
        accumulation=2.0**-24,
        input_roundoff=2.0**-24,
    )


RIGHT = evidence([1.0, 2.0], [1.0, 2.0])
WRONG = evidence([1.0, 2.0], [1.0, 3.0])
WRONG_GRADIENT = evidence([1.0, 2.0], [1.0, 3.0], Direction.BACKWARD)


@dataclass
class Given:
    """Evidence made by hand."""

    evidence: list[OutputEvidence | ShareEvidence]
    refined: int = 0

    def refine(self) -> None:
        self.refined += 1

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {"input.args.0": np.arange(6, dtype=np.float32).reshape(2, 3).T, "scalar": np.float64(1.5)}


@dataclass
class ByName:
    """Does with a case what stands under the name of its operation."""

    results: dict[str, Any]
    seen: list[str] = field(default_factory=list)

    def execute(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> Given:
        assert recorded.call.id == case.call
        self.seen.append(f"{rank.name}/{case.name}")
        found = self.results[case.op]
        if isinstance(found, Exception):
            raise found
        return Given(found)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    run = HandmadeRun()
    value = run.value([1.0, 2.0])
    for op in ("right", "wrong", "odd"):
        run.call(op, reads={"args.0": value}, makes={"output.0": [1.0, 2.0]})
    return run.write(tmp_path / "trace")


def settings_of(trace: Path, failing: Path | None = None) -> WorkerSettings:
    return WorkerSettings(str(trace), device="cpu", seed=0, standard=CheckStandard.ROUNDING, failing=failing)


def case(number: int, op: str) -> CaseId:
    return CaseId("rank0", number, f"{op}.0", op, Variant.RECORDED, DataSource.REAL)


def check(trace: Path, engine: Engine, *cases: CaseId, failing: Path | None = None) -> list[Any]:
    return [checked.result for checked in Bench(settings_of(trace, failing), engine).check(cases)]


def test_each_direction_has_its_verdict(trace: Path) -> None:
    engine = ByName({"right": [RIGHT], "wrong": [RIGHT, WRONG_GRADIENT]})
    right, wrong = check(trace, engine, case(0, "right"), case(1, "wrong"))
    assert (right.forward, right.backward, right.message) == (Verdict.PASS, None, "")
    assert (wrong.forward, wrong.backward) == (Verdict.PASS, Verdict.FAIL)
    assert wrong.message == wrong.outputs[1].message != ""
    assert engine.seen == ["rank0/right.0", "rank0/wrong.0"]


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (CannotReplayError("needs 900.0 GiB of memory"), "needs 900.0 GiB of memory"),
        (TypeError("linear() got 4 arguments\nand more"), "TypeError: linear() got 4 arguments"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_what_cannot_be_executed_is_skipped_with_its_reason(trace: Path, raised: Exception, reason: str) -> None:
    odd, right = check(trace, ByName({"odd": raised, "right": [RIGHT]}), case(2, "odd"), case(0, "right"))
    assert (odd.forward, odd.backward, odd.message) == (Verdict.SKIP, None, reason)
    assert right.forward is Verdict.PASS


def test_a_call_that_cannot_be_read_costs_itself_alone(trace: Path) -> None:
    for file in trace.rglob("calls-*.parquet"):
        broken = pl.col("arguments").str.replace_all('"', "").alias("arguments")
        frame = pl.read_parquet(file)
        frame.with_columns(
            pl.when(pl.col("op") == "odd").then(broken).otherwise("arguments").alias("arguments")
        ).write_parquet(file)
    odd, right = check(trace, ByName({"right": [RIGHT]}), case(2, "odd"), case(0, "right"))
    assert odd.verdict is Verdict.SKIP
    assert "arguments of call 2" in odd.message
    assert right.verdict is Verdict.PASS


def test_an_output_that_stays_undecided_is_told(trace: Path) -> None:
    unclear = replace(WRONG, rule=Rule.ROUNDED, computed=np.array([1.0, 2.5]), exact=np.array([1.0, 2.0]))
    (alone,) = check(trace, ByName({"odd": [unclear]}), case(2, "odd"))
    assert (alone.forward, alone.outputs[0].statistic) == (Verdict.UNTESTED, "undecided")
    (beside,) = check(trace, ByName({"odd": [RIGHT, replace(unclear, place="output.1")]}), case(2, "odd"))
    assert [output.verdict for output in beside.outputs] == [Verdict.PASS, Verdict.UNTESTED]


def test_nothing_to_judge_is_no_pass(trace: Path) -> None:
    (result,) = check(trace, ByName({"right": []}), case(0, "right"))
    assert result.verdict is Verdict.SKIP


def test_a_lost_device_ends_the_worker(trace: Path) -> None:
    error = RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(RuntimeError, match="device-side"):
        check(trace, ByName({"odd": error}), case(2, "odd"))


def test_tensors_of_what_failed_are_saved(trace: Path, tmp_path: Path) -> None:
    engine = ByName({"right": [RIGHT], "wrong": [WRONG]})
    check(trace, engine, case(0, "right"), case(1, "wrong"), failing=tmp_path / "failing")
    (file,) = (tmp_path / "failing").iterdir()
    assert file.name == "rank0.1.wrong.0.recorded.safetensors"
    saved = load_file(file)
    assert saved["input.args.0"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert saved["scalar"].shape == ()


def test_a_file_name_is_one_whatever_a_trace_calls_things() -> None:
    hostile = CaseId("rank0", 3, f"../../etc/{'x' * 900}\x1b", "op", Variant.TINY, DataSource.REAL)
    name = failing_name(hostile)
    assert "/" not in name
    assert "\x1b" not in name
    assert len(name) < 255
    assert name.endswith(".tiny.safetensors")


def conversation(trace: Path, engine: Any, *orders: Any) -> list[Message]:
    lines = [json.dumps(record_json(settings_of(trace))), *(json.dumps(order) for order in orders)]
    answers = io.StringIO()
    serve(lambda _: engine() if callable(engine) else engine, orders=io.StringIO("\n".join(lines)), answers=answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_it_greets_and_answers_a_line_a_case(trace: Path) -> None:
    engine = ByName({"right": [RIGHT], "wrong": [WRONG]})
    told = conversation(trace, engine, [record_json(case(0, "right")), record_json(case(1, "wrong"))])
    assert told[0] == {"hello": "cpu"}
    assert [answer["forward"] for answer in told[1:]] == ["PASS", "FAIL"]
    assert told[2]["case"]["name"] == "wrong.0"


def test_an_error_of_the_users_is_its_greeting(trace: Path) -> None:
    def no_device() -> Engine:
        raise UlpscopeError("no cuda:7", expected="cpu", next_step="--device cpu")

    assert conversation(trace, no_device) == [{"error": ["no cuda:7", "cpu", "--device cpu"]}]


class WithoutBackward:
    """A device that has no kernel for the backward."""

    def __init__(self, forward: list[OutputEvidence | ShareEvidence]) -> None:
        self._forward = forward

    def execute(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> Given:
        if recorded.grad_outputs:
            raise NotImplementedError("no backward on this device")
        return Given(self._forward)


@pytest.mark.parametrize(("given", "forward"), [([RIGHT], Verdict.PASS), ([WRONG], Verdict.FAIL)])
def test_a_forward_is_judged_although_its_backward_cannot_be_executed(
    tmp_path: Path, given: list[OutputEvidence | ShareEvidence], forward: Verdict
) -> None:
    run = HandmadeRun()
    value = run.value([1.0, 2.0])
    number = run.call("odd", reads={"args.0": value}, makes={"output.0": [1.0, 2.0]})
    run.call("odd", reads={"output.0": value}, role="grad_output", kind="backward", phase="backward", forward=number)
    (result,) = check(run.write(tmp_path / "trace"), WithoutBackward(given), case(number, "odd"))
    assert (result.forward, result.backward) == (forward, Verdict.SKIP)
    assert forward is Verdict.FAIL or "no backward on this device" in result.message
