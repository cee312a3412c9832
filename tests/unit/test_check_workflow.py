"""A whole check with a worker that executes nothing: rows, files, going on, and what cannot be planned."""

import csv
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.checking import log_of, worker
from tests.unit.handmade import HandmadeRun

from ulpscope.records.check_runs import CheckedCase, CheckOptions
from ulpscope.records.checks import Verdict
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import IntRanges
from ulpscope.workflows.check.command import CheckResult, check, plan_check
from ulpscope.workflows.check.journal import (
    CASES,
    Journal,
    begin_journal,
    check_destination,
    resume_journal,
)

OPS = ("torch.relu", "torch.wrong", "torch.gelu", "torch.segfault", "torch.silu", "torch.empty")
OPTIONS = CheckOptions(stress=False, jobs=2)
TABLES = ("result.csv", "details.csv", "summary.json")


def record(out: Path, *, ops: tuple[str, ...] = OPS, ranks: int = 1, **info: object) -> Path:
    for rank in range(ranks):
        run = HandmadeRun()
        for number, op in enumerate(ops):
            value = run.value([1.0] * (number + 1))
            run.call(op, reads={"args.0": value}, makes={"output.0": [1.0]}, arguments={"args": [number]})
        run.write(out, rank=rank, **info)
    return out


def run_check(
    trace: Path,
    out: Path | None = None,
    *,
    resume: bool = False,
    heard: Callable[[CheckedCase], None] = lambda _: None,
    options: CheckOptions = OPTIONS,
) -> CheckResult:
    plan, command = plan_check(trace, options), worker(trace.parent)
    if out is None:
        return check(plan, options, heard=heard, command=command)
    with journal_of(out, trace, options, resume=resume) as journal:
        result = check(plan, options, journal=journal, heard=heard, command=command)
    result.write(out)
    return result


@contextmanager
def journal_of(out: Path, trace: Path, options: CheckOptions, *, resume: bool) -> Iterator[Journal]:
    opened = plan_check(trace, options).trace
    journal = resume_journal(out, opened, options) if resume else begin_journal(out, opened, options, overwrite=False)
    try:
        yield journal
    finally:
        journal.close()


def contents(out: Path) -> list[bytes]:
    return [(out / name).read_bytes() for name in TABLES]


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_verdicts_of_a_trace(tmp_path: Path) -> None:
    result = run_check(record(tmp_path / "trace"), tmp_path / "out")
    assert (result.verdict, int(result.code)) == ("unsound", 1)
    told = {row["name"]: row for row in rows(tmp_path / "out/result.csv")}
    assert list(told) == [f"{op}.0" for op in OPS]
    assert [row["forward"] for row in told.values()] == ["PASS", "FAIL", "PASS", "CRASH", "PASS", "SKIP"]
    assert told["torch.segfault.0"]["message"] == "died of SIGSEGV: about to fall"
    assert told["torch.empty.0"]["message"] != ""
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [finding["op"] for finding in summary["findings"]] == ["torch.wrong", "torch.segfault"]
    assert summary["findings"][0]["tensor"] == "output.0"
    counts = summary["counts"]
    assert (counts["pass"], counts["fail"], counts["crash"], counts["skip"]) == (3, 1, 1, 1)
    assert counts["apis"] == len(OPS)


def test_details_have_a_row_an_output_and_all_figures(tmp_path: Path) -> None:
    run_check(record(tmp_path / "trace"), tmp_path / "out")
    told = {row["name"]: row for row in rows(tmp_path / "out/details.csv")}
    wrong = told["torch.wrong.0"]
    assert (wrong["place"], wrong["verdict"], wrong["shape"], wrong["worst"]) == (
        "output.0",
        "FAIL",
        "[2, 3]",
        "[1, 2]",
    )
    assert (wrong["worst_computed"], wrong["worst_exact"], wrong["noise"]) == ("1.5", "-inf", "inf")
    assert float(wrong["outlier"]) == len("torch.wrong.0")
    assert (told["torch.segfault.0"]["verdict"], told["torch.segfault.0"]["place"]) == ("CRASH", "")
    assert (wrong["variant"], wrong["data"], wrong["device"]) == ("recorded", "random", "cpu")


class KilledError(Exception):
    """Stands for a kill."""


def stop_after(number: int, error: type[BaseException]) -> Callable[[CheckedCase], None]:
    left = iter(range(number))

    def heard(_: CheckedCase) -> None:
        if next(left, None) is None:
            raise error

    return heard


def test_a_killed_check_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace")
    run_check(trace, tmp_path / "single")
    (tmp_path / "log").unlink()
    with pytest.raises(KilledError):
        run_check(trace, tmp_path / "out", heard=stop_after(2, KilledError))
    before = len((tmp_path / "out" / CASES).read_text().splitlines())
    assert before == 1 + 3
    with open(tmp_path / "out" / CASES, "a") as file:
        file.write('{"case": {"process": "ra')
    run_check(trace, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "single")
    executed = log_of(tmp_path)
    assert sorted(set(executed)) == ["torch.gelu.0", "torch.relu.0", "torch.silu.0", "torch.wrong.0"]
    again = len((tmp_path / "out" / CASES).read_text().splitlines())
    assert again == 1 + 5


def test_a_finished_check_executes_nothing_again(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace")
    run_check(trace, tmp_path / "out")
    before = contents(tmp_path / "out")
    (tmp_path / "log").unlink()
    heard: list[CheckedCase] = []
    run_check(trace, tmp_path / "out", resume=True, heard=heard.append)
    assert log_of(tmp_path) == []
    assert contents(tmp_path / "out") == before
    assert len(heard) == 5


def test_interruption_keeps_what_was_done(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace")
    result = run_check(trace, tmp_path / "out", heard=stop_after(1, KeyboardInterrupt))
    assert int(result.code) == 130
    assert result.run.pending == 3
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["counts"]["apis"] == 3
    assert "interrupted: 3 cases left" in result.text()
    assert int(run_check(trace, tmp_path / "out", resume=True).code) == 1


def test_a_real_signal_interrupts(tmp_path: Path) -> None:
    def heard(_: CheckedCase) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    assert int(run_check(record(tmp_path / "trace"), heard=heard).code) == 130


def test_jobs_change_nothing(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace", ranks=2)
    for jobs in (1, 4):
        options = replace(OPTIONS, jobs=jobs, devices=("cpu", "cuda:0"))
        run_check(trace, tmp_path / f"out{jobs}", options=options)
    assert contents(tmp_path / "out1") == contents(tmp_path / "out4")
    names = [row["process"] for row in rows(tmp_path / "out1/result.csv")]
    assert names == ["rank0"] * len(OPS) + ["rank1"] * len(OPS)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"seed": 1}, "seed 0, not 1"), ({"devices": ("cuda:0",)}, 'devices ["cpu"], not ["cuda:0"]')],
)
def test_results_of_other_options_are_not_gone_on_with(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    trace = record(tmp_path / "trace")
    run_check(trace, tmp_path / "out")
    with pytest.raises(UlpscopeError) as caught:
        run_check(trace, tmp_path / "out", resume=True, options=replace(OPTIONS, **changes))  # type: ignore[arg-type]
    assert named in caught.value.seen


def test_another_trace_is_not_gone_on_with(tmp_path: Path) -> None:
    run_check(record(tmp_path / "trace"), tmp_path / "out")
    other = record(tmp_path / "other", started="2025-02-02T00:00:00")
    with pytest.raises(UlpscopeError, match="was begun with trace"):
        run_check(other, tmp_path / "out", resume=True)


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace")
    run_check(trace, tmp_path / "out")
    path = tmp_path / "out" / CASES
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], '{"case": 3}', *lines[2:]]))
    with pytest.raises(UlpscopeError, match=r"cases.jsonl, line 3, cannot be read"):
        run_check(trace, tmp_path / "out", resume=True)


def test_an_unfinished_check_is_replaced_only_if_asked(tmp_path: Path) -> None:
    trace, out = record(tmp_path / "trace"), tmp_path / "out"
    with pytest.raises(KilledError):
        run_check(trace, out, heard=stop_after(1, KilledError))
    with pytest.raises(UlpscopeError, match="not finished") as caught:
        check_destination(out, overwrite=False, resume=False)
    assert "--resume" in caught.value.next_step
    check_destination(out, overwrite=True, resume=False)
    begin_journal(out, plan_check(trace, OPTIONS).trace, OPTIONS, overwrite=True).close()
    assert len((out / CASES).read_text().splitlines()) == 1


def test_files_of_others_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    for resume in (True, False):
        with pytest.raises(UlpscopeError, match="no result of ulpscope"):
            check_destination(tmp_path, overwrite=not resume, resume=resume)


def test_nothing_checked(tmp_path: Path) -> None:
    result = run_check(record(tmp_path / "trace", ops=("torch.empty",)))
    assert (result.verdict, int(result.code)) == ("nothing_checked", 3)
    assert result.text().startswith("NOTHING CHECKED: not one of 1 API")


def test_a_sound_trace(tmp_path: Path) -> None:
    result = run_check(record(tmp_path / "trace", ops=("torch.relu", "torch.gelu")))
    assert (result.verdict, int(result.code)) == ("sound", 0)
    assert result.run.wrong == ()


def test_a_trace_of_modules_has_nothing_to_check(tmp_path: Path) -> None:
    run = HandmadeRun()
    run.call("Linear", kind="module")
    run.write(tmp_path / "trace", capture={"level": "module"})
    with pytest.raises(UlpscopeError) as caught:
        plan_check(tmp_path / "trace", OPTIONS)
    assert "holds no API calls (it was captured at level module)" in caught.value.seen
    assert "--level api" in caught.value.next_step
    assert int(caught.value.code) == 3


@pytest.mark.parametrize("option", ["only", "skip"])
def test_a_pattern_without_a_match_names_what_is_near(tmp_path: Path, option: str) -> None:
    trace = record(tmp_path / "trace")
    with pytest.raises(UlpscopeError) as caught:
        plan_check(trace, replace(OPTIONS, **{option: ("gelo",)}))  # type: ignore[arg-type]
    assert f"--{option} 'gelo' matches none" in caught.value.seen
    assert "did you mean gelu" in caught.value.expected
    assert caught.value.next_step == f"--{option} gelu"
    assert int(caught.value.code) == 3


def test_patterns_choose(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace")
    only = run_check(trace, options=replace(OPTIONS, only=("gelu", "torch.s*")))
    assert [call.place.op for call in only.run.calls] == ["torch.gelu", "torch.segfault", "torch.silu"]
    rest = run_check(trace, options=replace(OPTIONS, skip=("segfault", "wrong", "empty")))
    assert rest.verdict == "sound"


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"steps": IntRanges(((7, 8),))}, "has no step 7-8"),
        ({"ranks": IntRanges(((3, 3),))}, "has no rank 3"),
    ],
)
def test_steps_and_ranks_that_are_not_there(tmp_path: Path, changes: dict[str, object], seen: str) -> None:
    trace = record(tmp_path / "trace")
    with pytest.raises(UlpscopeError, match=seen) as caught:
        plan_check(trace, replace(OPTIONS, **changes))  # type: ignore[arg-type]
    assert int(caught.value.code) == 3


def test_verdicts_are_counted_as_they_come(tmp_path: Path) -> None:
    heard: list[CheckedCase] = []
    run_check(record(tmp_path / "trace"), heard=heard.append)
    assert sorted(checked.result.verdict.value for checked in heard) == ["CRASH", "FAIL", "PASS", "PASS", "PASS"]
    assert {checked.result.verdict for checked in heard} <= set(Verdict)
