"""The way of an overflow: who hands it on, and where it ends."""

import math
from pathlib import Path

from tests.unit.handmade import HandmadeRun

from ulpscope.records.enums import Phase
from ulpscope.records.overflows import WayCall
from ulpscope.trace.overflow.births import OverflowWays
from ulpscope.trace.reader import open_trace
from ulpscope.workflows.overflow import overflow

INF, NAN = math.inf, math.nan


class Ways:
    """Of the first step."""

    def __init__(self, run: HandmadeRun, path: Path) -> None:
        self._ways = OverflowWays(open_trace(run.write(path / "run")).ranks[0])

    def way_of(self, born: int) -> tuple[WayCall, ...]:
        return self._ways.way_of(born, 0)


def ways(run: HandmadeRun, tmp_path: Path) -> Ways:
    return Ways(run, tmp_path)


def names(way: tuple[WayCall, ...]) -> list[str]:
    return [call.call for call in way]


def test_it_goes_from_call_to_call_to_the_loss(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0, 100.0])
    born = run.call("exp", reads={"args.0": x}, makes={"output.0": [2.7, INF]}, module="model.act")
    aside = run.call("relu", reads={"args.0": run.output(born)}, makes={"output.0": [2.7, INF]})
    second = run.call("sub", reads={"args.0": run.output(born)}, makes={"output.0": [0.0, NAN]})
    healed = run.call("nan_to_num", reads={"args.0": run.output(aside)}, makes={"output.0": [2.7, 1.0]})
    run.call("neg", reads={"args.0": run.output(healed)}, makes={"output.0": [-2.7, -1.0]})
    loss = run.call("mean", reads={"args.0": run.output(second)}, makes={"output.0": [NAN]})
    backward = run.call("backward", phase="backward")
    run.use(backward, "loss", "args.0", run.output(loss))
    way = ways(run, tmp_path).way_of(born)
    assert names(way) == ["exp.0", "sub.0", "mean.0"]
    assert [(call.not_finite.nan, call.not_finite.pos_inf) for call in way] == [(0, 1), (1, 0), (1, 0)]
    assert [call.is_loss for call in way] == [False, False, True]
    assert (way[0].module, way[0].phase, way[0].tensor) == ("model.act", Phase.FORWARD, "output.0")


def test_without_a_loss_it_ends_at_the_last_call_of_its_phase(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    born = run.call("exp", reads={"args.0": x}, makes={"output.0": [INF]})
    last = run.call("neg", reads={"args.0": run.output(born)}, makes={"output.0": [-INF]})
    run.call("neg", reads={"args.0": run.output(last)}, makes={"output.0": [INF]}, phase="backward")
    way = ways(run, tmp_path).way_of(born)
    assert names(way) == ["exp.0", "neg.0"]
    assert not way[-1].is_loss


def test_what_nobody_takes_on_has_no_way(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    born = run.call("exp", reads={"args.0": x}, makes={"output.0": [INF]})
    run.call("sigmoid", reads={"args.0": run.output(born)}, makes={"output.0": [1.0]})
    other = run.call("log", reads={"args.0": x}, makes={"output.0": [-INF]})
    assert ways(run, tmp_path).way_of(born) == ()
    assert ways(run, tmp_path / "again").way_of(other) == ()


def test_calls_around_others_are_left_out(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    outer = run.call("Block", reads={"args.0": x}, makes={"output.0": [-INF]}, kind="module")
    born = run.call("exp", reads={"args.0": x}, makes={"output.0": [INF]}, parent=outer)
    run.call("neg", reads={"args.0": run.output(born)}, makes={"output.0": run.output(outer)}, parent=outer)
    assert names(ways(run, tmp_path).way_of(born)) == ["exp.0", "neg.0"]


def test_an_input_with_the_same_bits_is_the_output_of_a_dump(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0, 2.0])
    born = run.call("exp", reads={"args.0": x}, makes={"output.0": [3.0, INF]})
    run.call("neg", reads={"args.0": run.value([3.0, INF])}, makes={"output.0": [-3.0, -INF]})
    assert names(ways(run, tmp_path).way_of(born)) == ["exp.0", "neg.0"]


def test_the_same_bits_of_another_call_are_not_taken_on(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0, 2.0])
    born = run.call("exp", reads={"args.0": x}, makes={"output.0": [3.0, INF]})
    other = run.call("square", reads={"args.0": x}, makes={"output.0": [3.0, INF]})
    run.call("neg", reads={"args.0": run.output(other)}, makes={"output.0": [-3.0, -INF]})
    assert ways(run, tmp_path).way_of(born) == ()
    assert names(ways(run, tmp_path / "again").way_of(other)) == ["square.0", "neg.0"]


def test_an_optimizer_is_given_its_gradients(tmp_path: Path) -> None:
    run = HandmadeRun()
    weight, x = run.value([1.0, 2.0]), run.value([1.0])
    born = run.call("exp", reads={"args.0": x}, makes={"grad.0": [NAN, 1.0]}, made_role="grad_input", phase="backward")
    update = run.call("SGD", makes={"w": [NAN, 1.0]}, made_role="parameter_after", kind="optimizer", phase="update")
    run.use(update, "parameter", "w", weight)
    run.use(update, "gradient", "w", run.output(born, "grad.0"))
    answer = overflow([run.write(tmp_path / "run", framework={"name": "tensorflow"})])
    assert [finding.place.call for finding in answer.survey.findings] == ["exp.0"]
    assert answer.survey.counts.inherited == 1


def test_of_several_tensors_the_one_is_told_that_goes_on(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    born = run.call("split", reads={"args.0": x}, makes={"output.0": [INF, 1.0], "output.1": [INF, INF]})
    run.call("neg", reads={"args.0": run.output(born, "output.1")}, makes={"output.0": [-INF, -INF]})
    assert [(call.call, call.tensor) for call in ways(run, tmp_path).way_of(born)] == [
        ("split.0", "output.1"),
        ("neg.0", "output.0"),
    ]


def test_what_goes_past_the_loss_goes_on_in_the_next_step(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    born = run.call("exp", reads={"args.0": x}, makes={"grad.0": [INF]}, made_role="grad_input", phase="backward")
    update = run.call("SGD", makes={"w": [NAN]}, made_role="parameter_after", kind="optimizer", phase="update")
    run.use(update, "gradient", "w", run.output(born, "grad.0"))
    run.step = 1
    loss = run.call("mean", reads={"args.0": run.output(update, "w")}, makes={"output.0": [NAN]})
    run.use(run.call("backward", phase="backward"), "loss", "args.0", run.output(loss))
    way = ways(run, tmp_path).way_of(born)
    assert [(call.step, call.call, call.is_update, call.is_loss) for call in way] == [
        (0, "exp.0", False, False),
        (0, "SGD.0", True, False),
        (1, "mean.0", False, True),
    ]


def test_one_nan_is_not_taken_for_another(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    born = run.call("log", reads={"args.0": x}, makes={"output.0": run.value([NAN], storage=1)})
    last = run.call("neg", reads={"args.0": run.output(born)}, makes={"output.0": run.value([NAN, 1.0], storage=2)})
    loss = run.call("sum", reads={"args.0": run.output(last)}, makes={"output.0": run.value([-NAN], storage=3)})
    # A view of the loss, made where nobody looked, has the bits of the first nan.
    view = run.value([NAN], storage=3)
    run.use(run.call("backward", phase="backward"), "loss", "args.0", view)
    assert names(ways(run, tmp_path).way_of(born)) == ["log.0", "neg.0", "sum.0"]
    assert loss > last
