"""Two runs of one command, bit by bit: which call is the first, and why it differs."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.diagnose.repeating import Compared, compare_bits
from ulpscope.records.enums import Phase
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Place
from ulpscope.records.pairs import Pair
from ulpscope.records.repeats import Part, Parting, Repetition, Switch, Trial
from ulpscope.records.runs import CaptureSettings
from ulpscope.report.terminal.repeat import repetition_json, repetition_text
from ulpscope.report.words.language import Language
from ulpscope.trace.reader import open_trace
from ulpscope.workflows.repeat import command
from ulpscope.workflows.repeat.switches import candidates, switched, variables_of

X = [1.0, 2.0]


def parting_of(tmp_path: Path, *runs: HandmadeRun) -> Parting | None:
    traces = []
    for number, run in enumerate(runs):
        run.write(tmp_path / str(number))
        traces.append(open_trace(tmp_path / str(number)))
    found = compare_bits(Pair(*traces)).partings
    return found[0] if found else None


def chain(made: Any, *, given: Any = X, **columns: Any) -> HandmadeRun:
    """A call that makes something of what is given, and one that passes it on."""
    run = HandmadeRun()
    call = run.call("torch.mul", reads={"args.0": run.value(given)}, makes={"output.0": made}, **columns)
    made_value = next(use["value"] for use in run.uses if use["call"] == call and use["role"] == "output")
    run.call("torch.relu", reads={"args.0": made_value}, makes={"output.0": made})
    return run


def told(parting: Parting | None) -> tuple[Part, str | None] | None:
    return None if parting is None else (parting.part, parting.place.call)


def test_runs_of_the_same_bits_repeat(tmp_path: Path) -> None:
    assert parting_of(tmp_path, chain(X), chain(X)) is None


def test_the_first_call_that_gives_other_bits_is_told(tmp_path: Path) -> None:
    found = parting_of(tmp_path, chain(X), chain([1.0, 2.5]))
    assert told(found) == (Part.COMPUTATION, "torch.mul.0")
    assert found is not None
    assert (found.differing, found.calls) == (2, 2)


@pytest.mark.parametrize(("state", "part"), [("b", Part.GENERATOR), ("a", Part.RANDOM)])
def test_a_random_call_is_asked_for_its_generator(tmp_path: Path, state: str, part: Part) -> None:
    runs = chain(X, random=True, generator="a"), chain([1.0, 2.5], random=True, generator=state)
    assert told(parting_of(tmp_path, *runs)) == (part, "torch.mul.0")


def test_what_is_given_from_outside_is_told_with_its_place(tmp_path: Path) -> None:
    found = parting_of(tmp_path, chain(X), chain(X, given=[3.0, 4.0]))
    assert told(found) == (Part.GIVEN, "torch.mul.0")
    assert found is not None
    assert found.place.tensor == "args.0"


def test_numbers_of_the_script_and_tensors_made_of_them(tmp_path: Path) -> None:
    runs = [chain([1.0, each], arguments={"args": [each], "returned": 1}) for each in (2.0, 3.0)]
    assert told(parting_of(tmp_path / "a", *runs)) == (Part.ARGUMENT, "torch.mul.0")
    made = [HandmadeRun() for _ in range(2)]
    for run, number in zip(made, (1.0, 2.0), strict=True):
        run.call("torch.from_numpy", makes={"output.0": [number]})
    assert told(parting_of(tmp_path / "b", *made)) == (Part.OUTSIDE, "torch.from_numpy.0")


def test_memory_that_nobody_has_written_differs_from_nothing(tmp_path: Path) -> None:
    runs = [HandmadeRun() for _ in range(2)]
    for run, noise in zip(runs, (5.0, 6.0), strict=True):
        run.call(
            "torch.nn.init.zeros_", reads={"args.0": run.value([noise], initialized=False)}, makes={"output.0": [0]}
        )
    assert parting_of(tmp_path, *runs) is None


def test_a_module_is_not_blamed_for_what_is_inside_and_a_custom_operation_is(tmp_path: Path) -> None:
    found = {}
    for kind in ("module", "api"):
        runs = [HandmadeRun() for _ in range(2)]
        for run, number in zip(runs, (1.0, 2.0), strict=True):
            given = run.value(X)
            outer = run.call("mine.Op", kind=kind, reads={"args.0": given}, makes={"output.0": [number]})
            run.call(
                "torch.mul",
                parent=outer,
                reads={"args.0": given},
                makes={"output.0": [number]},
                arguments={"args": [number]},
            )
        found[kind] = told(parting_of(tmp_path / kind, *runs))
    assert found == {"module": (Part.ARGUMENT, "torch.mul.0"), "api": (Part.COMPUTATION, "mine.Op.0")}


def test_a_backward_of_a_forward_that_differs_has_made_nothing(tmp_path: Path) -> None:
    runs = []
    for number in (2.0, 3.0):
        run = chain([1.0, number])
        gradient = run.value([1.0, 1.0])
        run.call(
            "torch.mul",
            kind="backward", phase="backward", forward=0, reads={"output.0": gradient}, makes={"args.0": [number, 1.0]},
            role="grad_output", made_role="grad_input",
        )  # fmt: skip
        runs.append(run)
    assert told(parting_of(tmp_path, *runs)) == (Part.COMPUTATION, "torch.mul.0")


def test_other_calls_are_told_where_they_begin(tmp_path: Path) -> None:
    longer = chain(X)
    longer.call("torch.exp", reads={"args.0": longer.value(X)}, makes={"output.0": X})
    assert told(parting_of(tmp_path, chain(X), longer)) == (Part.STRUCTURE, "torch.exp.0")


def test_of_several_ranks_the_one_that_made_it_comes_first(tmp_path: Path) -> None:
    for number, made in enumerate((X, [1.0, 2.5])):
        reduced = HandmadeRun()
        reduced.call(
            "torch.distributed.all_reduce",
            kind="collective",
            reads={"args.0": reduced.value(X)},
            makes={"output.0": made},
        )
        reduced.write(tmp_path / str(number), rank=0, world_size=2)
        chain(made).write(tmp_path / str(number), rank=1, world_size=2)
    found = compare_bits(Pair(open_trace(tmp_path / "0"), open_trace(tmp_path / "1"))).partings
    assert [(each.place.rank, each.part) for each in found] == [(1, Part.COMPUTATION), (0, Part.COLLECTIVE)]


def repetition(part: Part, *trials: Trial) -> Repetition:

    place = Place(0, 0, Phase.FORWARD, call="torch.mul.0", call_id=3, op="torch.mul", module="model", tensor="args.0")
    return Repetition(("python",), 2, 2.0, 10, 20, (Parting(part, place, 1, 10),), trials, ("a", "b"))


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("part", Part)
def test_every_reason_has_words_and_a_switch_to_try(part: Part, language: Language) -> None:
    assert candidates(part)
    found = repetition(part, Trial(tuple(candidates(part)), 3, 3.0, None))
    text = repetition_text(found, width=200, color=False, language=language)
    assert "1.5" in text
    assert "ulpscope show a 3" in text
    entry = repetition_json(found, language)
    json.dumps(entry, allow_nan=False)
    assert entry["switches"] == [switch.value for switch in candidates(part)]
    failed = repetition(part, Trial((Switch.SEED,), 3, 3.0, repetition(part).partings[0]))
    assert repetition_json(failed, language)["switches"] is None
    assert repetition_text(failed, width=80, color=False, language=language)


def test_switches_reach_the_process() -> None:
    settings = switched(CaptureSettings(Path("a")), (Switch.SEED, Switch.DETERMINISTIC))
    assert (settings.seed, settings.deterministic) == (0, True)
    assert switched(CaptureSettings(Path("a")), ()) == CaptureSettings(Path("a"))
    assert variables_of((Switch.ONE_THREAD,))["OMP_NUM_THREADS"] == "1"


def test_what_brings_a_run_further_stays_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A seed mends the first call; the second needs one thread, with the seed still set."""

    class Runner:
        def run(self, name: str, switches: Any = ()) -> tuple[Path, float]:
            path = tmp_path / name
            path.mkdir(exist_ok=True)
            self.on = set(switches)
            return path, 1.0

        def compare(self, first: Path, other: Path) -> Any:
            wanted = [Switch.SEED, Switch.ONE_THREAD]
            left = [place for place, switch in enumerate(wanted) if switch not in self.on]
            return Compared(tuple(parting_at(place) for place in left[:1]), 2, 2)

    tried = command._tried(Runner(), (parting_at(0),), 2)  # type: ignore[arg-type]
    assert [trial.switches for trial in tried] == [
        (Switch.SEED,), (Switch.SEED, Switch.DETERMINISTIC), (Switch.SEED, Switch.ONE_THREAD)
    ]  # fmt: skip
    assert tried[-1].parting is None


def parting_at(number: int) -> Parting:

    place = Place(0, 0, Phase.FORWARD, call=f"op.{number}", call_id=number, op=f"op{number}")
    return Parting(Part.ARGUMENT if number == 0 else Part.COMPUTATION, place, 1, 2)


def test_there_is_no_run_without_a_command() -> None:
    with pytest.raises(UlpscopeError, match="no command"):
        command.repeat((), CaptureSettings(Path()), command.AskedRepeats())
