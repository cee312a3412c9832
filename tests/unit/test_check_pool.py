"""Worker processes die, hang and come late; each of them costs one case."""

from pathlib import Path

import pytest
from tests.unit.checking import case, log_of, settings

from ulpscope.records.check_runs import CheckedCase
from ulpscope.records.checks import Verdict
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.check import pool as check_pool
from ulpscope.workflows.check.pool import Pool, PoolSettings, device_of


def by_name(results: list[CheckedCase]) -> dict[str, Verdict]:
    return {checked.result.case.op.removeprefix("torch."): checked.result.verdict for checked in results}


def test_every_case_is_executed_once(tmp_path: Path) -> None:
    cases = [case(number, f"op{number}") for number in range(20)]
    results = list(Pool(cases, settings(tmp_path)).run())
    assert sorted(checked.result.case.call for checked in results) == list(range(20))
    assert sorted(log_of(tmp_path)) == sorted(each.name for each in cases)


def test_a_crash_costs_one_case(tmp_path: Path) -> None:
    cases = [case(0, "relu"), case(1, "segfault"), case(2, "gelu"), case(3, "leave"), case(4, "silu")]
    results = list(Pool(cases, settings(tmp_path, jobs=1)).run())
    assert by_name(results) == {
        "relu": Verdict.PASS,
        "segfault": Verdict.CRASH,
        "gelu": Verdict.PASS,
        "leave": Verdict.CRASH,
        "silu": Verdict.PASS,
    }
    told = {checked.result.case.op: checked.result.message for checked in results}
    assert told["torch.segfault"] == "died of SIGSEGV: about to fall"
    assert told["torch.leave"] == "exited with code 7"


def test_last_words_are_those_of_the_case_that_crashed(tmp_path: Path) -> None:
    cases = [case(0, "segfault_first"), case(1, "relu"), case(2, "leave")]
    results = list(Pool(cases, settings(tmp_path, jobs=1)).run())
    assert results[-1].result.message == "exited with code 7"


def test_a_hang_costs_one_case(tmp_path: Path) -> None:
    cases = [case(0, "hang"), case(1, "relu"), case(2, "gelu")]
    results = list(Pool(cases, settings(tmp_path, jobs=1, timeout=0.5)).run())
    assert by_name(results) == {"hang": Verdict.TIMEOUT, "relu": Verdict.PASS, "gelu": Verdict.PASS}
    assert "within 0.5 seconds" in results[0].result.message


def test_results_do_not_depend_on_jobs_or_order(tmp_path: Path) -> None:
    names = ["relu", "wrong", "segfault", *(f"op{number}" for number in range(9))]
    cases = [case(number, name) for number, name in enumerate(names)]
    devices = ("cpu", "cuda:0", "cuda:1")
    found = []
    for order, jobs in ((cases, 1), (cases[::-1], 4)):
        results = Pool(order, settings(tmp_path, jobs=jobs, devices=devices)).run()
        found.append(sorted(results, key=lambda checked: checked.result.case.call))
    assert found[0] == found[1]
    assert len({checked.device for checked in found[0]}) > 1


def test_a_device_depends_on_the_case_alone() -> None:
    chosen = {device_of(case(number, "relu"), ("a", "b")) for number in range(16)}
    assert chosen == {"a", "b"}
    assert device_of(case(3, "relu"), ("a", "b")) == device_of(case(3, "relu"), ("a", "b"))


def test_an_error_of_the_users_ends_the_check(tmp_path: Path) -> None:
    refusing = "print(json.dumps({'error': ['no device cuda:7', 'one of cpu', 'name another']})); sys.exit()"
    with pytest.raises(UlpscopeError, match="no device cuda:7") as caught:
        list(Pool([case(0, "relu")], settings(tmp_path, start=refusing)).run())
    assert caught.value.expected == "one of cpu"
    assert int(caught.value.code) == 2


def test_a_worker_that_cannot_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    start = "raise ModuleNotFoundError('No module named torch')"
    with pytest.raises(UlpscopeError, match=r"exited with code 1 before it was ready: .*No module named torch"):
        list(Pool([case(0, "relu")], settings(tmp_path, start=start)).run())


def test_a_processor_without_amx_is_asked_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    start = "if 'ONEDNN_MAX_CPU_ISA' not in os.environ: os.kill(os.getpid(), signal.SIGILL)"
    pool = Pool([case(number, "relu") for number in range(4)], settings(tmp_path, start=start))
    assert {checked.result.verdict for checked in pool.run()} == {Verdict.PASS}
    (remark,) = pool.remarks
    assert "SIGILL" in remark
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in remark


def test_an_illegal_instruction_that_stays_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    with pytest.raises(UlpscopeError, match="died of SIGILL before it was ready"):
        list(Pool([case(0, "relu")], settings(tmp_path, start="os.kill(os.getpid(), signal.SIGILL)")).run())


def test_a_worker_that_never_greets_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_pool, "START_SECONDS", 0.3)
    with pytest.raises(UlpscopeError, match=r"not started within 0\.3 seconds"):
        list(Pool([case(0, "relu")], settings(tmp_path, start="time.sleep(600)")).run())


def test_workers_have_one_thread_each(tmp_path: Path) -> None:
    start = "assert os.environ['OMP_NUM_THREADS'] == os.environ['MKL_NUM_THREADS'] == '1'"
    assert len(list(Pool([case(0, "relu")], settings(tmp_path, start=start)).run())) == 1


def test_workers_are_gone_when_nobody_listens_any_more(tmp_path: Path) -> None:
    pids = "open(log + '.pids', 'a').write(f'{os.getpid()} ')"
    cases = [case(0, "relu"), *(case(number, "hang") for number in range(1, 6))]
    results = Pool(cases, settings(tmp_path, start=pids)).run()
    next(results)
    results.close()
    for pid in (tmp_path / "log.pids").read_text().split():
        assert not Path(f"/proc/{pid}").exists()


def test_no_cases_need_no_workers(tmp_path: Path) -> None:
    nowhere = PoolSettings({"cpu": {}}, jobs=2, timeout=1.0, command=(str(tmp_path / "nothing"),))
    assert list(Pool([], nowhere).run()) == []
