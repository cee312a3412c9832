"""A trace's calls are executed by the framework that made them, and a missing one is named."""

from pathlib import Path

import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.evidence import Replay
from ulpscope.replay import frameworks
from ulpscope.replay.frameworks import Framework, framework_of, needed_framework
from ulpscope.trace.reader import Trace, open_trace
from ulpscope.workflows.check.command import check, plan_check
from ulpscope.workflows.compare.command import CompareOptions, compare
from ulpscope.workflows.repro import ReproOptions, repro


def traced(folder: Path, framework: str) -> Trace:
    run = HandmadeRun()
    arguments = {"args": [{"$tensor": "args.0"}]}
    run.call(
        "tf.raw_ops.Relu", reads={"args.0": run.value([1.0, -2.0])}, makes={"output.0": [1.0, 0.0]}, arguments=arguments
    )
    return open_trace(run.write(folder / framework, framework={"name": framework, "version": "2"}))


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "find_spec", lambda name: None)


def test_what_a_trace_needs_is_what_made_it(tmp_path: Path) -> None:
    ranks = [traced(tmp_path, name).ranks[0] for name in ("tensorflow", "torch", "mindspore")]
    assert [framework_of(rank) for rank in ranks] == [Framework.TENSORFLOW, Framework.TORCH, Framework.TORCH]


@pytest.mark.parametrize(("name", "shown"), [("tensorflow", "TensorFlow"), ("torch", "torch")])
def test_a_framework_that_is_not_there_is_named_with_the_way_to_it(tmp_path: Path, name: str, shown: str) -> None:
    with pytest.raises(UlpscopeError, match=f"is a trace of {shown}, which is not installed") as caught:
        needed_framework(traced(tmp_path, name))
    assert (caught.value.code, caught.value.next_step) == (2, f"pip install 'ulpscope[{name}]'")


def test_check_and_repro_of_a_tensorflow_trace_ask_for_tensorflow(tmp_path: Path) -> None:
    trace = traced(tmp_path, "tensorflow")
    with pytest.raises(UlpscopeError, match="a trace of TensorFlow"):
        check(plan_check(trace.path, CheckOptions()), CheckOptions())
    with pytest.raises(UlpscopeError, match="a trace of TensorFlow"):
        repro(trace.path, 0, tmp_path / "out", ReproOptions())


def test_compare_does_not_execute_runs_of_two_frameworks(tmp_path: Path) -> None:
    paths = [traced(tmp_path, name).path for name in ("tensorflow", "torch")]
    with pytest.raises(UlpscopeError, match="the runs are of two frameworks"):
        compare(*paths, CompareOptions(replay=Replay.ON))
